//! Playing the journal after a stop: what each partition must be cut to, and what is then to be written again.
//!
//! **Owns** the order of the files and what becomes of a partition's entries ([`Replay`], [`Replays`]). The rule by which a
//! play ends is the format's. Two walks are made: the first finds what survives, without keeping a body; the second
//! hands over the bodies.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use tidelog_format::{
    batch::RawBatch,
    checkpoint::{Checkpoint, CheckpointEntry},
    journal::{
        Change, FILE_HEADER_BYTES, FileHeader, JournalPosition, JournalScanner, Rot, ScanFile, ScanStep,
        ScannedEntry, SyncedSearch,
    },
};
use tidelog_runtime::{Disk, DiskFile, Lane, OpenMode};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, TopicPartition};

use super::files::{BLOCK, Found, Spare};
use crate::{OpenError, data_dir::failed};

/// Bytes of a file looked at at once.
const READ_BYTES: usize = 1024 * 1024;

/// A batch that survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Survivor {
    pub(crate) position: u64,
    /// Its last offset, inclusive.
    pub(crate) last: Offset,
}

/// What the journal does to one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replay {
    /// Where the partition's log begins anew, whatever its files hold; `None` where they go on.
    pub(crate) reset: Option<Offset>,
    /// What the files are cut to, unless they are reset.
    pub(crate) cut: Offset,
    pub(crate) log_start: Offset,
    pub(crate) local_log_start: Offset,
    /// Ascending, and behind `cut`.
    pub(crate) survivors: Vec<Survivor>,
    /// Where the log ends.
    pub(crate) end: Offset,
    /// What lay above a cut was not what lies there now.
    truncated: bool,
    pub(crate) deleted: bool,
    pub(crate) fenced: Option<Arc<str>>,
    /// Bytes were lost of which nobody knows whose they are.
    suspect: bool,
    /// Entries below were dealt with before the checkpoint.
    position: u64,
}

impl Replay {
    fn of(entry: &CheckpointEntry) -> Self {
        Self {
            reset: None,
            cut: entry.synced_end,
            log_start: entry.log_start,
            local_log_start: entry.local_log_start,
            survivors: Vec::new(),
            end: entry.synced_end,
            truncated: false,
            deleted: false,
            fenced: None,
            suspect: false,
            position: entry.position.0,
        }
    }

    fn started(start: Offset, position: u64) -> Self {
        Self {
            reset: Some(start),
            cut: start,
            log_start: start,
            local_log_start: start,
            survivors: Vec::new(),
            end: start,
            truncated: false,
            deleted: false,
            fenced: None,
            suspect: false,
            position,
        }
    }

    /// Up to which offset a producer state found in the folder is this log's. The journal holds every batch that a state
    /// above the cut has seen, or ends below it; unless something was truncated, which may have been in it.
    pub(crate) fn producers_end(&self) -> Offset {
        if self.truncated || self.fenced.is_some() { self.cut } else { self.end }
    }

    fn fence(&mut self, why: &str) {
        if self.fenced.is_none() {
            self.fenced = Some(Arc::from(why));
        }
    }

    fn append(&mut self, position: u64, range: OffsetRange) {
        if self.fenced.is_some() || self.deleted {
            return;
        }
        if range.base < self.end {
            self.fence("the journal holds offsets twice");
            return;
        }
        if self.suspect && range.base > self.end {
            self.fence("the journal lost entries before this partition's next one");
            return;
        }
        self.suspect = false;
        let Some(last) = range.end.prev() else { return };
        self.survivors.push(Survivor { position, last });
        self.end = range.end;
    }

    fn truncate(&mut self, to: Offset) {
        if to <= self.end {
            self.fenced = None;
            self.end = to;
        }
        self.cut = self.cut.min(to);
        self.truncated = true;
        while self.survivors.last().is_some_and(|survivor| survivor.last >= to) {
            self.survivors.pop();
        }
    }
}

/// What the journal does to all partitions.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    pub(crate) partitions: BTreeMap<TopicPartition, Replay>,
    pub(crate) rot: Vec<Rot>,
    /// Entries behind the checkpoint.
    pub(crate) entries: u64,
    from: u64,
}

impl Replays {
    fn new(checkpoint: &Checkpoint) -> Self {
        let partitions = checkpoint.entries.iter().map(|entry| (entry.place, Replay::of(entry))).collect();
        Self { partitions, rot: Vec::new(), entries: 0, from: checkpoint.replay_from.0 }
    }

