//! Whether a member may commit or fetch offsets.

use std::sync::Arc;

use tidelog_types::TopicId;

use super::{ConsumerGroup, Member};
use crate::groups::GroupError;

/// What a commit may contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitPermit {
    /// Any partition.
    Any,
    /// The epoch is older than the member's: each partition must have been the member's at that epoch already (KIP-1251).
    /// [`ConsumerGroup::check_commit_of`] says so of one partition.
    Since {
        /// The member.
        member_id: Arc<str>,
        /// The epoch of the commit.
        epoch: i32,
    },
}

impl ConsumerGroup {
    /// Checks who commits offsets. `is_old_version` is true for versions of OffsetCommit below 9, which members of the
    /// consumer protocol must not use, and false for transactional commits.
    ///
    /// A negative epoch is that of a client outside of the group protocol.
    ///
    /// # Errors
    /// `UnknownMemberId`, `UnsupportedVersion`; `StaleMemberEpoch` for an epoch from the future, `IllegalGeneration` for
    /// that of a classic member.
    pub fn check_commit(
        &self,
        member_id: &str,
        instance_id: Option<&str>,
        epoch: i32,
        is_transactional: bool,
        is_old_version: bool,
    ) -> Result<CommitPermit, GroupError> {
        if epoch < 0 && self.is_empty() {
            return Ok(CommitPermit::Any);
        }
        // A producer that knows nothing of the group commits within its transaction.
        if is_transactional && epoch == -1 && member_id.is_empty() && instance_id.is_none() {
            return Ok(CommitPermit::Any);
        }
        let (member_id, member) =
            self.state.members.get_key_value(member_id).ok_or(GroupError::UnknownMemberId)?;
        if !is_transactional && is_old_version && member.metadata.classic.is_none() {
            return Err(GroupError::UnsupportedVersion);
        }
        match epoch.cmp(&member.current.epoch) {
            std::cmp::Ordering::Equal => Ok(CommitPermit::Any),
            std::cmp::Ordering::Greater => Err(stale(member)),
            std::cmp::Ordering::Less => Ok(CommitPermit::Since { member_id: Arc::clone(member_id), epoch }),
        }
    }

    /// Checks one partition of a commit that was permitted.
    ///
    /// # Errors
    /// `StaleMemberEpoch` (`IllegalGeneration` for a classic member) when the partition was not the member's at the epoch
    /// of the commit.
    pub fn check_commit_of(
        &self,
        permit: &CommitPermit,
        topic: TopicId,
        partition: i32,
    ) -> Result<(), GroupError> {
        let CommitPermit::Since { member_id, epoch } = permit else { return Ok(()) };
        let member = self.state.members.get(member_id).ok_or(GroupError::UnknownMemberId)?;
        let current = &member.current;
        let given = [&current.assigned, &current.pending_revocation]
            .into_iter()
            .find_map(|partitions| partitions.get(&topic)?.get(&partition));
        if given.is_some_and(|given| given <= epoch) { Ok(()) } else { Err(stale(member)) }
    }

    /// Checks who fetches offsets; without a member id and with a negative epoch anyone may.
    ///
    /// # Errors
    /// `UnknownMemberId`; `StaleMemberEpoch` (`IllegalGeneration` for a classic member) when the epoch is not the member's.
    pub fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), GroupError> {
        let Some(member_id) = member_id else {
            return if epoch < 0 { Ok(()) } else { Err(GroupError::UnknownMemberId) };
        };
        let member = self.state.members.get(member_id).ok_or(GroupError::UnknownMemberId)?;
        if member.current.epoch == epoch { Ok(()) } else { Err(stale(member)) }
    }
}

fn stale(member: &Member) -> GroupError {
    if member.metadata.classic.is_some() {
        GroupError::IllegalGeneration
    } else {
        GroupError::StaleMemberEpoch
    }
}
