//! Deliberate defects, chosen by a constructor argument: the model of a whole node must find each of them.

/// Which defects partitions have. All are off in every product.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mistakes {
    /// Producers' sequences are not looked at: a retry is appended again.
    pub forget_producers: bool,
    /// Whatever eviction asks for goes, in the bucket or not.
    pub evict_unchecked: bool,
}
