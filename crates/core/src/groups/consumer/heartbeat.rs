//! What a heartbeat does to its group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Changes, ConsumerGroup, ConsumerRecord, ConsumerRules, CurrentAssignment, GroupMetadata, Heartbeat,
    HeartbeatAnswer, HeartbeatRefused, Heartbeated, LEFT_FOR_A_WHILE, MemberMetadata, MemberState,
    PATTERN_REFRESH_INTERVAL, Partitions, PatternsWanted, Resolutions, ResolvedPattern, TopicsImage,
    deadlines::Timer,
    reconciliation::{Report, Step},
    records::pairs,
    session_timeout, topics_hash, without_epochs,
};
use crate::groups::{GroupError, Now};

/// What was found out about a request before anything is changed.
struct Admission {
    member_id: Arc<str>,
    /// The member that held the instance id, left, and is replaced.
    replaces: Option<Arc<str>>,
    /// The request's regular expression, when it has yet to be resolved.
    pattern: Option<Arc<str>>,
}

impl ConsumerGroup {
    /// Handles one heartbeat: a member joins, goes on, or leaves.
    ///
    /// The changes it returns are applied already; the module's documentation says what the caller owes them.
    /// `resolutions` is what came of [`Self::patterns_wanted`].
    ///
    /// # Errors
    /// The group is as it was. `InvalidRequest`, `UnsupportedAssignor`, `InvalidRegularExpression`: the request is wrong.
    /// `GroupMaxSizeReached`, `UnreleasedInstanceId`: it may come again later. `UnknownMemberId`, `FencedMemberEpoch`,
    /// `FencedInstanceId`: the member must give up all its partitions; all but the last may join again. `CoordinatorNotAvailable`: an expression became wanted that `resolutions`
    /// has not.
    pub fn heartbeat(
        &mut self,
        now: Now,
        rules: &ConsumerRules,
        topics: &dyn TopicsImage,
        resolutions: &Resolutions,
        request: &Heartbeat,
    ) -> Result<Heartbeated, HeartbeatRefused> {
        request.check(rules)?;
        if request.epoch < 0 {
            return self.leave(topics, request);
        }
        let admission = self.admit(rules, resolutions, request)?;
        let member_id = Arc::clone(&admission.member_id);
        let mut changes = Changes::default();

        let assigned_before = self.assigned(admission.replaces.as_ref().unwrap_or(&member_id));
        let replaces = admission.replaces.as_ref();
        let change = |metadata| updated(metadata, request);
        let (subscription_changed, mut bump) =
            self.update_member(rules, &member_id, replaces, change, &mut changes);
        bump |= self.resolve_patterns(now, topics, resolutions, admission.pattern.as_ref(), &mut changes);
        self.update_epoch(topics, bump, &mut changes);
        self.update_target(now, rules, topics, &mut changes);
        self.reconcile(topics, &member_id, request.report(), subscription_changed, &mut changes);
        self.restart_timers(now, rules, &member_id, assigned_before.as_ref());

        let member = &self.state.members[&member_id];
        let assigned = without_epochs(&member.current.assigned);
        let tell = request.is_full()
            || assigned_before.is_none_or(|before| without_epochs(&before.assigned) != assigned);
        let answer = HeartbeatAnswer {
            epoch: member.current.epoch,
            heartbeat_interval: rules.heartbeat_interval,
            assignment: tell.then_some(assigned),
            member_id,
        };
        Ok(Heartbeated { changes, answer })
    }

    /// Takes over what the regular expressions match that were due ([`Self::patterns_wanted`]), where `resolutions` has all of
    /// them; else they stay due. The changes are applied already.
    pub fn refresh_patterns(
        &mut self,
        now: Now,
        topics: &dyn TopicsImage,
        resolutions: &Resolutions,
    ) -> Changes {
        let mut changes = Changes::default();
        let bump = self.resolve_patterns(now, topics, resolutions, None, &mut changes);
        self.update_epoch(topics, bump, &mut changes);
        changes
    }

    fn assigned(&self, member_id: &Arc<str>) -> Option<CurrentAssignment> {
        self.state.members.get(member_id).map(|member| member.current.clone())
    }

