//! The records field of Produce and Fetch: bytes that nothing here looks into.

use std::{fmt, slice};

use bytes::{Bytes, BytesMut};

/// The record batches of one partition, as shared slices that are sent one after the other and never joined.
///
/// What was decoded is one slice of its frame. An answer holds as many as the log gave (a patched batch header apart
/// from its body, the batches of several appends).
#[derive(Clone)]
pub struct Records(Slices);

#[derive(Clone)]
enum Slices {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Records {
    /// No records.
    #[must_use]
    pub const fn new() -> Self {
        Self(Slices::One(Bytes::new()))
    }

    /// Adds a slice at the end, without a copy.
    pub fn push(&mut self, slice: Bytes) {
        match &mut self.0 {
            Slices::One(one) if one.is_empty() => *one = slice,
            Slices::One(one) => self.0 = Slices::Many(vec![std::mem::take(one), slice]),
            Slices::Many(many) => many.push(slice),
        }
    }

    /// The slices, in order.
    #[must_use]
    pub fn chunks(&self) -> &[Bytes] {
        match &self.0 {
            Slices::One(one) => slice::from_ref(one),
            Slices::Many(many) => many,
        }
    }

    /// Bytes in all slices together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks().iter().map(Bytes::len).sum()
    }

    /// Whether there is not one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks().iter().all(Bytes::is_empty)
    }

    /// All bytes as one slice. Copies only if there are several.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Slices::One(one) => one.clone(),
            Slices::Many(many) => {
                let mut joined = BytesMut::with_capacity(self.len());
                many.iter().for_each(|slice| joined.extend_from_slice(slice));
                joined.freeze()
            }
        }
    }
}

impl Default for Records {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Bytes> for Records {
    fn from(bytes: Bytes) -> Self {
        Self(Slices::One(bytes))
    }
}

impl From<Vec<Bytes>> for Records {
    fn from(slices: Vec<Bytes>) -> Self {
        Self(Slices::Many(slices))
    }
}

impl FromIterator<Bytes> for Records {
    fn from_iter<I: IntoIterator<Item = Bytes>>(slices: I) -> Self {
        Self(Slices::Many(slices.into_iter().collect()))
    }
}

impl PartialEq for Records {
    // Equal bytes, however they are cut.
    fn eq(&self, other: &Self) -> bool {
        let bytes = |records: &Self| records.chunks().to_vec().into_iter().flatten();
        self.len() == other.len() && bytes(self).eq(bytes(other))
    }
}

impl Eq for Records {}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({} bytes in {} slices)", self.len(), self.chunks().len())
    }
}
