//! Members of a consumer group that still speak the classic protocol, while an application moves to the new one.
//!
//! What they are answered is made of the target assignment: JoinGroup takes such a member one step towards its target, as
//! a heartbeat does for the others, SyncGroup tells it what it has, and Heartbeat sends it back to JoinGroup whenever there
//! is a step to take. Nobody leads, so no client assigns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tidelog_types::TopicId;

use super::{
    Changes, ClassicMember, ConsumerGroup, ConsumerRules, Member, MemberMetadata, MemberState,
    MigrationPolicy, Partitions, Resolutions, TopicsImage, deadlines::Timer, reconciliation::Report,
    without_epochs,
};
use crate::groups::{
    GroupError, GroupRules, Now,
    classic::{CONSUMER_PROTOCOL_TYPE, JoinRefused, JoinRequest, Joined, LeavingMember, SyncRequest, Synced},
    embedded::{Assignment, NamedPartitions, Subscription},
};

/// What a JoinGroup came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassicJoined {
    /// What must be stored before the answer goes out; applied to the group already.
    pub changes: Changes,
    /// The answer.
    pub joined: Joined,
    /// True when the member took the place of another one: the group may have no member of the consumer protocol left,
    /// see [`ConsumerGroup::downgrade`].
    pub replaced: bool,
}

impl ConsumerGroup {
    /// Handles a JoinGroup of a member that speaks the classic protocol. It is answered at once. An empty consumer group
    /// is better deleted, and a classic one made in its place.
    ///
    /// # Errors
    /// The group is as it was. `InconsistentGroupProtocol` also where migration is switched off.
    pub fn classic_join(
        &mut self,
        now: Now,
        rules: &ConsumerRules,
        classic_rules: &GroupRules,
        policy: MigrationPolicy,
        topics: &dyn TopicsImage,
        request: &JoinRequest,
    ) -> Result<ClassicJoined, JoinRefused> {
        let refuse = |error| JoinRefused { error, member_id: Arc::from("") };
        let subscription = request.protocols.first().map(|(_, metadata)| Subscription::read(metadata));
        let owns = subscription.iter().flatten().any(|subscription| !subscription.owned.is_empty());
        let (member_id, replaces) = self.admit_classic(rules, classic_rules, policy, request, owns)?;
        let Some(((protocol, _), subscription)) = request.protocols.first().zip(subscription.flatten())
        else {
            return Err(refuse(GroupError::InconsistentGroupProtocol));
        };

        let mut changes = Changes::default();
        let owned = by_id(&subscription.owned, topics);
        let change = |metadata| joined_metadata(metadata, request, subscription);
        let (changed, mut bump) =
            self.update_member(rules, &member_id, replaces.as_ref(), change, &mut changes);
        // A member without an expression has none resolved: those that are due wait for one that has.
        bump |= self.resolve_patterns(now, topics, &Resolutions::default(), None, &mut changes);
        self.update_epoch(topics, bump, &mut changes);
        self.update_target(now, rules, topics, &mut changes);
        // It joins when it has taken all that it was given.
        self.reconcile(topics, &member_id, Report::Anew(&owned), changed, &mut changes);

        self.deadlines.stop(&member_id, Timer::Join);
        self.deadlines.stop(&member_id, Timer::Revocation);
        self.deadlines.start(&member_id, Timer::Session, now.after(request.session_timeout));
        self.deadlines.start(&member_id, Timer::Sync, now.after(request.rebalance_timeout));
        let joined = Joined {
            generation: self.state.members[&member_id].current.epoch,
            protocol_type: Some(Arc::from(CONSUMER_PROTOCOL_TYPE)),
            protocol_name: Some(Arc::clone(protocol)),
            leader: Arc::from(""),
            skip_assignment: false,
            member_id,
            members: Vec::new(),
        };
        Ok(ClassicJoined { changes, joined, replaced: replaces.is_some() })
    }

    /// Gives the id that the member has or gets, and the one it replaces.
    fn admit_classic(
        &self,
        rules: &ConsumerRules,
        classic_rules: &GroupRules,
        policy: MigrationPolicy,
        request: &JoinRequest,
        owns: bool,
    ) -> Result<(Arc<str>, Option<Arc<str>>), JoinRefused> {
        let refuse = |error| Err(JoinRefused { error, member_id: Arc::from("") });
        let sessions = classic_rules.session_timeout_min..=classic_rules.session_timeout_max;
        if !sessions.contains(&request.session_timeout) {
            return refuse(GroupError::InvalidSessionTimeout);
        }
        let is_new = request.member_id.is_empty();
        let member_id = if is_new { &request.new_member_id } else { &request.member_id };
        if self.state.members.len() >= rules.size_max && !self.state.members.contains_key(member_id) {
            return refuse(GroupError::GroupMaxSizeReached);
        }
        if policy == MigrationPolicy::Disabled || !self.speaks(request) {
            return refuse(GroupError::InconsistentGroupProtocol);
        }
        if is_new && request.require_known_member_id && request.instance_id.is_none() {
            let member_id = Arc::clone(member_id);
            return Err(JoinRefused { error: GroupError::MemberIdRequired, member_id });
        }
        let holder = match &request.instance_id {
            // A member that was removed and has not heard of it believes to own what others have by now: it has to give
            // that up before it joins.
            None if owns && !self.state.members.contains_key(member_id) => {
                return refuse(GroupError::UnknownMemberId);
            }
            None => return Ok((Arc::clone(member_id), None)),
            Some(instance_id) => self.state.static_members.get(instance_id),
        };
        match holder {
            None if is_new => Ok((Arc::clone(member_id), None)),
            None => refuse(GroupError::UnknownMemberId),
            Some(holder) if is_new => Ok((Arc::clone(member_id), Some(Arc::clone(holder)))),
            Some(holder) if holder != member_id => refuse(GroupError::FencedInstanceId),
            Some(_) => Ok((Arc::clone(member_id), None)),
        }
    }

