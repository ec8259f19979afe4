//! Units in memory for the readers that are under way.
//!
//! **Owns** which units are held, each with its share of the memory budget, how far each was read, and the answer to
//! whether a unit was wanted twice. A unit that one reader reads once, in sequence, never leaves the ring for the cache: a
//! replay evicts nothing.
//!
//! **Does not own** fetching, and no unit is safe here: any may go to make room. Those who read one hold its bytes, and
//! with them its charge; so what makes room is only a unit that nobody else holds.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidelog_object::ChunkKey;
use tidelog_types::Offset;

use super::{charged::Charged, metrics::ColdMetrics};

/// How long a unit that was read stays for a reader close behind.
const READ_KEPT_FOR: Duration = Duration::from_secs(5);

/// How long a unit stays that nobody has read to its end.
const UNREAD_KEPT_FOR: Duration = Duration::from_secs(30);

/// Units that left the ring of which it is remembered how far they were read: 16 GiB of the bucket in under 2 MB.
const REMEMBERED_MAX: usize = 16_384;

/// A unit as it comes in.
pub(crate) struct NewUnit {
    pub key: ChunkKey,
    pub unit: Charged,
    /// One past its last offset.
    pub end: Offset,
    /// Nobody has asked for it yet.
    pub ahead: bool,
    /// It is in the cache already.
    pub cached: bool,
}

struct Held {
    unit: Charged,
    end: Offset,
    taken_to: Option<Offset>,
    ahead: bool,
    cached: bool,
    touched: Duration,
    place: (bool, u64),
}

#[derive(Default)]
struct State {
    units: BTreeMap<ChunkKey, Held>,
    /// Units read to their end first, then by last use.
    order: BTreeMap<(bool, u64), ChunkKey>,
    uses: u64,
    bytes: u64,
    remembered: BTreeMap<ChunkKey, Offset>,
    remembered_order: VecDeque<ChunkKey>,
}

/// See the module.
pub(crate) struct Ring {
    state: Mutex<State>,
    metrics: ColdMetrics,
}

impl Ring {
    pub(crate) fn new(metrics: ColdMetrics) -> Self {
        Self { state: Mutex::default(), metrics }
    }

    pub(crate) fn get(&self, key: &ChunkKey, now: Duration) -> Option<Charged> {
        let mut state = self.lock();
        state.touch(key, now);
        state.units.get(key).map(|held| held.unit.clone())
    }

    pub(crate) fn holds(&self, key: &ChunkKey) -> bool {
        self.lock().units.contains_key(key)
    }

    pub(crate) fn insert(&self, unit: NewUnit, now: Duration) {
        let mut state = self.lock();
        if state.units.contains_key(&unit.key) {
            return;
        }
        state.uses += 1;
        let place = (true, state.uses);
        let taken_to = state.remembered.get(&unit.key).copied();
        state.bytes += unit.unit.charge();
        state.order.insert(place, unit.key);
        let held = Held {
            unit: unit.unit,
            end: unit.end,
            taken_to,
            ahead: unit.ahead,
            cached: unit.cached,
            touched: now,
            place,
        };
        state.units.insert(unit.key, held);
        self.metrics.ring_bytes.set(state.bytes);
    }

    /// A reader took what lies in `from..to` of a unit. Answers whether the unit is now wanted twice and not in the cache.
    pub(crate) fn taken(&self, key: &ChunkKey, from: Offset, to: Offset, now: Duration) -> bool {
        let mut state = self.lock();
        state.touch(key, now);
        let Some(held) = state.units.get_mut(key) else {
            let before = state.remembered.get(key).copied();
            state.remember(*key, before.map_or(to, |before| before.max(to)));
            return before.is_some_and(|before| from < before);
        };
        if std::mem::take(&mut held.ahead) {
            self.metrics.ahead_used_bytes.add(held.unit.charge());
        }
        let twice = held.taken_to.is_some_and(|taken_to| from < taken_to);
        held.taken_to = held.taken_to.max(Some(to));
        let admit = twice && !held.cached;
        held.cached |= twice;
        if to >= held.end {
            let unread = held.place;
            let read = (false, unread.1);
            held.place = read;
            state.order.remove(&unread);
            state.order.insert(read, *key);
        }
        admit
    }

    /// Lets the unit go that is needed least, of those whose memory that frees; `false`: there is none.
    pub(crate) fn let_one_go(&self) -> bool {
        let mut state = self.lock();
        let Some(key) = state.least_needed(true) else { return false };
        self.drop_unit(&mut state, &key);
        true
    }

    /// As [`Ring::let_one_go`], of those that were read to their end.
    pub(crate) fn let_one_read_go(&self) -> bool {
        let mut state = self.lock();
        let Some(key) = state.least_needed(false) else { return false };
        self.drop_unit(&mut state, &key);
        true
    }

    /// Lets go what nobody came for in time. Answers whether anything is left.
    pub(crate) fn expire(&self, now: Duration) -> bool {
        let mut state = self.lock();
        let late = |held: &Held| {
            let kept_for = if held.place.0 { UNREAD_KEPT_FOR } else { READ_KEPT_FOR };
            now.saturating_sub(held.touched) >= kept_for
        };
        let keys: Vec<ChunkKey> =
            state.units.iter().filter(|(_, held)| late(held)).map(|(key, _)| *key).collect();
        for key in keys {
            self.drop_unit(&mut state, &key);
        }
        !state.units.is_empty()
    }

    /// Forgets everything, what was read before included.
    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        let keys: Vec<ChunkKey> = state.units.keys().copied().collect();
        for key in keys {
            self.drop_unit(&mut state, &key);
        }
        state.remembered.clear();
        state.remembered_order.clear();
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn drop_unit(&self, state: &mut State, key: &ChunkKey) {
        let Some(held) = state.units.remove(key) else { return };
        state.order.remove(&held.place);
        state.bytes = state.bytes.saturating_sub(held.unit.charge());
        if held.ahead {
            self.metrics.ahead_dropped_bytes.add(held.unit.charge());
        }
        if let Some(taken_to) = held.taken_to {
            state.remember(*key, taken_to);
        }
        self.metrics.ring_bytes.set(state.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The unit needed least that nobody else holds; `unread`: also one that was not read to its end.
    fn least_needed(&self, unread: bool) -> Option<ChunkKey> {
        let in_reach = self.order.iter().take_while(|((is_unread, _), _)| unread || !is_unread);
        let is_alone = |key: &ChunkKey| self.units.get(key).is_some_and(|held| held.unit.is_alone());
        in_reach.map(|(_, key)| *key).find(is_alone)
    }

    fn touch(&mut self, key: &ChunkKey, now: Duration) {
        self.uses += 1;
        let used = self.uses;
        if let Some(held) = self.units.get_mut(key) {
            self.order.remove(&held.place);
            held.place.1 = used;
            held.touched = now;
            self.order.insert(held.place, *key);
        }
    }

    fn remember(&mut self, key: ChunkKey, taken_to: Offset) {
        if self.remembered.insert(key, taken_to).is_none() {
            self.remembered_order.push_back(key);
            if self.remembered_order.len() > REMEMBERED_MAX
                && let Some(oldest) = self.remembered_order.pop_front()
            {
                self.remembered.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
