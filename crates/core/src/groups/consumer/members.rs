//! How members leave: by their own request, because their time is up, or because an administrator removes them.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Changes, ConsumerGroup, ConsumerRecord, CurrentAssignment, EpochPartitions, Heartbeat, HeartbeatAnswer,
    HeartbeatRefused, Heartbeated, LEAVE_FOR_A_WHILE, LEFT_FOR_A_WHILE, MemberState, TopicsImage,
    deadlines::Timer,
};
use crate::groups::{GoneMember, GoneWhy, GroupError, Now};

impl ConsumerGroup {
    /// Handles a heartbeat that leaves.
    pub(super) fn leave(
        &mut self,
        topics: &dyn TopicsImage,
        request: &Heartbeat,
    ) -> Result<Heartbeated, HeartbeatRefused> {
        let member_id = match &request.instance_id {
            None => &request.member_id,
            Some(instance_id) => {
                let holder = self.state.static_members.get(instance_id).ok_or(GroupError::UnknownMemberId)?;
                if *holder != request.member_id {
                    return Err(GroupError::FencedInstanceId.into());
                }
                holder
            }
        };
        let member = self.state.members.get(member_id).ok_or(GroupError::UnknownMemberId)?;
        let mut changes = Changes::default();
        if request.epoch == LEAVE_FOR_A_WHILE {
            // Its partitions wait for it; what it had to give up it has given up by leaving. Whoever returns for it has
            // its epochs to come, so commits of before are refused by the member's epoch and none by the partitions'.
            let current = CurrentAssignment {
                epoch: LEFT_FOR_A_WHILE,
                pending_revocation: EpochPartitions::new(),
                assigned: member
                    .current
                    .assigned
                    .iter()
                    .map(|(topic, inner)| (*topic, inner.keys().map(|partition| (*partition, 0)).collect()))
                    .collect(),
                ..member.current.clone()
            };
            let member_id = Arc::clone(member_id);
            self.deadlines.stop(&member_id, Timer::Revocation);
            self.commit(
                &mut changes,
                ConsumerRecord::CurrentMemberAssignment { member_id, value: Some(current) },
            );
        } else {
            let leaving = BTreeSet::from([Arc::clone(member_id)]);
            self.remove_members(topics, &leaving, &mut changes);
        }
        let answer = HeartbeatAnswer {
            member_id: Arc::clone(&request.member_id),
            epoch: request.epoch,
            heartbeat_interval: std::time::Duration::ZERO,
            assignment: None,
        };
        Ok(Heartbeated { changes, answer })
    }

    /// Removes the members whose time is up: no heartbeat within the session, or partitions not given up within the
    /// rebalance timeout; a classic member as well when it does not join again or does not sync within it. The changes are
    /// applied already. One is removed at least, and another one while `has_room` says of it, by its id and its regular
    /// expression, that its end may be stored along: else it is removed by a later call.
    pub fn tick(
        &mut self,
        now: Now,
        topics: &dyn TopicsImage,
        mut has_room: impl FnMut(&str, &str) -> bool,
    ) -> Changes {
        let (mut expired, mut changes) = (BTreeSet::new(), Changes::default());
        while let Some(member_id) = self.deadlines.due(now.monotonic) {
            let pattern = self.state.members.get(member_id).map(|member| &member.metadata.subscribed_pattern);
            let is_new = !expired.contains(member_id);
            if is_new && !has_room(member_id, pattern.map_or("", |pattern| pattern)) && !expired.is_empty() {
                break;
            }
            let Some((member_id, timer)) = self.deadlines.take_due(now.monotonic) else { break };
            let Some(member) = self.state.members.get(&member_id) else { continue };
            let (is_over, why) = match timer {
                Timer::Session => (true, GoneWhy::Heartbeat),
                Timer::Revocation => {
                    (member.current.state == MemberState::UnrevokedPartitions, GoneWhy::Revocation)
                }
                Timer::Join => (member.metadata.classic.is_some(), GoneWhy::Join),
                Timer::Sync => (member.metadata.classic.is_some(), GoneWhy::Sync),
            };
            if is_over && expired.insert(Arc::clone(&member_id)) {
                changes.gone.push(GoneMember {
                    member_id,
                    client_id: Arc::clone(&member.metadata.client_id),
                    client_host: Arc::clone(&member.metadata.client_host),
                    why,
                });
            }
        }
        self.remove_members(topics, &expired, &mut changes);
        changes
    }

    /// Removes members for good: the group epoch grows once, and the next heartbeat computes a target without them.
    pub(super) fn remove_members(
        &mut self,
        topics: &dyn TopicsImage,
        member_ids: &BTreeSet<Arc<str>>,
        changes: &mut Changes,
    ) {
        if member_ids.is_empty() {
            return;
        }
        let mut patterns = BTreeSet::new();
        for member_id in member_ids {
            if let Some(member) = self.state.members.get(member_id) {
                patterns.insert(Arc::clone(&member.metadata.subscribed_pattern));
            }
            self.remove_member(member_id, changes);
        }
        for pattern in &patterns {
            self.drop_pattern(pattern, changes);
        }
        self.update_epoch(topics, true, changes);
    }

    /// Ends all that is stored of one member. The order matters to who reads it: the partitions are free before the
    /// member is gone.
    pub(super) fn remove_member(&mut self, member_id: &Arc<str>, changes: &mut Changes) {
        let id = || Arc::clone(member_id);
        self.commit(changes, ConsumerRecord::CurrentMemberAssignment { member_id: id(), value: None });
        self.commit(changes, ConsumerRecord::TargetAssignmentMember { member_id: id(), value: None });
        self.commit(changes, ConsumerRecord::MemberMetadata { member_id: id(), value: None });
        self.deadlines.remove(member_id);
        self.untaken.remove(member_id);
    }

    /// What ends the whole group in the log, for a group that is deleted. Offsets are not the group's matter.
    ///
    /// # Errors
    /// `NonEmptyGroup` when it has members.
    pub fn delete(&mut self) -> Result<Vec<ConsumerRecord>, GroupError> {
        if !self.is_empty() {
            return Err(GroupError::NonEmptyGroup);
        }
        let mut changes = Changes::default();
        let strays: Vec<Arc<str>> = self.state.targets.keys().cloned().collect();
        for member_id in strays {
            self.commit(&mut changes, ConsumerRecord::TargetAssignmentMember { member_id, value: None });
        }
        self.commit(&mut changes, ConsumerRecord::TargetAssignmentMetadata(None));
        let patterns: Vec<Arc<str>> = self.state.patterns.keys().cloned().collect();
        for pattern in patterns {
            self.commit(&mut changes, ConsumerRecord::RegularExpression { pattern, value: None });
        }
        self.commit(&mut changes, ConsumerRecord::GroupMetadata(None));
        Ok(changes.into_records())
    }
}
