//! The cluster's topics as groups of the consumer protocol look at them.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::{
    cluster::{MetadataImage, TopicImage},
    groups::consumer::{TopicShape, TopicsImage},
};
use tidelog_types::{TopicId, TopicName};

/// An image, for the length of one call.
#[derive(Debug)]
pub(super) struct Topics<'a>(pub(super) &'a MetadataImage);

impl TopicsImage for Topics<'_> {
    fn topic(&self, name: &str) -> Option<TopicShape> {
        let topic = self.0.topic_by_name(&TopicName::new(name).ok()?)?;
        Some(TopicShape {
            id: topic.id,
            partition_count: i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX),
            racks: racks(self.0, topic),
        })
    }

    fn name(&self, id: TopicId) -> Option<Arc<str>> {
        self.0.topic(id).map(|topic| Arc::from(topic.name.as_str()))
    }

    fn for_each_name(&self, visit: &mut dyn FnMut(&Arc<str>)) {
        // Internal ones too: whoever writes an expression that matches them gets them, as Kafka gives them.
        for topic in self.0.topics() {
            visit(&Arc::from(topic.name.as_str()));
        }
    }

    fn version(&self) -> i64 {
        i64::try_from(self.0.topics_changed.0).unwrap_or(i64::MAX)
    }
}

/// The topic that has a name now.
pub(crate) fn topic_id(image: &MetadataImage, name: &str) -> Option<TopicId> {
    Some(image.topic_by_name(&TopicName::new(name).ok()?)?.id)
}

/// The racks of each partition's replicas; none where no broker has one.
fn racks(image: &MetadataImage, topic: &TopicImage) -> Vec<BTreeSet<Arc<str>>> {
    let rack = |id| image.broker(id).and_then(|broker| broker.rack.as_deref().map(Arc::from));
    let of = |partition: &Arc<tidelog_core::cluster::PartitionImage>| {
        partition.replicas.iter().copied().filter_map(rack).collect::<BTreeSet<Arc<str>>>()
    };
    let racks: Vec<_> = topic.partitions.iter().map(of).collect();
    if racks.iter().all(BTreeSet::is_empty) { Vec::new() } else { racks }
}
