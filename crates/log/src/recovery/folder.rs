//! One partition's folder at a start: cut to what the checkpoint and the journal's cuts say, and compared with it.
//!
//! ```text
//!  recorded   | a | b | c | d |          the checkpoint's segments below the cut
//!  found      | a |   | c | d | e |      d holds the end and is walked; e lies above and goes
//!                  ^ lost: it stays in the list, quarantined, so that nobody reads over the hole
//!
//! Files that end below the cut leave a hole as well, and what the journal holds follows behind it.
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tidelog_format::{
    batch::{BATCH_HEADER_BYTES, BatchHeader},
    checkpoint::{Checkpoint, CheckpointSegment},
    epochs::EpochChain,
};
use tidelog_runtime::{ASIDE_SUFFIX, DirEntry, read_small};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, TopicPartition};

use super::SMALL_FILE_BYTES_MAX;
use crate::{
    PartitionConfig,
    descriptors::Use,
    engine::Engine,
    files::EPOCHS,
    journal::play::Replay,
    segment::{self, Content, LOG, SNAPSHOT, Segment, index_file, rebuild},
};

/// What a folder holds, by name.
#[derive(Default)]
struct Listing {
    /// Lengths of `.log` files.
    segments: BTreeMap<Offset, u64>,
    /// Ascending.
    snapshots: Vec<Offset>,
    /// Files that no segment or snapshot owns, or that belong to segments without batches.
    strays: Vec<PathBuf>,
}

/// A folder after its cut.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) snapshots: Vec<Offset>,
    pub(super) epochs: EpochChain,
    pub(super) saved_epochs: Option<EpochChain>,
    pub(super) changed: bool,
    /// Ranges whose file is lost or is not what it was. Their segments are quarantined.
    pub(super) lost: Vec<OffsetRange>,
    /// The first batch's time in the last segment.
    pub(super) rolls_from: Option<Timestamp>,
}

/// Where a folder's work happens.
struct Place<'a> {
    engine: &'a Engine,
    place: TopicPartition,
    folder: &'a Path,
}

impl Contents {
    /// Cuts the folder, and reads what the partition needs to go on.
    pub(super) async fn cut(
        engine: &Engine,
        checkpoint: &Checkpoint,
        place: TopicPartition,
        folder: &Path,
        replay: &Replay,
    ) -> io::Result<Self> {
        let at = Place { engine, place, folder };
        let mut listing = list(folder, engine.disk.list_dir(folder).await?);
        let mut contents = Self::default();
        for stray in &listing.strays {
            crate::files::remove(engine, stray).await?;
            contents.changed = true;
        }
        let recorded = recorded(checkpoint, place, replay);
        let found: Vec<Offset> = listing.segments.keys().copied().collect();
        for (index, base) in found.iter().enumerate() {
            let end = recorded.get(base).map(|segment| segment.range.end).or(found.get(index + 1).copied());
            if *base >= replay.cut || end.is_some_and(|end| end <= replay.local_log_start) {
                remove_files(engine, folder, *base).await?;
                listing.segments.remove(base);
                contents.changed = true;
            }
        }
        if let Some((last, bytes)) = listing.segments.pop_last() {
            contents.take_sealed(&at, &listing.segments, &recorded, last);
            contents.take_last(&at, last, bytes, recorded.get(&last), replay).await?;
        }
        for snapshot in listing.snapshots {
            if snapshot > replay.producers_end() {
                crate::files::remove(engine, &segment::path(folder, snapshot, SNAPSHOT)).await?;
                contents.changed = true;
            } else {
                contents.snapshots.push(snapshot);
            }
        }
        contents.read_epochs(&at, replay).await?;
        Ok(contents)
    }

