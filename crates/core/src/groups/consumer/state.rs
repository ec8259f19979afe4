//! All of a group that survives: what its records say, and what follows from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_types::{Timestamp, TopicId};

use super::{
    ConsumerRecord, CurrentAssignment, GroupMetadata, MemberMetadata, Partitions, ResolvedPattern,
    TargetAssignmentMetadata, records::pairs,
};

/// The epochs of a group to which nobody subscribed yet, Kafka's: an assignment of nothing to nobody. No record tells of them.
const EPOCH_INITIAL: i32 = 1;

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// What it said of itself.
    pub metadata: MemberMetadata,
    /// What it has.
    pub current: CurrentAssignment,
}

/// The state that records change, and nothing else does.
///
/// Replaying the records that led here, or those that the log's cleaner left of them, gives an equal state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) epoch: i32,
    pub(super) metadata_hash: i64,
    pub(super) members: BTreeMap<Arc<str>, Member>,
    pub(super) target_epoch: i32,
    pub(super) target_timestamp: Option<Timestamp>,
    pub(super) targets: BTreeMap<Arc<str>, Arc<Partitions>>,
    pub(super) patterns: BTreeMap<Arc<str>, ResolvedPattern>,
    /// Follows from `members`: who has an instance id.
    pub(super) static_members: BTreeMap<Arc<str>, Arc<str>>,
    /// Follows from `members`: who owns a partition.
    owners: BTreeMap<TopicId, BTreeMap<i32, Arc<str>>>,
    /// Follows from `members` and `patterns`: what they take, about.
    bytes: usize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            epoch: EPOCH_INITIAL,
            metadata_hash: 0,
            members: BTreeMap::new(),
            target_epoch: EPOCH_INITIAL,
            target_timestamp: None,
            targets: BTreeMap::new(),
            patterns: BTreeMap::new(),
            static_members: BTreeMap::new(),
            owners: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl State {
    /// The record that takes back what `record` will do when it is applied now. Of a member that goes it brings back what it
    /// said of itself: what it had must have ended before, by a record of its own.
    pub(super) fn inverse(&self, record: &ConsumerRecord) -> ConsumerRecord {
        match record {
            ConsumerRecord::GroupMetadata(_) => ConsumerRecord::GroupMetadata(Some(GroupMetadata {
                epoch: self.epoch,
                metadata_hash: self.metadata_hash,
            })),
            ConsumerRecord::MemberMetadata { member_id, .. } => ConsumerRecord::MemberMetadata {
                member_id: Arc::clone(member_id),
                value: self.members.get(member_id).map(|member| member.metadata.clone()),
            },
            ConsumerRecord::TargetAssignmentMetadata(_) => {
                ConsumerRecord::TargetAssignmentMetadata(Some(TargetAssignmentMetadata {
                    assignment_epoch: self.target_epoch,
                    timestamp: self.target_timestamp,
                }))
            }
            ConsumerRecord::TargetAssignmentMember { member_id, .. } => {
                ConsumerRecord::TargetAssignmentMember {
                    member_id: Arc::clone(member_id),
                    value: self.targets.get(member_id).cloned(),
                }
            }
            ConsumerRecord::CurrentMemberAssignment { member_id, .. } => {
                ConsumerRecord::CurrentMemberAssignment {
                    member_id: Arc::clone(member_id),
                    value: self.members.get(member_id).map(|member| member.current.clone()),
                }
            }
            ConsumerRecord::RegularExpression { pattern, .. } => ConsumerRecord::RegularExpression {
                pattern: Arc::clone(pattern),
                value: self.patterns.get(pattern).cloned(),
            },
        }
    }

    /// Applies one record. A tombstone of what is not there does nothing: the cleaner may have taken what it ends.
    pub(super) fn apply(&mut self, record: &ConsumerRecord) {
        match record {
            ConsumerRecord::GroupMetadata(value) => {
                self.epoch = value.map_or(EPOCH_INITIAL, |value| value.epoch);
                self.metadata_hash = value.map_or(0, |value| value.metadata_hash);
            }
            ConsumerRecord::MemberMetadata { member_id, value: Some(metadata) } => {
                self.update_member(member_id, metadata.clone());
            }
            ConsumerRecord::MemberMetadata { member_id, value: None } => self.remove_member(member_id),
            ConsumerRecord::TargetAssignmentMetadata(value) => {
                let none = TargetAssignmentMetadata { assignment_epoch: EPOCH_INITIAL, timestamp: None };
                let TargetAssignmentMetadata { assignment_epoch, timestamp } = value.unwrap_or(none);
                self.target_epoch = assignment_epoch;
                self.target_timestamp = timestamp;
            }
            ConsumerRecord::TargetAssignmentMember { member_id, value: Some(target) } => {
                self.targets.insert(Arc::clone(member_id), Arc::clone(target));
            }
            ConsumerRecord::TargetAssignmentMember { member_id, value: None } => {
                self.targets.remove(member_id);
            }
            ConsumerRecord::CurrentMemberAssignment { member_id, value: Some(current) } => {
                self.disown(member_id);
                for (topic, partition) in current.owned() {
                    self.owners.entry(topic).or_default().insert(partition, Arc::clone(member_id));
                }
                self.member_mut(member_id).current = current.clone();
            }
            ConsumerRecord::CurrentMemberAssignment { member_id, value: None } => {
                self.disown(member_id);
                if let Some(member) = self.members.get_mut(member_id) {
                    member.current = CurrentAssignment::default();
                }
            }
            ConsumerRecord::RegularExpression { pattern, value: Some(resolved) } => {
                self.bytes += resolved.bytes();
                let old = self.patterns.insert(Arc::clone(pattern), resolved.clone());
                self.bytes -= old.map_or(0, |old| old.bytes());
            }
            ConsumerRecord::RegularExpression { pattern, value: None } => {
                let old = self.patterns.remove(pattern);
                self.bytes -= old.map_or(0, |old| old.bytes());
            }
        }
    }

    fn update_member(&mut self, member_id: &Arc<str>, metadata: MemberMetadata) {
        self.release_instance(member_id);
        if let Some(instance_id) = &metadata.instance_id {
            self.static_members.insert(Arc::clone(instance_id), Arc::clone(member_id));
        }
        self.bytes += metadata.bytes();
        let old = std::mem::replace(&mut self.member_mut(member_id).metadata, metadata);
        self.bytes -= old.bytes();
    }

    fn remove_member(&mut self, member_id: &Arc<str>) {
        self.release_instance(member_id);
        self.disown(member_id);
        if let Some(old) = self.members.remove(member_id) {
            self.bytes -= old.metadata.bytes() + member_id.len();
        }
    }

    /// The member, made where there is none.
    fn member_mut(&mut self, member_id: &Arc<str>) -> &mut Member {
        if !self.members.contains_key(member_id) {
            self.bytes += member_id.len();
        }
        self.members.entry(Arc::clone(member_id)).or_default()
    }

    /// What members said of themselves, and what their regular expressions match, in bytes of memory, about. What they are
    /// assigned is bounded by the partitions that there are.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the member's instance id from it, unless another has it by now.
    fn release_instance(&mut self, member_id: &Arc<str>) {
        let instance = self.members.get(member_id).and_then(|member| member.metadata.instance_id.as_ref());
        if let Some(instance_id) = instance
            && self.static_members.get(instance_id) == Some(member_id)
        {
            self.static_members.remove(instance_id);
        }
    }

    /// Takes all partitions from the member, unless another has them by now.
    fn disown(&mut self, member_id: &Arc<str>) {
        let Some(member) = self.members.get(member_id) else { return };
        for partitions in [&member.current.assigned, &member.current.pending_revocation] {
            for (topic, partition) in pairs(partitions) {
                let Some(owners) = self.owners.get_mut(&topic) else { continue };
                if owners.get(&partition) == Some(member_id) {
                    owners.remove(&partition);
                }
                if owners.is_empty() {
                    self.owners.remove(&topic);
                }
            }
        }
    }

    /// Who owns the partition.
    pub(super) fn owner(&self, topic: TopicId, partition: i32) -> Option<&Arc<str>> {
        self.owners.get(&topic)?.get(&partition)
    }

    /// The topics that a member subscribes to, by name or by a regular expression that has been resolved.
    pub(super) fn subscription<'a>(
        &'a self,
        metadata: &'a MemberMetadata,
    ) -> impl Iterator<Item = &'a Arc<str>> + 'a {
        let resolved = self.patterns.get(&metadata.subscribed_pattern);
        metadata.subscribed_topics.iter().chain(resolved.into_iter().flat_map(|resolved| &resolved.topics))
    }

    /// The topics that any member subscribes to.
    pub(super) fn subscribed_topics(&self) -> BTreeSet<&Arc<str>> {
        let mut topics = BTreeSet::new();
        let mut seen: Option<&MemberMetadata> = None;
        for member in self.members.values() {
            // Most groups subscribe all alike: the same set again adds nothing.
            let same = seen.is_some_and(|last| {
                last.subscribed_topics == member.metadata.subscribed_topics
                    && last.subscribed_pattern == member.metadata.subscribed_pattern
            });
            if !same {
                topics.extend(self.subscription(&member.metadata));
                seen = Some(&member.metadata);
            }
        }
        topics
    }

    /// The regular expressions that members subscribe by.
    pub(super) fn subscribed_patterns(&self) -> BTreeSet<Arc<str>> {
        let patterns = self.members.values().map(|member| &member.metadata.subscribed_pattern);
        patterns.filter(|pattern| !pattern.is_empty()).cloned().collect()
    }

    /// True when a member subscribes by this regular expression.
    pub(super) fn is_pattern_used(&self, pattern: &str) -> bool {
        self.members.values().any(|member| &*member.metadata.subscribed_pattern == pattern)
    }
}
