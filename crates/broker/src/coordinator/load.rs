//! Reading a partition of `__consumer_offsets` into groups, once, at a start or an election.
//!
//! The log is read in its order from its start to the end that it had when this node began to lead it, and not before all of
//! that is durable: what is served must be what a later start finds. Other partitions serve meanwhile.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tidelog_core::{
    groups::{
        Now,
        classic::{ClassicGroup, Stored},
        consumer::{ConsumerGroup, ConsumerRecord},
        offsets::OffsetTable,
    },
    read_plan::Isolation,
};
use tidelog_format::batch::{BatchLimits, DecodedBatch, split_batches};
use tidelog_replica::{Fetched, PartitionHandle, ReadError, Waiter};
use tidelog_types::{Offset, TopicName, limits::DECOMPRESSED_BATCH_BYTES_MAX};

use super::{
    group::{Group, Members},
    records::{self, Change},
    shard::Shard,
    topic::shown_place,
    writer::now,
};
use crate::node::Node;

#[cfg(test)]
mod tests;

/// Bytes of one read. Kafka's `offsets.load.buffer.size` is five times as much; the log reads ahead by itself.
const READ_BYTES: usize = 1024 * 1024;

/// How long a read that failed is waited for before it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What the log says of one group, so far.
#[derive(Debug, Default)]
struct Loaded {
    members: Option<Stored>,
    consumers: Option<ConsumerGroup>,
    offsets: OffsetTable,
}

/// What the log says so far.
#[derive(Debug, Default)]
struct Loading {
    groups: BTreeMap<Arc<str>, Loaded>,
    records: u64,
    bad: u64,
}

/// Loads a shard, tries again for as long as the log cannot be read, and has it serve.
pub(super) async fn run(node: Arc<Node>, shard: Arc<Shard>) {
    let metrics = &node.groups.metrics;
    metrics.loading.add(1);
    let began = node.clock.monotonic();
    let loaded = tokio::select! {
        biased;
        () = shard.closed.cancelled() => None,
        loaded = until_read(&node, &shard.handle) => Some(loaded),
    };
    metrics.loading.sub(1);
    let Some(loaded) = loaded else { return };
    let took = node.clock.monotonic().saturating_sub(began);
    metrics.load_seconds.observe_duration(took);
    metrics.bad_records.add(loaded.bad);
    let (records, count) = (loaded.records, loaded.groups.len());
    let settings = node.groups.settings();
    if shard.serve(now(&node), &settings, restored(now(&node), loaded.groups)) && records > 0 {
        let millis = took.as_millis();
        tracing::info!(partition = %shown_place(&shard.handle), records, groups = count, millis, "groups loaded");
    }
}

async fn until_read(node: &Node, handle: &PartitionHandle) -> Loading {
    loop {
        match read(handle).await {
            Ok(loaded) => return loaded,
            Err(error) => {
                tracing::warn!(partition = %shown_place(handle), %error, "groups cannot be loaded, trying again");
                node.clock.sleep(RETRY).await;
            }
        }
    }
}

/// Reads from the log start to the end as it is now.
async fn read(handle: &PartitionHandle) -> Result<Loading, ReadError> {
    let waiter = Waiter::new();
    let _registered = handle.register_wake(&waiter);
    let snapshot = handle.snapshot();
    let (mut at, end) = (snapshot.log_start, snapshot.log_end);
    let mut loading = Loading::default();
    while at < end {
        let (_, fetched) = handle.read(at, READ_BYTES, Isolation::ReadUncommitted, true, None).await;
        match fetched? {
            Fetched::Hot(read) if read.next > at => {
                loading.take(joined(read.chunks), at, handle.topic());
                at = read.next;
            }
            // The end is not durable yet: the high watermark will say.
            Fetched::Hot(_) | Fetched::AtEnd => {
                waiter.moved().await;
            }
            // A partition of this topic keeps its whole log on local disk: what is missing there comes from the bucket, whose
            // copy is as good.
            Fetched::Cold { end: cold_end } => {
                let read = handle.read_cold(at, cold_end, READ_BYTES, true, Duration::from_secs(30)).await?;
                loading.take(joined(read.chunks), at, handle.topic());
                at = read.next;
            }
        }
    }
    Ok(loading)
}