    /// Where the files end below what was durable. Answers what is missing where the log ends there; where the journal goes on
    /// behind it, a quarantined segment stands for it, so that these records keep their places. Whoever knows another copy
    /// decides what becomes of either.
    pub(super) async fn take_missing_end(
        &mut self,
        engine: &Engine,
        checkpoint: &Checkpoint,
        place: TopicPartition,
        folder: &Path,
        replay: &Replay,
    ) -> io::Result<Option<OffsetRange>> {
        let last = self.segments.last();
        let base = last.map_or(replay.local_log_start, |last| last.content().end);
        let end = replay.cut.max(replay.local_log_start);
        if base >= end {
            return Ok(None);
        }
        if replay.survivors.is_empty() {
            return Ok(Some(OffsetRange { base, end }));
        }
        // One that was sealed keeps its index, which is not in memory.
        if let Some(last) = last.filter(|last| !last.content().sealed) {
            let intervals = last.content().intervals.clone().unwrap_or_default();
            index_file::replace(engine, last, &intervals, true).await?;
            last.content_mut().sealed = true;
            engine.note_loaded(last);
            self.changed = true;
        }
        let mut content = Content::listed(0, end, engine.clock.wall());
        for (_, record) in
            recorded(checkpoint, place, replay).into_iter().filter(|(_, it)| it.range.end > base)
        {
            let here = last.filter(|last| last.base == record.range.base);
            content.bytes += record.bytes.saturating_sub(here.map_or(0, |last| last.content().bytes));
            content.max_timestamp = content.max_timestamp.max(record.max_timestamp);
            content.created = content.created.min(record.created);
        }
        // A checkpoint passes over what is empty or not known, and the next start is to find this again.
        (content.bytes, content.known) = (content.bytes.max(1), true);
        let why = format!("records in [{base}, {end}) are missing or damaged on disk");
        tracing::error!(place = %place, segment = %base, end = %end, why, "segment quarantined");
        let hole = Segment::new(place, folder, base, content);
        hole.quarantine(&why);
        self.segments.push(Arc::new(hole));
        self.lost.push(OffsetRange { base, end });
        Ok(None)
    }

    /// The segments below `last`, from their lengths and the checkpoint's record alone.
    fn take_sealed(
        &mut self,
        at: &Place<'_>,
        found: &BTreeMap<Offset, u64>,
        recorded: &BTreeMap<Offset, CheckpointSegment>,
        last: Offset,
    ) {
        let below = recorded.range(..last).map(|(base, _)| base);
        let bases: BTreeSet<Offset> = found.keys().chain(below).copied().collect();
        let ends = bases.iter().skip(1).copied().chain([last]);
        for (base, next) in bases.iter().copied().zip(ends) {
            let (length, record) = (found.get(&base).copied(), recorded.get(&base));
            let content = match record {
                Some(record) => Content::recorded(record),
                None => Content::listed(length.unwrap_or(0), next, at.engine.clock.wall()),
            };
            let segment = Segment::new(at.place, at.folder, base, content);
            let why = match (length, record) {
                (None, _) => Some("its file is lost".to_owned()),
                (Some(length), Some(record)) if length != record.bytes => {
                    Some(format!("its file has {length} bytes, and had {}", record.bytes))
                }
                (Some(_), _) => None,
            };
            if let Some(why) = why {
                let range = OffsetRange { base, end: record.map_or(next, |record| record.range.end) };
                tracing::error!(place = %at.place, segment = %base, end = %range.end, why, "segment quarantined");
                segment.quarantine(&why);
                self.lost.push(range);
            }
            self.segments.push(Arc::new(segment));
        }
    }

    /// The segment that holds the end: whatever lies behind the end goes.
    async fn take_last(
        &mut self,
        at: &Place<'_>,
        base: Offset,
        bytes: u64,
        record: Option<&CheckpointSegment>,
        replay: &Replay,
    ) -> io::Result<()> {
        let Place { engine, place, folder } = *at;
        let interval_bytes = PartitionConfig::default().index_interval_bytes.get();
        let created = record.map_or_else(|| engine.clock.wall(), |record| record.created);
        let segment = Segment::new(place, folder, base, Content::empty(base, created));
        let trusted = index_file::load(engine, &segment).await?;
        let scan = rebuild::scan(engine, folder, base, replay.cut, interval_bytes, trusted, created).await?;
        if scan.rotten {
            tracing::error!(folder = %folder.display(), segment = %base, "an interval below the checkpoint is damaged");
        }
        if scan.indexed && scan.content.bytes == bytes {
            self.segments.push(Arc::new(Segment::new(place, folder, base, scan.content)));
        } else {
            self.changed = true;
            if scan.content.end <= replay.local_log_start {
                return remove_files(engine, folder, base).await;
            }
            self.segments.extend(rebuild::finish_cut(engine, place, folder, base, scan.content).await?);
        }
        if let Some(last) = self.segments.last() {
            self.rolls_from = rebuild::first_time(engine, last).await?;
        }
        Ok(())
    }

