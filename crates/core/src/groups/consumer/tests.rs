//! Tests of consumer groups: a bench with one group, its topics and a clock that is set by hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tidelog_types::{Timestamp, TopicId};

use super::*;
use crate::groups::{GoneWhy, GroupError};

mod commits;
mod membership;
mod migration;
mod patterns;
mod properties;
mod reconciling;
mod static_members;

/// Topics that can be changed.
#[derive(Debug, Clone, Default)]
pub(super) struct Topics {
    topics: BTreeMap<Arc<str>, TopicShape>,
    made: u8,
    version: i64,
}

impl Topics {
    pub(super) fn new<'a>(topics: impl IntoIterator<Item = (&'a str, i32)>) -> Self {
        let mut image = Self::default();
        for (name, partition_count) in topics {
            image.set(name, partition_count);
        }
        image
    }

    /// Makes a topic, or gives it another partition count.
    pub(super) fn set(&mut self, name: &str, partition_count: i32) {
        self.version += 1;
        if let Some(shape) = self.topics.get_mut(name) {
            shape.partition_count = partition_count;
            return;
        }
        self.made += 1;
        let shape = TopicShape { id: topic_id(self.made), partition_count, racks: Vec::new() };
        self.topics.insert(name.into(), shape);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.version += 1;
        self.topics.remove(name);
    }

    pub(super) fn set_racks(&mut self, name: &str, racks: &[&[&str]]) {
        self.version += 1;
        let racks = racks.iter().map(|racks| racks.iter().map(|rack| Arc::from(*rack)).collect()).collect();
        self.topics.get_mut(name).unwrap().racks = racks;
    }
}

impl TopicsImage for Topics {
    fn topic(&self, name: &str) -> Option<TopicShape> {
        self.topics.get(name).cloned()
    }

    fn name(&self, id: TopicId) -> Option<Arc<str>> {
        self.topics.iter().find(|(_, shape)| shape.id == id).map(|(name, _)| Arc::clone(name))
    }

    fn for_each_name(&self, visit: &mut dyn FnMut(&Arc<str>)) {
        self.topics.keys().for_each(visit);
    }

    fn version(&self) -> i64 {
        self.version
    }
}

/// The id of the topic that was made as the `made`th.
pub(super) fn topic_id(made: u8) -> TopicId {
    TopicId::from_bytes([made; 16])
}

/// Partitions of the topics, by the number each was made as.
pub(super) fn partitions(topics: &[(u8, &[i32])]) -> Partitions {
    topics.iter().map(|(made, partitions)| (topic_id(*made), partitions.iter().copied().collect())).collect()
}

pub(super) fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

/// A heartbeat that says nothing but who sends it.
pub(super) fn heartbeat(member_id: &str, epoch: i32) -> Heartbeat {
    Heartbeat {
        member_id: member_id.into(),
        drawn_member_id: None,
        epoch,
        instance_id: None,
        rack_id: None,
        rebalance_timeout: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        subscribed_topics: None,
        subscribed_pattern: None,
        server_assignor: None,
        owned: None,
    }
}

/// The first heartbeat of a member.
pub(super) fn joining(member_id: &str, topics: &[&str]) -> Heartbeat {
    Heartbeat {
        rebalance_timeout: Some(Duration::from_secs(60)),
        subscribed_topics: Some(names(topics)),
        owned: Some(Partitions::new()),
        ..heartbeat(member_id, 0)
    }
}

/// One group with all that its calls need.
pub(super) struct Bench {
    pub(super) group: ConsumerGroup,
    pub(super) topics: Topics,
    pub(super) rules: ConsumerRules,
    pub(super) now: Now,
    /// All that was stored, in order.
    pub(super) log: Vec<ConsumerRecord>,
    /// Who was put out.
    pub(super) gone: Vec<(Arc<str>, GoneWhy)>,
}

