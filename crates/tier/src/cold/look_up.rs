//! Look-ups by time and by leader epoch.
//!
//! **Owns** the choice of the one interval that holds an answer, and its reading: look-ups have requests and memory of
//! their own, equal ones share a request. What manifest entries and page lines say prunes objects and pages.

use std::sync::Arc;

use bytes::Bytes;
use tidelog_format::{
    batch::BatchHeader,
    manifest::{ManifestEntry, PageLine},
};
use tidelog_replica::{ColdError, ColdPlace};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, TopicPartition};

use super::{
    Shared,
    flights::Joined,
    object::{OpenObject, cut},
    read::batch_at,
};

/// A batch, with its largest timestamp.
struct Found {
    time: Timestamp,
    batch: Bytes,
}

/// Where the largest timestamp may be.
enum Candidate {
    Page(PageLine),
    Entry(ManifestEntry),
    Batch(Bytes),
}

impl Candidate {
    /// No record of it has a later timestamp; `None`: none has one.
    fn of_line(line: &PageLine) -> Option<(Timestamp, Self)> {
        line.max_timestamp.map(|time| (time, Self::Page(*line)))
    }

    fn of_entry(entry: &ManifestEntry) -> Option<(Timestamp, Self)> {
        entry.max_timestamp.map(|time| (time, Self::Entry(*entry)))
    }
}

fn overlaps(one: OffsetRange, other: OffsetRange) -> bool {
    one.base < other.end && other.base < one.end
}

impl Shared {
    /// See [`tidelog_replica::ColdReader::first_batch_at_or_after`].
    pub(crate) async fn first_at_or_after(
        self: &Arc<Self>,
        place: &ColdPlace,
        range: OffsetRange,
        time: Timestamp,
    ) -> Result<Option<Bytes>, ColdError> {
        let manifest = Arc::clone(&place.image.manifest);
        let reaches = |max: Option<Timestamp>| max >= Some(time);
        for line in &manifest.lines {
            if overlaps(line.range, range) && reaches(line.max_timestamp) {
                let entries = self.page(place, line).await?;
                if let Some(batch) = self.first_among(place, &entries, range, time).await? {
                    return Ok(Some(batch));
                }
            }
        }
        self.first_among(place, &manifest.entries, range, time).await
    }

    async fn first_among(
        self: &Arc<Self>,
        place: &ColdPlace,
        entries: &[ManifestEntry],
        range: OffsetRange,
        time: Timestamp,
    ) -> Result<Option<Bytes>, ColdError> {
        for entry in entries {
            if !overlaps(entry.range, range) || entry.max_timestamp < Some(time) {
                continue;
            }
            let object = self.open(place, entry, false).await?;
            let Some(reached) = object.index.interval_for_time(time) else { continue };
            // Where the time is reached below the range, the index does not say whether it is again within it.
            let first = reached.max(object.index.interval_for_offset(range.base));
            for interval in first..object.index.intervals().len() {
                if object.index.intervals()[interval].base_offset >= range.end {
                    return Ok(None);
                }
                let bytes = self.interval(place, &object, interval).await?;
                if let Some(found) = batches_in(&bytes, range, |at| at >= time)?.into_iter().next() {
                    return Ok(Some(found.batch));
                }
            }
        }
        Ok(None)
    }

    /// See [`tidelog_replica::ColdReader::max_timestamp_batch`].
    pub(crate) async fn largest(
        self: &Arc<Self>,
        place: &ColdPlace,
        range: OffsetRange,
    ) -> Result<Option<Bytes>, ColdError> {
        let manifest = Arc::clone(&place.image.manifest);
        let lines = manifest.lines.iter().filter(|line| overlaps(line.range, range));
        let entries = manifest.entries.iter().filter(|entry| overlaps(entry.range, range));
        // In the order of offsets; each is replaced by what is known better until the first of the largest is a batch.
        let mut candidates: Vec<(Timestamp, Candidate)> =
            lines.filter_map(Candidate::of_line).chain(entries.filter_map(Candidate::of_entry)).collect();
        loop {
            let Some(largest) = candidates.iter().map(|(time, _)| *time).max() else { return Ok(None) };
            let Some(at) = candidates.iter().position(|(time, _)| *time == largest) else { return Ok(None) };
            let better: Vec<(Timestamp, Candidate)> = match &candidates[at].1 {
                Candidate::Batch(batch) => return Ok(Some(batch.clone())),
                Candidate::Page(line) => {
                    let entries = self.page(place, line).await?;
                    let inside = entries.iter().filter(|entry| overlaps(entry.range, range));
                    inside.filter_map(Candidate::of_entry).collect()
                }
                Candidate::Entry(entry) => {
                    let found = self.largest_of(place, entry, range).await?;
                    found.map(|found| (found.time, Candidate::Batch(found.batch))).into_iter().collect()
                }
            };
            candidates.splice(at..=at, better);
        }
    }