    async fn read_epochs(&mut self, at: &Place<'_>, replay: &Replay) -> io::Result<()> {
        let Place { engine, place, folder } = *at;
        let bytes = read_small(&*engine.disk, &folder.join(EPOCHS), SMALL_FILE_BYTES_MAX).await?;
        let decoded = bytes.map(|bytes| EpochChain::decode(&bytes));
        match decoded {
            Some(Ok(chain)) => {
                self.saved_epochs = Some(chain.clone());
                self.epochs = chain;
            }
            missing => {
                if !self.segments.is_empty() {
                    tracing::warn!(place = %place, ?missing, "the leader-epoch chain is rebuilt from the batches");
                    self.epochs = rebuilt_epochs(engine, &self.segments).await?;
                }
            }
        }
        self.epochs.truncate_from_end(replay.cut);
        Ok(())
    }
}

/// The checkpoint's segments that must still be here: below the cut, and not below the local log start.
fn recorded(
    checkpoint: &Checkpoint,
    place: TopicPartition,
    replay: &Replay,
) -> BTreeMap<Offset, CheckpointSegment> {
    let entry = checkpoint.entries.binary_search_by_key(&place, |entry| entry.place);
    let segments = entry.ok().and_then(|index| checkpoint.entries.get(index)).map(|entry| &entry.segments);
    let wanted = |segment: &&CheckpointSegment| {
        segment.range.base < replay.cut && segment.range.end > replay.local_log_start
    };
    segments.into_iter().flatten().filter(wanted).map(|segment| (segment.range.base, *segment)).collect()
}

async fn rebuilt_epochs(engine: &Engine, segments: &[Arc<Segment>]) -> io::Result<EpochChain> {
    let mut chain = EpochChain::default();
    for segment in segments.iter().filter(|segment| segment.quarantined().is_none()) {
        let file = engine.descriptors.get(&segment.path(LOG), Use::Write).await?;
        let mut position = 0;
        let end = segment.content().bytes;
        while position < end {
            let bytes = file.read_at(position, BATCH_HEADER_BYTES).await?;
            let Some(header) = BatchHeader::peek(&bytes) else { break };
            let (Some(length), Some(base)) = (header.batch_bytes(), header.base_offset()) else { break };
            if chain.try_assign(header.leader_epoch().unwrap_or(LeaderEpoch::ZERO), base).is_err() {
                break;
            }
            position += length.max(BATCH_HEADER_BYTES) as u64;
        }
    }
    Ok(chain)
}

fn list(folder: &Path, entries: Vec<DirEntry>) -> Listing {
    let mut listing = Listing::default();
    let mut others = Vec::new();
    for entry in entries {
        let parts = entry.name.split_once('.').filter(|(digits, _)| digits.len() == 20);
        let base = parts.and_then(|(digits, _)| digits.parse().ok()).and_then(Offset::new);
        match (base, parts) {
            (Some(base), Some((_, LOG))) => drop(listing.segments.insert(base, entry.length)),
            (Some(offset), Some((_, SNAPSHOT))) => listing.snapshots.push(offset),
            (Some(base), Some((_, segment::INDEX | segment::TIME_INDEX | segment::TXN_INDEX))) => {
                others.push((base, folder.join(&entry.name)));
            }
            _ if entry.name == EPOCHS || entry.is_dir => {}
            // What was being written aside when the process ended.
            _ if entry.name.ends_with(ASIDE_SUFFIX) => listing.strays.push(folder.join(&entry.name)),
            _ => {}
        }
    }
    listing.snapshots.sort_unstable();
    let orphans: Vec<PathBuf> = others
        .into_iter()
        .filter(|(base, _)| !listing.segments.contains_key(base))
        .map(|(_, path)| path)
        .collect();
    listing.strays.extend(orphans);
    listing
}

async fn remove_files(engine: &Engine, folder: &Path, base: Offset) -> io::Result<()> {
    for extension in [segment::INDEX, segment::TIME_INDEX, segment::TXN_INDEX, LOG] {
        crate::files::remove(engine, &segment::path(folder, base, extension)).await?;
    }
    Ok(())
}