    fn entry(&mut self, entry: &ScannedEntry) {
        let position = entry.position.0;
        self.entries += u64::from(position >= self.from);
        if let Change::Reset { start } = entry.change {
            let skipped = self.partitions.get(&entry.place).is_some_and(|replay| position < replay.position);
            if !skipped {
                self.partitions.insert(entry.place, Replay::started(start, position));
            }
            return;
        }
        // An entry of a partition that no checkpoint and no reset names belongs to one that was deleted.
        let Some(replay) = self.partitions.get_mut(&entry.place) else { return };
        if position < replay.position {
            return;
        }
        match entry.change {
            Change::Append { range, .. } => replay.append(position, range),
            Change::Truncate { to } => replay.truncate(to),
            Change::Reset { .. } => {}
            Change::LogStart { to } => replay.log_start = replay.log_start.max(to),
            Change::LocalLogStart { to } => replay.local_log_start = replay.local_log_start.max(to),
            Change::Delete => {
                replay.survivors.clear();
                replay.deleted = true;
                replay.fenced = None;
            }
        }
    }

    fn rot(&mut self, rot: Rot) {
        tracing::error!(position = %rot.position, bytes = rot.bytes, place = ?rot.place, "the journal is damaged");
        let end = rot.position.0.saturating_add(rot.bytes);
        match rot.place {
            Some(place) => {
                // The lost entry may have been the one that made the partition: then nothing of it can be told.
                let unknown = || Replay::started(Offset::ZERO, rot.position.0);
                let replay = self.partitions.entry(place).or_insert_with(unknown);
                if end > replay.position && !replay.deleted {
                    replay.fence("an entry of this partition in the journal is damaged");
                }
            }
            None => {
                for replay in self.partitions.values_mut().filter(|replay| end > replay.position) {
                    replay.suspect = true;
                }
            }
        }
        self.rot.push(rot);
    }

    fn finish(&mut self) {
        for replay in self.partitions.values_mut().filter(|replay| replay.suspect && !replay.deleted) {
            replay.fence("the journal lost entries that may have been this partition's");
        }
    }
}

/// One file of the journal, as found.
struct Part {
    path: PathBuf,
    scan: ScanFile,
    file: Arc<dyn DiskFile>,
}

/// The journal as a stop left it.
pub(crate) struct Journal {
    parts: Vec<Part>,
    synced: JournalPosition,
    /// Where the journal goes on, and with which files once a checkpoint covers what is in them.
    pub(crate) found: Found,
}

impl Journal {
    /// Looks at the files and orders them.
    pub(crate) async fn open(
        disk: &dyn Disk,
        directory: &std::path::Path,
        checkpoint: &Checkpoint,
    ) -> Result<Self, OpenError> {
        let io = |error| failed("read", directory)(error);
        disk.create_dir_all(directory).await.map_err(io)?;
        let mut found = Found {
            next_generation: checkpoint.generation.0 + 1,
            start: checkpoint.replay_from.0,
            ..Found::default()
        };
        let mut parts: Vec<Part> = Vec::new();
        for entry in disk.list_dir(directory).await.map_err(io)? {
            let Some(number) = entry.name.strip_suffix(".journal").and_then(|name| name.parse::<u64>().ok())
            else {
                continue;
            };
            found.next_number = found.next_number.max(number.saturating_add(1));
            let path = directory.join(&entry.name);
            let file = disk.open(&path, OpenMode::ReadWrite, Lane::Background).await.map_err(io)?;
            let bytes = file.len().await.map_err(io)?;
            let block = usize::try_from(FILE_HEADER_BYTES).unwrap_or(4096);
            let header = FileHeader::decode(&file.read_at(0, block).await.map_err(io)?);
            found.spare.push(Spare { path: path.clone(), length: bytes, file: None });
            // A file without a header was never used, or its first write was torn: nothing in it was synced.
            if let Ok(header) = header {
                found.next_generation = found.next_generation.max(header.generation.0 + 1);
                found.start = found.start.max(header.base.0.saturating_add(bytes)).next_multiple_of(BLOCK);
                parts.push(Part { path, scan: ScanFile { header, bytes }, file });
            }
        }
        parts.sort_by_key(|part| part.scan.header.generation);
        // What lies wholly below the checkpoint is of no use any more.
        let from = checkpoint.replay_from;
        let needed = parts
            .windows(2)
            .position(|pair| pair[1].scan.header.base > from)
            .unwrap_or(parts.len().max(1) - 1);
        parts.drain(..needed.min(parts.len()));
        let mut synced = JournalPosition::default();
        for part in &parts {
            synced = synced.max(highest_synced(part).await.map_err(io)?);
        }
        Ok(Self { parts, synced, found })
    }

