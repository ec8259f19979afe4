//! Deliberate defects, chosen by a constructor argument: the model of a whole node must find each of them.

/// Which defects tiering has. All are off in every product.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mistakes {
    /// What was read from the bucket is not compared with its checksums.
    pub ignore_interval_crc: bool,
    /// Sealed local segments count as evictable before their entries are in a manifest.
    pub evict_before_commit: bool,
}
