//! The cluster's metadata: one deterministic state machine that every controller applies in the same order.
//!
//! **Owns** brokers and their incarnations, topics, partitions and who leads them, configurations, blocks of producer
//! ids, log starts and manifests of tiered partitions, and the queue of what may be deleted from the bucket. Every rule
//! of who may change what (T1 to T10 of the design) is decided here, at the moment of apply, and nowhere else.
//!
//! **Does not own** agreement on the order of commands (`tidelog-controller`), the meaning of configuration keys
//! (the broker validates them; this keeps what it is given), or anything in the bucket: no page or object is read here.
//!
//! ```text
//! Command --(Raft log)--> ClusterState::apply(index, command) -> Outcome
//!                                |
//!                                +--> MetadataImage (cheap clone: everything shared is behind an Arc)
//! ```
//!
//! Equal commands give equal states, equal outcomes and equal snapshot bytes. Time is [`Command::Tick`] alone and
//! measures durations; ids and incarnations that need chance are chosen by the proposer or counted here.
//!
//! A manifest of one partition, oldest on the left:
//!
//! ```text
//!  log start                                              tiered end
//!      |                                                      |
//! [ line: page 0 )[ line: page 1 )[ entry ][ entry ][ entry ) |
//!  ^ oldest page lines              ^ newest entries, held in full
//! ```

mod codec;
mod command;
mod deletion;
mod image;
mod leadership;
pub mod persist;
mod state;
mod tiering;
mod topics;

#[cfg(test)]
mod tests;

pub use command::{
    BrokerRegistration, Command, CommitRefusal, ConfigChange, ConfigResource, NewTopic, Outcome, Refusal,
    SegmentCommit, Spill,
};
pub use deletion::{DeletionItem, DeletionQueue, DeletionScope, DeletionTarget, ObjectName};
pub use image::{
    BrokerImage, Listener, LogIndex, MetadataImage, PartitionImage, PartitionManifest, TopicImage,
};
pub use state::{ClusterState, REMOTE_STORAGE_ENABLE, TIER_DELETION_GRACE_MS};
