//! Ranges of API versions.

use std::fmt;

/// A range of API versions, both ends inclusive. Open ended ranges end at `i16::MAX`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The lowest version.
    pub min: i16,
    /// The highest version, inclusive.
    pub max: i16,
}

impl Versions {
    /// No version at all.
    pub const NONE: Self = Self { min: 0, max: -1 };

    /// Whether `version` is one of them.
    #[must_use]
    pub const fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    /// Every version, lowest first.
    pub fn iter(self) -> impl Iterator<Item = i16> {
        self.min..=self.max
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (min, max) if min > max => f.write_str("none"),
            (min, i16::MAX) => write!(f, "{min}+"),
            (min, max) if min == max => write!(f, "{min}"),
            (min, max) => write!(f, "{min}-{max}"),
        }
    }
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
