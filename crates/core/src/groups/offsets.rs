//! The committed offsets of one group, and when they end.
//!
//! Kafka's rules of expiry (KIP-211): while a group has members nothing of what they read expires; once a classic group is empty its
//! offsets live for `offsets.retention.minutes` from then on; of a group of the consumer protocol, and of a consumer that commits without
//! a group, each lives for as long after its commit. An offset that came with a retention of its own (OffsetCommit up to version 4) goes at that time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tidelog_types::{Timestamp, TopicId};

use super::classic::OffsetExpiry;

#[cfg(test)]
mod tests;

/// One committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// As the client sent it: it need not be one that the partition has.
    pub offset: i64,
    /// The epoch of the record before it; -1 where the client told none.
    pub leader_epoch: i32,
    /// The client's text.
    pub metadata: Arc<str>,
    /// When it was committed.
    pub commit_time: Timestamp,
    /// When it ends, where the commit said so.
    pub expire_time: Option<Timestamp>,
    /// The topic that had the name then; `None` in records of older versions.
    pub topic_id: Option<TopicId>,
}

/// A partition, by its topic's name: what a commit names.
pub type Place = (Arc<str>, i32);

/// The offsets of one group, by topic and partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetTable {
    topics: BTreeMap<Arc<str>, BTreeMap<i32, CommittedOffset>>,
    sizes: Sizes,
}

/// What a table takes, counted with each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Offsets.
    pub offsets: usize,
    /// Bytes of the names of topics, each once.
    pub names: usize,
    /// Bytes of clients' texts.
    pub metadata: usize,
}

impl OffsetTable {
    /// The offset of a partition.
    #[must_use]
    pub fn get(&self, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        self.topics.get(topic)?.get(&partition)
    }

    /// Sets the offset of a partition.
    pub fn put(&mut self, topic: &Arc<str>, partition: i32, committed: CommittedOffset) {
        self.sizes.offsets += 1;
        self.sizes.metadata += committed.metadata.len();
        // A name is kept once.
        match self.topics.get_mut(topic) {
            Some(partitions) => {
                if let Some(old) = partitions.insert(partition, committed) {
                    self.sizes.offsets -= 1;
                    self.sizes.metadata -= old.metadata.len();
                }
            }
            None => {
                self.sizes.names += topic.len();
                self.topics.insert(Arc::clone(topic), BTreeMap::from([(partition, committed)]));
            }
        }
    }

    /// Removes the offset of a partition. Answers whether there was one.
    pub fn remove(&mut self, topic: &str, partition: i32) -> bool {
        let Some(partitions) = self.topics.get_mut(topic) else { return false };
        let removed = partitions.remove(&partition);
        if let Some(old) = &removed {
            self.sizes.offsets -= 1;
            self.sizes.metadata -= old.metadata.len();
        }
        if partitions.is_empty() {
            self.topics.remove(topic);
            self.sizes.names -= topic.len();
        }
        removed.is_some()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.sizes.offsets
    }

    /// What they take.
    #[must_use]
    pub const fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// All of them, by topic and partition.
    pub fn topics(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<i32, CommittedOffset>)> {
        self.topics.iter()
    }

    /// Every partition that has one.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.topics.iter().flat_map(|(topic, partitions)| {
            partitions.keys().map(|partition| (Arc::clone(topic), *partition))
        })
    }

    /// What has expired at `now` where offsets live for `retention`, by the rule of their group, which reads the `subscribed`
    /// topics.
    #[must_use]
    pub fn expired(
        &self,
        now: Timestamp,
        retention: Duration,
        rule: OffsetExpiry,
        subscribed: impl Fn(&str) -> bool,
    ) -> Vec<Place> {
        let unused = self.topics.iter().filter(|(topic, _)| !subscribed(topic));
        unused
            .flat_map(|(topic, partitions)| {
                partitions
                    .iter()
                    .filter(|(_, committed)| committed.has_expired(now, retention, rule))
                    .map(|(partition, _)| (Arc::clone(topic), *partition))
            })
            .collect()
    }

    /// Partitions whose offset was committed to another topic of that name: one that was deleted since. `among` these names, or
    /// all.
    #[must_use]
    pub fn of_other_topics(
        &self,
        among: Option<&BTreeSet<Arc<str>>>,
        current: impl Fn(&str) -> Option<TopicId>,
    ) -> BTreeSet<Place> {
        let is_among = |topic: &Arc<str>| among.is_none_or(|names| names.contains(topic));
        self.topics
            .iter()
            .filter(|(topic, _)| is_among(topic))
            .flat_map(|(topic, partitions)| {
                let id = current(topic);
                let others = partitions.iter().filter(move |(_, committed)| !committed.is_of(id));
                others.map(|(partition, _)| (Arc::clone(topic), *partition))
            })
            .collect()
    }
}

impl CommittedOffset {
    /// Whether it was committed to the topic that has the name now. One that does not say is of any.
    #[must_use]
    pub fn is_of(&self, current: Option<TopicId>) -> bool {
        current.is_some_and(|current| self.topic_id.is_none_or(|then| then == current))
    }

    fn has_expired(&self, now: Timestamp, retention: Duration, rule: OffsetExpiry) -> bool {
        let from = match rule {
            OffsetExpiry::Never => return false,
            OffsetExpiry::SinceCommit => self.commit_time,
            OffsetExpiry::SinceEmpty(time) => time,
        };
        if let Some(end) = self.expire_time {
            return now >= end;
        }
        let unused = now.as_millis().saturating_sub(from.as_millis());
        u128::from(unused) >= retention.as_millis()
    }
}
