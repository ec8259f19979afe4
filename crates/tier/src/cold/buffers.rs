//! Memory of units, used again: a replay would else have the kernel clear every page that it reads into.
//!
//! **Owns** some buffers that nothing is in, until nobody reads. **Does not own** a budget: what is in a buffer is charged by who holds it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Free buffers that are kept: what a reader's requests bring. Units make room in bursts, one for each request.
const FREE_MAX: usize = 64;

/// Capacities are multiples of this, so that units of nearly the same size fit into each other's buffers.
const STEP_BYTES: usize = 128 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

/// A buffer that goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffers {
    /// An empty buffer for `bytes` bytes, at most a step larger.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Buffer {
        let capacity = bytes.div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES);
        let found = {
            let mut free = self.lock();
            let fits = |buffer: &Vec<u8>| (capacity..=capacity + STEP_BYTES).contains(&buffer.capacity());
            // The last that came is the likeliest to be in the processor's caches.
            free.iter().rposition(fits).map(|at| free.remove(at))
        };
        let bytes =
            found.unwrap_or_else(|| Vec::with_capacity(if capacity > STEP_BYTES { capacity } else { bytes }));
        Buffer { bytes, home: Arc::clone(self) }
    }

    /// Gives the memory back.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn give(&self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= STEP_BYTES {
            return;
        }
        bytes.clear();
        let mut free = self.lock();
        if free.len() >= FREE_MAX {
            free.remove(0);
        }
        free.push(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.bytes.truncate(bytes);
    }

    /// Its bytes; the last of their holders gives the buffer back.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(buffers: &Arc<Buffers>, bytes: usize) -> Bytes {
        let mut buffer = buffers.take(bytes);
        buffer.add(&vec![7; bytes]);
        buffer.freeze()
    }

    #[test]
    fn a_buffer_is_used_again_once_nobody_holds_a_part_of_it() {
        let buffers = Arc::new(Buffers::default());
        let first = filled(&buffers, 1_000_000);
        let (address, part) = (first.as_ptr(), first.slice(10..20));
        drop(first);
        let other = filled(&buffers, 1_000_000);
        assert_ne!(other.as_ptr(), address, "a part is held");
        drop(part);
        let again = filled(&buffers, 1_040_000);
        assert_eq!((again.as_ptr(), again.len()), (address, 1_040_000), "it fits the step");
        drop((again, other));
        assert_eq!(filled(&buffers, 300_000).len(), 300_000);
        assert_eq!(buffers.lock().len(), 3, "too large for it");
        buffers.clear();
        assert!(buffers.lock().is_empty());
    }

    #[test]
    fn few_are_kept_and_none_that_is_small() {
        let buffers = Arc::new(Buffers::default());
        drop((0..70).map(|_| filled(&buffers, 200_000)).collect::<Vec<_>>());
        assert_eq!(buffers.lock().len(), FREE_MAX);
        buffers.clear();
        drop(filled(&buffers, STEP_BYTES));
        assert!(buffers.lock().is_empty());
    }
}
