//! A classic consumer group: its members join, one of them leads and hands out what each is to do.
//!
//! **Owns** the membership of one group, its generation, who leads, which protocol was chosen, and when a silent member is
//! given up. **Does not own** offsets, the log, connections, or the meaning of what members tell each other: metadata and
//! assignments are bytes.
//!
//! ```text
//!             first member joins                all joined, or their time is up
//!   Empty ------------------------> Preparing ------------------------> Completing
//!     ^                             Rebalance <------------------------ Rebalance
//!     |    nobody is left             | ^     a member joins, leaves          |
//!     `-------------------------------' |     or is given up                  | leader's assignment is stored
//!                                       |                                     v
//!                                       `--------------------------------- Stable
//!
//!   every state --- the shard is unloaded ---> Dead
//! ```
//!
//! A generation begins with `CompletingRebalance`, or with `Empty`. Nobody is told an assignment before it is in the log; that
//! nobody is left is stored too, but nobody waits for it.
//!
//! **Crash**: a restored group is what was stored last, stable or empty, and every session begins anew. Clients that waited
//! ask again.

mod join;
mod member;
mod membership;
mod messages;
mod migration;
mod rebalance;
mod sessions;
mod subscription;
mod sync;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidelog_types::Timestamp;

pub use self::messages::{
    DescribedMember, Effects, JoinRefused, JoinRequest, Joined, JoinedMember, LeavingMember, Reply,
    StoreTicket, Stored, StoredMember, SyncRequest, Synced,
};
pub use self::migration::MigratingMember;
use self::{
    member::{Identity, Member, Members, Protocols},
    rebalance::InitialDelay,
    sessions::Sessions,
    sync::PendingStore,
};
use super::{ENTRY_OVERHEAD_BYTES, GoneMember, GoneWhy, GroupError, GroupRules, Now, Token};

/// The protocol type of consumers: its metadata names the topics that a member subscribes to.
pub const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// How long a member that was never in a generation may wait for one. After it the client is to ask again: it may be one
/// that gave up and came again under another id.
pub const NEW_MEMBER_JOIN_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// What an empty group takes.
const GROUP_OVERHEAD_BYTES: usize = 512;

/// What the id of a member that has not joined yet takes besides its bytes.
const PENDING_MEMBER_OVERHEAD_BYTES: usize = 192;

/// Where a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClassicState {
    /// It has no members; it may have offsets.
    Empty,
    /// Its members are joining.
    PreparingRebalance,
    /// All have joined, and wait for what the leader hands out.
    CompletingRebalance,
    /// All know what to do.
    Stable,
    /// It is not coordinated here any more.
    Dead,
}

impl ClassicState {
    /// Kafka's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

/// From when on the retention of a group's offsets counts. A topic that the group subscribes to keeps its offsets anyway
/// ([`ClassicGroup::subscribed_topics`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetExpiry {
    /// Nothing expires: who uses the offsets is not settled.
    Never,
    /// From the commit of each offset.
    SinceCommit,
    /// From this moment, at which the group became empty.
    SinceEmpty(Timestamp),
}

/// One classic group.
#[derive(Debug)]
pub struct ClassicGroup {
    state: ClassicState,
    state_timestamp: Option<Timestamp>,
    generation: i32,
    protocol_type: Option<Arc<str>>,
    protocol: Option<Arc<str>>,
    leader: Option<Arc<str>>,
    members: Members,
    /// Members that were given an id and have not come back with it.
    pending_joins: BTreeSet<Arc<str>>,
    /// Members of this generation that have not sent a `SyncGroup` yet.
    pending_syncs: BTreeSet<Arc<str>>,
    sessions: Sessions,
    /// When the join phase ends, whoever is missing. Only in `PreparingRebalance`.
    join_deadline: Option<Duration>,
    /// When those that have not synced are given up. Only while some have not.
    sync_deadline: Option<Duration>,
    /// While the group comes from `Empty` and waits for more members.
    initial_delay: Option<InitialDelay>,
    pending_stores: BTreeMap<StoreTicket, PendingStore>,
    /// The write of this generation's assignment. Only in `CompletingRebalance`.
    assignment_store: Option<StoreTicket>,
    next_ticket: u64,
    /// What the members subscribe to; `None` where it cannot be known.
    subscribed_topics: Option<BTreeSet<Arc<str>>>,
}

