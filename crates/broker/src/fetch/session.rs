//! Incremental fetch sessions (KIP-227).
//!
//! **Owns** which partitions a session holds, what the client was last told of each, and which session gives way when the
//! slots are used up.
//!
//! **Does not own** the answers: [`SessionCache::finish`] is told once, when an answer is final, what each partition looks
//! like, and says which of them go into it. While a fetch waits and looks again nothing changes here: what was looked at
//! and not sent was not told (the client would never hear of it again).
//!
//! A full fetch (session 0, or epoch 0) is answered with every partition that it names. In a session a partition is told
//! when it is new to it, has records or an error, or moved since it was last told.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tidelog_types::TopicId;
use tidelog_wire::ErrorCode;

/// Kafka's `min.incremental.fetch.session.eviction.ms`: a session that was used more recently does not give way to one of
/// the same size.
const EVICTION_AGE: Duration = Duration::from_secs(120);

/// The epoch of a fetch that wants no session, or ends one.
const EPOCH_FINAL: i32 = -1;
/// The epoch of a full fetch that wants one.
const EPOCH_INITIAL: i32 = 0;

/// How a request names a topic: by name up to version 12, by id from 13 on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TopicKey {
    Name(Arc<str>),
    Id(TopicId),
}

/// A partition of a fetch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FetchKey {
    pub topic: TopicKey,
    pub partition: i32,
}

/// What is asked of a partition, in the wire's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub offset: i64,
    pub bytes_max: i32,
    pub leader_epoch: i32,
    pub last_fetched_epoch: i32,
}

/// A partition to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub key: FetchKey,
    pub asked: Asked,
    /// The topic's name when the session first saw its id.
    pub known_name: Option<Arc<str>>,
}

/// What an answer says of a partition, as far as it decides whether to say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub high_watermark: i64,
    pub last_stable_offset: i64,
    pub log_start: i64,
    /// It has records, an error, or something else that must be told.
    pub must_tell: bool,
    pub error: bool,
}

/// What the request says of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionIds {
    pub id: i32,
    pub epoch: i32,
}

/// How a request is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub wanted: Vec<Wanted>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Everything is told and nothing remembered.
    Sessionless,
    /// Everything is told, and a session begins.
    Create {
        by_id: bool,
    },
    Incremental(SessionIds),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    high_watermark: i64,
    last_stable_offset: i64,
    log_start: i64,
}

#[derive(Debug)]
struct Member {
    asked: Asked,
    known_name: Option<Arc<str>>,
    /// What the client was told last; `None`: nothing, or an error, after which everything is told.
    told: Option<Told>,
    /// Its place among the session's partitions.
    turn: u64,
}

#[derive(Debug)]
struct Session {
    by_id: bool,
    /// The epoch of the next request.
    epoch: i32,
    members: BTreeMap<FetchKey, Member>,
    /// Members by turn: who had records goes to the end, so that all get their share of a full answer.
    turns: BTreeMap<u64, FetchKey>,
    next_turn: u64,
    created: Duration,
    used: Duration,
}

impl Session {
    fn new(by_id: bool, now: Duration) -> Self {
        Self {
            by_id,
            epoch: next_epoch(EPOCH_INITIAL),
            members: BTreeMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            created: now,
            used: now,
        }
    }

    fn add(&mut self, wanted: Wanted) {
        if let Some(member) = self.members.get_mut(&wanted.key) {
            member.asked = wanted.asked;
            return;
        }
        let turn = self.take_turn();
        self.turns.insert(turn, wanted.key.clone());
        let member = Member { asked: wanted.asked, known_name: wanted.known_name, told: None, turn };
        self.members.insert(wanted.key, member);
    }

    fn forget(&mut self, key: &FetchKey) {
        if let Some(member) = self.members.remove(key) {
            self.turns.remove(&member.turn);
        }
    }

    fn take_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    fn move_to_end(&mut self, key: &FetchKey) {
        let turn = self.take_turn();
        if let Some(member) = self.members.get_mut(key) {
            self.turns.remove(&member.turn);
            member.turn = turn;
            self.turns.insert(turn, key.clone());
        }
    }

    fn wanted(&self) -> Vec<Wanted> {
        self.turns
            .values()
            .filter_map(|key| {
                let member = self.members.get(key)?;
                Some(Wanted { key: key.clone(), asked: member.asked, known_name: member.known_name.clone() })
            })
            .collect()
    }

    /// Takes what an answer says of a member; whether it is to be in it.
    fn tell(&mut self, key: &FetchKey, seen: &Seen) -> bool {
        let Some(member) = self.members.get_mut(key) else {
            // It was forgotten through another connection meanwhile: it was asked for here, so it is told.
            return true;
        };
        let told = Told {
            high_watermark: seen.high_watermark,
            last_stable_offset: seen.last_stable_offset,
            log_start: seen.log_start,
        };
        let tell = seen.must_tell || seen.error || member.told != Some(told);
        member.told = (!seen.error).then_some(told);
        tell
    }
}

/// All sessions of a broker.
#[derive(Debug)]
pub(crate) struct SessionCache {
    sessions: BTreeMap<i32, Session>,
    slots: usize,
    evicted: u64,
}

impl SessionCache {
    pub(crate) fn new(slots: usize) -> Self {
        Self { sessions: BTreeMap::new(), slots, evicted: 0 }
    }

