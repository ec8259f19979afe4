//! Checked reading of fields, and writing of them. All numbers are big-endian.

use tidelog_types::{LeaderEpoch, Offset, OffsetRange, PartitionIndex, Timestamp, TopicId, TopicPartition};

use crate::{error::DecodeError, varint};

/// Takes fields from the front of bytes, and names what it reads in its errors.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub(crate) const fn invalid(&self, why: &'static str) -> DecodeError {
        DecodeError::Invalid { what: self.what, why }
    }

    pub(crate) fn slice(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Cut { what: self.what })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Cut { what: self.what })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, DecodeError> {
        self.array().map(i16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        varint::take_unsigned(&mut self.rest)
    }

    /// A truth value: 0 or 1.
    pub(crate) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.invalid("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn offset(&mut self) -> Result<Offset, DecodeError> {
        let raw = self.u64()?;
        Offset::new(raw).ok_or(self.invalid("an offset is out of range"))
    }

    pub(crate) fn range(&mut self) -> Result<OffsetRange, DecodeError> {
        let (base, end) = (self.offset()?, self.offset()?);
        OffsetRange::new(base, end).ok_or(self.invalid("a range ends before it begins"))
    }

    /// A leader epoch that is always there.
    pub(crate) fn leader_epoch(&mut self) -> Result<LeaderEpoch, DecodeError> {
        let raw = self.i32()?;
        LeaderEpoch::from_wire(raw).ok_or(self.invalid("a leader epoch is negative"))
    }

    /// A timestamp; −1 is none.
    pub(crate) fn timestamp(&mut self) -> Result<Option<Timestamp>, DecodeError> {
        match self.i64()? {
            -1 => Ok(None),
            raw => Timestamp::from_wire(raw).map(Some).ok_or(self.invalid("a timestamp is negative")),
        }
    }

    pub(crate) fn topic_partition(&mut self) -> Result<TopicPartition, DecodeError> {
        let topic_id = TopicId::from_bytes(self.array()?);
        let partition = self.i32()?;
        if partition < 0 {
            return Err(self.invalid("a partition is negative"));
        }
        Ok(TopicPartition { topic_id, partition: PartitionIndex(partition) })
    }

    /// A count of things of at least `bytes_min` bytes each, of which there must be enough left.
    pub(crate) fn count(&mut self, bytes_min: usize) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if count.checked_mul(bytes_min.max(1)).is_none_or(|bytes| bytes > self.rest.len()) {
            return Err(self.invalid("a count exceeds what is there"));
        }
        Ok(count)
    }

    /// Reserved bytes, which this version writes as zeros: anything else is a meaning that it does not know.
    pub(crate) fn reserved(&mut self, length: usize) -> Result<(), DecodeError> {
        if self.slice(length)?.iter().all(|byte| *byte == 0) {
            Ok(())
        } else {
            Err(self.invalid("reserved bytes are in use"))
        }
    }

    pub(crate) const fn left(&self) -> usize {
        self.rest.len()
    }

    /// Ends the reading; nothing may be left.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.invalid("bytes follow its end")) }
    }
}

/// Appends fields to bytes.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    fn put_i16(&mut self, value: i16) {
        self.put(&value.to_be_bytes());
    }

    fn put_i32(&mut self, value: i32) {
        self.put(&value.to_be_bytes());
    }

    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_be_bytes());
    }

    fn put_offset(&mut self, offset: Offset) {
        self.put_u64(offset.get());
    }

    fn put_range(&mut self, range: OffsetRange) {
        self.put_offset(range.base);
        self.put_offset(range.end);
    }

    fn put_timestamp(&mut self, timestamp: Option<Timestamp>) {
        self.put_i64(timestamp.map_or(-1, Timestamp::to_wire));
    }

    fn put_topic_partition(&mut self, place: TopicPartition) {
        self.put(place.topic_id.as_bytes());
        self.put_i32(place.partition.0);
    }

    /// A count of things in memory.
    fn put_count(&mut self, count: usize) {
        self.put_u32(u32::try_from(count).expect("lists in memory are far shorter than 2^32"));
    }

    fn put_zeros(&mut self, count: usize) {
        for _ in 0..count {
            self.put_u8(0);
        }
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Put for bytes::BytesMut {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
