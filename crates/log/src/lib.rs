//! One node's partitions on local disk.
//!
//! **Owns** the journal (one write and one sync serve all that wait), the tail in memory, the segments written behind it, the
//! checkpoints that free the journal, and the recovery after a stop.
//!
//! **Never** assigns an offset, decodes a record, knows a leader or a follower, or touches a bucket: its caller serialises
//! the changes of a partition, and reads come from anywhere.
//!
//! Start reading at [`Log`] and [`PartitionLog`].
//!
//! ```text
//!  append --> tail (memory) --> round --> journal write --> journal sync        written, synced: told to the observer
//!               |                                              |
//!               +--> write-behind --> segment files            |
//!                                        |                     |
//!                                    checkpoint ---------------+--> journal file is used again
//! ```
//!
//! # What a crash leaves
//! Whatever was synced is there again, at its offsets, with its bytes. What was only written is there after a kill of
//! the process. A failed write or sync of the journal is final: the log stops and tells every observer.

mod changes;
mod checkpoint;
mod config;
mod data_dir;
mod descriptors;
mod engine;
mod error;
mod fence;
mod files;
mod journal;
mod metrics;
mod mistakes;
mod observer;
mod partition;
mod read;
mod recovery;
mod segment;
mod space;
mod tail;
mod write_behind;

pub use config::{LogConfig, PartitionConfig};
#[doc(hidden)]
pub use data_dir::meta_properties;
pub use data_dir::{DirectoryLock, DirectoryOwner, directory_owner};
pub use engine::Log;
pub use error::{AppendError, CreateError, LogFailure, OpenError, ReadError};
pub use metrics::round_seconds;
#[doc(hidden)]
pub use mistakes::Mistakes;
pub use observer::{
    AppendBatch, LogObserver, LogOffsets, LogRead, LogStatus, RecoveryReport, SegmentSummary,
};
pub use partition::PartitionLog;
pub use recovery::RecoveredPartition;
#[doc(hidden)]
pub use segment::rebuild::walked;