impl ClassicGroup {
    /// A group without members, of generation 0.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            state: ClassicState::Empty,
            state_timestamp: Some(now.wall),
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: Members::default(),
            pending_joins: BTreeSet::new(),
            pending_syncs: BTreeSet::new(),
            sessions: Sessions::default(),
            join_deadline: None,
            sync_deadline: None,
            initial_delay: None,
            pending_stores: BTreeMap::new(),
            assignment_store: None,
            next_ticket: 0,
            subscribed_topics: None,
        }
    }

    /// The group as it was stored; the sessions of its members begin now. Of two members with one id, or one instance id,
    /// the first counts: no group stored such a thing, but what was read is not trusted.
    #[must_use]
    pub fn restore(stored: Stored, now: Now) -> Self {
        let mut group = Self::new(now);
        group.state_timestamp = stored.state_timestamp;
        group.generation = stored.generation.max(0);
        group.protocol_type = stored.protocol_type.filter(|protocol_type| !protocol_type.is_empty());
        group.protocol.clone_from(&stored.protocol);
        let protocol = stored.protocol.unwrap_or_else(|| Arc::from(""));
        for member in stored.members {
            let held = member.instance_id.as_deref().is_some_and(|id| group.members.holder(id).is_some());
            if held || group.members.contains(&member.member_id) {
                continue;
            }
            group.sessions.set(&member.member_id, now.after(member.session_timeout));
            group.members.insert(Member {
                identity: Identity {
                    member_id: member.member_id,
                    client_id: member.client_id,
                    client_host: member.client_host,
                    session_timeout: member.session_timeout,
                    rebalance_timeout: member.rebalance_timeout,
                    protocols: Protocols::only(Arc::clone(&protocol), member.subscription),
                },
                instance_id: member.instance_id,
                assignment: member.assignment,
                is_new: false,
                awaits_join: None,
                awaits_sync: None,
            });
        }
        if !group.members.is_empty() {
            group.state = ClassicState::Stable;
            let leader = stored.leader.filter(|leader| group.members.contains(leader));
            group.leader = leader.or_else(|| group.first_member());
        }
        group.subscribed_topics = group.subscribed_now();
        group
    }

    /// Call once after [`Self::restore`]: a group that is larger than it may be rebalances, and loses who comes last.
    pub fn loaded(&mut self, now: Now, rules: &GroupRules, effects: &mut Effects) {
        if self.state == ClassicState::Stable && self.members.len() > rules.size_max {
            self.prepare_rebalance(now, effects);
        }
    }

    /// Where the group stands.
    #[must_use]
    pub const fn state(&self) -> ClassicState {
        self.state
    }

    /// The wall time at which the state began; `None` when an old broker stored the group without it.
    #[must_use]
    pub const fn state_timestamp(&self) -> Option<Timestamp> {
        self.state_timestamp
    }

    /// The present generation.
    #[must_use]
    pub const fn generation(&self) -> i32 {
        self.generation
    }

    /// The protocol type; `None` when the group never had a member.
    #[must_use]
    pub const fn protocol_type(&self) -> Option<&Arc<str>> {
        self.protocol_type.as_ref()
    }

    /// The protocol of the present generation.
    #[must_use]
    pub const fn protocol(&self) -> Option<&Arc<str>> {
        self.protocol.as_ref()
    }

    /// Who leads.
    #[must_use]
    pub const fn leader(&self) -> Option<&Arc<str>> {
        self.leader.as_ref()
    }

    /// How many members it has, not counting those that have not joined yet.
    #[must_use]
    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    /// How many members were given an id and have not come back with it.
    #[must_use]
    pub fn pending_member_count(&self) -> usize {
        self.pending_joins.len()
    }

    /// How many members wait for their `JoinGroup`.
    #[must_use]
    pub const fn awaiting_join_count(&self) -> usize {
        self.members.awaiting_join()
    }

    /// How many members wait for their `SyncGroup`.
    #[must_use]
    pub fn awaiting_sync_count(&self) -> usize {
        self.members.iter().filter(|member| member.awaits_sync.is_some()).count()
    }

    /// The members in the order of their ids.
    pub fn members(&self) -> impl Iterator<Item = DescribedMember> + '_ {
        let protocol = self.protocol.as_deref().filter(|_| self.state == ClassicState::Stable);
        self.members.iter().map(move |member| DescribedMember {
            member_id: Arc::clone(member.id()),
            instance_id: member.instance_id.clone(),
            client_id: Arc::clone(&member.identity.client_id),
            client_host: Arc::clone(&member.identity.client_host),
            metadata: member.metadata(protocol),
            assignment: member.assignment.clone(),
        })
    }

    /// Whether the members are consumers.
    #[must_use]
    pub fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE)
    }

    /// The topics that the members subscribe to; `None` where that cannot be known.
    #[must_use]
    pub const fn subscribed_topics(&self) -> Option<&BTreeSet<Arc<str>>> {
        self.subscribed_topics.as_ref()
    }

    /// Whether nobody ever joined or is about to: the group is a name for offsets, or for nothing.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        self.state == ClassicState::Empty && self.protocol_type.is_none() && self.pending_joins.is_empty()
    }

    /// From when on the retention of its offsets counts.
    #[must_use]
    pub fn offset_expiry(&self) -> OffsetExpiry {
        if self.protocol_type.is_none() {
            return OffsetExpiry::SinceCommit;
        }
        match self.state {
            ClassicState::Empty => {
                self.state_timestamp.map_or(OffsetExpiry::SinceCommit, OffsetExpiry::SinceEmpty)
            }
            ClassicState::Stable if self.uses_consumer_protocol() && self.subscribed_topics.is_some() => {
                OffsetExpiry::SinceCommit
            }
            ClassicState::Stable
            | ClassicState::PreparingRebalance
            | ClassicState::CompletingRebalance
            | ClassicState::Dead => OffsetExpiry::Never,
        }
    }

    /// About how many bytes of memory the group holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let pending: usize =
            self.pending_joins.iter().map(|id| id.len() + PENDING_MEMBER_OVERHEAD_BYTES).sum();
        let stores: usize = self.pending_stores.values().map(PendingStore::bytes).sum();
        let topics: usize =
            self.subscribed_topics.iter().flatten().map(|topic| topic.len() + ENTRY_OVERHEAD_BYTES).sum();
        GROUP_OVERHEAD_BYTES + self.members.bytes() + pending + stores + topics
    }

    /// When [`Self::tick`] has something to do next, on the monotonic clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        [self.sessions.first(), self.join_deadline, self.sync_deadline].into_iter().flatten().min()
    }

    /// Nobody will read the reply to `token`. Its member goes on waiting: only its time, or another request, ends that.
    pub fn forget(&mut self, token: Token) {
        self.members.forget(token);
    }

    /// Ends the group here: whoever waits is answered with `error`, and nothing happens any more.
    pub fn shut(&mut self, effects: &mut Effects, error: GroupError) {
        for member_id in self.members.ids() {
            self.answer_waits(&member_id, &member_id, error, effects);
        }
        self.state = ClassicState::Dead;
        self.pending_joins.clear();
        self.pending_syncs.clear();
        self.sessions.clear();
        self.join_deadline = None;
        self.sync_deadline = None;
        self.initial_delay = None;
        self.pending_stores.clear();
        self.assignment_store = None;
    }

    fn enter(&mut self, state: ClassicState, now: Now) {
        self.state = state;
        self.state_timestamp = Some(now.wall);
    }

    fn is_leader(&self, member_id: &str) -> bool {
        self.leader.as_deref() == Some(member_id)
    }

    fn first_member(&self) -> Option<Arc<str>> {
        self.members.iter().next().map(|member| Arc::clone(member.id()))
    }

    fn begin_session(&mut self, now: Now, member_id: &Arc<str>) {
        if let Some(member) = self.members.get(member_id) {
            let ends = now.after(member.identity.session_timeout);
            self.sessions.set(member_id, ends);
        }
    }

    fn draw_ticket(&mut self) -> StoreTicket {
        let ticket = StoreTicket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }

    /// Answers what a member waits for, if it waits, with `error`; `told_id` is the member id that a join is told.
    fn answer_waits(
        &mut self,
        member_id: &str,
        told_id: &Arc<str>,
        error: GroupError,
        effects: &mut Effects,
    ) {
        if !self.members.get(member_id).is_some_and(Member::is_waiting) {
            return;
        }
        let waits =
            self.members.change(member_id, |member| (member.awaits_join.take(), member.awaits_sync.take()));
        let (join, sync) = waits.unwrap_or_default();
        if let Some(wait) = join {
            effects.refuse_join(wait.token, JoinRefused { error, member_id: Arc::clone(told_id) });
        }
        if let Some(wait) = sync {
            effects.synced(wait.token, Err(error));
        }
    }

    /// Takes a member out that did not do in time what it had to.
    fn put_out(&mut self, member_id: &str, why: GoneWhy, effects: &mut Effects) {
        effects.gone.extend(self.members.get(member_id).map(|member| GoneMember {
            member_id: Arc::clone(member.id()),
            client_id: Arc::clone(&member.identity.client_id),
            client_host: Arc::clone(&member.identity.client_host),
            why,
        }));
        self.remove_member(member_id, effects);
    }

    /// Takes a member, or one that has not joined yet, out of the group. What it waits for is answered: the client may still
    /// be there, and is to begin anew.
    fn remove_member(&mut self, member_id: &str, effects: &mut Effects) {
        self.answer_waits(member_id, &Arc::from(""), GroupError::UnknownMemberId, effects);
        self.members.remove(member_id);
        if self.is_leader(member_id) {
            self.leader = self.first_member();
        }
        self.pending_joins.remove(member_id);
        self.pending_syncs.remove(member_id);
        self.sessions.cancel(member_id);
    }

    /// The group as a record, with these assignments or, without, those the members have.
    fn stored_form(&self, assignments: Option<&BTreeMap<Arc<str>, Bytes>>) -> Stored {
        let assignment = |member: &Member| match assignments {
            Some(assignments) => assignments.get(member.id()).cloned().unwrap_or_default(),
            None => member.assignment.clone(),
        };
        Stored {
            protocol_type: self.protocol_type.clone(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_timestamp: self.state_timestamp,
            members: self
                .members
                .iter()
                .map(|member| StoredMember {
                    member_id: Arc::clone(member.id()),
                    instance_id: member.instance_id.clone(),
                    client_id: Arc::clone(&member.identity.client_id),
                    client_host: Arc::clone(&member.identity.client_host),
                    rebalance_timeout: member.identity.rebalance_timeout,
                    session_timeout: member.identity.session_timeout,
                    subscription: member.metadata(self.protocol.as_deref()),
                    assignment: assignment(member),
                })
                .collect(),
        }
    }

    fn subscribed_now(&self) -> Option<BTreeSet<Arc<str>>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.iter() {
            let metadata = member.identity.protocols.metadata(self.protocol.as_deref()?)?;
            subscription::add_topics(metadata, &mut topics)?;
        }
        Some(topics)
    }
}

#[cfg(test)]
mod tests;
