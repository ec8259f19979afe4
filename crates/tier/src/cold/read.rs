//! Reads of records: whole batches from the one that holds the offset on.
//!
//! **Owns** the walk over entries, units and batches, and the cut of the answer. A hole (records that compaction took)
//! leads on to the next entry (B91). Units hold whole batches, so that an answer is one slice of each unit.
//!
//! Until there is a record, a read waits for what it needs, together with what the answer can take whole. Once there is
//! one, it goes on through what is in memory and waits for nothing: an answer may be shorter than was asked for.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use tidelog_format::{batch::BatchHeader, manifest::ManifestEntry};
use tidelog_replica::{ColdError, ColdRead, ColdRecords};
use tidelog_runtime::Budget;
use tidelog_types::{
    Offset, TopicPartition,
    limits::{COLD_UNIT_BYTES, COLD_UNITS_PER_GET_MAX},
};

use super::{Shared, charged::Charged, object::OpenObject};

/// Where an object left a read.
enum Left {
    /// The answer is complete.
    Full,
    /// Go on at this offset, in the next object.
    On(Offset),
}

/// The answer so far.
struct Answer<'a> {
    read: &'a ColdRead,
    chunks: Vec<Bytes>,
    bytes: usize,
    base: Option<Offset>,
    next: Offset,
    /// Nothing more is to be taken.
    full: bool,
    /// That is so because the read's end is reached.
    ended: bool,
}

impl<'a> Answer<'a> {
    fn new(read: &'a ColdRead) -> Self {
        Self { read, chunks: Vec::new(), bytes: 0, base: None, next: read.offset, full: false, ended: false }
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Takes the batches of `unit` from `from` on. Answers the offsets that were taken.
    fn take(
        &mut self,
        charged: &Charged,
        from: usize,
        memory: &Budget,
    ) -> Result<Option<(Offset, Offset)>, ColdError> {
        let unit = charged.bytes();
        let (mut at, mut taken) = (from, None);
        let mut first_base = None;
        while at < unit.len() {
            let (base, end, size) = batch_at(unit, at)?;
            if end <= self.read.offset {
                at += size;
                continue;
            }
            self.ended = base >= self.read.end;
            if self.ended || !self.fits(size, taken.is_some()) {
                self.full = true;
                break;
            }
            taken = Some((taken.map_or(at, |(from, _)| from), at + size));
            first_base = first_base.or(Some(base));
            self.bytes += size;
            self.next = end;
            at += size;
        }
        let (Some((from, to)), Some(base)) = (taken, first_base) else { return Ok(None) };
        self.base = self.base.or(Some(base));
        self.chunks.push(charged.slice(from..to, memory));
        Ok(Some((base, self.next)))
    }

    fn fits(&self, size: usize, taken: bool) -> bool {
        let first = self.is_empty() && !taken;
        (first && self.read.one_at_least) || self.bytes.saturating_add(size) <= self.read.bytes_max
    }

    fn finish(self) -> ColdRecords {
        let base = self.base.unwrap_or(self.read.offset);
        ColdRecords { chunks: self.chunks, base, next: self.next }
    }
}

/// Offsets and size of the batch that begins at `at`.
pub(crate) fn batch_at(unit: &Bytes, at: usize) -> Result<(Offset, Offset, usize), ColdError> {
    let header = unit.get(at..).and_then(BatchHeader::peek);
    let parts =
        header.and_then(|header| Some((header.base_offset()?, header.end_offset()?, header.batch_bytes()?)));
    parts.filter(|(_, _, size)| at.saturating_add(*size) <= unit.len()).ok_or_else(|| ColdError::Damaged {
        why: "an interval that passed its check does not hold whole batches".into(),
    })
}

/// Whether an object is read whole, with its index.
pub(crate) fn is_small(entry: &ManifestEntry) -> bool {
    entry.bytes.saturating_add(entry.index.bytes) <= COLD_UNIT_BYTES
}

impl Shared {
    /// See [`tidelog_replica::ColdReader::read`].
    pub(crate) async fn read_records(self: &Arc<Self>, read: &ColdRead) -> Result<ColdRecords, ColdError> {
        let not_held = || ColdError::NotHeld { offset: read.offset };
        let image = &read.place.image;
        if read.offset < image.log_start || read.offset >= image.manifest.tiered_end {
            return Err(not_held());
        }
        let reader = self.lock_streams().begin(read.place.place, read.offset, self.clock.monotonic());
        self.keep_sweeping();
        let mut answer = Answer::new(read);
        let mut at = read.offset;
        while at < read.end && !answer.full {
            if !answer.is_empty() && !self.knows_entry_at(&read.place, at) {
                break;
            }
            let step = match self.entry_at(&read.place, at).await {
                Ok(Some(entry)) => self.read_object(read, &entry, at, &mut answer).await,
                Ok(None) if at == read.offset => return Err(not_held()),
                Ok(None) => break,
                Err(failed) => Err(failed),
            };
            match step {
                Ok(Left::On(next)) => at = next,
                Ok(Left::Full) => break,
                // What was read before the failure is an answer; the next read meets the failure first.
                Err(_) if !answer.is_empty() => break,
                Err(ColdError::NotHeld { .. }) => return Err(not_held()),
                Err(failed) => return Err(failed),
            }
        }
        if answer.is_empty() && (answer.ended || !answer.full) {
            // Nothing but holes: go on behind them.
            let to = if answer.ended { read.end } else { at.min(read.end) };
            answer.next = to.max(read.offset);
        }
        let bytes = answer.bytes as u64;
        let records = answer.finish();
        self.go_ahead(&read.place, reader, records.next, bytes);
        Ok(records)
    }

