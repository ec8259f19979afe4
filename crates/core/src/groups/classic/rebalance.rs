//! From one generation to the next, and what happens when time passes.

use std::{sync::Arc, time::Duration};

use super::{ClassicGroup, ClassicState, Effects, member::Member};
use crate::groups::{GoneWhy, GroupError, GroupRules, Now};

/// How soon a join phase that nobody joined is looked at again when its members want no time at all.
const JOIN_RETRY_MIN: Duration = Duration::from_millis(100);

/// The first generation after `Empty` waits for more members, as consumers of one application start together: as long as
/// they keep coming, but not beyond the rebalance timeout (KIP-134).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InitialDelay {
    /// The delay that runs now.
    delay: Duration,
    /// What may still follow it.
    remaining: Duration,
    /// Whether somebody came while it ran.
    pub(super) new_member_added: bool,
}

/// What is due first.
enum Due {
    Session,
    Join,
    Sync,
}

impl ClassicGroup {
    /// Does all that is due: sessions that end, join phases whose time is up, members that never synced.
    pub fn tick(&mut self, now: Now, rules: &GroupRules, effects: &mut Effects) {
        while let Some(due) = self.first_due(now) {
            match due {
                Due::Session => self.end_session(now, effects),
                Due::Join => self.end_join_phase(now, rules, effects),
                Due::Sync => self.give_up_unsynced(now, effects),
            }
        }
    }

    fn first_due(&self, now: Now) -> Option<Due> {
        let session = self.sessions.first().map(|at| (at, Due::Session));
        let join = self.join_deadline.map(|at| (at, Due::Join));
        let sync = self.sync_deadline.map(|at| (at, Due::Sync));
        let (at, due) = [session, join, sync].into_iter().flatten().min_by_key(|(at, _)| *at)?;
        (at <= now.monotonic).then_some(due)
    }

    fn end_session(&mut self, now: Now, effects: &mut Effects) {
        let Some(member_id) = self.sessions.pop_first() else {
            return;
        };
        if self.pending_joins.remove(&member_id) {
            self.complete_join_when_all_joined(now, effects);
            return;
        }
        // Who waits for the coordinator is not silent; its session begins again with the reply.
        if self.members.get(&member_id).is_none_or(|member| !member.is_new && member.is_waiting()) {
            return;
        }
        self.put_out(&member_id, GoneWhy::Heartbeat, effects);
        match self.state {
            ClassicState::Stable | ClassicState::CompletingRebalance => self.prepare_rebalance(now, effects),
            ClassicState::PreparingRebalance => self.complete_join_when_all_joined(now, effects),
            ClassicState::Empty | ClassicState::Dead => {}
        }
    }

    fn end_join_phase(&mut self, now: Now, rules: &GroupRules, effects: &mut Effects) {
        if let Some(initial) = &mut self.initial_delay
            && initial.new_member_added
            && !initial.remaining.is_zero()
        {
            let delay = rules.initial_rebalance_delay.min(initial.remaining);
            initial.remaining = initial.remaining.saturating_sub(initial.delay);
            initial.delay = delay;
            initial.new_member_added = false;
            self.join_deadline = Some(now.after(delay));
            return;
        }
        self.complete_join(now, effects);
    }

    fn give_up_unsynced(&mut self, now: Now, effects: &mut Effects) {
        self.sync_deadline = None;
        if self.pending_syncs.is_empty() {
            return;
        }
        for member_id in std::mem::take(&mut self.pending_syncs) {
            self.put_out(&member_id, GoneWhy::Sync, effects);
        }
        self.prepare_rebalance(now, effects);
    }

    /// A member came, or came again with something new.
    pub(super) fn rebalance_or_complete(&mut self, now: Now, rules: &GroupRules, effects: &mut Effects) {
        match self.state {
            ClassicState::Empty => self.prepare_initial_rebalance(now, rules, effects),
            ClassicState::Stable | ClassicState::CompletingRebalance => self.prepare_rebalance(now, effects),
            ClassicState::PreparingRebalance => self.maybe_complete_join(now, effects),
            ClassicState::Dead => {}
        }
    }

