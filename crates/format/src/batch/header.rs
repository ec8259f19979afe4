//! The 61 bytes before the records.

use std::fmt;

use tidelog_types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Timestamp, limits::BATCH_HEADER_BYTES};

use super::LENGTH_PREFIX_BYTES;
use crate::codec::Codec;

/// Positions of the fields.
mod at {
    pub(super) const BASE_OFFSET: usize = 0;
    pub(super) const LENGTH: usize = 8;
    pub(super) const LEADER_EPOCH: usize = 12;
    pub(super) const MAGIC: usize = 16;
    pub(super) const CRC: usize = 17;
    pub(super) const ATTRIBUTES: usize = 21;
    pub(super) const LAST_OFFSET_DELTA: usize = 23;
    pub(super) const BASE_TIMESTAMP: usize = 27;
    pub(super) const MAX_TIMESTAMP: usize = 35;
    pub(super) const PRODUCER_ID: usize = 43;
    pub(super) const PRODUCER_EPOCH: usize = 51;
    pub(super) const BASE_SEQUENCE: usize = 53;
    pub(super) const RECORD_COUNT: usize = 57;
}

/// The header of a record batch: a view of its bytes. Getters that return an `Option` give `None` for Kafka's "none"
/// (a negative number); those whose name ends in `_raw` give the field as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchHeader([u8; BATCH_HEADER_BYTES]);

/// A batch's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attributes(pub i16);

impl Attributes {
    pub(super) const CODEC: i16 = 0b111;
    pub(super) const LOG_APPEND_TIME: i16 = 1 << 3;
    pub(super) const TRANSACTIONAL: i16 = 1 << 4;
    pub(super) const CONTROL: i16 = 1 << 5;
    const DELETE_HORIZON: i16 = 1 << 6;

    /// How the records are compressed; the id itself where Kafka knows no such codec.
    ///
    /// # Errors
    /// The unknown id.
    pub fn codec(self) -> Result<Codec, u8> {
        let id = (self.0 & Self::CODEC).to_be_bytes()[1];
        Codec::from_id(id).ok_or(id)
    }

    /// Whether the max timestamp is that of every record, set by the broker.
    #[must_use]
    pub const fn is_log_append_time(self) -> bool {
        self.0 & Self::LOG_APPEND_TIME != 0
    }

    /// Whether the records belong to a transaction.
    #[must_use]
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether the batch holds one control record, which no consumer is shown.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the base timestamp is the time after which tombstones of this batch may go (a cleaner sets it).
    #[must_use]
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }
}

impl BatchHeader {
    /// The magic number of format v2.
    pub const MAGIC: i8 = 2;

    pub(super) const ZEROED: Self = Self([0; BATCH_HEADER_BYTES]);

