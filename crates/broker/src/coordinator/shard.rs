//! The groups of one partition of `__consumer_offsets`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidelog_core::groups::{
    GoneMember, GroupError, Now, Token,
    classic::{ClassicGroup, Effects, Reply},
    offsets::{CommittedOffset, Place},
};
use tidelog_replica::PartitionHandle;
use tidelog_runtime::{CancellationToken, LogLimit, metrics::Counter};
use tidelog_types::{LeaderEpoch, shown};
use tidelog_wire::ErrorCode;
use tokio::sync::{Notify, oneshot};

use super::{
    group::{Group, Members},
    records,
    room::{self, MembersRoom},
    settings::GroupSettings,
    write::{Answer, Entry, Then, Write},
};
use crate::node::Node;

#[cfg(test)]
pub(super) mod tests;

/// Bytes of records that may wait for their write: what eight batches of the topic's size hold. At a round of the journal each
/// that is some tens of milliseconds.
pub(super) const QUEUED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What a write takes in memory besides its records: one that only waits for those before it has none.
const WRITE_OVERHEAD_BYTES: usize = 256;

/// What a batch takes besides its records.
const BATCH_OVERHEAD_BYTES: usize = 128;

/// Whether a shard serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    Serving,
    Closed,
}

/// What the lock of a shard guards. Critical sections do no IO and never wait.
#[derive(Debug)]
pub(super) struct State {
    phase: Phase,
    pub(super) groups: BTreeMap<Arc<str>, Group>,
    /// Requests that wait for their group.
    waiting: BTreeMap<Token, oneshot::Sender<Reply>>,
    next_token: u64,
    queue: VecDeque<Write>,
    queued_bytes: usize,
    /// Bytes of one batch of the topic, as it is set now.
    batch_bytes_max: usize,
    /// Whether the disk has space for records now.
    has_space: bool,
    /// What members of all groups of all shards take.
    members_room: MembersRoom,
    /// What is written to the log of what clients can cause.
    pub(super) lines: LogLimit,
    /// Generations that groups began.
    rebalances: Counter,
    /// What the writer took and has no answer for yet.
    writing: Vec<Write>,
    /// When which group is to be looked at.
    pub(super) deadlines: BTreeSet<(Duration, Arc<str>)>,
}

/// One shard.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(super) handle: PartitionHandle,
    /// The epoch that this node leads it in: another may have led it, and written, between two of them.
    pub(super) leader_epoch: LeaderEpoch,
    state: Mutex<State>,
    /// Something waits to be written.
    pub(super) work: Notify,
    /// The first deadline moved.
    pub(super) alarm: Notify,
    /// Cancelled when this node does not lead the partition any more, or ends.
    pub(super) closed: CancellationToken,
}

impl Shard {
    pub(super) fn new(node: &Node, handle: PartitionHandle, leader_epoch: LeaderEpoch) -> Self {
        let groups = &node.groups;
        let (room, rebalances) = (groups.members_room.clone(), groups.metrics.rebalances.clone());
        let state = State::new(batch_bytes_max(&handle), room, node.connection_lines.clone(), rebalances);
        let closed = node.coordinators.shutdown_token().child_token();
        let (work, alarm) = (Notify::new(), Notify::new());
        Self { handle, leader_epoch, state: Mutex::new(state), work, alarm, closed }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.batch_bytes_max = batch_bytes_max(&self.handle);
        state.has_space = self.handle.has_space();
        state
    }

