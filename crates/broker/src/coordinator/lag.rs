//! How far groups are behind, computed when metrics are read: what is not asked for costs nothing, and nothing is stale.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use tidelog_runtime::Registry;
use tidelog_types::{PartitionIndex, TopicName};

use crate::node::Node;

/// Partitions of groups that are shown: a scrape must stay small whoever commits. The sum by group counts all that there are.
const SHOWN_MAX: usize = 10_000;

/// Shows the lag of every committed offset: records between it and the high watermark. No bucket and no controller is asked, so
/// it is right during their outages.
pub(crate) fn register(registry: &Registry, node: &Arc<Node>) {
    let here = Arc::downgrade(node);
    registry.family_computed(
        "group_lag_records",
        "Records between a group's committed offset and the high watermark; up to 10,000 partitions of groups are shown.",
        &["group", "topic", "partition"],
        move || here.upgrade().map(|node| by_partition(&node)).unwrap_or_default(),
    );
    let here: Weak<Node> = Arc::downgrade(node);
    registry.family_computed(
        "group_lag_records_sum",
        "Records that a group is behind, of all its partitions, whether they are shown or not.",
        &["group"],
        move || here.upgrade().map(|node| by_group(&node)).unwrap_or_default(),
    );
    let here: Weak<Node> = Arc::downgrade(node);
    registry.family_computed("group_count", "Groups that this node coordinates.", &[], move || {
        here.upgrade().map(|node| vec![(Vec::new(), count(&node))]).unwrap_or_default()
    });
    let here: Weak<Node> = Arc::downgrade(node);
    let help = "Memory that members of groups take here, about.";
    registry.family_computed("group_member_bytes", help, &[], move || {
        here.upgrade().map(|node| vec![(Vec::new(), member_bytes(&node))]).unwrap_or_default()
    });
}

fn member_bytes(node: &Node) -> u64 {
    node.groups.members_room.used()
}

fn count(node: &Node) -> u64 {
    node.groups.all().iter().fold(0, |sum, shard| sum.saturating_add(shard.count() as u64))
}

type Lag = (Arc<str>, Arc<str>, i32, u64);

/// Tells the lag of so many partitions at most.
fn lags(node: &Node, most: usize, mut tell: impl FnMut(Lag)) {
    let mut told = 0;
    for shard in node.groups.all() {
        let room = most.saturating_sub(told);
        for (group, topic, partition, committed) in shard.committed(room) {
            let Ok(name) = TopicName::new(&topic) else { continue };
            // What another node leads it shows; what is gone is nobody's lag.
            let Some(handle) = node.replicas.partition_by_name(&name, PartitionIndex(partition)) else {
                continue;
            };
            // What was committed to a topic that had the name before is no more.
            if !committed.is_of(Some(handle.place().topic_id)) {
                continue;
            }
            let snapshot = handle.snapshot();
            let end = snapshot.high_watermark.to_wire();
            // A group that committed less than what is left has the rest before it, not what retention took.
            let from = committed.offset.max(snapshot.log_start.to_wire());
            let lag = u64::try_from(end.saturating_sub(from)).unwrap_or(0);
            told += 1;
            tell((group, topic, partition, lag));
        }
    }
}

fn by_partition(node: &Node) -> Vec<(Vec<String>, u64)> {
    let mut shown = Vec::new();
    lags(node, SHOWN_MAX, |(group, topic, partition, lag)| {
        shown.push((vec![group.to_string(), topic.to_string(), partition.to_string()], lag));
    });
    shown
}

fn by_group(node: &Node) -> Vec<(Vec<String>, u64)> {
    let mut sums: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    lags(node, usize::MAX, |(group, _, _, lag)| {
        let sum = sums.entry(group).or_default();
        *sum = sum.saturating_add(lag);
    });
    sums.into_iter().map(|(group, sum)| (vec![group.to_string()], sum)).collect()
}
