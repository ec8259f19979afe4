//! Units in memory for the readers that are under way.
//!
//! **Owns** which units are held, each with its share of the memory budget, how far each was read, and the answer to
//! whether a unit was wanted twice. A unit that one reader reads once, in sequence, never leaves the ring for the cache: a
//! replay evicts nothing.
//!
//! **Does not own** fetching, and no unit is safe here: any may go to make room. Those who read one hold its bytes, and
//! with them its charge; so what makes room is only a unit that nobody else holds.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidelog_object::ChunkKey;
use tidelog_types::{Offset, PartitionIndex, TopicId};

use super::{charged::Charged, metrics::ColdMetrics};

/// How long a unit that was read stays for a reader close behind.
const READ_KEPT_FOR: Duration = Duration::from_secs(5);

/// How long a unit stays that nobody has read to its end.
const UNREAD_KEPT_FOR: Duration = Duration::from_secs(30);

/// How long a unit that nobody has read to its end is kept from readers of other partitions, after the last read of its own:
/// what was read ahead of a reader who left would else keep all others from reading ahead.
const LEFT_AFTER: Duration = Duration::from_secs(2);

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

/// The partition of a unit.
type Place = (TopicId, PartitionIndex);

/// What is held of one partition.
struct Visited {
    units: usize,
    /// When it was read last, or when its first unit came in.
    last: Duration,
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
    /// Partitions of which there is a unit.
    visited: BTreeMap<Place, Visited>,
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
        state.visited.entry(place_of(&unit.key)).or_insert(Visited { units: 0, last: now }).units += 1;
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
        let Some(key) = state.least_needed(|_, _| true) else { return false };
        self.drop_unit(&mut state, &key);
        true
    }

    /// As [`Ring::let_one_go`], of those that were read to their end and those whose readers left.
    pub(crate) fn let_one_unwanted_go(&self, now: Duration) -> bool {
        let mut state = self.lock();
        let is_left = |held: &Held, visited: &Visited| {
            let since = |then: Duration| now.saturating_sub(then) >= LEFT_AFTER;
            since(held.touched) && since(visited.last)
        };
        let Some(key) = state.least_needed(is_left) else { return false };
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
        if let Entry::Occupied(mut visited) = state.visited.entry(place_of(key)) {
            visited.get_mut().units -= 1;
            if visited.get().units == 0 {
                visited.remove();
            }
        }
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
    /// The unit needed least that nobody else holds: one that was read to its end, or one of the others that `may_go`.
    fn least_needed(&self, may_go: impl Fn(&Held, &Visited) -> bool) -> Option<ChunkKey> {
        let is_free = |(is_unread, key): (bool, &ChunkKey)| {
            let (Some(held), Some(visited)) = (self.units.get(key), self.visited.get(&place_of(key))) else {
                return false;
            };
            held.unit.is_alone() && (!is_unread || may_go(held, visited))
        };
        self.order.iter().find(|((is_unread, _), key)| is_free((*is_unread, key))).map(|(_, key)| *key)
    }

    fn touch(&mut self, key: &ChunkKey, now: Duration) {
        self.uses += 1;
        let used = self.uses;
        if let Some(visited) = self.visited.get_mut(&place_of(key)) {
            visited.last = now;
        }
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

const fn place_of(key: &ChunkKey) -> Place {
    (key.topic_id, key.partition)
}

#[cfg(test)]
mod tests;