    /// True when the request has a protocol that all classic members have.
    fn speaks(&self, request: &JoinRequest) -> bool {
        let mut common: BTreeSet<&Arc<str>> = request.protocols.iter().map(|(name, _)| name).collect();
        // Each name is looked up once: there may be many on both sides.
        for classic in self.state.members.values().filter_map(|member| member.metadata.classic.as_ref()) {
            let spoken = classic.protocols.iter().filter_map(|(name, _)| common.take(name));
            common = spoken.collect();
        }
        &*request.protocol_type == CONSUMER_PROTOCOL_TYPE && !common.is_empty()
    }

    /// Handles a SyncGroup: the member gets what it has.
    ///
    /// # Errors
    /// `RebalanceInProgress` when there is a newer target to join again for.
    pub fn classic_sync(
        &mut self,
        now: Now,
        topics: &dyn TopicsImage,
        request: &SyncRequest,
    ) -> Result<Synced, GroupError> {
        let member_id =
            self.classic_member(&request.member_id, request.instance_id.as_deref(), request.generation)?;
        let member = &self.state.members[&member_id];
        let (protocol, version) = spoken(member).ok_or(GroupError::InconsistentGroupProtocol)?;
        let fits = request.protocol_type.as_deref().is_none_or(|name| name == CONSUMER_PROTOCOL_TYPE)
            && request.protocol_name.as_ref().is_none_or(|name| name == protocol);
        if !fits {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        let current = &member.current;
        let rebalance_timeout = member.metadata.rebalance_timeout;
        if self.state.target_epoch > current.epoch && current.state != MemberState::UnrevokedPartitions {
            self.deadlines.start_if_absent(&member_id, Timer::Join, now.after(rebalance_timeout));
            return Err(GroupError::RebalanceInProgress);
        }
        let assignment = Assignment::write(version, &by_name(&without_epochs(&current.assigned), topics));
        let session = classic_session(member);
        self.deadlines.stop(&member_id, Timer::Sync);
        self.deadlines.start(&member_id, Timer::Session, now.after(session));
        Ok(Synced {
            protocol_type: request.protocol_type.clone(),
            protocol_name: request.protocol_name.clone(),
            assignment,
        })
    }

    /// Handles a Heartbeat of the classic protocol.
    ///
    /// # Errors
    /// `RebalanceInProgress` when the member has to join again: there is a newer target, or its joining will make one, or it
    /// has to give up partitions, or those it waits for are free.
    pub fn classic_heartbeat(
        &mut self,
        now: Now,
        rules: &ConsumerRules,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), GroupError> {
        let member_id = self.classic_member(member_id, instance_id, generation)?;
        let member = &self.state.members[&member_id];
        let (session, rebalance_timeout) = (classic_session(member), member.metadata.rebalance_timeout);
        let must_join = member.current.epoch < self.state.target_epoch
            || self.is_target_due(now, rules)
            || member.current.state == MemberState::UnrevokedPartitions
            || (member.current.state == MemberState::UnreleasedPartitions && !self.waits(&member_id, member));
        self.deadlines.start(&member_id, Timer::Session, now.after(session));
        if must_join {
            self.deadlines.start_if_absent(&member_id, Timer::Join, now.after(rebalance_timeout));
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    /// Checks one commit of a classic member as a sign of life; the commit itself is [`Self::check_commit`]'s matter.
    pub fn classic_commits(&mut self, now: Now, member_id: &str) {
        let Some((member_id, member)) = self.state.members.get_key_value(member_id) else { return };
        if member.metadata.classic.is_some() {
            let (member_id, session) = (Arc::clone(member_id), classic_session(member));
            self.deadlines.start(&member_id, Timer::Session, now.after(session));
        }
    }

    /// Handles a LeaveGroup: gives an answer for each member, the id of the one that left, and the records, applied
    /// already. As in Kafka it puts out members of the consumer protocol too: an administrator's tool knows no other request.
    pub fn classic_leave(
        &mut self,
        topics: &dyn TopicsImage,
        leaving: &[LeavingMember<'_>],
    ) -> (Vec<Result<Arc<str>, GroupError>>, Changes) {
        let mut gone = BTreeSet::new();
        let mut answers = Vec::with_capacity(leaving.len());
        for member in leaving {
            let found = match member.instance_id {
                // An administrator names the instance alone.
                Some(instance_id) if member.member_id.is_empty() => {
                    self.state.static_members.get(instance_id).cloned().ok_or(GroupError::UnknownMemberId)
                }
                instance_id => self.holder(member.member_id, instance_id),
            };
            gone.extend(found.iter().cloned());
            answers.push(found);
        }
        let mut changes = Changes::default();
        self.remove_members(topics, &gone, &mut changes);
        (answers, changes)
    }

    /// The member that a request of the classic protocol is of, after the checks that all of them have.
    fn classic_member(
        &self,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<Arc<str>, GroupError> {
        let member_id = self.holder(member_id, instance_id)?;
        let member = &self.state.members[&member_id];
        if member.metadata.classic.is_none() {
            Err(GroupError::UnknownMemberId)
        } else if member.current.epoch != generation {
            Err(GroupError::IllegalGeneration)
        } else {
            Ok(member_id)
        }
    }

    fn holder(&self, member_id: &str, instance_id: Option<&str>) -> Result<Arc<str>, GroupError> {
        let Some(instance_id) = instance_id else {
            let known = self.state.members.get_key_value(member_id).ok_or(GroupError::UnknownMemberId)?;
            return Ok(Arc::clone(known.0));
        };
        let holder = self.state.static_members.get(instance_id).ok_or(GroupError::UnknownMemberId)?;
        if **holder == *member_id { Ok(Arc::clone(holder)) } else { Err(GroupError::FencedInstanceId) }
    }

    /// True while a partition of the member's target is owned by another.
    fn waits(&self, member_id: &Arc<str>, member: &Member) -> bool {
        let Some(target) = self.state.targets.get(member_id) else { return false };
        target.iter().any(|(topic, partitions)| {
            let owned_elsewhere = |partition: &i32| {
                self.state.owner(*topic, *partition).is_some_and(|owner| owner != member_id)
            };
            let assigned = member.current.assigned.get(topic);
            partitions.iter().any(|partition| {
                !assigned.is_some_and(|inner| inner.contains_key(partition)) && owned_elsewhere(partition)
            })
        })
    }
}

/// The protocol that the member's answers name, and the version that it wrote its subscription in.
fn spoken(member: &Member) -> Option<(&Arc<str>, i16)> {
    let (name, metadata) = member.metadata.classic.as_ref()?.protocols.first()?;
    Some((name, Subscription::read(metadata)?.version))
}

fn classic_session(member: &Member) -> Duration {
    member.metadata.classic.as_ref().map_or(Duration::ZERO, |classic| classic.session_timeout)
}

fn joined_metadata(
    mut metadata: MemberMetadata,
    request: &JoinRequest,
    subscription: Subscription,
) -> MemberMetadata {
    if request.instance_id.is_some() {
        metadata.instance_id.clone_from(&request.instance_id);
    }
    if subscription.rack.is_some() {
        metadata.rack_id = subscription.rack;
    }
    metadata.rebalance_timeout = request.rebalance_timeout;
    metadata.subscribed_topics = Arc::new(subscription.topics);
    // The classic protocol has none, whatever the member that it replaces had.
    metadata.subscribed_pattern = Arc::from("");
    metadata.client_id = Arc::clone(&request.client_id);
    metadata.client_host = Arc::clone(&request.client_host);
    let protocols = request
        .protocols
        .iter()
        // The bytes outlive the request, whose buffer they would hold.
        .map(|(name, metadata)| (Arc::clone(name), bytes::Bytes::copy_from_slice(metadata)))
        .collect();
    metadata.classic = Some(ClassicMember { session_timeout: request.session_timeout, protocols });
    metadata
}

/// The partitions by the ids of their topics; topics that do not exist are left out.
pub(super) fn by_id(partitions: &NamedPartitions, topics: &dyn TopicsImage) -> Partitions {
    let mut found = Partitions::new();
    for (name, partitions) in partitions {
        if let Some(shape) = topics.topic(name) {
            let exists = |partition: &&i32| (0..shape.partition_count).contains(*partition);
            found.entry(shape.id).or_default().extend(partitions.iter().filter(exists));
        }
    }
    found.retain(|_, partitions| !partitions.is_empty());
    found
}

/// The partitions by the names of their topics; topics that do not exist are left out.
pub(super) fn by_name(partitions: &Partitions, topics: &dyn TopicsImage) -> Vec<(Arc<str>, BTreeSet<i32>)> {
    let named = |(id, partitions): (&TopicId, &BTreeSet<i32>)| Some((topics.name(*id)?, partitions.clone()));
    partitions.iter().filter_map(named).collect::<BTreeMap<_, _>>().into_iter().collect()
}
