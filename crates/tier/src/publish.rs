//! Copies of manifests in the bucket, from which replay, restore and export read without a broker.
//!
//! **Owns** when and how a copy is written. **Does not own** which copies go: the state machine keeps the newest three and
//! queues the others.
//!
//! A copy is made from the replicated state alone and is numbered by the manifest's version: equal versions have equal bytes,
//! whoever wrote them, so that writing one again does no harm. Only a leader whose image is current announces one (B82).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tidelog_core::{
    cluster::{Command, MetadataImage, Outcome, PartitionImage},
    upload::{PublishPeriods, publish_due},
};
use tidelog_format::{keys::ObjectKey, manifest::ManifestFile};
use tidelog_replica::ProposeFailure;
use tidelog_types::{ClusterId, Offset, TopicName, TopicPartition};

use crate::{
    commands::propose_again,
    config::millis,
    context::Context,
    put::{PutWholeError, put_whole},
    task::{Task, TickError},
};

/// Manifests that one tick publishes: a start with many partitions spreads its writes (C5).
const PUBLISHED_PER_TICK_MAX: usize = 32;

/// Why a copy was not written or not announced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error(transparent)]
    Put(#[from] PutWholeError),
    #[error(transparent)]
    Propose(#[from] ProposeFailure),
    #[error("the controller answered something else")]
    WrongAnswer,
}

/// Publishes the current manifest of a partition that this node leads, unless it is published. Answers whether it wrote one.
pub(crate) async fn publish(context: &Context, place: TopicPartition) -> Result<bool, PublishError> {
    let image = context.commands.image();
    let Some((topic, partition)) = image.topic(place.topic_id).zip(image.partition(&place)) else {
        return Ok(false);
    };
    let version = partition.manifest.version;
    if !context.leads(partition) || version == partition.manifest.published_version() {
        return Ok(false);
    }
    let bytes = manifest_file(context.config.cluster_id, &topic.name, place, partition).encode();
    let key = ObjectKey::Manifest { topic: topic.name.clone(), place, version }.to_string();
    put_whole(&context.store, &key, vec![bytes.into()]).await?;
    let leader_epoch = partition.leader_epoch;
    let command = Command::ManifestPublished { place, leader_epoch, version };
    match propose_again(&*context.commands, command).await? {
        Outcome::Done => {
            context.metrics.manifests.inc();
            Ok(true)
        }
        _ => Err(PublishError::WrongAnswer),
    }
}

/// The copy of a partition's manifest: from the replicated state alone, and only from what its version counts.
fn manifest_file(
    cluster_id: ClusterId,
    topic: &TopicName,
    place: TopicPartition,
    partition: &PartitionImage,
) -> ManifestFile {
    let manifest = &partition.manifest;
    ManifestFile {
        cluster_id,
        topic: topic.clone(),
        place,
        version: manifest.version,
        log_start: partition.log_start,
        tiered_end: manifest.tiered_end,
        lines: manifest.lines.clone(),
        entries: manifest.entries.clone(),
    }
}

/// What the task remembers of a partition between ticks.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Since when the current version has differed from the published one.
    differs_since: Option<Duration>,
    /// The log start at the last publication that this start saw.
    published_log_start: Option<Offset>,
    published: u64,
}

/// The task.
pub(crate) struct Publisher {
    context: Arc<Context>,
    seen: Mutex<BTreeMap<TopicPartition, Seen>>,
}

impl Publisher {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, seen: Mutex::default() }
    }

    /// The partitions whose manifests are due now.
    fn due(&self, image: &MetadataImage, now: Duration) -> Vec<TopicPartition> {
        let config = &self.context.config;
        let periods = PublishPeriods {
            soon_ms: millis(config.manifest_publish),
            daily_ms: millis(config.manifest_publish_daily),
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|place, _| image.partition(place).is_some_and(|partition| self.context.leads(partition)));
        let mut due = Vec::new();
        for (place, partition) in image.partitions().filter(|(_, partition)| self.context.leads(partition)) {
            let seen = observe(&mut seen, place, partition, now);
            let waited = seen.differs_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            let published = partition.manifest.published_version();
            let items = image.deletions().partition(place);
            let wait = items.iter().any(|item| item.after_published.is_some_and(|after| after > published));
            let moved = seen.published_log_start != Some(partition.log_start);
            if publish_due(&partition.manifest, periods, millis(waited), wait, moved) {
                due.push(place);
            }
        }
        due.truncate(PUBLISHED_PER_TICK_MAX);
        due
    }
}

fn observe(
    seen: &mut BTreeMap<TopicPartition, Seen>,
    place: TopicPartition,
    partition: &PartitionImage,
    now: Duration,
) -> Seen {
    let published = partition.manifest.published_version();
    let first = Seen { differs_since: None, published_log_start: None, published };
    let entry = seen.entry(place).or_insert(first);
    if partition.manifest.version == published {
        *entry = Seen { differs_since: None, published_log_start: Some(partition.log_start), published };
    } else if entry.published != published || entry.differs_since.is_none() {
        *entry = Seen { differs_since: Some(now), published, ..*entry };
    }
    *entry
}

impl Task for Publisher {
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>> {
        Box::pin(async move {
            let token = self.context.supervisor.shutdown_token();
            let image = self.context.commands.image();
            let mut failed = None;
            for place in self.due(&image, self.context.clock.monotonic()) {
                if token.is_cancelled() {
                    break;
                }
                if let Err(error) = publish(&self.context, place).await {
                    failed = Some(TickError::new(format!("the manifest of {place}"), error));
                }
            }
            failed.map_or(Ok(()), Err)
        })
    }
}
