//! The target assignment: what every member is to have.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Assignor, Changes, ConsumerGroup, ConsumerRecord, ConsumerRules, GroupSpec, MemberSpec, Partitions,
    TargetAssignmentMetadata, TopicSpec, TopicsImage,
};
use crate::groups::Now;

/// How long a target that could not be stored is not computed again: meanwhile members go on with what they have.
const TARGET_RETRY_INTERVAL: Duration = Duration::from_secs(10);

impl ConsumerGroup {
    /// Computes the target assignment when it is older than the group, and when the last one is old enough.
    pub(super) fn update_target(
        &mut self,
        now: Now,
        rules: &ConsumerRules,
        topics: &dyn TopicsImage,
        changes: &mut Changes,
    ) {
        if !self.is_target_due(now, rules) {
            return;
        }
        let targets = self.compute_target(rules, topics);
        for (member_id, target) in targets {
            if self.state.targets.get(&member_id).is_none_or(|old| **old != target) {
                let value = Some(Arc::new(target));
                self.commit(changes, ConsumerRecord::TargetAssignmentMember { member_id, value });
            }
        }
        let value =
            TargetAssignmentMetadata { assignment_epoch: self.state.epoch, timestamp: Some(now.wall) };
        self.commit(changes, ConsumerRecord::TargetAssignmentMetadata(Some(value)));
    }

    /// True when the group has changed since its target was computed, and that was long enough ago (KIP-1263): many members
    /// that come at once share a computation.
    pub(super) fn is_target_due(&self, now: Now, rules: &ConsumerRules) -> bool {
        self.state.epoch > self.state.target_epoch
            && self.target_refused.is_none_or(|at| now.monotonic >= at.saturating_add(TARGET_RETRY_INTERVAL))
            && self.state.target_timestamp.is_none_or(|last| {
                // A clock that was set back must not hold the group up.
                now.wall < last
                    || u128::from(now.wall.millis_since(last)) >= rules.assignment_interval.as_millis()
            })
    }

    fn compute_target(&self, rules: &ConsumerRules, topics: &dyn TopicsImage) -> Vec<(Arc<str>, Partitions)> {
        let mut shapes: BTreeMap<&Arc<str>, Option<tidelog_types::TopicId>> = BTreeMap::new();
        let mut specs = BTreeMap::new();
        let mut members = Vec::with_capacity(self.state.members.len());
        let none = Partitions::new();
        for (member_id, member) in &self.state.members {
            let mut subscribed = BTreeSet::new();
            for name in self.state.subscription(&member.metadata) {
                let id = shapes.entry(name).or_insert_with(|| {
                    let shape = topics.topic(name)?;
                    let spec = TopicSpec { partition_count: shape.partition_count, racks: shape.racks };
                    specs.insert(shape.id, spec);
                    Some(shape.id)
                });
                subscribed.extend(*id);
            }
            members.push(MemberSpec {
                member_id,
                instance_id: member.metadata.instance_id.as_deref(),
                rack_id: member.metadata.rack_id.as_deref(),
                topics: subscribed,
                previous: self.state.targets.get(member_id).map_or(&none, |target| target),
            });
        }
        let spec = GroupSpec { members, topics: specs };
        let targets = self.preferred_assignor(rules).assign(&spec);
        self.state.members.keys().cloned().zip(targets).collect()
    }

    /// The assignor that most members wish for, among those the broker has; the default when they wish for none.
    pub(super) fn preferred_assignor(&self, rules: &ConsumerRules) -> Assignor {
        let mut best = (0, rules.default_assignor());
        for assignor in &rules.assignors {
            let wishes = self
                .state
                .members
                .values()
                .filter(|member| member.metadata.server_assignor.as_deref() == Some(assignor.name()))
                .count();
            if wishes > best.0 {
                best = (wishes, *assignor);
            }
        }
        best.1
    }
}
