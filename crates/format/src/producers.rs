//! The stored form of what a partition knows about its producers.
//!
//! **Owns** the bytes of a snapshot: beside a segment, in a checkpoint's company, and as a section of a segment object.
//!
//! **Does not own** the rules of idempotence; the partition's state machine makes a snapshot and is made from one.

use tidelog_types::{Offset, ProducerEpoch, ProducerId, Timestamp, limits::PRODUCER_BATCHES_REMEMBERED};

use crate::{
    cursor::{Put, Reader},
    envelope::{self, Kind},
    error::DecodeError,
};

const FILE: Kind = Kind { what: "producer snapshot", magic: *b"TLPS", version: 1 };

/// The least bytes of a stored producer.
const ENTRY_BYTES_MIN: usize = 8 + 2 + 8 + 8 + 1;

/// One batch of a producer, remembered so that a retry is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMeta {
    /// The sequence number of its first record.
    pub base_sequence: i32,
    /// The sequence number of its last record.
    pub last_sequence: i32,
    /// The offset of its first record.
    pub base_offset: Offset,
    /// The offset of its last record, inclusive.
    pub last_offset: Offset,
    /// Its max timestamp.
    pub timestamp: Option<Timestamp>,
}

/// One producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Who it is.
    pub producer_id: ProducerId,
    /// Its newest epoch here.
    pub producer_epoch: ProducerEpoch,
    /// The wall-clock time of its last append, from which its expiry counts.
    pub last_timestamp: Timestamp,
    /// Its last batches, oldest first: at most [`PRODUCER_BATCHES_REMEMBERED`].
    pub batches: Vec<BatchMeta>,
    /// The first offset of its open transaction.
    pub open_transaction: Option<Offset>,
}

/// The producers of a partition as they were at an offset, ascending by id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProducerSnapshot {
    /// Every batch below this offset is taken into account, and none from here on.
    pub end: Offset,
    /// The producers.
    pub entries: Vec<ProducerEntry>,
}

impl ProducerSnapshot {
    /// The stored form. Equal snapshots have equal bytes.
    ///
    /// # Panics
    /// When ids do not ascend, or a producer has too many batches.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.entries.windows(2).all(|pair| pair[0].producer_id < pair[1].producer_id),
            "producers of a snapshot ascend by id"
        );
        let mut payload = Vec::with_capacity(16 + self.entries.len() * 72);
        payload.put_offset(self.end);
        payload.put_count(self.entries.len());
        for entry in &self.entries {
            let count = entry.batches.len();
            assert!(count <= PRODUCER_BATCHES_REMEMBERED, "{count} batches of one producer are too many");
            payload.put_i64(entry.producer_id.0);
            payload.put_i16(entry.producer_epoch.0);
            payload.put_i64(entry.last_timestamp.to_wire());
            payload.put_i64(entry.open_transaction.map_or(-1, Offset::to_wire));
            payload.put_u8(u8::try_from(count).expect("the count was checked"));
            for batch in &entry.batches {
                payload.put_i32(batch.base_sequence);
                payload.put_i32(batch.last_sequence);
                payload.put_offset(batch.base_offset);
                payload.put_offset(batch.last_offset);
                payload.put_timestamp(batch.timestamp);
            }
        }
        envelope::seal(FILE, &payload)
    }

    /// Reads [`ProducerSnapshot::encode`]'s form.
    ///
    /// # Errors
    /// For damage, another kind of file, or a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (_, payload) = envelope::open(FILE, bytes)?;
        let mut reader = Reader::new(FILE.what, payload);
        let end = reader.offset()?;
        let count = reader.count(ENTRY_BYTES_MIN)?;
        let mut entries: Vec<ProducerEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = take_entry(&mut reader)?;
            if entries.last().is_some_and(|last| last.producer_id >= entry.producer_id) {
                return Err(reader.invalid("its producers do not ascend"));
            }
            entries.push(entry);
        }
        reader.finish()?;
        Ok(Self { end, entries })
    }
}

fn take_entry(reader: &mut Reader<'_>) -> Result<ProducerEntry, DecodeError> {
    let producer_id = ProducerId(reader.i64()?);
    let producer_epoch = ProducerEpoch(reader.i16()?);
    let last_timestamp = reader.timestamp()?.ok_or(reader.invalid("a producer has no time"))?;
    let open_transaction = match reader.i64()? {
        -1 => None,
        raw => Some(Offset::from_wire(raw).ok_or(reader.invalid("an offset is out of range"))?),
    };
    let count = usize::from(reader.u8()?);
    if count > PRODUCER_BATCHES_REMEMBERED {
        return Err(reader.invalid("a producer has too many batches"));
    }
    let mut batches = Vec::with_capacity(count);
    for _ in 0..count {
        batches.push(BatchMeta {
            base_sequence: reader.i32()?,
            last_sequence: reader.i32()?,
            base_offset: reader.offset()?,
            last_offset: reader.offset()?,
            timestamp: reader.timestamp()?,
        });
    }
    Ok(ProducerEntry { producer_id, producer_epoch, last_timestamp, batches, open_transaction })
}
