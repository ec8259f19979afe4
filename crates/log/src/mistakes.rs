//! Deliberate defects, chosen by a constructor argument: the crash model must find each of them.

/// Which defects the engine has. All are off in every product.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mistakes {
    /// Records count as synced when their write returned.
    pub ack_before_sync: bool,
    /// A checkpoint frees journal files that it does not cover.
    pub free_journal_early: bool,
    /// Interval checksums of segments are not compared.
    pub ignore_interval_crc: bool,
    /// A truncation is applied to the files without a journal entry.
    pub truncate_without_entry: bool,
    /// Checkpoints are written without syncing the segments that they cover.
    pub checkpoint_without_sync: bool,
}