    /// The state of a shard that serves.
    ///
    /// # Errors
    /// `COORDINATOR_LOAD_IN_PROGRESS` or `NOT_COORDINATOR`.
    pub(super) fn serving(&self) -> Result<MutexGuard<'_, State>, ErrorCode> {
        let state = self.lock();
        match state.phase {
            Phase::Serving => Ok(state),
            Phase::Loading => Err(ErrorCode::CoordinatorLoadInProgress),
            Phase::Closed => Err(ErrorCode::NotCoordinator),
        }
    }

    /// What was loaded is served from now on. Answers false where the shard was closed meanwhile.
    pub(super) fn serve(
        &self,
        now: Now,
        settings: &GroupSettings,
        groups: BTreeMap<Arc<str>, Group>,
    ) -> bool {
        let mut state = self.lock();
        if state.phase != Phase::Loading {
            return false;
        }
        state.phase = Phase::Serving;
        state.groups = groups;
        let names: Vec<Arc<str>> = state.groups.keys().cloned().collect();
        let mut news = News::default();
        for name in names {
            let mut effects = Effects::default();
            if let Some(group) = state.groups.get_mut(&name) {
                group.members.loaded(&name, now, settings, &mut effects);
                group.told_generation = group.members.generation();
            }
            state.recount(&name);
            news |= state.settle(&name, now, effects);
        }
        drop(state);
        self.wake(news);
        true
    }

    /// Ends the shard: whoever waits is sent to look for the coordinator anew.
    pub(super) fn close(&self) {
        self.closed.cancel();
        let mut state = self.lock();
        state.phase = Phase::Closed;
        state.waiting.clear();
        state.deadlines.clear();
        // Their senders go with them, which their receivers take for the end of the coordinator.
        state.queue.clear();
        state.queued_bytes = 0;
        state.writing.clear();
        state.groups.clear();
    }

    /// Has the writer and the timer look, where there is something new for them.
    pub(super) fn wake(&self, news: News) {
        if news.written {
            self.work.notify_one();
        }
        if news.sooner {
            self.alarm.notify_one();
        }
    }

    /// As much of what waits as goes into one batch, at least one write; the records in the order of the queue. `None`: nothing
    /// waits.
    pub(super) fn take(&self) -> Option<Vec<Entry>> {
        let mut state = self.lock();
        let bytes_max = state.batch_bytes_max();
        let (mut bytes, mut overhead, mut entries) = (0_usize, 0_usize, Vec::new());
        while let Some(next) = state.queue.front() {
            let more = next.bytes();
            if bytes > 0 && bytes.saturating_add(more) > bytes_max {
                break;
            }
            let Some(write) = state.queue.pop_front() else { break };
            bytes = bytes.saturating_add(more);
            overhead += WRITE_OVERHEAD_BYTES;
            entries.extend(write.entries.iter().cloned());
            state.writing.push(write);
        }
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes + overhead);
        (!state.writing.is_empty()).then_some(entries)
    }

    /// What was taken is durable, or is not: applies it in its order and answers. True where memory is ahead of the log now:
    /// the shard must be loaded anew.
    #[must_use]
    pub(super) fn written(&self, now: Now, outcome: Result<(), ErrorCode>) -> bool {
        let mut state = self.lock();
        let mut news = News::default();
        for write in std::mem::take(&mut state.writing) {
            news |= state.apply(now, write, outcome);
        }
        drop(state);
        self.wake(news);
        news.ahead
    }
}

/// What others have to look at.
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub(super) struct News {
    pub(super) written: bool,
    pub(super) sooner: bool,
    ahead: bool,
}

impl std::ops::BitOrAssign for News {
    fn bitor_assign(&mut self, other: Self) {
        self.written |= other.written;
        self.sooner |= other.sooner;
        self.ahead |= other.ahead;
    }
}

