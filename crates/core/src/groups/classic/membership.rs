//! What a member may do: heartbeats, leaving, commits.

use std::sync::Arc;

use super::{ClassicGroup, ClassicState, Effects, LeavingMember};
use crate::groups::{GroupError, Now};

impl ClassicGroup {
    /// Takes a `Heartbeat`: the session begins anew. [`GroupError::RebalanceInProgress`] tells a member to join again; it
    /// lives all the same.
    ///
    /// # Errors
    ///
    /// Whatever the member has to know. Nothing but `RebalanceInProgress` touched the session.
    pub fn heartbeat(
        &mut self,
        now: Now,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), GroupError> {
        if self.state == ClassicState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.check_member(member_id, instance_id)?;
        if generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        self.begin_session(now, &Arc::from(member_id));
        match self.state {
            ClassicState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            // Consumers send heartbeats from their join on, whether or not they were told what to do.
            ClassicState::CompletingRebalance | ClassicState::Stable => Ok(()),
            ClassicState::Empty | ClassicState::Dead => Err(GroupError::UnknownMemberId),
        }
    }

    /// Takes one member of a `LeaveGroup` and tells which one left. Several of one request go together:
    /// [`Self::leave_members`].
    ///
    /// # Errors
    ///
    /// `UnknownMemberId`, `FencedInstanceId`, `CoordinatorNotAvailable`: nobody left.
    pub fn leave(
        &mut self,
        now: Now,
        member_id: &str,
        instance_id: Option<&str>,
        effects: &mut Effects,
    ) -> Result<Arc<str>, GroupError> {
        let leaving = [LeavingMember { member_id, instance_id }];
        self.leave_members(now, &leaving, effects).pop().unwrap_or(Err(GroupError::UnknownServer))
    }

    /// Takes the members of a `LeaveGroup`, which cause one rebalance, and tells of each which one left.
    pub fn leave_members(
        &mut self,
        now: Now,
        leaving: &[LeavingMember<'_>],
        effects: &mut Effects,
    ) -> Vec<Result<Arc<str>, GroupError>> {
        let count_before = self.members.len();
        let left: Vec<_> = leaving.iter().map(|leaving| self.take_out(*leaving, effects)).collect();
        match self.state {
            ClassicState::Stable | ClassicState::CompletingRebalance if self.members.len() < count_before => {
                self.prepare_rebalance(now, effects);
            }
            ClassicState::PreparingRebalance if left.iter().any(Result::is_ok) => {
                self.maybe_complete_join(now, effects);
            }
            _ => {}
        }
        left
    }

    fn take_out(
        &mut self,
        leaving: LeavingMember<'_>,
        effects: &mut Effects,
    ) -> Result<Arc<str>, GroupError> {
        if self.state == ClassicState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let LeavingMember { member_id, instance_id } = leaving;
        let member_id: Arc<str> = if member_id.is_empty() {
            // An administrator removes whoever holds the instance id.
            let holder = instance_id.and_then(|instance_id| self.members.holder(instance_id));
            Arc::clone(holder.ok_or(GroupError::UnknownMemberId)?)
        } else {
            if !self.pending_joins.contains(member_id) {
                self.check_member(member_id, instance_id)?;
            }
            Arc::from(member_id)
        };
        self.remove_member(&member_id, effects);
        Ok(member_id)
    }

    /// Whether a client may commit offsets. Without generation, member id and instance id it belongs to no group: it may
    /// while the group has no members. A commit shows that its member lives.
    ///
    /// # Errors
    ///
    /// Whatever the member has to know. Nothing was changed.
    pub fn check_commit(
        &mut self,
        now: Now,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), GroupError> {
        if self.state == ClassicState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if generation < 0 && self.state == ClassicState::Empty {
            return Ok(());
        }
        if generation < 0 && member_id.is_empty() && instance_id.is_none() {
            return Err(GroupError::UnknownMemberId);
        }
        self.check_member(member_id, instance_id)?;
        if generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        // What the member was assigned before may be another's already: it has not learned yet what it is to do now.
        if self.state == ClassicState::CompletingRebalance {
            return Err(GroupError::RebalanceInProgress);
        }
        self.begin_session(now, &Arc::from(member_id));
        Ok(())
    }

    /// Whether the group may be deleted.
    ///
    /// # Errors
    ///
    /// `NonEmptyGroup` while it has members, `GroupIdNotFound` once it is dead.
    pub const fn check_delete(&self) -> Result<(), GroupError> {
        match self.state {
            ClassicState::Empty => Ok(()),
            ClassicState::Dead => Err(GroupError::GroupIdNotFound),
            ClassicState::PreparingRebalance | ClassicState::CompletingRebalance | ClassicState::Stable => {
                Err(GroupError::NonEmptyGroup)
            }
        }
    }

    /// Whether offsets of the group may be deleted, as far as they are not of topics it subscribes to.
    ///
    /// # Errors
    ///
    /// `NonEmptyGroup` while it has members that are not consumers, whose topics nobody knows; `GroupIdNotFound` once it is
    /// dead.
    pub fn check_offset_delete(&self) -> Result<(), GroupError> {
        match self.check_delete() {
            Err(GroupError::NonEmptyGroup) if self.uses_consumer_protocol() => Ok(()),
            other => other,
        }
    }

    /// Whether the member is in the group, and the one that holds its instance id.
    pub(super) fn check_member(&self, member_id: &str, instance_id: Option<&str>) -> Result<(), GroupError> {
        if let Some(instance_id) = instance_id {
            match self.members.holder(instance_id) {
                None => return Err(GroupError::UnknownMemberId),
                Some(holder) if **holder != *member_id => return Err(GroupError::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains(member_id) { Ok(()) } else { Err(GroupError::UnknownMemberId) }
    }
}
