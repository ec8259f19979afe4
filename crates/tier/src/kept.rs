//! A small cache of decoded things, bounded in bytes; the least recently used goes first.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// See the module.
pub(crate) struct Kept<K, V> {
    bytes_max: u64,
    state: Mutex<State<K, V>>,
}

struct State<K, V> {
    things: BTreeMap<K, Thing<V>>,
    /// By the time of the last use, oldest first.
    by_use: BTreeMap<u64, K>,
    uses: u64,
    bytes: u64,
}

struct Thing<V> {
    value: V,
    bytes: u64,
    used: u64,
}

impl<K: Ord + Copy, V: Clone> Kept<K, V> {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let state = State { things: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0 };
        Self { bytes_max, state: Mutex::new(state) }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut state = self.lock();
        state.uses += 1;
        let used = state.uses;
        let thing = state.things.get_mut(key)?;
        let (value, last) = (thing.value.clone(), std::mem::replace(&mut thing.used, used));
        state.by_use.remove(&last);
        state.by_use.insert(used, *key);
        Some(value)
    }

    /// Keeps a thing; one that is larger than the whole is not kept.
    pub(crate) fn insert(&self, key: K, value: V, bytes: u64) {
        if bytes > self.bytes_max {
            return;
        }
        let mut state = self.lock();
        state.remove(&key);
        while state.bytes.saturating_add(bytes) > self.bytes_max {
            let Some((_, oldest)) = state.by_use.first_key_value() else { break };
            let oldest = *oldest;
            state.remove(&oldest);
        }
        state.uses += 1;
        let used = state.uses;
        state.bytes += bytes;
        state.by_use.insert(used, key);
        state.things.insert(key, Thing { value, bytes, used });
    }

    pub(crate) fn remove(&self, key: &K) {
        self.lock().remove(key);
    }

    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        state.things.clear();
        state.by_use.clear();
        state.bytes = 0;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord, V> State<K, V> {
    fn remove(&mut self, key: &K) {
        if let Some(thing) = self.things.remove(key) {
            self.by_use.remove(&thing.used);
            self.bytes = self.bytes.saturating_sub(thing.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_within_its_bytes_and_drops_what_was_not_used() {
        let kept = Kept::new(10);
        kept.insert(1, "a", 4);
        kept.insert(2, "b", 4);
        assert_eq!(kept.get(&1), Some("a"));
        kept.insert(3, "c", 4);
        assert_eq!((kept.get(&1), kept.get(&2), kept.get(&3)), (Some("a"), None, Some("c")));
        kept.insert(4, "d", 11);
        assert_eq!((kept.get(&4), kept.bytes()), (None, 8));
        kept.insert(1, "e", 5);
        assert_eq!((kept.get(&1), kept.bytes()), (Some("e"), 9));
        kept.clear();
        assert_eq!((kept.get(&3), kept.bytes()), (None, 0));
    }
}