impl State {
    /// Of a shard that loads.
    fn new(batch_bytes_max: usize, members_room: MembersRoom, lines: LogLimit, rebalances: Counter) -> Self {
        Self {
            phase: Phase::Loading,
            groups: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_token: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            batch_bytes_max,
            has_space: true,
            members_room,
            lines,
            rebalances,
            writing: Vec::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// A place for a request that waits for its group.
    pub(super) fn wait(&mut self) -> (Token, oneshot::Receiver<Reply>) {
        let token = Token(self.next_token);
        self.next_token = self.next_token.wrapping_add(1);
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(token, sender);
        (token, receiver)
    }

    /// The client of a request that waits is gone.
    pub(super) fn forget(&mut self, group: &str, token: Token) {
        self.waiting.remove(&token);
        if let Some(Group { members: Members::Classic(members), .. }) = self.groups.get_mut(group) {
            members.forget(token);
        }
    }

    /// The group of this name.
    ///
    /// # Errors
    /// It is being deleted: a moment later it may be made anew.
    pub(super) fn group(&mut self, name: &str) -> Result<Option<&mut Group>, ErrorCode> {
        match self.groups.get_mut(name) {
            Some(group) if group.deleting => Err(ErrorCode::CoordinatorLoadInProgress),
            found => Ok(found),
        }
    }

    /// The group of this name, made where there is none.
    ///
    /// # Errors
    /// As [`State::group`].
    pub(super) fn group_or_new(&mut self, name: &Arc<str>, now: Now) -> Result<&mut Group, ErrorCode> {
        let group = self
            .groups
            .entry(Arc::clone(name))
            .or_insert_with(|| Group::new(Members::Classic(ClassicGroup::new(now))));
        if group.deleting { Err(ErrorCode::CoordinatorLoadInProgress) } else { Ok(group) }
    }

    /// Carries out what a group's machine asks for.
    pub(super) fn settle(&mut self, name: &Arc<str>, now: Now, effects: Effects) -> News {
        let mut news = News::default();
        let mut next = Some(effects);
        // A record that finds no room sends the machine back at once; what it asks for then has no record.
        while let Some(effects) = next.take() {
            self.tell(name, &effects.gone);
            for (token, reply) in effects.replies {
                if let Some(sender) = self.waiting.remove(&token) {
                    // The client may be gone.
                    let _ = sender.send(reply);
                }
            }
            let Some((ticket, stored)) = effects.store else { continue };
            let queued = records::group(name, &stored).and_then(|entry| {
                let write =
                    Write { group: Arc::clone(name), entries: vec![entry], then: Then::Stored(ticket) };
                self.push(write).map_err(|(code, _)| code)
            });
            match queued {
                Ok(()) => {
                    news.written = true;
                    if let Some(group) = self.groups.get_mut(name) {
                        group.recorded = true;
                    }
                }
                Err(code) => {
                    let mut more = Effects::default();
                    if let Some(Group { members: Members::Classic(members), .. }) = self.groups.get_mut(name)
                    {
                        members.stored(now, ticket, Err(unwritten(code)), &mut more);
                    }
                    next = Some(more);
                }
            }
        }
        if self.groups.get(name).is_some_and(Group::is_nothing) {
            self.remove(name);
        } else {
            news.sooner |= self.schedule(name);
        }
        news
    }

    /// Counts a new generation, and tells the log of it and of the members whose time was over.
    fn tell(&mut self, name: &Arc<str>, gone: &[GoneMember]) {
        for GoneMember { member_id, client_id, client_host, why } in gone {
            if let Some(suppressed) = self.lines.pass("member of a group put out") {
                let (group, member_id, client_id) = (shown(name), shown(member_id), shown(client_id));
                let reason = why.as_str();
                tracing::info!(suppressed, group, member_id, client_id, %client_host, reason, "member put out");
            }
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        let generation = group.members.generation();
        if generation == group.told_generation {
            return;
        }
        group.told_generation = generation;
        self.rebalances.inc();
        if let Some(suppressed) = self.lines.pass("generation of a group") {
            let (group, kind, members) = (shown(name), group.members.kind().as_str(), group.members.count());
            tracing::info!(suppressed, group, kind, generation, members, "group has a new generation");
        }
    }

    /// Bytes of records that one batch takes for certain: its header takes some, and what cannot be compressed grows a little.
    pub(super) const fn batch_bytes_max(&self) -> usize {
        self.batch_bytes_max.saturating_sub(self.batch_bytes_max / 128).saturating_sub(BATCH_OVERHEAD_BYTES)
    }

    /// Whether records go into one batch.
    pub(super) fn fits<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> bool {
        entries.into_iter().map(Entry::bytes).sum::<usize>() <= self.batch_bytes_max()
    }

    /// Whether there is room for what a member of a group says of itself; it is known by its id, or its instance id.
    pub(super) fn admits(&self, group: &str, member: (&str, Option<&str>), bytes: u64) -> bool {
        let had = self.groups.get(group).map_or(0, |group| group.members.member_bytes(member));
        self.members_room.admits(had as u64, bytes, room::ordinary(1))
    }

    /// Whether there is room for what the members of a group are assigned.
    pub(super) fn admits_assignments(&self, group: &str, bytes: usize) -> bool {
        let Some(Group { members: Members::Classic(members), .. }) = self.groups.get(group) else {
            return true;
        };
        let (had, ordinary) = (members.assignment_bytes() as u64, room::ordinary(members.member_count()));
        self.members_room.admits(had, bytes as u64, ordinary)
    }

    /// Counts what the members of a group take now.
    pub(super) fn recount(&mut self, name: &str) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let members = &group.members;
        // A group that nobody is in is kept for its offsets, and ends with them.
        let is_in_use = !members.is_empty() || members.awaits_members();
        let bytes = if is_in_use { members.bytes() } else { 0 };
        self.members_room.count(&mut group.held, members.count(), bytes);
    }

    /// Queues a write. What is refused comes back, so that who waits for it can be answered.
    pub(super) fn push(&mut self, write: Write) -> Result<(), (ErrorCode, Write)> {
        let bytes = write.bytes();
        // All of it goes into one batch.
        if !self.fits(&write.entries) {
            return Err((ErrorCode::MessageTooLarge, write));
        }
        if self.queued_bytes.saturating_add(bytes) > QUEUED_BYTES_MAX {
            return Err((ErrorCode::CoordinatorNotAvailable, write));
        }
        self.push_applied(write);
        Ok(())
    }

    /// Whether records can be written as far as it is known, so that nothing is changed that has to be taken back.
    pub(super) const fn has_space(&self) -> bool {
        self.has_space
    }

    /// Whether there is room for what cannot be refused once it is done.
    pub(super) fn has_room(&self) -> bool {
        self.queued_bytes < QUEUED_BYTES_MAX
    }

    /// Queues a write of what a machine has done already.
    pub(super) fn push_applied(&mut self, write: Write) {
        self.queued_bytes = self.queued_bytes.saturating_add(write.bytes() + WRITE_OVERHEAD_BYTES);
        if let Some(group) = self.groups.get_mut(&write.group) {
            group.writes = group.writes.saturating_add(1);
        }
        self.queue.push_back(write);
    }

    /// What ends a group's members in the log, where there is anything of them.
    pub(super) fn end_members(&mut self, name: &Arc<str>) -> Vec<Entry> {
        let Some(group) = self.groups.get_mut(name).filter(|group| group.recorded) else { return Vec::new() };
        match &mut group.members {
            Members::Classic(_) => records::group_tombstone(name).into_iter().collect(),
            Members::Consumer(members) => {
                let ended = members.delete().unwrap_or_default();
                ended.iter().filter_map(|record| records::consumer(name, record).ok()).collect()
            }
        }
    }

    /// Writes of a group that are not applied yet, in their order.
    pub(super) fn unapplied<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Write> {
        // Most groups have none: the queue of all of them is long.
        let has_some = self.groups.get(name).is_some_and(|group| group.writes > 0);
        let all = has_some.then(|| self.writing.iter().chain(&self.queue));
        all.into_iter().flatten().filter(move |write| &*write.group == name)
    }

    /// The offsets that such writes change.
    pub(super) fn unapplied_places<'a>(&'a self, name: &'a str) -> BTreeSet<&'a Place> {
        self.unapplied(name).flat_map(Write::changes).map(|(place, _)| place).collect()
    }

    /// The same of all groups, with what each offset becomes at last; nothing where it ends.
    pub(super) fn all_unapplied(&self) -> BTreeMap<Arc<str>, BTreeMap<&Place, Option<&CommittedOffset>>> {
        let mut all: BTreeMap<Arc<str>, BTreeMap<&Place, Option<&CommittedOffset>>> = BTreeMap::new();
        for write in self.writing.iter().chain(&self.queue) {
            let mut changes = write.changes().peekable();
            if changes.peek().is_some() {
                all.entry(Arc::clone(&write.group)).or_default().extend(changes);
            }
        }
        all
    }

    /// Takes a group out, with its place among the deadlines.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some((name, group)) = self.groups.remove_entry(name)
            && let Some(deadline) = group.deadline
        {
            self.deadlines.remove(&(deadline, name));
        }
    }

    /// Has the timer look at a group in time. A deadline that moved back needs nothing: the timer finds that out. Answers
    /// whether the first deadline of all came nearer.
    pub(super) fn schedule(&mut self, name: &Arc<str>) -> bool {
        let Some(group) = self.groups.get_mut(name) else { return false };
        let Some(deadline) = group.members.next_deadline() else { return false };
        if group.deadline.is_some_and(|scheduled| scheduled <= deadline) {
            return false;
        }
        if let Some(scheduled) = group.deadline.replace(deadline) {
            self.deadlines.remove(&(scheduled, Arc::clone(name)));
        }
        let first = self.deadlines.first().is_none_or(|(first, _)| deadline < *first);
        self.deadlines.insert((deadline, Arc::clone(name)));
        first
    }

    fn apply(&mut self, now: Now, write: Write, outcome: Result<(), ErrorCode>) -> News {
        let Write { group: name, then, entries } = write;
        let mut effects = Effects::default();
        let Some(group) = self.groups.get_mut(&name) else {
            // It ended meanwhile, and with it what was to be applied.
            if let Then::Told { answer } | Then::Offsets { answer, .. } | Then::Deleted { answer } = then {
                tell(answer, outcome);
            }
            return News::default();
        };
        group.writes = group.writes.saturating_sub(1);
        match then {
            Then::Stored(ticket) => {
                // A group that went over to the other protocol meanwhile waits for nothing of this one.
                if let Members::Classic(members) = &mut group.members {
                    members.stored(now, ticket, outcome.map_err(unwritten), &mut effects);
                }
                self.recount(&name);
            }
            Then::Told { answer } => {
                tell(answer, outcome);
                // Who only waited for what was before him has changed nothing.
                if outcome.is_err() && !entries.is_empty() {
                    return News { ahead: true, ..News::default() };
                }
            }
            Then::Offsets { changes, answer } => {
                group.has_lasting_offsets |= group.deleting && answer.is_none() && outcome.is_err();
                if outcome.is_ok() {
                    for ((topic, partition), change) in changes {
                        match change {
                            Some(committed) => group.offsets.put(&topic, partition, committed),
                            None => {
                                group.offsets.remove(&topic, partition);
                            }
                        }
                    }
                }
                tell(answer, outcome);
            }
            Then::Deleted { answer } => {
                group.deleting = false;
                // The end of its members is in the log, and not that of its offsets: a start would find these again.
                let outcome = if group.has_lasting_offsets {
                    outcome.and(Err(ErrorCode::CoordinatorNotAvailable))
                } else {
                    outcome
                };
                if outcome.is_ok() {
                    self.remove(&name);
                }
                tell(answer, outcome);
                // A machine that has ended is ahead of a log that has not.
                return News { ahead: outcome.is_err(), ..News::default() };
            }
        }
        self.settle(&name, now, effects)
    }
}

fn batch_bytes_max(handle: &PartitionHandle) -> usize {
    usize::try_from(handle.settings().topic.max_message_bytes).unwrap_or(usize::MAX)
}

pub(super) fn tell(answer: Option<Answer>, outcome: Result<(), ErrorCode>) {
    if let Some(answer) = answer {
        // The client may be gone.
        let _ = answer.send(outcome);
    }
}

/// What a group's machine makes of a record that is not durable.
fn unwritten(code: ErrorCode) -> GroupError {
    match code {
        ErrorCode::NotCoordinator => GroupError::NotCoordinator,
        ErrorCode::CoordinatorNotAvailable => GroupError::CoordinatorNotAvailable,
        _ => GroupError::UnknownServer,
    }
}