    /// Finds out whether the request may do what it asks for.
    fn admit(
        &self,
        rules: &ConsumerRules,
        resolutions: &Resolutions,
        request: &Heartbeat,
    ) -> Result<Admission, HeartbeatRefused> {
        let member_id = request.member();
        let known = self.state.members.contains_key(&member_id);
        if self.state.members.len() >= rules.size_max && !known {
            return Err(GroupError::GroupMaxSizeReached.into());
        }
        let holder =
            request.instance_id.as_ref().map(|instance_id| self.state.static_members.get(instance_id));
        let joins = request.epoch == 0;
        let mut replaces = None;
        match holder {
            // A static member comes, or comes back.
            Some(Some(holder)) if joins => {
                let member = &self.state.members[holder];
                if member.current.epoch != LEFT_FOR_A_WHILE && member.metadata.classic.is_none() {
                    return Err(GroupError::UnreleasedInstanceId.into());
                }
                replaces = Some(Arc::clone(holder));
            }
            Some(None) if joins => {}
            Some(None) => return Err(GroupError::UnknownMemberId.into()),
            Some(Some(holder)) if *holder != member_id => return Err(GroupError::FencedInstanceId.into()),
            Some(Some(_)) => self.check_epoch(&member_id, request)?,
            None if joins && !known => {}
            None => self.check_epoch(&member_id, request)?,
        }
        let pattern = self.new_pattern(request).cloned();
        if let Some(pattern) = &pattern {
            let resolved = resolutions.patterns.get(pattern).ok_or(GroupError::CoordinatorNotAvailable)?;
            resolved.as_ref().map_err(Clone::clone)?;
        }
        Ok(Admission { member_id, replaces, pattern })
    }