    /// The first batch of an entry with the largest timestamp that it has within `range`.
    async fn largest_of(
        self: &Arc<Self>,
        place: &ColdPlace,
        entry: &ManifestEntry,
        range: OffsetRange,
    ) -> Result<Option<Found>, ColdError> {
        let object = self.open(place, entry, false).await?;
        let intervals = object.index.intervals();
        let whole = range.base <= entry.range.base && entry.range.end <= range.end;
        // Within all of an object the index names the interval; of a part of it every interval may hold it.
        let wanted = match entry.max_timestamp.and_then(|time| object.index.interval_for_time(time)) {
            Some(interval) if whole => interval..interval + 1,
            _ => object.index.interval_for_offset(range.base)..intervals.len(),
        };
        let mut best: Option<Found> = None;
        for interval in wanted {
            if intervals[interval].base_offset >= range.end {
                break;
            }
            let bytes = self.interval(place, &object, interval).await?;
            for found in batches_in(&bytes, range, |_| true)? {
                if best.as_ref().is_none_or(|best| found.time > best.time) {
                    best = Some(found);
                }
            }
        }
        Ok(best)
    }

    /// The bytes of one interval, checked.
    async fn interval(
        self: &Arc<Self>,
        place: &ColdPlace,
        object: &Arc<OpenObject>,
        interval: usize,
    ) -> Result<Bytes, ColdError> {
        let unit = &object.units[object.unit_of(interval)];
        let key = self.chunk_key(place.place, &object.entry, unit.number);
        let within = object.within_unit(interval);
        let held = match self.ring.get(&key, self.clock.monotonic()) {
            Some(unit) => Some(unit.bytes().clone()),
            None => self.cache.get(&key).await,
        };
        if let Some(bytes) = held.filter(|held| held.len() as u64 == unit.bytes()) {
            return Ok(bytes.slice(within));
        }
        let id = ((place.place, object.entry.object), interval);
        let landing = match self.interval_flights.join(id) {
            Joined::UnderWay(landing) => {
                self.metrics.joined.inc();
                landing
            }
            Joined::Claimed(landing, claim) => {
                let (shared, object, place) = (Arc::clone(self), Arc::clone(object), place.place);
                self.fly("cold look-up", async move {
                    let loaded = shared.load_interval(place, &object, interval).await;
                    claim.land(loaded);
                });
                landing
            }
        };
        landing.landed().await
    }

    async fn load_interval(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        interval: usize,
    ) -> Result<Bytes, ColdError> {
        let entry = object.index.intervals()[interval];
        let Some(_admitted) = self.look_ups.admit(u64::from(entry.bytes)).await else {
            return Err(ColdError::Unavailable { why: "cold reads are stopping".into() });
        };
        for _ in 0..2 {
            let chunks = self.get_batches(place, object, entry.position..entry.end_position()).await?;
            let bytes = cut(&chunks, 0..usize::try_from(entry.bytes).unwrap_or(usize::MAX));
            if let Some(bytes) = bytes.filter(|bytes| entry.matches(bytes)) {
                return Ok(bytes);
            }
            self.metrics.corrupt_intervals.inc();
        }
        self.complain(
            "batches of the bucket are damaged",
            &object.key,
            &format_args!("from offset {} on", entry.base_offset),
        );
        let why = format!("`{}`: batches from offset {} on", object.key, entry.base_offset);
        Err(ColdError::Damaged { why: why.into() })
    }

    /// See [`tidelog_replica::ColdReader::epoch_end`].
    pub(crate) async fn epoch_end(
        self: &Arc<Self>,
        place: &ColdPlace,
        epoch: LeaderEpoch,
    ) -> Result<Option<(LeaderEpoch, Offset)>, ColdError> {
        let manifest = Arc::clone(&place.image.manifest);
        let entries = &manifest.entries;
        let at = entries.partition_point(|entry| entry.leader_epoch <= epoch);
        let known = if at > 0 || manifest.lines.is_empty() {
            self.end_within(place, entries, at, None, epoch).await?
        } else {
            self.end_in_pages(place, epoch).await?
        };
        let known = match known {
            Known::None => None,
            Known::ToTieredEnd(epoch) => Some((epoch, manifest.tiered_end)),
            Known::Ends(epoch, end) => Some((epoch, end)),
        };
        // What ends at the log start is not there any more (B61).
        Ok(known.filter(|(_, end)| *end > place.image.log_start))
    }