    fn prepare_initial_rebalance(&mut self, now: Now, rules: &GroupRules, effects: &mut Effects) {
        let delay = rules.initial_rebalance_delay;
        self.enter(ClassicState::PreparingRebalance, now);
        if delay.is_zero() {
            self.complete_join(now, effects);
            return;
        }
        let remaining = self.members.rebalance_timeout().saturating_sub(delay);
        self.initial_delay = Some(InitialDelay { delay, remaining, new_member_added: false });
        self.join_deadline = Some(now.after(delay));
    }

    /// Ends the present generation: its members are to join again, and whoever waits for an assignment is told so.
    ///
    /// # Panics
    ///
    /// Unless the group is in `CompletingRebalance` or `Stable`.
    pub(super) fn prepare_rebalance(&mut self, now: Now, effects: &mut Effects) {
        match self.state {
            ClassicState::CompletingRebalance => {
                self.drop_assignments(now, GroupError::RebalanceInProgress, effects);
            }
            ClassicState::Stable => {}
            other => panic!("a generation ends that does not run: {other:?}"),
        }
        self.pending_syncs.clear();
        self.sync_deadline = None;
        self.assignment_store = None;
        self.enter(ClassicState::PreparingRebalance, now);
        self.join_deadline = Some(now.after(self.members.rebalance_timeout()));
        self.complete_join_when_all_joined(now, effects);
    }

    /// Ends the join phase when nobody is missing any more, but not the wait of a first generation for more members.
    pub(super) fn maybe_complete_join(&mut self, now: Now, effects: &mut Effects) {
        if self.initial_delay.is_none() {
            self.complete_join_when_all_joined(now, effects);
        }
    }

    fn complete_join_when_all_joined(&mut self, now: Now, effects: &mut Effects) {
        let all_joined = self.members.len() == self.members.awaiting_join() && self.pending_joins.is_empty();
        if self.state == ClassicState::PreparingRebalance && all_joined {
            self.complete_join(now, effects);
        }
    }

    /// Ends the join phase with those that are there. A dynamic member that did not come is out; a static one stays, as it
    /// may be restarting, until its session or the wait for its sync is over.
    fn complete_join(&mut self, now: Now, effects: &mut Effects) {
        self.join_deadline = None;
        let is_gone = |member: &&Member| member.awaits_join.is_none() && member.instance_id.is_none();
        let gone: Vec<Arc<str>> =
            self.members.iter().filter(is_gone).map(|member| Arc::clone(member.id())).collect();
        for member_id in gone {
            self.put_out(&member_id, GoneWhy::Join, effects);
        }
        if !self.elect_leader() && !self.members.is_empty() {
            // Only static members, and none of them here: their sessions decide.
            let again = self.members.rebalance_timeout().max(JOIN_RETRY_MIN);
            self.join_deadline = Some(now.after(again));
            return;
        }
        self.initial_delay = None;
        self.begin_generation(now, effects);
    }

    /// Whether somebody that joined leads. A leader that did not come loses its office.
    fn elect_leader(&mut self) -> bool {
        let joined = |member: &&Member| member.awaits_join.is_some();
        let leader = self.leader.as_deref().and_then(|leader| self.members.get(leader));
        if leader.filter(joined).is_some() {
            return true;
        }
        let Some(first) = self.members.iter().find(joined).map(|member| Arc::clone(member.id())) else {
            return false;
        };
        self.leader = Some(first);
        true
    }

    fn begin_generation(&mut self, now: Now, effects: &mut Effects) {
        // Past the largest number it begins anew above 0, which no member ever had: negative numbers mean none.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.pending_syncs.clear();
        self.protocol = self.members.elect_protocol(self.leader.as_deref());
        self.subscribed_topics = self.subscribed_now();
        if self.members.is_empty() {
            self.enter(ClassicState::Empty, now);
            let ticket = self.draw_ticket();
            effects.store(ticket, self.stored_form(None));
            return;
        }
        assert!(
            self.protocol.is_some(),
            "all members speak a protocol in common: each was let in on this condition"
        );
        self.enter(ClassicState::CompletingRebalance, now);
        for member_id in self.members.ids() {
            let joined = self.joined(&member_id);
            let wait = self.members.change(&member_id, |member| {
                member.is_new = false;
                member.awaits_join.take()
            });
            if let Some(wait) = wait.flatten() {
                effects.joined(wait.token, joined);
            }
            self.begin_session(now, &member_id);
            self.pending_syncs.insert(member_id);
        }
        self.sync_deadline = Some(now.after(self.members.rebalance_timeout()));
    }
}
