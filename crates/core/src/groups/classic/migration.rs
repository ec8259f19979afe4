//! A classic group that becomes a consumer group, or comes from one (KIP-848).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicState, Effects, Stored,
    member::{Identity, Member, Protocols},
};
use crate::groups::Now;

/// A member on its way from one kind of group to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigratingMember {
    /// Its id.
    pub member_id: Arc<str>,
    /// Its instance id, when it is static.
    pub instance_id: Option<Arc<str>>,
    /// How its client calls itself.
    pub client_id: Arc<str>,
    /// Where it connects from.
    pub client_host: Arc<str>,
    /// How long it may be silent.
    pub session_timeout: Duration,
    /// How long the others wait for it.
    pub rebalance_timeout: Duration,
    /// The protocols that it speaks, the one it likes best first, each with its metadata.
    pub protocols: Vec<(Arc<str>, Bytes)>,
    /// What it is to do.
    pub assignment: Bytes,
}

impl ClassicGroup {
    /// Bytes of what all members said, every protocol of it: a consumer group that takes them over stores it.
    #[must_use]
    pub fn said_bytes(&self) -> usize {
        self.members.iter().map(|member| member.identity.protocols.said_bytes()).sum()
    }

    /// Bytes of what all members are to do.
    #[must_use]
    pub fn assignment_bytes(&self) -> usize {
        self.members.iter().map(|member| member.assignment.len()).sum()
    }

    /// About how many bytes a member takes, known by its instance id where it is static; 0 where there is none.
    #[must_use]
    pub fn member_bytes(&self, member_id: &str, instance_id: Option<&str>) -> usize {
        let holder = instance_id.and_then(|instance_id| self.members.holder(instance_id));
        self.members.get(holder.map_or(member_id, |holder| holder)).map_or(0, Member::bytes)
    }

    /// The members, for a consumer group that takes them over.
    pub fn migrating_members(&self) -> impl Iterator<Item = MigratingMember> + '_ {
        self.members.iter().map(|member| MigratingMember {
            member_id: Arc::clone(member.id()),
            instance_id: member.instance_id.clone(),
            client_id: Arc::clone(&member.identity.client_id),
            client_host: Arc::clone(&member.identity.client_host),
            session_timeout: member.identity.session_timeout,
            rebalance_timeout: member.identity.rebalance_timeout,
            protocols: member.identity.protocols.to_vec(),
            assignment: member.assignment.clone(),
        })
    }

    /// A stable group of consumers, taken over from a consumer group of this epoch; sessions begin now. `assign` gives a
    /// member's assignment from its id and its metadata for the protocol that all of them speak.
    ///
    /// `None` when there are no members, or nothing that all speak.
    #[must_use]
    pub fn take_over(
        now: Now,
        generation: i32,
        members: Vec<MigratingMember>,
        assign: impl Fn(&str, &[u8]) -> Bytes,
    ) -> Option<Self> {
        let mut group = Self::new(now);
        group.generation = generation;
        group.protocol_type = Some(Arc::from(CONSUMER_PROTOCOL_TYPE));
        for member in members {
            group.sessions.set(&member.member_id, now.after(member.session_timeout));
            group.members.insert(Member {
                identity: Identity {
                    member_id: member.member_id,
                    client_id: member.client_id,
                    client_host: member.client_host,
                    session_timeout: member.session_timeout,
                    rebalance_timeout: member.rebalance_timeout,
                    protocols: Protocols::of_request(&member.protocols),
                },
                instance_id: member.instance_id,
                assignment: Bytes::new(),
                is_new: false,
                awaits_join: None,
                awaits_sync: None,
            });
        }
        group.leader = group.first_member();
        let protocol = group.members.elect_protocol(group.leader.as_deref())?;
        for member_id in group.members.ids() {
            group.members.change(&member_id, |member| {
                member.assignment = assign(member.id(), &member.metadata(Some(&protocol)));
            });
        }
        group.protocol = Some(protocol);
        group.subscribed_topics = group.subscribed_now();
        group.enter(ClassicState::Stable, now);
        Some(group)
    }

    /// The record of a group that was taken over, to be written with those that end the group it was.
    #[must_use]
    pub fn taken_over_form(&self) -> Stored {
        self.stored_form(None)
    }

    /// Has the members of a group that was taken over join anew: one of those it had is gone.
    pub fn rebalance_taken_over(&mut self, now: Now, effects: &mut Effects) {
        if self.state == ClassicState::Stable {
            self.prepare_rebalance(now, effects);
        }
    }
}
