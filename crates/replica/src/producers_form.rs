//! Between the producer state machine, its stored form, and batch headers.

use bytes::Bytes;
use tidelog_core::producers::{
    ProducerBatch, ProducerEntry, ProducerLimits, Producers, RememberedBatch, RememberedBatches,
};
use tidelog_format::{
    DecodeError,
    batch::BatchHeader,
    producers::{BatchMeta, ProducerEntry as StoredEntry, ProducerSnapshot},
};
use tidelog_types::{Offset, Timestamp};

/// The stored form of the state at `end`.
pub(crate) fn encode(producers: &Producers, end: Offset) -> Bytes {
    let entries = producers
        .iter()
        .map(|(producer_id, entry)| StoredEntry {
            producer_id,
            producer_epoch: entry.epoch,
            last_timestamp: entry.last_append,
            batches: entry.batches.iter().map(stored_batch).collect(),
            open_transaction: entry.open_transaction,
        })
        .collect();
    ProducerSnapshot { end, entries }.encode().into()
}

fn stored_batch(batch: &RememberedBatch) -> BatchMeta {
    BatchMeta {
        base_sequence: batch.base_sequence,
        last_sequence: batch.last_sequence,
        base_offset: batch.base_offset,
        last_offset: batch.last_offset,
        timestamp: batch.max_timestamp,
    }
}

/// Reads the stored form.
pub(crate) fn decode(bytes: &[u8], limits: ProducerLimits) -> Result<(Offset, Producers), DecodeError> {
    let snapshot = ProducerSnapshot::decode(bytes)?;
    let entries = snapshot.entries.into_iter().map(|stored| {
        let mut batches = RememberedBatches::default();
        for batch in stored.batches {
            batches.push(RememberedBatch {
                base_sequence: batch.base_sequence,
                last_sequence: batch.last_sequence,
                base_offset: batch.base_offset,
                last_offset: batch.last_offset,
                max_timestamp: batch.timestamp,
            });
        }
        let entry = ProducerEntry {
            epoch: stored.producer_epoch,
            batches,
            last_append: stored.last_timestamp,
            open_transaction: stored.open_transaction,
        };
        (stored.producer_id, entry)
    });
    Ok((snapshot.end, Producers::restore(limits, entries)))
}

/// What a header says of its producer; `None` for a plain one.
pub(crate) fn producer_of(header: &BatchHeader) -> Option<ProducerBatch> {
    let attributes = header.attributes();
    Some(ProducerBatch {
        producer_id: header.producer_id()?,
        producer_epoch: header.producer_epoch()?,
        // A control batch has no sequence.
        base_sequence: header.base_sequence().unwrap_or(-1),
        last_offset_delta: header.last_offset_delta().max(0),
        max_timestamp: header.max_timestamp(),
        transactional: attributes.is_transactional(),
        control: attributes.is_control(),
    })
    .filter(|batch| batch.control || batch.base_sequence >= 0)
}

/// Replays the header of a batch that is in the log; one below `from` is in the state already.
pub(crate) fn replay(producers: &mut Producers, header: &BatchHeader, from: Offset, now: Timestamp) {
    let Some(base) = header.base_offset().filter(|base| *base >= from) else { return };
    if let Some(batch) = producer_of(header) {
        producers.replay(&batch, base, now);
    }
}
