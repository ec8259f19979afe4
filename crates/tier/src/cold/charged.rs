//! Bytes of the bucket with their charge: `tier.read.memory.bytes` counts them for as long as anything holds them.
//!
//! A unit leaves the ring when room is needed; the answers that were cut from it may still be on their way to slow clients.
//! So the charge does not belong to the ring but to the bytes, and goes with the last of them.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use tidelog_runtime::{Budget, Permit};

/// A unit's bytes and its share of the budget. Clones are the same bytes.
#[derive(Clone)]
pub(crate) struct Charged {
    bytes: Bytes,
    permit: Arc<Permit>,
}

/// What an answer's slice owns.
struct Held {
    bytes: Bytes,
    _permit: Arc<Permit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Charged {
    pub(crate) fn new(bytes: Bytes, permit: Permit) -> Self {
        Self { bytes, permit: Arc::new(permit) }
    }

    /// The bytes without their charge: for looks, and for holders with a budget of their own.
    pub(crate) const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What the budget counts.
    pub(crate) fn charge(&self) -> u64 {
        self.permit.bytes()
    }

    /// Whether nobody else holds it: dropping it frees its charge.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.permit) == 1
    }

    /// A part for an answer, which holds the charge of the whole; a small part is copied and charged for itself, since it
    /// would pin the whole unit.
    pub(crate) fn slice(&self, part: Range<usize>, memory: &Budget) -> Bytes {
        let held = if part.len() < self.bytes.len() / 4 {
            let permit = Arc::new(memory.charge(part.len() as u64));
            Held { bytes: Bytes::copy_from_slice(&self.bytes[part]), _permit: permit }
        } else {
            Held { bytes: self.bytes.slice(part), _permit: Arc::clone(&self.permit) }
        };
        Bytes::from_owner(held)
    }
}

#[cfg(test)]
mod tests {
    use tidelog_types::ByteSize;

    use super::*;

    #[test]
    fn the_charge_goes_with_the_last_slice() {
        let memory = Budget::new("test", ByteSize::bytes(1_000));
        let unit = Charged::new(Bytes::from(vec![7; 100]), memory.try_acquire(100).unwrap());
        let large = unit.slice(50..100, &memory);
        let small = unit.slice(0..10, &memory);
        assert_eq!((large.len(), small.len(), memory.used(), unit.is_alone()), (50, 10, 110, false));
        drop(unit);
        assert_eq!(memory.used(), 110);
        let part = large.slice(..1);
        drop(large);
        assert_eq!(memory.used(), 110, "a byte of it is held");
        drop(part);
        assert_eq!(memory.used(), 10);
        drop(small);
        assert_eq!(memory.used(), 0);
    }
}
