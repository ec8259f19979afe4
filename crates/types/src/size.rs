//! Amounts of bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An amount of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(u64);

impl ByteSize {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// An amount in bytes.
    #[must_use]
    pub const fn bytes(count: u64) -> Self {
        Self(count)
    }

    /// An amount in units of 1,024 bytes.
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count.saturating_mul(1024))
    }

    /// An amount in units of 1,048,576 bytes.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1024 * 1024))
    }

    /// The count of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The count as an index; the largest one on a machine where it does not fit.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        let mut scaled = u128::from(self.0) * 10;
        while scaled >= 10_240 && unit + 1 < UNITS.len() {
            scaled /= 1024;
            unit += 1;
        }
        if unit == 0 {
            write!(f, "{} B", self.0)
        } else {
            write!(f, "{}.{} {}", scaled / 10, scaled % 10, UNITS[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(ByteSize::bytes(1023).to_string(), "1023 B");
        assert_eq!(ByteSize::kib(1).to_string(), "1.0 KiB");
        assert_eq!(ByteSize::mib(1536).to_string(), "1.5 GiB");
    }
}