    /// Sessions that are kept.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions that gave way since this was asked last.
    pub(crate) fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// Takes a request: what it adds to or takes from its session, and what it asks for in all.
    ///
    /// # Errors
    /// Kafka's code for a session that is not there, or not where the client thinks; nothing changed then.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        ids: SessionIds,
        by_id: bool,
        named: Vec<Wanted>,
        forgotten: &[FetchKey],
    ) -> Result<Plan, ErrorCode> {
        if ids.epoch == EPOCH_FINAL || ids.epoch == EPOCH_INITIAL {
            // Whatever session the client had, it has done with it.
            self.sessions.remove(&ids.id);
            let create = ids.epoch == EPOCH_INITIAL;
            let kind = if create { Kind::Create { by_id } } else { Kind::Sessionless };
            return Ok(Plan { wanted: once_each(named), kind });
        }
        let Some(session) = self.sessions.get_mut(&ids.id) else {
            return Err(ErrorCode::FetchSessionIdNotFound);
        };
        if session.epoch != ids.epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if session.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        session.used = now;
        for wanted in named {
            session.add(wanted);
        }
        for key in forgotten {
            session.forget(key);
        }
        let wanted = session.wanted();
        if wanted.is_empty() {
            self.sessions.remove(&ids.id);
            return Ok(Plan { wanted, kind: Kind::Sessionless });
        }
        Ok(Plan { wanted, kind: Kind::Incremental(ids) })
    }

    /// Ends a request: `seen` says what each of the plan's partitions looks like, in its order. Answers the session id for
    /// the client and which partitions go into the answer. `draw` makes session ids.
    ///
    /// # Errors
    /// The session went, or moved on through another connection.
    pub(crate) fn finish(
        &mut self,
        now: Duration,
        plan: &Plan,
        seen: &[Seen],
        draw: impl FnMut() -> u64,
    ) -> Result<(i32, Vec<bool>), ErrorCode> {
        assert!(plan.wanted.len() == seen.len(), "{} asked, {} seen", plan.wanted.len(), seen.len());
        match plan.kind {
            Kind::Sessionless => Ok((0, vec![true; seen.len()])),
            Kind::Create { by_id } => {
                let id = self.create(now, plan, by_id, seen, draw);
                Ok((id, vec![true; seen.len()]))
            }
            Kind::Incremental(ids) => {
                let Some(session) = self.sessions.get_mut(&ids.id) else {
                    return Err(ErrorCode::FetchSessionIdNotFound);
                };
                if session.epoch != ids.epoch {
                    return Err(ErrorCode::InvalidFetchSessionEpoch);
                }
                session.epoch = next_epoch(ids.epoch);
                session.used = now;
                let mut told = Vec::with_capacity(seen.len());
                for (wanted, seen) in plan.wanted.iter().zip(seen) {
                    told.push(session.tell(&wanted.key, seen));
                    if seen.must_tell && !seen.error {
                        session.move_to_end(&wanted.key);
                    }
                }
                Ok((ids.id, told))
            }
        }
    }

    /// A new session, or 0 where there is no slot for it.
    fn create(
        &mut self,
        now: Duration,
        plan: &Plan,
        by_id: bool,
        seen: &[Seen],
        mut draw: impl FnMut() -> u64,
    ) -> i32 {
        // Kafka gives one to a request without partitions too, which may be added later.
        if !self.make_room(now, plan.wanted.len()) {
            return 0;
        }
        let mut session = Session::new(by_id, now);
        for (wanted, seen) in plan.wanted.iter().zip(seen) {
            session.add(wanted.clone());
            session.tell(&wanted.key, seen);
        }
        let id = loop {
            // Positive and unused. Not a secret: a client that guesses another's session only disturbs it.
            let drawn = i32::try_from(draw() & 0x7fff_ffff).unwrap_or(0);
            if drawn != 0 && !self.sessions.contains_key(&drawn) {
                break drawn;
            }
        };
        self.sessions.insert(id, session);
        id
    }

    /// Finds a slot by Kafka's rules: the session that was unused longest, if that is long enough; else the smallest of
    /// those that had their time, if it is smaller than the new one.
    fn make_room(&mut self, now: Duration, size: usize) -> bool {
        if self.sessions.len() < self.slots {
            return true;
        }
        let old = |since: Duration| now.saturating_sub(since) > EVICTION_AGE;
        let stale = self
            .sessions
            .iter()
            .filter(|(_, session)| old(session.used))
            .min_by_key(|(_, session)| session.used);
        let smaller = || {
            let settled = self.sessions.iter().filter(|(_, session)| old(session.created));
            settled
                .min_by_key(|(_, session)| session.members.len())
                .filter(|(_, session)| session.members.len() < size)
        };
        let Some(id) = stale.or_else(smaller).map(|(id, _)| *id) else { return false };
        self.sessions.remove(&id);
        self.evicted += 1;
        true
    }
}

/// Of a partition that a full fetch names twice the last counts, as in Kafka.
fn once_each(named: Vec<Wanted>) -> Vec<Wanted> {
    let mut places = BTreeMap::new();
    let mut kept: Vec<Wanted> = Vec::with_capacity(named.len());
    for wanted in named {
        match places.get(&wanted.key) {
            Some(place) => kept[*place] = wanted,
            None => {
                places.insert(wanted.key.clone(), kept.len());
                kept.push(wanted);
            }
        }
    }
    kept
}

/// The epoch after one: it never comes back to 0, which would mean a full fetch.
const fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}

#[cfg(test)]
mod tests;
