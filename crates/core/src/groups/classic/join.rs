//! Joining.

use std::sync::Arc;

use bytes::Bytes;
use tidelog_types::limits;

use super::{
    ClassicGroup, ClassicState, Effects, JoinRefused, JoinRequest, Joined, JoinedMember,
    NEW_MEMBER_JOIN_TIMEOUT,
    member::{Identity, Member, Wait},
    sync::{PendingStore, Replacement},
};
use crate::groups::{GroupError, GroupRules, Now, Token};

/// A call's surroundings, which every way of joining needs.
struct Call<'a> {
    now: Now,
    rules: &'a GroupRules,
    token: Token,
    effects: &'a mut Effects,
}

impl ClassicGroup {
    /// Takes a `JoinGroup`. The reply comes at once, or from a later call, with `token`.
    pub fn join(
        &mut self,
        now: Now,
        rules: &GroupRules,
        request: JoinRequest,
        token: Token,
        effects: &mut Effects,
    ) {
        let mut call = Call { now, rules, token, effects };
        if let Err(refused) = self.accept_join(&request, &mut call) {
            effects.refuse_join(Some(token), refused);
        }
    }

    fn accept_join(&mut self, request: &JoinRequest, call: &mut Call<'_>) -> Result<(), JoinRefused> {
        let refused = |error| JoinRefused { error, member_id: Arc::clone(&request.member_id) };
        if request.session_timeout < call.rules.session_timeout_min
            || request.session_timeout > call.rules.session_timeout_max
        {
            return Err(refused(GroupError::InvalidSessionTimeout));
        }
        if !self.has_room(&request.member_id, call.rules) {
            self.remove_member(&request.member_id, call.effects);
            self.maybe_complete_join(call.now, call.effects);
            return Err(JoinRefused { error: GroupError::GroupMaxSizeReached, member_id: Arc::from("") });
        }
        if self.state == ClassicState::Dead {
            return Err(refused(GroupError::CoordinatorNotAvailable));
        }
        if !self.fits(request) {
            return Err(refused(GroupError::InconsistentGroupProtocol));
        }
        if request.member_id.is_empty() {
            return self.join_unknown(request, call);
        }
        if request.instance_id.is_none() && self.pending_joins.contains(&request.member_id) {
            self.add_member(request, Arc::clone(&request.member_id), call);
            return Ok(());
        }
        self.check_member(&request.member_id, request.instance_id.as_deref()).map_err(refused)?;
        self.join_again(request, call);
        Ok(())
    }

    /// Whether the client may be in the group. While members join, those that already wait count: the last to come are left
    /// out when the group became larger than it may be.
    fn has_room(&self, member_id: &str, rules: &GroupRules) -> bool {
        match self.state {
            ClassicState::Empty | ClassicState::Dead => true,
            ClassicState::PreparingRebalance => {
                self.members.get(member_id).is_some_and(|member| member.awaits_join.is_some())
                    || self.members.awaiting_join() < rules.size_max
            }
            ClassicState::CompletingRebalance | ClassicState::Stable => {
                self.members.contains(member_id) || self.members.len() < rules.size_max
            }
        }
    }

