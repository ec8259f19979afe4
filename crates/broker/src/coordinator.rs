//! The group coordinator: which shard keeps a group, and when shards begin and end.
//!
//! **Owns** one [`Shard`] for each partition of `__consumer_offsets` that this node leads, their tasks, and the creation of that
//! topic.
//!
//! **Does not own** what a group decides (`tidelog_core::groups`, pure) or which of Kafka's messages asks for it (`api/`).
//!
//! ```text
//! api/join_group ─> Shard (lock: groups) ─> queue ─> writer: one batch, acks=all ─> applied and answered, in that order
//!                          ▲      timer: what is due             │
//!                          └────── loader: the log, once ────────┘ __consumer_offsets
//! ```
//!
//! # What an answer means
//! Whatever must outlive the node is a record of `__consumer_offsets` first. One writer per shard appends what waits as one
//! batch, waits until it is synced, and then applies it in the order of the log: an offset is seen by nobody before it is
//! durable, and two commits of one partition never change places.
//!
//! # Bounds
//! A shard's queue has [`shard::QUEUED_BYTES_MAX`]; what comes beyond is told to come again. What members say of themselves has
//! a budget ([`room`]); regular expressions are looked at outside of any lock ([`patterns`]). A request waits for its write no
//! longer than `offsets.commit.timeout.ms`, for its group as long as Kafka's rules have it wait.

mod consumer;
mod consumer_records;
mod expiry;
mod follow;
mod group;
mod lag;
mod load;
mod metrics;
mod patterns;
mod records;
mod requests;
mod room;
mod settings;
mod shard;
mod timers;
mod topic;
mod topics;
mod write;
mod writer;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidelog_core::cluster::{LogIndex, MetadataImage};
use tidelog_runtime::Registry;
use tidelog_types::{TopicName, shown};
use tidelog_wire::ErrorCode;

use self::metrics::GroupMetrics;
pub(crate) use self::{
    group::Kind,
    lag::register as register_lag,
    requests::{Commit, GroupView},
    settings::GroupSettings,
    shard::Shard,
    topic::ensure as ensure_topic,
    topics::topic_id,
};
use crate::node::Node;

/// The topic that keeps offsets and groups.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// Its name, checked.
pub(crate) fn offsets_topic() -> TopicName {
    TopicName::new(OFFSETS_TOPIC).expect("a valid name")
}

/// The coordinator of the groups whose partitions this node leads.
#[derive(Debug)]
pub(crate) struct GroupCoordinator {
    shards: Mutex<BTreeMap<i32, Arc<Shard>>>,
    /// As of this image.
    settings: Mutex<(LogIndex, Arc<GroupSettings>)>,
    pub(crate) metrics: GroupMetrics,
    /// A shard is to begin anew.
    again: tokio::sync::Notify,
    /// One creation of the topic at a time.
    creation: tokio::sync::Mutex<()>,
    /// New regular expressions are looked at one at a time.
    pattern_turns: tokio::sync::Semaphore,
    /// Those that are only due again have a turn of their own: new ones do not wait for them, and nobody for those.
    refresh_turns: Arc<tokio::sync::Semaphore>,
    members_room: room::MembersRoom,
}

impl GroupCoordinator {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            shards: Mutex::default(),
            settings: Mutex::default(),
            metrics: GroupMetrics::new(registry),
            again: tokio::sync::Notify::new(),
            creation: tokio::sync::Mutex::default(),
            pattern_turns: tokio::sync::Semaphore::new(1),
            refresh_turns: Arc::new(tokio::sync::Semaphore::new(1)),
            members_room: room::MembersRoom::new(),
        }
    }

    /// A member was refused since there is no memory for what it says.
    fn no_room(&self, node: &Node, group: &str) {
        self.metrics.no_room.inc();
        if let Some(suppressed) = node.connection_lines.pass("no room for members of groups") {
            let bytes = self.members_room.used();
            tracing::warn!(suppressed, group = shown(group), bytes, "no room for a member of a group");
        }
    }

    /// A change of a group was taken back. Where it is for want of space the log has its own line.
    fn taken_back(&self, node: &Node, group: &str, code: ErrorCode) {
        if code != ErrorCode::UnknownServerError {
            return;
        }
        self.metrics.too_large.inc();
        if let Some(suppressed) = node.connection_lines.pass("change of a group too large") {
            tracing::warn!(
                suppressed,
                group = shown(group),
                "a change of a group is larger than a batch may be"
            );
        }
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Shard>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every shard, by partition.
    pub(crate) fn all(&self) -> Vec<Arc<Shard>> {
        self.shards().values().cloned().collect()
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Arc<GroupSettings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Takes the settings of an image, unless those of a newer one are in force.
    fn follow_settings(&self, node: &Node, image: &MetadataImage) {
        let resolved = GroupSettings::resolve(&node.settings(image), image.group_configs());
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if image.index >= settings.0 {
            *settings = (image.index, Arc::new(resolved));
        }
    }
}

/// Has the coordinator act on the settings that are hosted here: whoever changed one is answered then.
pub(crate) fn take_settings(node: &Node) {
    node.groups.follow_settings(node, &node.image());
}

/// Starts the tasks of the coordinator: they end with the broker's connections.
pub(crate) fn start(node: &Arc<Node>) {
    let token = node.coordinators.shutdown_token();
    // Before anybody looks at them; from now on with each image.
    take_settings(node);
    let following = follow::run(Arc::clone(node), token.clone());
    node.coordinators.spawn_back("group coordinator", following).detach();
    let expiring = expiry::run(Arc::clone(node), token);
    node.coordinators.spawn_back("offset expiry", expiring).detach();
}

/// The shard of a group.
///
/// # Errors
/// `NOT_COORDINATOR`: another node leads its partition, or nobody does.
pub(crate) fn shard_of(node: &Node, group: &str) -> Result<Arc<Shard>, ErrorCode> {
    let image = node.image();
    let topic = image.topic_by_name(&offsets_topic()).ok_or(ErrorCode::NotCoordinator)?;
    let partition = partition_of(group, topic.partitions.len());
    node.groups.shards().get(&partition).cloned().ok_or(ErrorCode::NotCoordinator)
}

/// The partition of a group among `count`: Kafka's rule, which clients and tools know, too.
pub(crate) fn partition_of(group: &str, count: usize) -> i32 {
    // Java's String.hashCode, over UTF-16; its least number has no absolute value and counts as 0.
    let hash =
        group.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    let count = i32::try_from(count).unwrap_or(i32::MAX).max(1);
    hash.checked_abs().unwrap_or(0) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_partition_that_kafka_gives_it() {
        // Computed with `Math.abs("…".hashCode()) % 50` in Java.
        for (group, partition) in [("", 0), ("a", 47), ("my-group", 12), ("grüße", 23)] {
            assert_eq!(partition_of(group, 50), partition, "{group}");
        }
        // "polygenelubricants" is the word whose hash is the least number.
        assert_eq!(partition_of("polygenelubricants", 50), 0);
    }
}
