//! Words of the whole system: ids, offsets, epochs, sizes, and the file of limits.
//!
//! **Owns** the newtypes that every other crate speaks in, so that an offset cannot be added to an epoch, and
//! [`limits`], where every bound of the system stands with its reason.
//!
//! **Never** does IO, reads a clock or draws a random number.
//!
//! Start reading at [`Offset`] and [`TopicPartition`].

pub mod limits;

mod ids;
mod offsets;
mod size;
mod text;

pub use ids::{
    BootId, BrokerId, BrokerIncarnation, ClaimId, ClusterId, DirectoryId, IdParseError, PartitionIndex,
    ProducerEpoch, ProducerId, TopicId, TopicName, TopicNameError, TopicPartition, UploadId, UploadSequence,
};
pub use offsets::{LeaderEpoch, Offset, OffsetRange, Timestamp};
pub use size::ByteSize;
pub use text::shown;