    /// The regular expression of a request, where no member has it yet.
    fn new_pattern<'a>(&self, request: &'a Heartbeat) -> Option<&'a Arc<str>> {
        let pattern = request.subscribed_pattern.as_ref()?;
        (!pattern.is_empty() && !self.state.patterns.contains_key(pattern)).then_some(pattern)
    }

    /// The regular expressions whose matches this heartbeat asks for.
    #[must_use]
    pub fn patterns_wanted(&self, now: Now, topics: &dyn TopicsImage, request: &Heartbeat) -> PatternsWanted {
        if request.epoch < 0 {
            return PatternsWanted::default();
        }
        let is_due = self.are_patterns_due(now, topics.version());
        PatternsWanted {
            new: self.new_pattern(request).cloned(),
            due: if is_due { self.state.subscribed_patterns() } else { BTreeSet::new() },
        }
    }

    fn are_patterns_due(&self, now: Now, version: i64) -> bool {
        // After a load it is not known when they were resolved last, nor with which topics.
        self.patterns_resolved.is_none_or(|(resolved, at)| {
            resolved != version && now.monotonic >= at.saturating_add(PATTERN_REFRESH_INTERVAL)
        })
    }

    fn check_epoch(&self, member_id: &str, request: &Heartbeat) -> Result<(), GroupError> {
        let member = self.state.members.get(member_id).ok_or(GroupError::UnknownMemberId)?;
        let current = &member.current;
        // A member that joins again owns nothing, whatever the group believes of it.
        if request.epoch == 0 {
            return Ok(());
        }
        // The answer with the member's epoch may have been lost: then it sends the one before, and owns nothing new.
        let is_late = request.epoch < current.epoch
            && request.epoch == current.previous_epoch
            && request.owned.as_ref().is_some_and(|owned| is_part_of(owned, current));
        let owns_something = request.owned.as_ref().is_none_or(|owned| !owned.is_empty());
        if (request.epoch != current.epoch && !is_late)
            || (current.state == MemberState::Unknown && owns_something)
        {
            return Err(GroupError::FencedMemberEpoch);
        }
        Ok(())
    }

    /// Notes what the member said of itself. Says whether its subscription has changed, and whether the group must
    /// rebalance for it.
    pub(super) fn update_member(
        &mut self,
        rules: &ConsumerRules,
        member_id: &Arc<str>,
        replaces: Option<&Arc<str>>,
        change: impl FnOnce(MemberMetadata) -> MemberMetadata,
        changes: &mut Changes,
    ) -> (bool, bool) {
        if let Some(old) = replaces {
            self.replace_member(old, member_id, changes);
        }
        let old = self.state.members.get(member_id).map(|member| member.metadata.clone());
        let metadata = change(old.clone().unwrap_or_default());
        if old.as_ref() == Some(&metadata) {
            return (false, false);
        }
        let assignor_before = self.preferred_assignor(rules);
        let value = Some(metadata.clone());
        self.commit(changes, ConsumerRecord::MemberMetadata { member_id: Arc::clone(member_id), value });

        let old = old.unwrap_or_default();
        let names_changed = old.subscribed_topics != metadata.subscribed_topics;
        let pattern_changed = old.subscribed_pattern != metadata.subscribed_pattern;
        if pattern_changed {
            self.drop_pattern(&old.subscribed_pattern, changes);
        }
        // A new expression brings the group to rebalance when it is resolved; one that is resolved does so now.
        let pattern_matters = pattern_changed
            && (metadata.subscribed_pattern.is_empty()
                || self.state.patterns.contains_key(&metadata.subscribed_pattern));
        let assignor_changed = assignor_before != self.preferred_assignor(rules);
        (names_changed || pattern_changed, names_changed || pattern_matters || assignor_changed)
    }

    /// Gives the place of a static member that left to the one that came for it.
    fn replace_member(&mut self, old: &Arc<str>, new: &Arc<str>, changes: &mut Changes) {
        let Some(member) = self.state.members.get(old).cloned() else { return };
        let target = self.state.targets.get(old).cloned().unwrap_or_default();
        self.remove_member(old, changes);
        let member_id = Arc::clone(new);
        self.commit(changes, ConsumerRecord::MemberMetadata { member_id, value: Some(member.metadata) });
        let member_id = Arc::clone(new);
        self.commit(changes, ConsumerRecord::TargetAssignmentMember { member_id, value: Some(target) });
        let member_id = Arc::clone(new);
        let current = CurrentAssignment { epoch: 0, previous_epoch: 0, ..member.current };
        self.commit(changes, ConsumerRecord::CurrentMemberAssignment { member_id, value: Some(current) });
    }

    /// Forgets what a regular expression matched when nobody subscribes by it any more.
    pub(super) fn drop_pattern(&mut self, pattern: &Arc<str>, changes: &mut Changes) {
        if self.state.patterns.contains_key(pattern) && !self.state.is_pattern_used(pattern) {
            let pattern = Arc::clone(pattern);
            self.commit(changes, ConsumerRecord::RegularExpression { pattern, value: None });
        }
    }

    /// Takes over what the regular expression that is new matches, and what all of them do when they are due. Says whether
    /// one of them matches other topics than before.
    pub(super) fn resolve_patterns(
        &mut self,
        now: Now,
        topics: &dyn TopicsImage,
        resolutions: &Resolutions,
        new: Option<&Arc<str>>,
        changes: &mut Changes,
    ) -> bool {
        let mut changed = false;
        if let Some(pattern) = new {
            changed |= self.resolve_pattern(now, resolutions, pattern, changes);
            // What came since the topics were looked at for it is found when all are due again.
            if let Some((noted, at)) = self.patterns_resolved
                && resolutions.version < noted
            {
                let before = self.patterns_resolved.replace((resolutions.version, at));
                changes.patterns_resolved.get_or_insert(before);
            }
        }
        if !self.are_patterns_due(now, topics.version()) {
            return changed;
        }
        let patterns = self.state.subscribed_patterns();
        // Else they stay due.
        if patterns.iter().all(|pattern| resolutions.patterns.contains_key(pattern)) {
            for pattern in &patterns {
                changed |= self.resolve_pattern(now, resolutions, pattern, changes);
            }
            let version = if patterns.is_empty() { topics.version() } else { resolutions.version };
            let before = self.patterns_resolved.replace((version, now.monotonic));
            changes.patterns_resolved.get_or_insert(before);
        }
        changed
    }

    fn resolve_pattern(
        &mut self,
        now: Now,
        resolutions: &Resolutions,
        pattern: &Arc<str>,
        changes: &mut Changes,
    ) -> bool {
        // One that compiled when it was stored and that a later version refuses: what it matched then stays.
        let Some(Ok(topics)) = resolutions.patterns.get(pattern) else { return false };
        if self.state.patterns.get(pattern).is_some_and(|known| known.topics == *topics) {
            return false;
        }
        let value =
            ResolvedPattern { topics: topics.clone(), version: resolutions.version, timestamp: now.wall };
        let pattern = Arc::clone(pattern);
        self.commit(changes, ConsumerRecord::RegularExpression { pattern, value: Some(value) });
        true
    }

    /// Increments the group epoch when `bump` says so or when the subscribed topics are no longer what they were.
    pub(super) fn update_epoch(&mut self, topics: &dyn TopicsImage, bump: bool, changes: &mut Changes) {
        let version = topics.version();
        if !bump && self.hash_checked == Some(version) {
            return;
        }
        let metadata_hash = topics_hash(self.state.subscribed_topics(), topics);
        self.hash_checked = Some(version);
        if bump || metadata_hash != self.state.metadata_hash {
            let epoch = self.state.epoch.saturating_add(1);
            let value = GroupMetadata { epoch, metadata_hash };
            self.commit(changes, ConsumerRecord::GroupMetadata(Some(value)));
        }
    }

    /// Takes the member one step towards its target.
    pub(super) fn reconcile(
        &mut self,
        topics: &dyn TopicsImage,
        member_id: &Arc<str>,
        report: Report<'_>,
        subscription_changed: bool,
        changes: &mut Changes,
    ) {
        let Some(member) = self.state.members.get(member_id) else { return };
        self.untaken.note(member_id, report, &member.current);
        if !subscription_changed && member.current.is_reconciled_to(self.state.target_epoch) {
            return;
        }
        let subscribed: BTreeSet<_> = self
            .state
            .subscription(&member.metadata)
            .filter_map(|name| topics.topic(name).map(|shape| shape.id))
            .collect();
        let none = Partitions::new();
        let is_free =
            |topic, partition| self.state.owner(topic, partition).is_none_or(|owner| owner == member_id);
        let step = Step {
            target_epoch: self.state.target_epoch,
            target: self.state.targets.get(member_id).map_or(&none, |target| target),
            report,
            untaken: self.untaken.of(member_id).unwrap_or(&none),
            subscribed: &subscribed,
            subscription_changed,
            is_free: &is_free,
        };
        let next = step.take(&member.current);
        // The invariant of all this: what another owns is not given.
        for (topic, partition) in pairs(&next.assigned) {
            assert!(is_free(topic, partition), "{topic}-{partition} given to {member_id} has another owner");
        }
        if next != member.current {
            self.untaken.move_to(member_id, &member.current, &next);
            let member_id = Arc::clone(member_id);
            self.commit(changes, ConsumerRecord::CurrentMemberAssignment { member_id, value: Some(next) });
        }
    }

    fn restart_timers(
        &mut self,
        now: Now,
        rules: &ConsumerRules,
        member_id: &Arc<str>,
        before: Option<&CurrentAssignment>,
    ) {
        let Some(member) = self.state.members.get(member_id) else { return };
        self.deadlines.start(member_id, Timer::Session, now.after(session_timeout(member, rules)));
        self.deadlines.stop(member_id, Timer::Join);
        self.deadlines.stop(member_id, Timer::Sync);
        let current = &member.current;
        if current.state != MemberState::UnrevokedPartitions {
            self.deadlines.stop(member_id, Timer::Revocation);
        } else if before.is_none_or(|before| {
            before.state != current.state || before.pending_revocation != current.pending_revocation
        }) {
            let deadline = now.after(member.metadata.rebalance_timeout);
            self.deadlines.start(member_id, Timer::Revocation, deadline);
        }
    }
}