    /// Views 61 bytes, unchecked.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; BATCH_HEADER_BYTES]) -> Self {
        Self(bytes)
    }

    /// Views the first 61 of `bytes`, unchecked; `None` when there are fewer.
    #[must_use]
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk::<BATCH_HEADER_BYTES>().map(|bytes| Self(*bytes))
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; BATCH_HEADER_BYTES] {
        &self.0
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[at..at + N]);
        field
    }

    fn set<const N: usize>(&mut self, at: usize, field: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&field);
    }

    /// The base offset as it stands.
    #[must_use]
    pub fn base_offset_raw(&self) -> i64 {
        i64::from_be_bytes(self.field(at::BASE_OFFSET))
    }

    /// The offset of the first record, before compaction took any; `None` when negative.
    #[must_use]
    pub fn base_offset(&self) -> Option<Offset> {
        Offset::from_wire(self.base_offset_raw())
    }

    /// The length field: the bytes after it.
    #[must_use]
    pub fn length_raw(&self) -> i32 {
        i32::from_be_bytes(self.field(at::LENGTH))
    }

    /// Bytes of the whole batch by its length field; `None` when that is too small to hold the header.
    #[must_use]
    pub fn batch_bytes(&self) -> Option<usize> {
        let bytes = usize::try_from(self.length_raw()).ok()? + LENGTH_PREFIX_BYTES;
        (bytes >= BATCH_HEADER_BYTES).then_some(bytes)
    }

    /// The epoch of the leader that appended the batch; `None` when negative.
    #[must_use]
    pub fn leader_epoch(&self) -> Option<LeaderEpoch> {
        LeaderEpoch::from_wire(i32::from_be_bytes(self.field(at::LEADER_EPOCH)))
    }

    /// The format's version; 2 in every stored batch.
    #[must_use]
    pub fn magic(&self) -> i8 {
        i8::from_be_bytes(self.field(at::MAGIC))
    }

    /// The CRC-32C of everything from the attributes on.
    #[must_use]
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(self.field(at::CRC))
    }

    /// The attributes.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        Attributes(i16::from_be_bytes(self.field(at::ATTRIBUTES)))
    }

    /// The last record's offset less the base offset.
    #[must_use]
    pub fn last_offset_delta(&self) -> i32 {
        i32::from_be_bytes(self.field(at::LAST_OFFSET_DELTA))
    }

    /// The last offset that the batch covers, inclusive; `None` where the fields make none.
    #[must_use]
    pub fn last_offset(&self) -> Option<Offset> {
        self.base_offset()?.checked_add(u64::try_from(self.last_offset_delta()).ok()?)
    }

    /// One past the last offset; `None` where the fields make none.
    #[must_use]
    pub fn end_offset(&self) -> Option<Offset> {
        self.last_offset()?.checked_add(1)
    }

    /// What the records' timestamp deltas count from, as it stands.
    #[must_use]
    pub fn base_timestamp_raw(&self) -> i64 {
        i64::from_be_bytes(self.field(at::BASE_TIMESTAMP))
    }

    /// What the records' timestamp deltas count from; `None` when negative.
    #[must_use]
    pub fn base_timestamp(&self) -> Option<Timestamp> {
        Timestamp::from_wire(self.base_timestamp_raw())
    }

    /// The largest timestamp of the batch as the producer (or, for LogAppendTime, the broker) states it.
    #[must_use]
    pub fn max_timestamp(&self) -> Option<Timestamp> {
        Timestamp::from_wire(self.max_timestamp_raw())
    }

    /// The max timestamp as it stands.
    #[must_use]
    pub fn max_timestamp_raw(&self) -> i64 {
        i64::from_be_bytes(self.field(at::MAX_TIMESTAMP))
    }

    /// The idempotent producer; `None` for a plain one.
    #[must_use]
    pub fn producer_id(&self) -> Option<ProducerId> {
        let raw = self.producer_id_raw();
        (raw >= 0).then_some(ProducerId(raw))
    }

    /// The producer id as it stands.
    #[must_use]
    pub fn producer_id_raw(&self) -> i64 {
        i64::from_be_bytes(self.field(at::PRODUCER_ID))
    }

    /// The producer's epoch; `None` for a plain producer.
    #[must_use]
    pub fn producer_epoch(&self) -> Option<ProducerEpoch> {
        let raw = i16::from_be_bytes(self.field(at::PRODUCER_EPOCH));
        (raw >= 0).then_some(ProducerEpoch(raw))
    }

    /// The sequence number of the first record; `None` for a plain producer and for control batches.
    #[must_use]
    pub fn base_sequence(&self) -> Option<i32> {
        let raw = i32::from_be_bytes(self.field(at::BASE_SEQUENCE));
        (raw >= 0).then_some(raw)
    }

    /// The sequence number of the last record. Sequence numbers wrap from `i32::MAX` to 0.
    #[must_use]
    pub fn last_sequence(&self) -> Option<i32> {
        let sum = i64::from(self.base_sequence()?) + i64::from(self.last_offset_delta());
        i32::try_from(sum.rem_euclid(1 << 31)).ok()
    }

    /// The count of records, as it stands.
    #[must_use]
    pub fn record_count_raw(&self) -> i32 {
        i32::from_be_bytes(self.field(at::RECORD_COUNT))
    }

    /// The count of records; 0 when negative.
    #[must_use]
    pub fn record_count(&self) -> u32 {
        u32::try_from(self.record_count_raw()).unwrap_or(0)
    }

    pub(super) fn set_base_offset(&mut self, offset: Offset) {
        self.set(at::BASE_OFFSET, offset.to_wire().to_be_bytes());
    }

    pub(super) fn set_leader_epoch(&mut self, epoch: LeaderEpoch) {
        self.set(at::LEADER_EPOCH, epoch.to_wire().to_be_bytes());
    }

    pub(super) fn set_crc(&mut self, crc: u32) {
        self.set(at::CRC, crc.to_be_bytes());
    }

    pub(super) fn set_log_append_time_fields(&mut self, time: Timestamp) {
        self.set_attributes(Attributes(self.attributes().0 | Attributes::LOG_APPEND_TIME));
        self.set_max_timestamp(time.to_wire());
    }

    pub(super) fn set_attributes(&mut self, attributes: Attributes) {
        self.set(at::ATTRIBUTES, attributes.0.to_be_bytes());
    }

    pub(super) fn set_length(&mut self, length: i32) {
        self.set(at::LENGTH, length.to_be_bytes());
        self.set(at::MAGIC, Self::MAGIC.to_be_bytes());
    }

    pub(super) fn set_last_offset_delta(&mut self, delta: i32) {
        self.set(at::LAST_OFFSET_DELTA, delta.to_be_bytes());
    }

    pub(super) fn set_base_timestamp(&mut self, millis: i64) {
        self.set(at::BASE_TIMESTAMP, millis.to_be_bytes());
    }

    pub(super) fn set_max_timestamp(&mut self, millis: i64) {
        self.set(at::MAX_TIMESTAMP, millis.to_be_bytes());
    }

    pub(super) fn set_producer(&mut self, id: i64, epoch: i16, base_sequence: i32) {
        self.set(at::PRODUCER_ID, id.to_be_bytes());
        self.set(at::PRODUCER_EPOCH, epoch.to_be_bytes());
        self.set(at::BASE_SEQUENCE, base_sequence.to_be_bytes());
    }

    pub(super) fn set_record_count(&mut self, count: i32) {
        self.set(at::RECORD_COUNT, count.to_be_bytes());
    }
}

impl fmt::Debug for BatchHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchHeader")
            .field("base_offset", &self.base_offset_raw())
            .field("length", &self.length_raw())
            .field("leader_epoch", &i32::from_be_bytes(self.field(at::LEADER_EPOCH)))
            .field("magic", &self.magic())
            .field("crc", &self.crc())
            .field("attributes", &self.attributes().0)
            .field("last_offset_delta", &self.last_offset_delta())
            .field("base_timestamp", &self.base_timestamp_raw())
            .field("max_timestamp", &self.max_timestamp_raw())
            .field("producer_id", &self.producer_id_raw())
            .field("producer_epoch", &i16::from_be_bytes(self.field(at::PRODUCER_EPOCH)))
            .field("base_sequence", &i32::from_be_bytes(self.field(at::BASE_SEQUENCE)))
            .field("record_count", &self.record_count_raw())
            .finish()
    }
}

impl From<BatchHeader> for [u8; BATCH_HEADER_BYTES] {
    fn from(header: BatchHeader) -> Self {
        header.0
    }
}
