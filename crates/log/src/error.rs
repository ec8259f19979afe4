//! What can go wrong, one enum per operation.

use std::{io, sync::Arc};

use thiserror::Error;
use tidelog_types::{Offset, TopicPartition};

/// The log stopped for good: nothing is acknowledged any more until the process starts again.
#[derive(Debug, Clone, Error)]
pub enum LogFailure {
    /// A write or sync of the journal failed. Nothing is known of what it covered.
    #[error("journal {operation}: {source}")]
    Journal {
        /// `write`, `sync` or `allocate`.
        operation: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A write, sync, cut or removal in a partition's folder failed.
    #[error("partition {place}: {operation}: {source}")]
    Partition {
        /// The partition.
        place: TopicPartition,
        /// What was tried.
        operation: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The checkpoint could not be written.
    #[error("checkpoint: {source}")]
    Checkpoint {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A task of the log panicked: a bug. A person must look.
    #[error("a task of the log panicked")]
    Panicked,
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// The partition was deleted.
    #[error("the partition is deleted")]
    Deleted,
}

/// The log could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process holds the directory.
    #[error("data directory {path} is used by another process")]
    Locked {
        /// The directory.
        path: String,
    },
    /// The directory holds something that is not ours.
    #[error("data directory: {0}")]
    Foreign(String),
    /// The directory was written by a newer version of the product.
    #[error("{path} has format version {found}, this version reads {known}")]
    Newer {
        /// The file that says so.
        path: String,
        /// What it says.
        found: u32,
        /// What is known here.
        known: u32,
    },
    /// The directory belongs to another cluster.
    #[error("data directory belongs to cluster {found}, not to {expected}")]
    OtherCluster {
        /// What it says.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// A file that must be whole is not.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The system refused.
    #[error("{operation} {path}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A partition could not be created.
#[derive(Debug, Clone, Error)]
pub enum CreateError {
    /// It is there already.
    #[error("the partition exists")]
    Exists,
    /// The log stopped.
    #[error(transparent)]
    Failed(#[from] LogFailure),
}

/// Batches were not appended; nothing of them is in the log.
#[derive(Debug, Clone, Error)]
pub enum AppendError {
    /// The disk is below its floor of free space. Retriable.
    #[error("free space is below the floor")]
    NoSpace,
    /// Unwritten records fill their whole budget; the caller should have waited for `append_room`. Retriable.
    #[error("unwritten records fill their budget")]
    Backpressure,
    /// Acknowledged records of this partition were lost to rot; it must be truncated or reset by its owner first.
    #[error("the partition is fenced at {at}: {why}")]
    Fenced {
        /// Its log end.
        at: Offset,
        /// What was found.
        why: Arc<str>,
    },
    /// A batch does not begin at or after the log end, its epoch goes back, or its parts disagree.
    #[error("batch at {base} does not follow {end}")]
    OutOfOrder {
        /// The batch's base offset.
        base: Offset,
        /// The log end offset.
        end: Offset,
    },
    /// The log stopped.
    #[error(transparent)]
    Failed(#[from] LogFailure),
}

/// A read found nothing to serve.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    /// Below the local log start offset or above the log end offset.
    #[error("offset {offset} is outside [{local_log_start}, {log_end}]")]
    OutOfRange {
        /// What was asked.
        offset: Offset,
        /// The local log start offset.
        local_log_start: Offset,
        /// The log end offset.
        log_end: Offset,
    },
    /// A segment's bytes do not match their checksum. It is quarantined; the records must come from elsewhere.
    #[error("segment {segment} of {place} is corrupt: {why}")]
    Corrupt {
        /// The partition.
        place: TopicPartition,
        /// The segment's base offset.
        segment: Offset,
        /// What was found.
        why: Arc<str>,
    },
    /// The system refused.
    #[error("read {place}: {source}")]
    Io {
        /// The partition.
        place: TopicPartition,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The log stopped or the partition is gone.
    #[error(transparent)]
    Failed(#[from] LogFailure),
}