impl Heartbeat {
    /// What it says of the member's partitions.
    fn report(&self) -> Report<'_> {
        match &self.owned {
            None => Report::Unchanged,
            Some(owned) if self.epoch == 0 => Report::Anew(owned),
            Some(owned) if self.is_full() => Report::Full(owned),
            Some(owned) => Report::Finished(owned),
        }
    }
}

/// The metadata with what the request says anew.
fn updated(mut metadata: MemberMetadata, request: &Heartbeat) -> MemberMetadata {
    if request.instance_id.is_some() {
        metadata.instance_id.clone_from(&request.instance_id);
    }
    if request.rack_id.is_some() {
        metadata.rack_id.clone_from(&request.rack_id);
    }
    if request.server_assignor.is_some() {
        metadata.server_assignor.clone_from(&request.server_assignor);
    }
    if let Some(rebalance_timeout) = request.rebalance_timeout {
        metadata.rebalance_timeout = rebalance_timeout;
    }
    if let Some(subscribed_topics) = &request.subscribed_topics
        && *subscribed_topics != *metadata.subscribed_topics
    {
        metadata.subscribed_topics = Arc::new(subscribed_topics.clone());
    }
    if let Some(pattern) = &request.subscribed_pattern {
        metadata.subscribed_pattern = Arc::clone(pattern);
    }
    metadata.client_id = Arc::clone(&request.client_id);
    metadata.client_host = Arc::clone(&request.client_host);
    metadata.classic = None;
    metadata
}

/// True when all of `owned` is assigned to the member.
fn is_part_of(owned: &Partitions, current: &CurrentAssignment) -> bool {
    let none = BTreeMap::new();
    owned.iter().all(|(topic, partitions)| {
        let assigned = current.assigned.get(topic).unwrap_or(&none);
        partitions.iter().all(|partition| assigned.contains_key(partition))
    })
}
