//! What a consumer group needs to know of topics.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_types::TopicId;

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicShape {
    /// Its id: a topic deleted and made again has another.
    pub id: TopicId,
    /// How many partitions it has.
    pub partition_count: i32,
    /// The racks of each partition's replicas; empty, or as long as there are partitions.
    pub racks: Vec<BTreeSet<Arc<str>>>,
}

/// The topics of the cluster at one moment.
pub trait TopicsImage {
    /// The topic of this name.
    fn topic(&self, name: &str) -> Option<TopicShape>;
    /// The name of the topic with this id.
    fn name(&self, id: TopicId) -> Option<Arc<str>>;
    /// Calls `visit` with the name of every topic that a regular expression may match.
    fn for_each_name(&self, visit: &mut dyn FnMut(&Arc<str>));
    /// Changes whenever anything that the other methods answer changes.
    fn version(&self) -> i64;
}

/// The hash of the topics that a group subscribes to: it changes when one of them comes, goes, is made again, grows or
/// moves to other racks. FNV-1a, 64 bits; 0 when none of them exists.
///
/// The hash is stored in the group's record. Another hash than the stored one costs a rebalance and nothing else.
#[must_use]
pub fn topics_hash<'a>(names: impl IntoIterator<Item = &'a Arc<str>>, topics: &dyn TopicsImage) -> i64 {
    let mut hash = Fnv::default();
    let mut found = false;
    for name in names {
        let Some(shape) = topics.topic(name) else { continue };
        found = true;
        hash.text(name);
        hash.bytes(shape.id.as_bytes());
        hash.bytes(&shape.partition_count.to_be_bytes());
        for racks in &shape.racks {
            hash.bytes(&[0]);
            racks.iter().for_each(|rack| hash.text(rack));
        }
    }
    if found { hash.0.cast_signed() } else { 0 }
}

struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The text and an end that no text contains, so that "a", "bc" and "ab", "c" differ.
    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0xff]);
    }
}
