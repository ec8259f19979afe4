//! What one partition was given and what it promised, as its only producer knows it.

use bytes::Bytes;
use tidelog_format::batch::{BatchBuilder, NewRecord, RawBatch};
use tidelog_runtime::{Rng, SeededRng};
use tidelog_types::{Offset, ProducerEpoch, ProducerId, Timestamp};

/// A batch that was sent, perhaps more than once.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) sequence: i32,
    pub(crate) count: u64,
    pub(crate) time: Timestamp,
    pub(crate) bytes: Bytes,
    body: Bytes,
    /// Where it was acknowledged, or seen.
    pub(crate) at: Option<Offset>,
    pub(crate) acknowledged: bool,
}

impl Sent {
    pub(crate) fn end(&self) -> Option<Offset> {
        Offset::new(self.at?.get() + self.count)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    producer: ProducerId,
    pub(crate) sent: Vec<Sent>,
    next_sequence: i32,
    /// The largest log start that was asked for.
    pub(crate) log_start_asked: Offset,
    /// The largest log start that was seen.
    pub(crate) log_start_seen: Offset,
}

impl Ledger {
    pub(crate) fn new(producer: i64) -> Self {
        Self {
            producer: ProducerId(producer),
            sent: Vec::new(),
            next_sequence: 0,
            log_start_asked: Offset::ZERO,
            log_start_seen: Offset::ZERO,
        }
    }

    /// Makes the next batch; its place in the ledger.
    pub(crate) fn next(&mut self, rng: &SeededRng, time: Timestamp) -> usize {
        let count = 1 + rng.below(4);
        let mut builder =
            BatchBuilder::new(Offset::ZERO).producer(self.producer, ProducerEpoch(0), self.next_sequence);
        for record in 0..count {
            let length = usize::try_from(rng.below(if rng.chance(1, 8) { 1_800 } else { 300 })).unwrap();
            let mut value = vec![0_u8; length];
            let fill = SeededRng::new(
                self.producer.0.unsigned_abs() << 32
                    | u64::from(self.next_sequence.unsigned_abs()) << 3
                    | record,
            );
            for part in value.chunks_mut(8) {
                let random = fill.next_u64().to_be_bytes();
                part.copy_from_slice(&random[..part.len()]);
            }
            builder = builder.record(&NewRecord {
                timestamp: Some(time),
                key: Some(&self.next_sequence.to_be_bytes()),
                value: Some(&value),
                headers: &[],
            });
        }
        let raw = builder.build().unwrap();
        self.sent.push(Sent {
            sequence: self.next_sequence,
            count,
            time,
            bytes: raw.to_bytes(),
            body: raw.body,
            at: None,
            acknowledged: false,
        });
        self.next_sequence += i32::try_from(count).unwrap();
        self.sent.len() - 1
    }

    /// Batches whose fate is not known.
    pub(crate) fn open(&self) -> Vec<usize> {
        (0..self.sent.len()).filter(|index| !self.sent[*index].acknowledged).collect()
    }

    /// A batch was given this place; it may not have had another one.
    pub(crate) fn place(&mut self, index: usize, at: Offset, acknowledged: bool) -> Result<(), String> {
        let sent = &mut self.sent[index];
        if let Some(known) = sent.at.filter(|known| *known != at) {
            return Err(format!(
                "I5: the batch of sequence {} was at {known}, and is at {at}",
                sent.sequence
            ));
        }
        if acknowledged {
            sent.at = Some(at);
            sent.acknowledged = true;
        }
        Ok(())
    }

    /// Compares a batch that was read with the one that was sent; what was read below the high watermark stays.
    pub(crate) fn read(&mut self, batch: &RawBatch) -> Result<(Offset, Offset, usize), String> {
        let (Some(base), Some(end)) = (batch.header.base_offset(), batch.header.end_offset()) else {
            return Err("I2: a batch without offsets was read".to_owned());
        };
        let sequence = batch.header.base_sequence();
        let index = self.sent.binary_search_by_key(&sequence, |sent| Some(sent.sequence));
        let Ok(index) = index else {
            return Err(format!("I2: a batch of sequence {sequence:?} was read at {base} that nobody sent"));
        };
        let sent = &mut self.sent[index];
        if sent.body != batch.body || batch.header.producer_id() != Some(self.producer) {
            return Err(format!(
                "I2: the batch at {base} is not what was sent as sequence {}",
                sent.sequence
            ));
        }
        if end.distance_from(base) != sent.count || !batch.crc_is_valid() {
            return Err(format!("I2: the header of the batch at {base} is another one"));
        }
        if let Some(known) = sent.at.filter(|known| *known != base) {
            let sequence = sent.sequence;
            return Err(format!("I1, I5: sequence {sequence} was at {known}, and is read at {base}"));
        }
        sent.at = Some(base);
        Ok((base, end, index))
    }
}