fn joined(chunks: Vec<Bytes>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
    for chunk in chunks {
        bytes.extend_from_slice(&chunk);
    }
    bytes.freeze()
}

impl Loading {
    /// Applies what batches hold, from an offset on.
    fn take(&mut self, bytes: Bytes, from: Offset, topic: &TopicName) {
        for batch in split_batches(bytes, &BatchLimits::log()) {
            let decoded = batch.as_ref().map_err(ToString::to_string).and_then(|batch| {
                if batch.header.attributes().is_control() {
                    return Ok(None);
                }
                DecodedBatch::new(batch, DECOMPRESSED_BATCH_BYTES_MAX)
                    .map(Some)
                    .map_err(|error| error.to_string())
            });
            match decoded {
                Ok(None) => {}
                Ok(Some(decoded)) => self.records_of(&decoded, from, topic),
                Err(error) => self.bad(topic, from, &error),
            }
        }
    }

    fn records_of(&mut self, batch: &DecodedBatch<'_>, from: Offset, topic: &TopicName) {
        for record in batch.iter() {
            let record = match record {
                Ok(record) => record,
                Err(error) => return self.bad(topic, from, &error.to_string()),
            };
            if record.offset < from {
                continue;
            }
            self.records = self.records.saturating_add(1);
            match records::read(record.key, record.value) {
                Ok(change) => self.apply(change),
                Err(error) => self.bad(topic, record.offset, &error.to_string()),
            }
        }
    }

    /// One record that cannot be read is no reason to lose all groups; it is counted, and said.
    fn bad(&mut self, topic: &TopicName, offset: Offset, error: &str) {
        self.bad = self.bad.saturating_add(1);
        tracing::error!(%topic, %offset, error, "a record of groups cannot be read and is left out");
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Members { group, stored } => match stored {
                Some(stored) => {
                    let loaded = self.groups.entry(group).or_default();
                    // A group that went back to the classic protocol.
                    loaded.consumers = None;
                    loaded.members = Some(stored);
                }
                None => {
                    if let Some(loaded) = self.groups.get_mut(&group) {
                        loaded.members = None;
                    }
                    self.drop_if_nothing(&group);
                }
            },
            Change::Offset { group, place: (topic, partition), committed } => match committed {
                Some(committed) => {
                    self.groups.entry(group).or_default().offsets.put(&topic, partition, committed);
                }
                None => {
                    if let Some(loaded) = self.groups.get_mut(&group) {
                        loaded.offsets.remove(&topic, partition);
                    }
                    self.drop_if_nothing(&group);
                }
            },
            Change::Consumer { group, record } => {
                let ended = record == ConsumerRecord::GroupMetadata(None);
                // A tombstone of what is not there makes nothing.
                let known = self.groups.get(&group).is_some_and(|loaded| loaded.consumers.is_some());
                if known || !record.is_tombstone() {
                    let loaded = self.groups.entry(Arc::clone(&group)).or_default();
                    loaded.consumers.get_or_insert_with(ConsumerGroup::new).apply(&record);
                    if ended {
                        loaded.consumers = None;
                    }
                }
                self.drop_if_nothing(&group);
            }
            Change::Other => {}
        }
    }

    fn drop_if_nothing(&mut self, group: &str) {
        let nothing = |loaded: &Loaded| {
            loaded.members.is_none() && loaded.consumers.is_none() && loaded.offsets.is_empty()
        };
        if self.groups.get(group).is_some_and(nothing) {
            self.groups.remove(group);
        }
    }
}

fn restored(now: Now, loaded: BTreeMap<Arc<str>, Loaded>) -> BTreeMap<Arc<str>, Group> {
    let group = |loaded: Loaded| {
        let recorded = loaded.members.is_some() || loaded.consumers.is_some();
        let members = match (loaded.consumers, loaded.members) {
            (Some(consumers), _) => Members::Consumer(consumers),
            (None, Some(stored)) => Members::Classic(ClassicGroup::restore(stored, now)),
            (None, None) => Members::Classic(ClassicGroup::new(now)),
        };
        Group { offsets: loaded.offsets, recorded, ..Group::new(members) }
    };
    loaded.into_iter().map(|(name, loaded)| (name, group(loaded))).collect()
}
