//! What can go wrong, and what the caller may conclude.

use std::path::PathBuf;

use openraft::ConfigError;
use thiserror::Error;
use tidelog_types::{ClusterId, limits};

use crate::codec::StoreError;

/// Why a controller does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Its files cannot be used, or the disk refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its directory belongs to another cluster.
    #[error("the controller's directory belongs to cluster {found}, not {expected}")]
    AnotherCluster {
        /// What the directory says.
        found: ClusterId,
        /// What was expected.
        expected: ClusterId,
    },
    /// Its directory belongs to another node.
    #[error("the controller's directory belongs to node {found}, not {expected}")]
    AnotherNode {
        /// What the directory says.
        found: u64,
        /// What was expected.
        expected: u64,
    },
    /// This node had a controller's state, and it is gone.
    #[error("the controller's state in {} is missing, but this node had one: restore it, or remove the node from the cluster", directory.display())]
    StateMissing {
        /// Where it was.
        directory: PathBuf,
    },
    /// The timers contradict each other.
    #[error("the timing is not valid: {0}")]
    Timing(#[from] ConfigError),
    /// Raft could not be started.
    #[error("raft did not start: {0}")]
    Raft(String),
}

/// Why a proposal has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProposeError {
    /// Too many are in flight. It was not applied and never will be: it may be proposed again.
    #[error("the controller is busy")]
    Busy,
    /// The command is larger than [`limits::COMMAND_BYTES_MAX`]. It was not applied.
    #[error("the command has {bytes} bytes, at most {} are allowed", limits::COMMAND_BYTES_MAX)]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The leader's disk is full, and the command is not one that frees space. It was not applied and never will be: it
    /// may be proposed again once there is space.
    #[error("the controller has no space on its disk: {why}")]
    NoSpace {
        /// What the disk said.
        why: String,
    },
    /// No leader was found in time. It was not applied and never will be: it may be proposed again.
    #[error("there is no controller to lead")]
    NoLeader,
    /// It was sent, and may have been applied, now or later: look before proposing again.
    #[error("the outcome of the command is not known: {why}")]
    Unknown {
        /// What happened.
        why: String,
    },
}

impl ProposeError {
    /// Whether the command was certainly not applied, so that it may be proposed again.
    #[must_use]
    pub const fn is_not_applied(&self) -> bool {
        match self {
            Self::Busy | Self::TooLarge { .. } | Self::NoSpace { .. } | Self::NoLeader => true,
            Self::Unknown { .. } => false,
        }
    }
}

/// Why no linearizable read is possible. It may be tried again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no linearizable read: {why}")]
pub struct LinearizeError {
    /// What happened.
    pub why: String,
}
