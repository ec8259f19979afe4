//! From what the log gives to a segment object: whole batches, checked once more, with the transactions that aborted.
//!
//! **Owns** the walk over chunks that end inside of batches, and finding *every* aborted transaction that overlaps the range,
//! also one whose marker lies behind it. **Does not own** the layout of an object nor the checks of a batch (`tidelog_format`).

use std::collections::BTreeMap;

use bytes::Bytes;
use tidelog_format::{
    batch::{BATCH_HEADER_BYTES, BatchHeader, ControlKind, RawBatch, control_kind},
    object::{BatchBytes, Gaps, ObjectIdentity, SegmentObject, SegmentObjectBuilder},
    producers::ProducerSnapshot,
    segment::AbortedTransaction,
};
use tidelog_replica::PartitionHandle;
use tidelog_types::{Offset, OffsetRange, ProducerId};

use crate::upload::UploadError;

/// Bytes that are read at a time to find markers behind the range.
const MARKER_READ_BYTES: u64 = 1024 * 1024;

fn damaged(at: Offset, why: impl ToString) -> UploadError {
    UploadError::Damaged { at, why: why.to_string() }
}

/// The batches of chunks, of which none is copied: what is in the log's memory has its header apart from its body, what was
/// read from a segment is whole.
pub(crate) fn whole_batches(chunks: Vec<Bytes>, base: Offset) -> Result<Vec<BatchBytes>, UploadError> {
    let mut whole = Vec::with_capacity(chunks.len());
    let mut chunks = chunks.into_iter();
    while let Some(chunk) = chunks.next() {
        whole.push(match ends_with_a_batch(&chunk, base)? {
            0 => BatchBytes::Whole(chunk),
            missing => {
                let body = chunks.next().ok_or_else(|| damaged(base, "the last batch is cut"))?;
                if chunk.len() != BATCH_HEADER_BYTES || body.len() != missing {
                    return Err(damaged(base, "a batch does not end with what was read of it"));
                }
                BatchBytes::Parts { header: chunk, body }
            }
        });
    }
    Ok(whole)
}

/// How many bytes the last batch of a chunk has behind it: 0 where the chunk ends with a batch.
fn ends_with_a_batch(chunk: &Bytes, base: Offset) -> Result<usize, UploadError> {
    let mut at = 0_usize;
    while at < chunk.len() {
        let header = chunk.get(at..).and_then(BatchHeader::peek);
        let bytes =
            header.and_then(|header| header.batch_bytes()).filter(|bytes| *bytes >= BATCH_HEADER_BYTES);
        let Some(bytes) = bytes else { return Err(damaged(base, "a batch header is cut or not valid")) };
        at = at.saturating_add(bytes);
    }
    Ok(at - chunk.len())
}

/// Transactions as a walk over batches sees them.
#[derive(Debug, Default)]
struct Transactions {
    open: BTreeMap<ProducerId, Offset>,
    aborted: Vec<AbortedTransaction>,
}

impl Transactions {
    fn take(&mut self, batch: &RawBatch) -> Result<(), String> {
        let header = &batch.header;
        let attributes = header.attributes();
        let (Some(producer_id), Some(base), true) =
            (header.producer_id(), header.base_offset(), attributes.is_transactional())
        else {
            return Ok(());
        };
        if !attributes.is_control() {
            self.open.entry(producer_id).or_insert(base);
            return Ok(());
        }
        let (kind, _) = control_kind(batch).map_err(|error| error.to_string())?;
        let first = self.open.remove(&producer_id);
        if let (ControlKind::Abort, Some(first_offset)) = (kind, first) {
            let last_stable_offset = self.open.values().copied().min().unwrap_or(base.next());
            self.aborted.push(AbortedTransaction {
                producer_id,
                first_offset,
                last_offset: base,
                last_stable_offset: last_stable_offset.min(base.next()),
            });
        }
        Ok(())
    }

    fn take_all(&mut self, bytes: &[BatchBytes], base: Offset) -> Result<(), UploadError> {
        // The others are checked when the object is made of them.
        let transactional = bytes.iter().filter(|bytes| bytes.may_be_transactional());
        for batch in transactional.flat_map(BatchBytes::batches) {
            let batch = batch.map_err(|error| damaged(base, error))?;
            self.take(&batch).map_err(|why| damaged(base, why))?;
        }
        Ok(())
    }

    /// The first offset of the oldest transaction that began below `end` and is not decided yet.
    fn undecided(&self, end: Offset) -> Option<Offset> {
        self.open.values().copied().filter(|first| *first < end).min()
    }
}

/// Every aborted transaction that overlaps `range`, whose batches are `chunks`. What is open at the range's end is decided
/// below the last stable offset, so that its marker is found by reading on, up to `stable_end`.
pub(crate) async fn aborted_transactions(
    handle: &PartitionHandle,
    range: OffsetRange,
    chunks: &[BatchBytes],
    stable_end: Offset,
) -> Result<Vec<AbortedTransaction>, UploadError> {
    let before = handle.producer_snapshot_at(range.base).await?;
    let before = ProducerSnapshot::decode(&before).map_err(|error| damaged(range.base, error))?;
    let mut found = Transactions::default();
    for entry in before.entries {
        if let Some(first) = entry.open_transaction {
            found.open.insert(entry.producer_id, first);
        }
    }
    found.take_all(chunks, range.base)?;
    let mut at = range.end;
    while let Some(first) = found.undecided(range.end) {
        if at >= stable_end {
            return Err(UploadError::Undecided(first));
        }
        let more =
            handle.read_for_upload(OffsetRange { base: at, end: stable_end }, MARKER_READ_BYTES).await?;
        found.take_all(&whole_batches(more.chunks, at)?, at)?;
        at = more.next;
    }
    found.aborted.retain(|aborted| aborted.overlaps(range));
    found.aborted.sort_unstable_by_key(|aborted| (aborted.last_offset, aborted.first_offset));
    Ok(found.aborted)
}

/// Checks the batches and makes the object. Anything wrong with them is damage of the local log: no object is made.
pub(crate) fn assemble(
    identity: ObjectIdentity,
    gaps: Gaps,
    chunks: Vec<BatchBytes>,
    aborted: &[AbortedTransaction],
    producers: &[u8],
) -> Result<SegmentObject, UploadError> {
    let at = identity.range.base;
    let producers = ProducerSnapshot::decode(producers).map_err(|error| damaged(at, error))?;
    let mut builder = SegmentObjectBuilder::new(identity, gaps);
    for chunk in chunks {
        builder.add(chunk).map_err(|error| damaged(at, explain(&error)))?;
    }
    builder.finish(aborted, Some(&producers)).map_err(|error| damaged(at, explain(&error)))
}

/// An error with its causes.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