impl Bench {
    pub(super) fn new<'a>(topics: impl IntoIterator<Item = (&'a str, i32)>) -> Self {
        Self {
            group: counted_from_zero(),
            topics: Topics::new(topics),
            rules: ConsumerRules { assignment_interval: Duration::ZERO, ..ConsumerRules::default() },
            now: Now {
                monotonic: Duration::from_secs(1_000),
                wall: Timestamp::from_millis(1_700_000_000_000),
            },
            log: Vec::new(),
            gone: Vec::new(),
        }
    }

    pub(super) fn send(&mut self, request: &Heartbeat) -> Result<HeartbeatAnswer, GroupError> {
        let before = self.group.clone();
        let wanted = self.group.patterns_wanted(self.now, &self.topics, request);
        let resolutions = self.resolutions(&wanted.due.into_iter().chain(wanted.new).collect());
        match self.group.heartbeat(self.now, &self.rules, &self.topics, &resolutions, request) {
            Ok(Heartbeated { changes, answer }) => {
                self.stored(&before, changes);
                Ok(answer)
            }
            Err(refused) => {
                assert!(self.group.has_same_state(&before), "a refused request must change nothing");
                Err(refused.error)
            }
        }
    }

    /// What regular expressions match now.
    pub(super) fn resolutions(&self, wanted: &BTreeSet<Arc<str>>) -> Resolutions {
        let matching = |pattern: Pattern| {
            let mut found = BTreeSet::new();
            self.topics
                .for_each_name(&mut |name| found.extend(pattern.matches(name).then(|| Arc::clone(name))));
            found
        };
        let patterns = wanted.iter().map(|text| (Arc::clone(text), Pattern::compile(text).map(matching)));
        Resolutions { version: self.topics.version(), patterns: patterns.collect() }
    }

    /// Changes go to the log. Had they found no room there, the group would be what it was.
    pub(super) fn stored(&mut self, before: &ConsumerGroup, changes: Changes) {
        let mut undone = self.group.clone();
        undone.undo(&changes, self.now, &self.rules);
        assert!(undone.has_same_state(before), "what was undone is not what was before");
        assert!(
            undone.has_timers_of_its_members(),
            "a timer without its member, or a member without a session"
        );
        self.gone.extend(changes.gone().iter().map(|gone| (Arc::clone(&gone.member_id), gone.why)));
        self.log.extend(changes.into_records());
    }

    /// A member joins; gives its epoch and its partitions.
    pub(super) fn join(&mut self, member_id: &str, topics: &[&str]) -> (i32, Partitions) {
        let answer = self.send(&joining(member_id, topics)).unwrap();
        (answer.epoch, answer.assignment.unwrap())
    }

    /// A heartbeat with what the member owns; gives its epoch and, when they are told, its partitions.
    pub(super) fn beat(
        &mut self,
        member_id: &str,
        epoch: i32,
        owned: Option<Partitions>,
    ) -> (i32, Option<Partitions>) {
        let answer = self.send(&Heartbeat { owned, ..heartbeat(member_id, epoch) }).unwrap();
        (answer.epoch, answer.assignment)
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now.monotonic += time;
        self.now.wall =
            Timestamp::from_millis(self.now.wall.as_millis() + u64::try_from(time.as_millis()).unwrap());
    }

    pub(super) fn tick(&mut self) -> Vec<ConsumerRecord> {
        let before = self.group.clone();
        let changes = self.group.tick(self.now, &self.topics, |_, _| true);
        let records = changes.records().to_vec();
        self.stored(&before, changes);
        records
    }

    /// The group as it is restored from the log.
    pub(super) fn restored(&self) -> ConsumerGroup {
        restore(&self.log)
    }

    pub(super) fn current(&self, member_id: &str) -> &CurrentAssignment {
        &self.group.member(member_id).unwrap().current
    }
}

/// A group as a log has it that was begun by an older broker: the epochs in these tests count from 0.
fn counted_from_zero() -> ConsumerGroup {
    let mut group = ConsumerGroup::new();
    let epoch = GroupMetadata { epoch: 0, metadata_hash: 0 };
    group.apply(&ConsumerRecord::GroupMetadata(Some(epoch)));
    let target = TargetAssignmentMetadata { assignment_epoch: 0, timestamp: None };
    group.apply(&ConsumerRecord::TargetAssignmentMetadata(Some(target)));
    group
}

pub(super) fn restore<'a>(log: impl IntoIterator<Item = &'a ConsumerRecord>) -> ConsumerGroup {
    let mut group = counted_from_zero();
    log.into_iter().for_each(|record| group.apply(record));
    group
}