    /// As no entry in memory is of `epoch` or below: the page in which a later epoch begins.
    async fn end_in_pages(
        self: &Arc<Self>,
        place: &ColdPlace,
        epoch: LeaderEpoch,
    ) -> Result<Known, ColdError> {
        let manifest = Arc::clone(&place.image.manifest);
        let (mut low, mut high) = (0, manifest.lines.len());
        // The first page whose last epoch is above; all pages before it are at or below.
        while low < high {
            let middle = low + (high - low) / 2;
            let entries = self.page(place, &manifest.lines[middle]).await?;
            match entries.last() {
                Some(last) if last.leader_epoch <= epoch => low = middle + 1,
                _ => high = middle,
            }
        }
        let before = match low.checked_sub(1) {
            Some(before) => {
                self.page(place, &manifest.lines[before]).await?.last().map(|last| last.leader_epoch)
            }
            None => None,
        };
        let Some(line) = manifest.lines.get(low) else {
            // All pages are at or below: the later epoch begins in the first entry in memory.
            return self.end_within(place, &manifest.entries, 0, before, epoch).await;
        };
        let entries = self.page(place, line).await?;
        let at = entries.partition_point(|entry| entry.leader_epoch <= epoch);
        self.end_within(place, &entries, at, before, epoch).await
    }

    /// Where `epoch` ends, given the first entry of a later one at `at`; `before`: the epoch before the entries.
    async fn end_within(
        self: &Arc<Self>,
        place: &ColdPlace,
        entries: &[ManifestEntry],
        at: usize,
        before: Option<LeaderEpoch>,
        epoch: LeaderEpoch,
    ) -> Result<Known, ColdError> {
        let previous = at.checked_sub(1).map(|previous| entries[previous].leader_epoch).or(before);
        let Some(entry) = entries.get(at) else {
            return Ok(previous.map_or(Known::None, Known::ToTieredEnd));
        };
        let object = self.open(place, entry, false).await?;
        let chain = object.index.epochs().entries();
        let above = chain.partition_point(|start| start.epoch <= epoch);
        let floor = above.checked_sub(1).map(|floor| chain[floor].epoch).or(previous);
        let end = chain.get(above).map_or(entry.range.end, |start| start.start);
        Ok(floor.map_or(Known::None, |floor| Known::Ends(floor, end)))
    }

    /// See [`tidelog_replica::ColdReader::epoch_of`].
    pub(crate) async fn epoch_of(
        self: &Arc<Self>,
        place: &ColdPlace,
        offset: Offset,
    ) -> Result<Option<LeaderEpoch>, ColdError> {
        let Some(entry) = self.entry_at(place, offset).await? else { return Ok(None) };
        let entries = &place.image.manifest.entries;
        let at = entries.partition_point(|other| other.range.end <= entry.range.base);
        let before = at.checked_sub(1).map(|before| entries[before].leader_epoch);
        if before == Some(entry.leader_epoch) && entries.get(at) == Some(&entry) {
            return Ok(before);
        }
        let object = self.open(place, &entry, false).await?;
        Ok(object.index.epoch_at(offset))
    }
}

/// What is known of an epoch.
enum Known {
    /// All epochs are above it.
    None,
    /// The floor is the last epoch in the bucket.
    ToTieredEnd(LeaderEpoch),
    /// The floor, and where it ends.
    Ends(LeaderEpoch, Offset),
}

/// The batches of an interval that reach into `range` and whose largest timestamp is wanted.
fn batches_in(
    bytes: &Bytes,
    range: OffsetRange,
    wanted: impl Fn(Timestamp) -> bool,
) -> Result<Vec<Found>, ColdError> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let (base, end, size) = batch_at(bytes, at)?;
        if base >= range.end {
            break;
        }
        let time = BatchHeader::peek(&bytes[at..]).and_then(|header| header.max_timestamp());
        if let Some(time) = time.filter(|time| end > range.base && wanted(*time)) {
            found.push(Found { time, batch: Bytes::copy_from_slice(&bytes[at..at + size]) });
        }
        at += size;
    }
    Ok(found)
}