    /// Takes the files out of what was found that no play reads: a start that needs their room may remove them.
    pub(crate) fn take_unread(&mut self) -> Vec<Spare> {
        let is_unread = |spare: &mut Spare| self.parts.iter().all(|part| part.path != spare.path);
        self.found.spare.extract_if(.., is_unread).collect()
    }

    /// The first walk: what survives of each partition.
    pub(crate) async fn replays(&self, checkpoint: &Checkpoint) -> Result<Replays, OpenError> {
        let mut replays = Replays::new(checkpoint);
        self.walk(|step| match step {
            ScanStep::Entry(entry) => {
                replays.entry(&entry);
                None
            }
            ScanStep::Rot(rot) => {
                replays.rot(rot);
                None
            }
            _ => None::<()>,
        })
        .await?;
        replays.finish();
        Ok(replays)
    }

    /// Makes durable what is about to be acted on: after a kill it may be in the page cache alone, and a power cut that took
    /// an entry back must not find that its files are cut or gone already.
    pub(crate) async fn sync(&self) -> Result<(), OpenError> {
        for part in &self.parts {
            part.file.sync_data().await.map_err(failed("sync", &part.path))?;
        }
        Ok(())
    }

    /// Begins the second walk.
    pub(crate) fn bodies(&self) -> Result<Bodies<'_>, OpenError> {
        Ok(Bodies { journal: self, scanner: self.scanner()? })
    }

    fn scanner(&self) -> Result<JournalScanner, OpenError> {
        let files = self.parts.iter().map(|part| part.scan).collect();
        JournalScanner::new(files, self.synced).map_err(|error| OpenError::Damaged {
            path: self.parts.first().map_or_else(String::new, |part| part.path.display().to_string()),
            why: error.to_string(),
        })
    }

    async fn walk<T>(&self, mut visit: impl FnMut(ScanStep) -> Option<T>) -> Result<Option<T>, OpenError> {
        let mut scanner = self.scanner()?;
        loop {
            match scanner.step() {
                ScanStep::Read { file, offset, bytes } => {
                    scanner.supply(self.read(file, offset, bytes).await?)
                }
                ScanStep::End(_) => return Ok(None),
                step => {
                    if let Some(answer) = visit(step) {
                        return Ok(Some(answer));
                    }
                }
            }
        }
    }

    async fn read(&self, file: usize, offset: u64, bytes: u64) -> Result<Bytes, OpenError> {
        let part = &self.parts[file];
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        part.file.read_at(offset, length).await.map_err(failed("read", &part.path))
    }
}

/// The second walk: the batches, one after another.
pub(crate) struct Bodies<'a> {
    journal: &'a Journal,
    scanner: JournalScanner,
}

/// A batch out of the journal.
pub(crate) struct Body {
    pub(crate) position: u64,
    pub(crate) place: TopicPartition,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) range: OffsetRange,
    pub(crate) batch: RawBatch,
}

impl Bodies<'_> {
    pub(crate) async fn next(&mut self) -> Result<Option<Body>, OpenError> {
        loop {
            match self.scanner.step() {
                ScanStep::Read { file, offset, bytes } => {
                    self.scanner.supply(self.journal.read(file, offset, bytes).await?);
                }
                ScanStep::Entry(ScannedEntry {
                    position,
                    place,
                    change: Change::Append { leader_epoch, range, batch },
                }) => return Ok(Some(Body { position: position.0, place, leader_epoch, range, batch })),
                ScanStep::End(_) => return Ok(None),
                ScanStep::Entry(_) | ScanStep::Rot(_) => {}
            }
        }
    }
}

async fn highest_synced(part: &Part) -> io::Result<JournalPosition> {
    let mut search = SyncedSearch::new(part.scan.header);
    let mut offset = FILE_HEADER_BYTES;
    while offset < part.scan.bytes {
        let bytes = part.file.read_at(offset, READ_BYTES).await?;
        if bytes.is_empty() {
            break;
        }
        search.feed(offset, &bytes);
        offset += bytes.len() as u64;
    }
    Ok(search.highest())
}

#[cfg(test)]
mod tests;
