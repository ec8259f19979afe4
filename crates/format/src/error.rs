//! Why stored bytes are refused.

use thiserror::Error;

/// Why a stored structure cannot be read. None of these goes away by reading the same bytes again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the structure does.
    #[error("{what} is cut short")]
    Cut {
        /// What was being read.
        what: &'static str,
    },
    /// Another kind of structure, or none.
    #[error("these bytes are not a {what}")]
    Magic {
        /// What was expected.
        what: &'static str,
    },
    /// Written by a newer version, which this one does not guess at.
    #[error("{what} has format version {version}, this program reads up to {version_max}")]
    Version {
        /// What was being read.
        what: &'static str,
        /// Its version.
        version: u16,
        /// The newest known one.
        version_max: u16,
    },
    /// The checksum does not match.
    #[error("{what} has checksum {computed:#010x} where {stated:#010x} is stated")]
    Checksum {
        /// What was being read.
        what: &'static str,
        /// What is stated.
        stated: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// The checksum matches, but the content cannot be: a defect of the writer.
    #[error("{what} is not valid: {why}")]
    Invalid {
        /// What was being read.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}
