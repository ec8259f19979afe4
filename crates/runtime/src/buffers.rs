//! Memory of bodies, used again: a replay would else have the kernel clear every page that it reads into.
//!
//! **Owns** some buffers that nothing is in, until they are given up. **Does not own** a budget: what is in a buffer is charged
//! by who holds it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Sizes are multiples of this, so that pieces of nearly the same size fit into each other's buffers.
const STEP_BYTES: usize = 128 * 1024;

/// See the module.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    free_max: usize,
}

/// A buffer that goes back when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    /// All of its memory: written over, never cleared.
    bytes: Vec<u8>,
    filled: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    /// Keeps at most `free_max` buffers that are free.
    #[must_use]
    pub const fn new(free_max: usize) -> Self {
        Self { free: Mutex::new(Vec::new()), free_max }
    }

    /// An empty buffer for `bytes` bytes, at most a step larger.
    #[must_use]
    pub fn take(self: &Arc<Self>, bytes: usize) -> Buffer {
        let size = match bytes > STEP_BYTES {
            true => bytes.div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES),
            false => bytes,
        };
        let found = {
            let mut free = self.lock();
            let fits = |buffer: &Vec<u8>| (size..=size.saturating_add(STEP_BYTES)).contains(&buffer.len());
            // The last that came is the likeliest to be in the processor's caches.
            free.iter().rposition(fits).map(|at| free.remove(at))
        };
        Buffer { bytes: found.unwrap_or_else(|| vec![0; size]), filled: 0, home: Arc::clone(self) }
    }

    /// Gives the memory back.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn give(&self, bytes: Vec<u8>) {
        if bytes.len() <= STEP_BYTES {
            return;
        }
        let mut free = self.lock();
        free.push(bytes);
        if free.len() > self.free_max {
            free.remove(0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// How many bytes are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let end = self.filled.saturating_add(bytes.len());
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.filled..end].copy_from_slice(bytes);
        self.filled = end;
    }

    /// Where the next bytes go, up to `end` bytes in all; [`Buffer::advance`] says how many came.
    pub fn room(&mut self, end: usize) -> &mut [u8] {
        let end = end.min(self.bytes.len());
        self.bytes.get_mut(self.filled..end).unwrap_or_default()
    }

    /// `bytes` more were put into the room.
    pub fn advance(&mut self, bytes: usize) {
        self.filled = self.filled.saturating_add(bytes).min(self.bytes.len());
    }

    /// Keeps the first `bytes`.
    pub fn truncate(&mut self, bytes: usize) {
        self.filled = self.filled.min(bytes);
    }

    /// Its bytes; the last of their holders gives the buffer back.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
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

    const FREE_MAX: usize = 4;

    #[test]
    fn a_buffer_is_used_again_once_nobody_holds_a_part_of_it() {
        let buffers = Arc::new(Buffers::new(FREE_MAX));
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
        let buffers = Arc::new(Buffers::new(FREE_MAX));
        drop((0..10).map(|_| filled(&buffers, 200_000)).collect::<Vec<_>>());
        assert_eq!(buffers.lock().len(), FREE_MAX);
        buffers.clear();
        drop(filled(&buffers, STEP_BYTES));
        assert!(buffers.lock().is_empty());
    }

    #[test]
    fn what_is_left_of_an_earlier_use_is_never_seen() {
        let buffers = Arc::new(Buffers::new(FREE_MAX));
        drop(filled(&buffers, 200_000));
        let mut buffer = buffers.take(150_000);
        assert_eq!((buffer.len(), buffer.as_ref()), (0, &b""[..]));
        buffer.room(3).copy_from_slice(b"abc");
        buffer.advance(2);
        assert_eq!((buffer.room(2).len(), buffer.room(5).len()), (0, 3));
        buffer.add(b"cd");
        assert_eq!(buffer.as_ref(), b"abcd");
        buffer.truncate(1);
        buffer.add(b"z");
        assert_eq!(&buffer.freeze()[..], b"az");
    }
}
