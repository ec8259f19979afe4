//! The APIs, one file each: from a request's message to its answer.
//!
//! A handler speaks wire types at its edges and the system's own types within; which error becomes which code is said in
//! [`crate::error_code`] alone.

pub(crate) mod alter_configs;
pub(crate) mod alter_partition_reassignments;
pub(crate) mod api_versions;
mod config_changes;
pub(crate) mod consumer_group_describe;
pub(crate) mod consumer_group_heartbeat;
pub(crate) mod create_partitions;
pub(crate) mod create_topics;
pub(crate) mod delete_groups;
pub(crate) mod delete_records;
pub(crate) mod delete_topics;
pub(crate) mod describe_cluster;
pub(crate) mod describe_configs;
pub(crate) mod describe_groups;
pub(crate) mod describe_log_dirs;
pub(crate) mod describe_producers;
pub(crate) mod describe_quorum;
pub(crate) mod describe_topic_partitions;
pub(crate) mod elect_leaders;
pub(crate) mod fetch;
pub(crate) mod find_coordinator;
pub(crate) mod heartbeat;
pub(crate) mod incremental_alter_configs;
pub(crate) mod init_producer_id;
pub(crate) mod join_group;
pub(crate) mod leave_group;
pub(crate) mod list_config_resources;
pub(crate) mod list_groups;
pub(crate) mod list_offsets;
pub(crate) mod list_partition_reassignments;
pub(crate) mod metadata;
pub(crate) mod offset_commit;
pub(crate) mod offset_delete;
pub(crate) mod offset_fetch;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;
pub(crate) mod sasl;
pub(crate) mod sync_group;
pub(crate) mod unregister_broker;
pub(crate) mod update_features;
use std::collections::BTreeMap;

use tidelog_types::{limits, shown};

/// Topics, and partitions of each, that one request looks up at once. Above it a request of many names would take memory out of
/// all proportion to its size.
const TOPICS_AT_ONCE: usize = 16;
const PARTITIONS_AT_ONCE: usize = 256;

/// What a request of more partitions than a cluster can have is told.
const TOO_MANY_PARTITIONS: &str = "The request names more partitions than a cluster can have.";

/// Whether a request names more partitions than a cluster can have: each is answered in words, which are far longer than the
/// number that asks for them.
fn too_many(partitions: impl Iterator<Item = usize>) -> bool {
    partitions.fold(0, usize::saturating_add) > limits::PARTITIONS_MAX
}

/// How often a request may name the same thing and have it told each time. Kafka has no bound; here an answer must stay in
/// proportion to what asks for it.
const MENTIONS_MAX: u32 = 4;

/// What a request has named so far.
#[derive(Debug)]
struct Mentions<K>(BTreeMap<K, u32>);

impl<K> Default for Mentions<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Mentions<K> {
    /// Whether it is told once more.
    fn allow(&mut self, key: K) -> bool {
        let mentions = self.0.entry(key).or_default();
        *mentions = mentions.saturating_add(1);
        *mentions <= MENTIONS_MAX
    }
}
