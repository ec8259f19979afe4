//! What openraft is told about this group.

use std::{fmt, sync::Arc};

use openraft::impls::TokioRuntime;
use openraft_rt::deterministic_rng::DeterministicRng;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidelog_core::cluster::{Command, Outcome};

/// A command as it travels through Raft. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal(pub Arc<Command>);

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for Proposal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.encode().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Proposal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Command::decode(&bytes).map(|command| Self(Arc::new(command))).map_err(serde::de::Error::custom)
    }
}

/// What applying an entry answered: the outcome of its command, or `None` where it carried none. It never leaves the
/// process, so its serialised form is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied(pub Option<Outcome>);

impl Serialize for Applied {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Applied {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer).map(|()| Self(None))
    }
}

openraft::declare_raft_types!(
    /// The types of the controllers' Raft group.
    pub TypeConfig:
        D = Proposal,
        R = Applied,
        NodeId = u64,
        Node = openraft::impls::BasicNode,
        AsyncRuntime = RaftRuntime,
);

/// Tokio, with chance that is handed in: openraft is started, and runs, in a [`DeterministicRng::scope`], which its tasks
/// inherit.
pub(crate) type RaftRuntime = DeterministicRng<TokioRuntime>;

pub(crate) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
