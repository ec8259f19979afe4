//! Every persisted byte of the system, as pure functions from values to bytes and back.
//!
//! **Owns** the record batch (format v2) as it is stored, compression of records, the files of the log on disk
//! (journal, segment, checkpoint), the objects of the bucket (segment objects, manifest pages, published manifests,
//! keys), and the checks that refuse damaged bytes.
//!
//! **Never** does IO, reads a clock, draws a random number, or trusts a length that it has not compared with what is
//! there: a decoder of outside bytes returns an error, it does not panic and does not allocate from a bare count.
//!
//! Where to start reading:
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`batch`] | [`batch::BatchHeader`] (the 61 bytes), [`batch::RawBatch`], [`batch::split_batches`] (checks of what comes from outside), [`batch::BatchBuilder`], [`batch::control_batch`], [`batch::DecodedBatch`] (the records), [`batch::validate_records`] |
//! | [`codec`] | none, gzip, snappy, lz4, zstd: [`codec::compress`], [`codec::decompress`] with a cap on the output |
//! | [`crc`] | CRC-32C at once, in pieces, combined |
//! | [`epochs`] | [`epochs::EpochChain`]: leader epochs and where they begin, and where two lineages part |
//! | [`producers`] | [`producers::ProducerSnapshot`]: the stored form of producer state |
//! | [`journal`] | [`journal::FileHeader`], [`journal::RoundEncoder`], [`journal::SyncedSearch`] and [`journal::JournalScanner`] (the two passes of a play) |
//! | [`segment`] | the files beside a `.log`: [`segment::EntryFile`] of [`segment::IndexEntry`], [`segment::TimeIndexEntry`] or [`segment::AbortedTransaction`]; [`segment::IndexBuilder`], [`segment::SegmentScan`] |
//! | [`checkpoint`] | [`checkpoint::Checkpoint`] of a node's log |
//! | [`object`] | [`object::SegmentObjectBuilder`], [`object::Footer`], [`object::ServingIndex`] |
//! | [`manifest`] | [`manifest::ManifestEntry`], [`manifest::PageLine`], [`manifest::Page`], [`manifest::ManifestFile`] |
//! | [`keys`] | [`keys::ObjectKey`] and the folders of listings; [`keys::KeySpace`] for a prefix |
//! | [`cluster_json`] | [`cluster_json::ClusterJson`], the claim of a prefix |
//! | [`broker_json`] | [`broker_json::BrokerJson`], a broker's newest start; [`broker_json::KnownClaims`], what its data directory knows of it |
//!
//! All numbers are big-endian, as Kafka's are. Every structure carries a magic number, a version and a CRC-32C. Byte
//! tables of all of them stand in `docs/formats/`; files of every released version in `tests/golden/`.

pub mod batch;
pub mod broker_json;
pub mod checkpoint;
pub mod cluster_json;
pub mod codec;
pub mod crc;
pub mod epochs;
pub mod journal;
pub mod keys;
pub mod manifest;
pub mod object;
pub mod producers;
pub mod segment;

mod cursor;
mod envelope;
mod error;
mod varint;

pub use error::DecodeError;
