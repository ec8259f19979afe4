//! A broker's partitions.
//!
//! **Owns** every partition that this node hosts: it follows the cluster's metadata, opens, creates and deletes logs,
//! serialises each partition's appends, moves high watermark and last stable offset as the log reports progress, wakes
//! who waits for records, plans reads across memory, disk and bucket, and answers look-ups by time and epoch as one log.
//!
//! **Never** speaks Kafka's wire protocol, opens a file, or talks to the bucket: the log does the former, a
//! [`ColdReader`] the latter.
//!
//! Start reading at [`ReplicaManager`], then [`PartitionHandle`]. The rules are in `tidelog_core::partition`.
//!
//! ```text
//!   append:  validate (no lock, codecs on the back runtime)
//!            lock { decide; log.append (no IO); appended } publish
//!            log -> observer { written | synced } -> lock { move offsets; take the acks that are due } publish, answer, wake
//!   read:    snapshot (no lock) -> plan -> log.read | ColdReader
//! ```

mod append;
mod cold;
mod error;
mod fence;
mod look_up;
mod manager;
mod metadata;
mod metrics;
mod mistakes;
mod observer;
mod partition;
mod prepare;
mod producers_form;
mod read;
mod retention;
mod settings;
mod tiering;
mod wake;

pub use append::{AckFuture, Acks, AppendRequest, Appended};
pub use cold::{ColdError, ColdFuture, ColdOutage, ColdPlace, ColdRead, ColdReader, ColdRecords};
pub use error::{
    AckError, AppendError, DeleteRecordsError, LookUpError, ReadError, StartError, TieringError,
};
pub use fence::{Fence, LiftFenceError};
pub use manager::{PartitionUsage, ReplicaManager, Started};
pub use metadata::{Metadata, ProposeFailure, ProposeFuture, Quorum};
pub use metrics::ReplicaMetrics;
#[doc(hidden)]
pub use mistakes::Mistakes;
pub use partition::PartitionHandle;
pub use read::{Fetched, Records};
pub use settings::{PartitionSettings, ReplicaConfig};
pub use tiering::{UploadRead, UploadState};
pub use wake::{Waiter, WakeRegistration};