    /// See [`tidelog_replica::ColdReader::read_at_hand`].
    pub(crate) fn read_at_hand(self: &Arc<Self>, read: &ColdRead) -> Option<ColdRecords> {
        let (place, image) = (read.place.place, &read.place.image);
        let is_tiered = read.offset >= image.log_start && read.offset < image.manifest.tiered_end;
        if !is_tiered || !self.knows_entry_at(&read.place, read.offset) {
            return None;
        }
        let entry = self.entry_at(&read.place, read.offset).now_or_never()?.ok()??;
        let object = self.objects.get(&(place, entry.object)).filter(|object| object.entry == entry)?;
        let unit = object.unit_of(object.index.interval_for_offset(read.offset));
        if !self.is_in_ring(place, &object, unit) {
            return None;
        }
        // Where that unit goes this moment, or the cache is slow to say what it has of the next, what was begun is given up.
        self.read_records(read).now_or_never()?.ok()
    }

    /// Reads on in one object from `at`.
    async fn read_object(
        self: &Arc<Self>,
        read: &ColdRead,
        entry: &ManifestEntry,
        at: Offset,
        answer: &mut Answer<'_>,
    ) -> Result<Left, ColdError> {
        let place = read.place.place;
        if !answer.is_empty() && self.objects.get(&(place, entry.object)).is_none() {
            return Ok(Left::Full);
        }
        let object = self.open(&read.place, entry, is_small(entry) || at <= entry.range.base).await?;
        let mut interval = object.index.interval_for_offset(at);
        loop {
            let first = object.unit_of(interval);
            if !answer.is_empty() && !self.is_in_ring(place, &object, first) {
                return Ok(Left::Full);
            }
            let wanted = first..self.last_wanted(place, &object, interval, answer) + 1;
            let from = object.within_unit(interval).start;
            let (units, failed) = self.units(place, &object, wanted.clone(), answer.is_empty()).await;
            for (number, unit) in wanted.clone().zip(&units) {
                let from = if number == first { from } else { 0 };
                if let Some((base, next)) = answer.take(unit, from, &self.memory)? {
                    self.note_taken(&object, place, number, (base.max(read.offset), next), unit.bytes());
                }
                if answer.full {
                    return Ok(Left::Full);
                }
            }
            if let Some(failed) = failed {
                return Err(failed);
            }
            let Some(last) = units.len().checked_sub(1) else { return Ok(Left::Full) };
            interval = object.units[wanted.start + last].intervals.end;
            if interval >= object.index.intervals().len() {
                return Ok(Left::On(entry.range.end));
            }
            if !answer.is_empty() && answer.bytes >= read.bytes_max {
                return Ok(Left::Full);
            }
        }
    }

    /// The last unit to ask for at once: those that the answer can take whole, and then what is in memory.
    fn last_wanted(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        interval: usize,
        answer: &Answer<'_>,
    ) -> usize {
        let first = object.unit_of(interval);
        let left = answer.read.bytes_max.saturating_sub(answer.bytes) as u64;
        let to = object.index.intervals()[interval].position.saturating_add(left);
        let last_max = first.saturating_add(usize::try_from(COLD_UNITS_PER_GET_MAX).unwrap_or(1));
        let is_wanted = |at: &usize| {
            let unit = &object.units[*at];
            let whole = answer.is_empty() && unit.position.end <= to;
            let reached = unit.position.start < to && unit.base < answer.read.end;
            reached && (whole || self.is_in_ring(place, object, *at))
        };
        (first + 1..object.units.len().min(last_max)).take_while(is_wanted).last().unwrap_or(first)
    }

    fn is_in_ring(&self, place: TopicPartition, object: &OpenObject, unit: usize) -> bool {
        self.ring.holds(&self.chunk_key(place, &object.entry, object.units[unit].number))
    }

    /// A reader took offsets of a unit: where they were taken before, the unit goes to the cache.
    fn note_taken(
        &self,
        object: &OpenObject,
        place: TopicPartition,
        number: usize,
        (from, to): (Offset, Offset),
        bytes: &Bytes,
    ) {
        let key = self.chunk_key(place, &object.entry, object.units[number].number);
        if self.ring.taken(&key, from, to, self.clock.monotonic()) {
            self.metrics.admitted.inc();
            self.cache.insert(key, bytes.clone());
        }
    }
}
