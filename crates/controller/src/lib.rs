//! The controller: agreement on the cluster's metadata.
//!
//! **Owns** the Raft group around [`tidelog_core::cluster::ClusterState`]: its log and snapshots on
//! [`tidelog_runtime::Disk`], elections, replication between controllers behind [`Transport`], proposals, linearizable
//! reads, and the stream of [`tidelog_core::cluster::MetadataImage`]s that everything else follows.
//!
//! **Never** decides what a command means (core does), talks to the bucket, or touches a partition's data.
//!
//! Crash behaviour: what was acknowledged (a vote, an appended entry, a purge, a snapshot) is on disk and synced
//! before it is acknowledged; after any crash a start finds it again, or refuses to start and says why. A write or
//! sync that failed is never retried and believed: the controller stops.
//!
//! Start reading at [`Controller`]; then [`log_store`] for what is on disk.

mod codec;
mod config;
mod controller;
mod directory;
mod error;
mod identity;
pub mod log_store;
mod metrics;
#[doc(hidden)]
pub mod outside;
mod raft_types;
pub mod snapshot_store;
pub mod state_machine;
mod transport;

pub use codec::StoreError;
pub use config::{ControllerConfig, Timing};
pub use controller::{Controller, ControllerStatus};
pub use error::{LinearizeError, ProposeError, StartError};
pub use metrics::ControllerMetrics;
pub use raft_types::{Applied, Proposal, TypeConfig};
pub use transport::{Answer, CallError, InProcessTransport, Message, Receiver, Request, Transport};
