//! Handing out what the leader decided, and what follows from a write.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{
    ClassicGroup, ClassicState, Effects, StoreTicket, SyncRequest, Synced,
    member::{Identity, Wait},
};
use crate::groups::{GroupError, Now, Token};

/// A write that something waits for.
#[derive(Debug)]
pub(super) enum PendingStore {
    /// Of the leader's assignment.
    Assignment { generation: i32, assignments: BTreeMap<Arc<str>, Bytes> },
    /// Of the new id of a static member.
    Replacement(Replacement),
}

/// A static member of a stable group that came back, whose new id is being stored.
#[derive(Debug)]
pub(super) struct Replacement {
    /// Whom it replaces.
    pub(super) predecessor: Identity,
    /// Its new id.
    pub(super) member_id: Arc<str>,
    /// The generation in which this happened. In another it was told in the ordinary way.
    pub(super) generation: i32,
    /// Who led before, by the id of then.
    pub(super) leader_before: Option<Arc<str>>,
    /// Whether it knows to skip the assignment.
    pub(super) supports_skip_assignment: bool,
}

impl PendingStore {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Assignment { assignments, .. } => {
                assignments.iter().map(|(id, assignment)| id.len() + assignment.len() + 64).sum()
            }
            Self::Replacement(replacement) => {
                replacement.predecessor.bytes() + replacement.member_id.len() + 256
            }
        }
    }
}

impl ClassicGroup {
    /// Takes a `SyncGroup`. The reply comes at once, or from a later call, with `token`.
    pub fn sync(&mut self, _now: Now, request: SyncRequest, token: Token, effects: &mut Effects) {
        if let Err(error) = self.check_sync(&request) {
            effects.synced(Some(token), Err(error));
            return;
        }
        match self.state {
            ClassicState::CompletingRebalance => self.await_sync(request, token, effects),
            ClassicState::Stable => {
                self.has_synced(&request.member_id);
                let synced = self.synced(&request.member_id);
                effects.synced(Some(token), Ok(synced));
            }
            ClassicState::PreparingRebalance | ClassicState::Empty | ClassicState::Dead => {
                effects.synced(Some(token), Err(GroupError::RebalanceInProgress));
            }
        }
    }

    /// Takes the outcome of a write that [`Effects::store`] asked for. Outcomes come in the order in which the writes were
    /// asked for. One that nothing waits for any more changes nothing.
    pub fn stored(
        &mut self,
        now: Now,
        ticket: StoreTicket,
        result: Result<(), GroupError>,
        effects: &mut Effects,
    ) {
        match self.pending_stores.remove(&ticket) {
            Some(PendingStore::Assignment { generation, assignments })
                if self.state == ClassicState::CompletingRebalance && self.generation == generation =>
            {
                self.assignment_store = None;
                self.assignment_stored(now, assignments, result, effects);
            }
            // The generation is over, or nothing waited.
            None | Some(PendingStore::Assignment { .. }) => {}
            Some(PendingStore::Replacement(replacement)) => {
                self.replacement_stored(now, replacement, result, effects);
            }
        }
    }

