//! Positions in a partition and in time.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in a partition's one offset space. Never negative: "none" is an `Option`.
///
/// `*_end_offset` values are exclusive; `last_*` are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(u64);

impl Offset {
    /// The first offset of a log that lost nothing.
    pub const ZERO: Self = Self(0);
    /// The largest offset that a batch may hold: Kafka's wire form is a signed 64-bit number.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// Takes a wire offset; `None` when it is negative.
    #[must_use]
    pub const fn from_wire(raw: i64) -> Option<Self> {
        if raw < 0 { None } else { Some(Self(raw.unsigned_abs())) }
    }

    /// Makes an offset from a count; `None` above [`Offset::MAX`].
    #[must_use]
    pub const fn new(raw: u64) -> Option<Self> {
        if raw <= Self::MAX.0 { Some(Self(raw)) } else { None }
    }

    /// The wire form.
    #[must_use]
    pub const fn to_wire(self) -> i64 {
        self.0.cast_signed()
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `self + count`; `None` past [`Offset::MAX`].
    #[must_use]
    pub const fn checked_add(self, count: u64) -> Option<Self> {
        match self.0.checked_add(count) {
            Some(sum) => Self::new(sum),
            None => None,
        }
    }

    /// The offset after this one.
    ///
    /// # Panics
    /// At [`Offset::MAX`], which batch validation keeps out of every log.
    #[must_use]
    pub const fn next(self) -> Self {
        assert!(self.0 < Self::MAX.0, "an offset never reaches the end of its space");
        Self(self.0 + 1)
    }

    /// The offset before this one; `None` at zero.
    #[must_use]
    pub const fn prev(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// How many offsets lie in `[earlier, self)`; 0 when `earlier` is above.
    #[must_use]
    pub const fn distance_from(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A half-open range of offsets, `[base, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OffsetRange {
    /// The first offset, inclusive.
    pub base: Offset,
    /// One past the last offset.
    pub end: Offset,
}

impl OffsetRange {
    /// A range; `None` when `end` lies below `base`.
    #[must_use]
    pub fn new(base: Offset, end: Offset) -> Option<Self> {
        (base <= end).then_some(Self { base, end })
    }

    /// Whether no offset is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.base >= self.end
    }

    /// Whether `offset` is in it.
    #[must_use]
    pub fn contains(self, offset: Offset) -> bool {
        self.base <= offset && offset < self.end
    }
}

impl fmt::Display for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.base, self.end)
    }
}

/// The epoch of a partition's leadership; grows with every election. Wire −1 is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaderEpoch(u32);

impl LeaderEpoch {
    /// The epoch of a partition's first leader.
    pub const ZERO: Self = Self(0);

    /// Takes a wire epoch; `None` when it is negative.
    #[must_use]
    pub const fn from_wire(raw: i32) -> Option<Self> {
        if raw < 0 { None } else { Some(Self(raw.unsigned_abs())) }
    }

    /// The wire form.
    #[must_use]
    pub const fn to_wire(self) -> i32 {
        self.0.cast_signed()
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next leadership's epoch; `None` past `i32::MAX`.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        if self.0 < i32::MAX as u32 { Some(Self(self.0 + 1)) } else { None }
    }
}

impl fmt::Display for LeaderEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Wall-clock milliseconds since the Unix epoch, as records carry them. Negative values are Kafka's "none" and special
/// queries and never get this far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Takes wire milliseconds; `None` when negative.
    #[must_use]
    pub const fn from_wire(raw: i64) -> Option<Self> {
        if raw < 0 { None } else { Some(Self(raw.unsigned_abs())) }
    }

    /// Milliseconds since the Unix epoch; clamps to `i64::MAX`.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        if millis > i64::MAX as u64 { Self(i64::MAX as u64) } else { Self(millis) }
    }

    /// The wire form.
    #[must_use]
    pub const fn to_wire(self) -> i64 {
        self.0.cast_signed()
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Milliseconds from `earlier` to here; 0 when `earlier` is later.
    #[must_use]
    pub const fn millis_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_wire_values_are_none() {
        assert_eq!(Offset::from_wire(-1), None);
        assert_eq!(LeaderEpoch::from_wire(-1), None);
        assert_eq!(Timestamp::from_wire(-1), None);
    }

    #[test]
    fn offsets_stop_at_the_signed_maximum() {
        assert_eq!(Offset::MAX.to_wire(), i64::MAX);
        assert_eq!(Offset::MAX.checked_add(1), None);
        assert_eq!(Offset::new(u64::MAX), None);
    }

    #[test]
    fn a_range_holds_its_base_and_not_its_end() {
        let range = OffsetRange::new(Offset(3), Offset(5)).unwrap();
        assert!(range.contains(Offset(3)) && range.contains(Offset(4)) && !range.contains(Offset(5)));
        assert_eq!(OffsetRange::new(Offset(5), Offset(3)), None);
    }
}