    /// Whether the client speaks as the others do. In an empty group it only has to speak at all.
    fn fits(&self, request: &JoinRequest) -> bool {
        if self.state == ClassicState::Empty {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        self.protocol_type.as_ref() == Some(&request.protocol_type)
            && request.protocols.iter().any(|(name, _)| self.members.all_speak(name))
    }

    fn join_unknown(&mut self, request: &JoinRequest, call: &mut Call<'_>) -> Result<(), JoinRefused> {
        let new_member_id = Arc::clone(&request.new_member_id);
        if new_member_id.is_empty()
            || self.members.contains(&new_member_id)
            || self.pending_joins.contains(&new_member_id)
        {
            return Err(JoinRefused { error: GroupError::UnknownServer, member_id: Arc::from("") });
        }
        if let Some(instance_id) = &request.instance_id {
            match self.members.holder(instance_id).cloned() {
                Some(holder) => self.replace_static_member(request, &holder, call),
                None => self.add_member(request, new_member_id, call),
            }
            return Ok(());
        }
        if !request.require_known_member_id {
            self.add_member(request, new_member_id, call);
            return Ok(());
        }
        if self.pending_joins.len() >= limits::GROUP_PENDING_MEMBERS_MAX {
            return Err(JoinRefused { error: GroupError::GroupMaxSizeReached, member_id: Arc::from("") });
        }
        self.pending_joins.insert(Arc::clone(&new_member_id));
        self.sessions.set(&new_member_id, call.now.after(request.session_timeout));
        Err(JoinRefused { error: GroupError::MemberIdRequired, member_id: new_member_id })
    }

    fn add_member(&mut self, request: &JoinRequest, member_id: Arc<str>, call: &mut Call<'_>) {
        if let Some(initial_delay) = &mut self.initial_delay {
            initial_delay.new_member_added = true;
        }
        if self.members.is_empty() {
            self.protocol_type = Some(Arc::clone(&request.protocol_type));
        }
        self.members.insert(Member {
            identity: Identity::of_request(request, Arc::clone(&member_id)),
            instance_id: request.instance_id.clone(),
            assignment: Bytes::new(),
            is_new: true,
            awaits_join: Some(Wait::of(call.token)),
            awaits_sync: None,
        });
        if self.leader.is_none() {
            self.leader = Some(Arc::clone(&member_id));
        }
        self.pending_joins.remove(&member_id);
        self.sessions.set(&member_id, call.now.after(NEW_MEMBER_JOIN_TIMEOUT));
        self.rebalance_or_complete(call.now, call.rules, call.effects);
    }

    /// A member that the group knows joins.
    fn join_again(&mut self, request: &JoinRequest, call: &mut Call<'_>) {
        let identity = Identity::of_request(request, Arc::clone(&request.member_id));
        let unchanged = self
            .members
            .get(&request.member_id)
            .is_some_and(|member| member.identity.protocols == identity.protocols);
        let answer_now = match self.state {
            // It did not get the reply to its first join.
            ClassicState::CompletingRebalance => unchanged,
            // A leader joins again because of something only it sees, as new partitions.
            ClassicState::Stable => unchanged && !self.is_leader(&request.member_id),
            ClassicState::Empty | ClassicState::PreparingRebalance | ClassicState::Dead => false,
        };
        if answer_now {
            let joined = self.joined(&request.member_id);
            call.effects.joined(Some(call.token), joined);
            return;
        }
        self.await_join(identity, call);
        self.rebalance_or_complete(call.now, call.rules, call.effects);
    }

    /// Lets a member wait for the next generation with what it brought now.
    fn await_join(&mut self, identity: Identity, call: &mut Call<'_>) {
        let member_id = Arc::clone(&identity.member_id);
        let earlier = self.members.change(&member_id, |member| {
            member.identity.protocols = identity.protocols;
            member.identity.session_timeout = identity.session_timeout;
            member.identity.rebalance_timeout = identity.rebalance_timeout;
            member.awaits_join.replace(Wait::of(call.token))
        });
        // Its earlier request, if it waits still, is most likely nobody's; whoever reads the reply may ask again.
        if let Some(wait) = earlier.flatten() {
            call.effects
                .refuse_join(wait.token, JoinRefused { error: GroupError::RebalanceInProgress, member_id });
        }
    }

    /// A static member came back without its member id: it gets a new one, and whoever has the old one is fenced.
    ///
    /// In `Stable`, when the protocol stays the same, the others do not notice: the new id is stored, and the member goes on
    /// with the assignment of its predecessor. In `CompletingRebalance` the leader may have been told the old id, so that
    /// its assignment would miss the new one.
    fn replace_static_member(&mut self, request: &JoinRequest, holder: &Arc<str>, call: &mut Call<'_>) {
        let leader_before = self.leader.clone();
        self.answer_waits(holder, holder, GroupError::FencedInstanceId, call.effects);
        let identity = Identity::of_request(request, Arc::clone(&request.new_member_id));
        let member_id = Arc::clone(&identity.member_id);
        let Some(predecessor) = self.rename(holder, identity) else {
            return;
        };
        self.members.change(&member_id, |member| member.awaits_join = Some(Wait::of(call.token)));
        self.begin_session(call.now, &member_id);
        match self.state {
            ClassicState::Stable
                if self.protocol == self.members.elect_protocol(self.leader.as_deref())
                    && self.protocol.is_some() =>
            {
                self.subscribed_topics = self.subscribed_now();
                let ticket = self.draw_ticket();
                let replacement = Replacement {
                    predecessor,
                    member_id,
                    generation: self.generation,
                    leader_before,
                    supports_skip_assignment: request.supports_skip_assignment,
                };
                self.pending_stores.insert(ticket, PendingStore::Replacement(replacement));
                call.effects.store(ticket, self.stored_form(None));
            }
            ClassicState::Stable | ClassicState::CompletingRebalance => {
                self.prepare_rebalance(call.now, call.effects);
            }
            ClassicState::PreparingRebalance => self.maybe_complete_join(call.now, call.effects),
            ClassicState::Empty | ClassicState::Dead => {}
        }
    }

    /// Gives a member another identity, wherever its id is known. What it waits for must be answered before. Returns the
    /// identity that it had.
    pub(super) fn rename(&mut self, member_id: &str, identity: Identity) -> Option<Identity> {
        let new_member_id = Arc::clone(&identity.member_id);
        let predecessor = self.members.change(member_id, |member| {
            member.is_new = false;
            std::mem::replace(&mut member.identity, identity)
        })?;
        if self.is_leader(member_id) {
            self.leader = Some(Arc::clone(&new_member_id));
        }
        if self.pending_syncs.remove(member_id) {
            self.pending_syncs.insert(new_member_id);
        }
        self.sessions.cancel(member_id);
        Some(predecessor)
    }

    /// What a member of the present generation is told.
    pub(super) fn joined(&self, member_id: &Arc<str>) -> Joined {
        let members = if self.is_leader(member_id) { self.joined_members() } else { Vec::new() };
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_else(|| Arc::from("")),
            skip_assignment: false,
            member_id: Arc::clone(member_id),
            members,
        }
    }

    fn joined_members(&self) -> Vec<JoinedMember> {
        self.members
            .iter()
            .map(|member| JoinedMember {
                member_id: Arc::clone(member.id()),
                instance_id: member.instance_id.clone(),
                metadata: member.metadata(self.protocol.as_deref()),
            })
            .collect()
    }
}
