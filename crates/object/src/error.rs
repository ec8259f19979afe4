//! What may go wrong with a store, one enum per operation.
//!
//! `Retriable` has not taken effect, or it does no harm that it did; `Refused` is the store's authoritative answer, and
//! its text says what a person must do; `Unknown` may have taken effect.

use std::fmt;

use crate::ETag;

/// A failure that may pass: what was tried, how often, and the last reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The key or prefix.
    pub key: String,
    /// Tries that were made.
    pub tries: u32,
    /// The last reason, as the store or the network gave it.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` after {} tries: {}", self.key, self.tries, self.reason)
    }
}

/// An authoritative refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The key, prefix or bucket.
    pub key: String,
    /// The store's words.
    pub reason: String,
    /// What a person must do.
    pub advice: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {} ({})", self.key, self.advice, self.reason)
    }
}

/// How an object differs from what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// It has another length.
    #[error("it has {actual} bytes instead of {expected}")]
    Length {
        /// What the caller knows.
        expected: u64,
        /// What the store says.
        actual: u64,
    },
    /// It is longer than the caller takes.
    #[error("it has {actual} bytes, more than {limit}")]
    TooLong {
        /// The caller's limit.
        limit: u64,
        /// What the store says.
        actual: u64,
    },
    /// It has another ETag: it was replaced.
    #[error("its ETag is {actual} instead of {expected}")]
    ETag {
        /// What the caller knows.
        expected: String,
        /// What the store says, `changed` where it only refused the condition.
        actual: String,
    },
    /// The range lies outside of it.
    #[error("the range {from}..{to} lies outside of its {object_bytes} bytes")]
    OutOfRange {
        /// First byte asked for.
        from: u64,
        /// First byte not asked for.
        to: u64,
        /// Its length as the caller knows it.
        object_bytes: u64,
    },
    /// It is shorter than the range that was asked for.
    #[error("it is shorter than the range that was asked for")]
    Shorter,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be made or used.
    #[error("the folder {path} cannot be used")]
    Folder {
        /// The folder.
        path: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The settings do not fit together.
    #[error("the settings of {url} do not work: {reason}")]
    Settings {
        /// The store.
        url: String,
        /// What is wrong.
        reason: String,
    },
}

/// Why an object was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// There is no such object, says the store.
    #[error("no object {key}")]
    NotFound {
        /// The key.
        key: String,
    },
    /// The object is not the one that is known. Not worth another try.
    #[error("object {key} is corrupt: {what}")]
    Corrupt {
        /// The key.
        key: String,
        /// How it differs.
        #[source]
        what: Corruption,
    },
    /// The deadline passed; try again later.
    #[error("could not read {0}")]
    Retriable(Failure),
    /// The store refuses.
    #[error("the store refuses to read {0}")]
    Refused(Refusal),
}

/// Why an object was not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Another's object has the key.
    #[error("object {key} exists and is not ours ({bytes} bytes)")]
    Exists {
        /// The key.
        key: String,
        /// Its length.
        bytes: u64,
    },
    /// The deadline passed, and the object does not exist; try again later.
    #[error("could not write {0}")]
    Retriable(Failure),
    /// The deadline passed after an answer was lost: the object may exist.
    #[error("unknown whether it was written: {0}")]
    Unknown(Failure),
    /// The store refuses.
    #[error("the store refuses to write {0}")]
    Refused(Refusal),
}

/// Why an object was not replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutMatchError {
    /// The object is another than the one to replace.
    #[error("object {key} changed meanwhile")]
    Changed {
        /// The key.
        key: String,
        /// What is there now.
        current: ETag,
    },
    /// There is nothing to replace: create it.
    #[error("object {key} is gone")]
    Absent {
        /// The key.
        key: String,
    },
    /// The deadline passed, and nothing was written; try again later.
    #[error("could not write {0}")]
    Retriable(Failure),
    /// The deadline passed after an answer was lost: it may have been replaced.
    #[error("unknown whether it was written: {0}")]
    Unknown(Failure),
    /// The store refuses.
    #[error("the store refuses to write {0}")]
    Refused(Refusal),
}

/// Why a page of a listing was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The store's pages do not advance or are out of order: nothing may be concluded from them.
    #[error("the listing of {prefix} cannot be trusted: {reason}")]
    Untrustworthy {
        /// The prefix.
        prefix: String,
        /// What was seen.
        reason: String,
    },
    /// The deadline passed; try again later.
    #[error("could not list {0}")]
    Retriable(Failure),
    /// The store refuses.
    #[error("the store refuses to list {0}")]
    Refused(Refusal),
}

/// Why an object was not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// The deadline passed; it may be gone. Deleting again does no harm.
    #[error("could not delete {0}")]
    Retriable(Failure),
    /// The store refuses.
    #[error("the store refuses to delete {0}")]
    Refused(Refusal),
}
