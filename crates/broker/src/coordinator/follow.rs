//! Shards begin and end, and offsets of deleted topics go, as the cluster's metadata say.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_core::cluster::MetadataImage;
use tidelog_runtime::CancellationToken;
use tidelog_types::{PartitionIndex, TopicPartition};

use super::{Shard, expiry, load, offsets_topic, timers, writer};
use crate::node::Node;

/// Follows the images that are hosted here until the broker ends.
pub(super) async fn run(node: Arc<Node>, ended: CancellationToken) {
    let mut watch = node.replicas.watch_applied();
    let mut last = Arc::new(MetadataImage::empty());
    loop {
        let image = Arc::clone(&watch.borrow_and_update());
        // Most images are of one more object in the bucket, which is nothing to groups.
        node.groups.follow_settings(&node, &image);
        if !image.has_topics_of(&last) {
            let gone = gone(&last, &image);
            for shard in node.groups.all().iter().filter(|_| !gone.is_empty()) {
                expiry::drop_offsets_of_other_topics(&node, shard, Some(&gone));
            }
        }
        place_shards(&node, &image);
        last = image;
        tokio::select! {
            biased;
            () = ended.cancelled() => break,
            changed = watch.changed() => if changed.is_err() { break },
            () = node.groups.again.notified() => {}
        }
    }
    let shards = std::mem::take(&mut *node.groups.shards());
    for shard in shards.into_values() {
        shard.close();
    }
}

/// Names that a topic had in `last` and that topic has not now.
fn gone(last: &MetadataImage, now: &MetadataImage) -> BTreeSet<Arc<str>> {
    let gone = last
        .topics()
        .filter(|topic| now.topic_by_name(&topic.name).is_none_or(|current| current.id != topic.id));
    gone.map(|topic| Arc::from(topic.name.as_str())).collect()
}

/// Begins the shards that this node leads now, and ends those that it does not lead any more.
fn place_shards(node: &Arc<Node>, image: &MetadataImage) {
    let topic = image.topic_by_name(&offsets_topic());
    let mut led = BTreeMap::new();
    if let Some(topic) = topic {
        for (partition, index) in topic.partitions.iter().zip(0..) {
            if partition.leader == Some(node.id) {
                let place = TopicPartition { topic_id: topic.id, partition: PartitionIndex(index) };
                led.insert(index, (place, partition.leader_epoch));
            }
        }
    }
    let mut ended = Vec::new();
    let mut begun = Vec::new();
    {
        let mut shards = node.groups.shards();
        shards.retain(|index, shard| {
            let stays = led.get(index) == Some(&(shard.handle.place(), shard.leader_epoch));
            if !stays {
                ended.push(Arc::clone(shard));
            }
            stays
        });
        for (index, (place, leader_epoch)) in led {
            if shards.contains_key(&index) {
                continue;
            }
            if let Some(handle) = node.replicas.partition(&place) {
                let shard = Arc::new(Shard::new(node, handle, leader_epoch));
                shards.insert(index, Arc::clone(&shard));
                begun.push(shard);
            }
        }
    }
    for shard in ended {
        shard.close();
    }
    for shard in begun {
        begin(node, &shard);
    }
}

/// Ends a shard whose memory is ahead of its log, and has it loaded anew.
pub(super) fn restart(node: &Node, shard: &Arc<Shard>) {
    node.groups.shards().retain(|_, other| !Arc::ptr_eq(other, shard));
    shard.close();
    node.groups.again.notify_one();
}

/// Starts the tasks of a shard. Reading the log is nobody's business who waits for an answer.
fn begin(node: &Arc<Node>, shard: &Arc<Shard>) {
    let tasks = &node.coordinators;
    tasks.spawn_back("group load", load_shard(Arc::clone(node), Arc::clone(shard))).detach();
    tasks.spawn("group writer", writer::run(Arc::clone(node), Arc::clone(shard))).detach();
    tasks.spawn("group timer", timers::run(Arc::clone(node), Arc::clone(shard))).detach();
}

async fn load_shard(node: Arc<Node>, shard: Arc<Shard>) {
    load::run(Arc::clone(&node), Arc::clone(&shard)).await;
    // A topic that was deleted, or made anew, while nobody followed.
    expiry::drop_offsets_of_other_topics(&node, &shard, None);
}