    fn check_sync(&self, request: &SyncRequest) -> Result<(), GroupError> {
        if self.state == ClassicState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.check_member(&request.member_id, request.instance_id.as_deref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        let differs = |theirs: &Option<Arc<str>>, ours: &Option<Arc<str>>| {
            theirs.is_some() && ours.is_some() && theirs != ours
        };
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol_name, &self.protocol)
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn await_sync(&mut self, request: SyncRequest, token: Token, effects: &mut Effects) {
        let earlier =
            self.members.change(&request.member_id, |member| member.awaits_sync.replace(Wait::of(token)));
        // Its earlier request, if it waits still, is most likely nobody's; whoever reads the reply may join again.
        if let Some(wait) = earlier.flatten() {
            effects.synced(wait.token, Err(GroupError::RebalanceInProgress));
        }
        self.has_synced(&request.member_id);
        // A leader that asks again waits for the write that runs: a second one could leave another assignment in the log
        // than the members were told.
        if !self.is_leader(&request.member_id) || self.assignment_store.is_some() {
            return;
        }
        let assignments: BTreeMap<Arc<str>, Bytes> = request
            .assignments
            .into_iter()
            .filter(|(member_id, _)| self.members.contains(member_id))
            .map(|(member_id, assignment)| (member_id, Bytes::copy_from_slice(&assignment)))
            .collect();
        let ticket = self.draw_ticket();
        effects.store(ticket, self.stored_form(Some(&assignments)));
        self.assignment_store = Some(ticket);
        self.pending_stores
            .insert(ticket, PendingStore::Assignment { generation: self.generation, assignments });
    }

    /// This member need not be given up for not syncing.
    fn has_synced(&mut self, member_id: &str) {
        self.pending_syncs.remove(member_id);
        if self.pending_syncs.is_empty() {
            self.sync_deadline = None;
        }
    }

    fn synced(&self, member_id: &str) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            assignment: self
                .members
                .get(member_id)
                .map(|member| member.assignment.clone())
                .unwrap_or_default(),
        }
    }

    fn assignment_stored(
        &mut self,
        now: Now,
        mut assignments: BTreeMap<Arc<str>, Bytes>,
        result: Result<(), GroupError>,
        effects: &mut Effects,
    ) {
        if let Err(error) = result {
            self.drop_assignments(now, error, effects);
            self.prepare_rebalance(now, effects);
            return;
        }
        self.enter(ClassicState::Stable, now);
        for member_id in self.members.ids() {
            let assignment = assignments.remove(&member_id).unwrap_or_default();
            let wait = self.members.change(&member_id, |member| {
                member.assignment = assignment;
                member.awaits_sync.take()
            });
            if let Some(wait) = wait.flatten() {
                effects.synced(wait.token, Ok(self.synced(&member_id)));
                self.begin_session(now, &member_id);
            }
        }
    }

    /// Takes every assignment back; whoever waits for one is answered with `error`.
    pub(super) fn drop_assignments(&mut self, now: Now, error: GroupError, effects: &mut Effects) {
        for member_id in self.members.ids() {
            let wait = self.members.change(&member_id, |member| {
                member.assignment = Bytes::new();
                member.awaits_sync.take()
            });
            if let Some(wait) = wait.flatten() {
                effects.synced(wait.token, Err(error));
                self.begin_session(now, &member_id);
            }
        }
    }

    fn replacement_stored(
        &mut self,
        now: Now,
        replacement: Replacement,
        result: Result<(), GroupError>,
        effects: &mut Effects,
    ) {
        // After a rebalance the member waits, or has been answered, as any other; after another replacement it is fenced.
        let is_current = self.state == ClassicState::Stable && self.generation == replacement.generation;
        if !is_current {
            return;
        }
        let Some(error) = result.err() else {
            self.answer_replacement(now, &replacement, effects);
            return;
        };
        if !self.members.contains(&replacement.member_id) {
            self.inherit_predecessor(replacement);
            return;
        }
        // The log still has the old id: so has the group, again.
        self.answer_waits(&replacement.member_id, &Arc::from(""), error, effects);
        let old_member_id = Arc::clone(&replacement.predecessor.member_id);
        self.rename(&replacement.member_id, replacement.predecessor);
        self.subscribed_topics = self.subscribed_now();
        self.begin_session(now, &old_member_id);
    }

    /// A write failed whose member was replaced once more in the meantime: should that write fail too, the group goes back to
    /// the id that is in the log.
    fn inherit_predecessor(&mut self, failed: Replacement) {
        for pending in self.pending_stores.values_mut() {
            if let PendingStore::Replacement(later) = pending
                && later.predecessor.member_id == failed.member_id
            {
                later.predecessor = failed.predecessor;
                return;
            }
        }
    }

    fn answer_replacement(&mut self, now: Now, replacement: &Replacement, effects: &mut Effects) {
        let member_id = &replacement.member_id;
        if self.members.get(member_id).is_none_or(|member| member.awaits_join.is_none()) {
            return;
        }
        let mut joined = self.joined(member_id);
        if replacement.supports_skip_assignment {
            joined.skip_assignment = self.is_leader(member_id);
        } else {
            // A leader of an older protocol version would compute an assignment that nobody asked for: it is told that the
            // id it had before leads, and goes on as a follower.
            joined.members.clear();
            joined.leader = replacement.leader_before.clone().unwrap_or_else(|| Arc::from(""));
        }
        let wait = self.members.change(member_id, |member| member.awaits_join.take());
        effects.joined(wait.flatten().and_then(|wait: Wait| wait.token), joined);
        self.begin_session(now, member_id);
    }
}
