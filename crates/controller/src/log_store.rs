//! The Raft log on disk.
//!
//! **Owns** one append-only file at a time: entries, votes, truncations and purges as records in the order in which
//! they happened, each round synced before it is acknowledged; and the entries in memory, since they are few (a
//! snapshot comes every thousand).
//!
//! **Does not own** snapshots, or what entries mean.
//!
//! ```text
//! log-7:  header | image: vote, purged, live entries | round | round | round | zeros, allocated ahead
//!                ^ written aside and synced before the file got its name     ^ where the next one goes
//! ```
//!
//! A start, and a purge that leaves more garbage than entries, writes what is live to the next file and removes the
//! former one. So a file that was recovered is never appended to: bytes beyond a torn tail cannot come back.
//!
//! **Crash behaviour**: a start takes the file of the highest number and plays it up to the first bad record. Where a
//! later record says that the bad one had been synced, the file is damaged and the start is refused: a voter that
//! forgets what it acknowledged breaks the group. After a failed write or sync everything is refused.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    ops::RangeBounds,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use openraft::{
    OptionalSend, RaftLogReader,
    storage::{IOFlushed, LogState, RaftLogStorage},
};
use tidelog_runtime::{Clock, Disk, DiskFile, Lane, OpenMode};
use tidelog_types::limits;

use crate::{
    codec::{FILE_HEADER_BYTES, FileHeader, Place, Record, StoreError, find_record, synced_later},
    identity::read_file,
    metrics::ControllerMetrics,
    raft_types::{Entry, LogId, TypeConfig, Vote},
};

/// Garbage below this is not worth writing a new file for.
const GARBAGE_BYTES_MIN: u64 = 1024 * 1024;

/// The log of one controller. Clones are the same log.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<Shared>,
}

struct Shared {
    memory: Mutex<Memory>,
    writer: tokio::sync::Mutex<Writer>,
    metrics: ControllerMetrics,
    clock: Arc<dyn Clock>,
}

/// What the records say, without the file.
#[derive(Debug, Default, Clone, PartialEq)]
struct Memory {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, Entry>,
}

impl Memory {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Entry(entry) => drop(self.entries.insert(entry.log_id.index, entry)),
            Record::Vote(vote) => self.vote = Some(vote),
            Record::TruncateAfter(last) => {
                let first_gone = last.map_or(0, |last| last.index.saturating_add(1));
                drop(self.entries.split_off(&first_gone));
            }
            Record::Purge(upto) => {
                self.entries = self.entries.split_off(&upto.index.saturating_add(1));
                self.purged = self.purged.max(Some(upto));
            }
        }
    }

    /// The records that make this state anew.
    fn records(&self) -> Vec<Record> {
        let vote = self.vote.map(Record::Vote);
        let purged = self.purged.map(Record::Purge);
        let entries = self.entries.values().cloned().map(Record::Entry);
        vote.into_iter().chain(purged).chain(entries).collect()
    }
}

struct Writer {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    number: u64,
    position: u64,
    /// The file's length: zeros from `position` on.
    allocated: u64,
    /// Bytes of the image that the file began with.
    image_bytes: u64,
    /// Why nothing more may be written; also set while a round is under way, so that one that was dropped stays so.
    failed: Option<String>,
}

/// Everything in one new file, before it has its name.
struct NewFile {
    file: Arc<dyn DiskFile>,
    aside: PathBuf,
    path: PathBuf,
    number: u64,
    end: u64,
    allocated: u64,
}

impl LogStore {
    /// Opens the log in `directory`, which exists; writes what is live to a new file.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where acknowledged state may be lost; [`StoreError::Io`] may be tried again.
    pub async fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        directory: &Path,
        metrics: ControllerMetrics,
    ) -> Result<Self, StoreError> {
        let numbers = list(&disk, directory).await?;
        let newest = numbers.last().copied();
        let memory = match newest {
            Some(number) => recover(&disk, directory, number).await?,
            None => Memory::default(),
        };
        let number = newest
            .unwrap_or(0)
            .checked_add(1)
            .ok_or_else(|| StoreError::damaged(directory, "no file number is left"))?;
        let new = write_new(&disk, directory, number, &memory).await?;
        name_new(&disk, directory, &new).await?;
        for former in numbers {
            let path = directory.join(file_name(former));
            disk.remove_file(&path).await.map_err(StoreError::io("remove", path))?;
        }
        metrics.log_entries.set(u64::try_from(memory.entries.len()).unwrap_or(u64::MAX));
        let writer = Writer {
            disk,
            directory: directory.to_owned(),
            file: new.file,
            path: new.path,
            number,
            position: new.end,
            allocated: new.allocated,
            image_bytes: new.end,
            failed: None,
        };
        let shared =
            Shared { memory: Mutex::new(memory), writer: tokio::sync::Mutex::new(writer), metrics, clock };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether a log file is in `directory`.
    pub(crate) async fn exists(disk: &Arc<dyn Disk>, directory: &Path) -> Result<bool, StoreError> {
        Ok(!list(disk, directory).await?.is_empty())
    }

    /// Whether nothing was ever voted, appended or purged.
    #[must_use]
    pub fn is_pristine(&self) -> bool {
        *self.memory() == Memory::default()
    }

    /// The last index that was purged; `None` where the log is whole.
    #[must_use]
    pub fn purged_index(&self) -> Option<u64> {
        self.memory().purged.map(|purged| purged.index)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.shared.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes records durable in one round, then visible.
    async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        let mut writer = self.shared.writer.lock().await;
        let before = self.shared.clock.monotonic();
        let written = writer.round(&records).await?;
        self.shared
            .metrics
            .log_round_seconds
            .observe_duration(self.shared.clock.monotonic().saturating_sub(before));
        self.shared.metrics.log_rounds.inc();
        self.shared.metrics.log_written_bytes.add(written);
        let mut memory = self.memory();
        for record in records {
            memory.apply(record);
        }
        self.shared.metrics.log_entries.set(u64::try_from(memory.entries.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    /// Writes a new file where the old one is mostly garbage. That it could not be written harms nothing.
    async fn compact(&self) -> io::Result<()> {
        let mut writer = self.shared.writer.lock().await;
        let memory = self.memory().clone();
        let garbage = writer.position.saturating_sub(writer.image_bytes);
        if garbage < GARBAGE_BYTES_MIN.max(writer.image_bytes) {
            return Ok(());
        }
        writer.replace_file(&memory).await
    }
}

impl Writer {
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!("the controller's log is closed: {why}"))),
        }
    }

    /// Writes and syncs; the bytes written.
    async fn round(&mut self, records: &[Record]) -> io::Result<u64> {
        self.check()?;
        let mut out = Vec::new();
        for record in records {
            let length = u64::try_from(out.len()).map_err(io::Error::other)?;
            let position = self.position.checked_add(length).ok_or(io::ErrorKind::FileTooLarge)?;
            record.encode(Place { number: self.number, position, synced: self.position }, &mut out);
        }
        let length = u64::try_from(out.len()).map_err(io::Error::other)?;
        let end = self.position.checked_add(length).ok_or(io::ErrorKind::FileTooLarge)?;
        self.allocate(end).await?;
        self.failed = Some("a round was dropped half-way".to_owned());
        let written = self.file.write_at(self.position, vec![Bytes::from(out)]).await;
        let synced = match written {
            Ok(()) => self.file.sync_data().await,
            Err(why) => Err(why),
        };
        if let Err(why) = synced {
            tracing::error!(path = %self.path.display(), error = %why, "controller log write failed, the controller stops");
            self.failed = Some(why.to_string());
            return Err(why);
        }
        self.failed = None;
        self.position = end;
        Ok(length)
    }

    /// Makes room up to `end`. Nothing is written yet, so a failure here can be survived.
    async fn allocate(&mut self, end: u64) -> io::Result<()> {
        if end <= self.allocated {
            return Ok(());
        }
        let wanted = end
            .checked_next_multiple_of(limits::RAFT_LOG_ALLOCATION_BYTES)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.allocate(wanted).await?;
        self.allocated = wanted;
        Ok(())
    }

    async fn replace_file(&mut self, memory: &Memory) -> io::Result<()> {
        self.check()?;
        let number = self.number.checked_add(1).ok_or(io::ErrorKind::FileTooLarge)?;
        let new = match write_new(&self.disk, &self.directory, number, memory).await {
            Ok(new) => new,
            Err(why) => {
                tracing::warn!(directory = %self.directory.display(), error = %why, "controller log was not compacted");
                return Ok(());
            }
        };
        // From the rename on a start may find the new file: the old one must not be appended to again.
        self.failed = Some("a new log file was dropped half-way".to_owned());
        if let Err(why) = name_new(&self.disk, &self.directory, &new).await {
            tracing::error!(directory = %self.directory.display(), error = %why, "controller log could not be replaced, the controller stops");
            self.failed = Some(why.to_string());
            return Err(io::Error::other(why));
        }
        self.failed = None;
        let former = std::mem::replace(&mut self.path, new.path);
        self.file = new.file;
        (self.number, self.position, self.allocated) = (number, new.end, new.allocated);
        self.image_bytes = new.end;
        if let Err(why) = self.disk.remove_file(&former).await {
            tracing::warn!(path = %former.display(), error = %why, "former controller log was not removed");
        }
        Ok(())
    }
}

fn file_name(number: u64) -> String {
    format!("log-{number:020}")
}

/// The numbers of all log files, ascending. Files that never got their name are removed.
async fn list(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Vec<u64>, StoreError> {
    let entries = disk.list_dir(directory).await.map_err(StoreError::io("list", directory))?;
    let mut numbers = Vec::new();
    for entry in entries {
        let Some(rest) = entry.name.strip_prefix("log-") else { continue };
        if rest.ends_with(".new") {
            let path = directory.join(&entry.name);
            disk.remove_file(&path).await.map_err(StoreError::io("remove", path))?;
        } else if let Ok(number) = rest.parse() {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

async fn recover(disk: &Arc<dyn Disk>, directory: &Path, number: u64) -> Result<Memory, StoreError> {
    let path = directory.join(file_name(number));
    let bytes = read_file(disk, &path).await?;
    // The header was synced before the file got its name: a bad one is damage.
    let header = FileHeader::decode(&bytes).map_err(|why| StoreError::damaged(&path, why))?;
    if header.number != number {
        return Err(StoreError::damaged(&path, format!("its header says {}", header.number)));
    }
    let mut memory = Memory::default();
    let mut position = FILE_HEADER_BYTES;
    while let Some(found) = find_record(&bytes, number, position) {
        let record =
            found.record.map_err(|why| StoreError::damaged(&path, format!("{why}, at {position}")))?;
        memory.apply(record);
        position = found.next;
    }
    let end = u64::try_from(position).map_err(|why| StoreError::damaged(&path, why))?;
    let synced = header.image_end.max(synced_later(&bytes, number, position));
    if synced > end {
        return Err(StoreError::damaged(
            &path,
            format!("bad bytes at {end}, below {synced}, which was synced"),
        ));
    }
    Ok(memory)
}

/// Writes and syncs a file that holds `memory` and room for more.
async fn write_new(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    number: u64,
    memory: &Memory,
) -> Result<NewFile, StoreError> {
    let path = directory.join(file_name(number));
    let aside = directory.join(format!("{}.new", file_name(number)));
    let mut image = vec![0; FILE_HEADER_BYTES];
    for record in memory.records() {
        let position = u64::try_from(image.len()).map_err(|why| StoreError::damaged(&path, why))?;
        record.encode(Place { number, position, synced: 0 }, &mut image);
    }
    let end = u64::try_from(image.len()).map_err(|why| StoreError::damaged(&path, why))?;
    image[..FILE_HEADER_BYTES].copy_from_slice(&FileHeader { number, image_end: end }.encode());
    let room = end.saturating_add(limits::RAFT_LOG_ALLOCATION_BYTES / 2);
    let allocated = room.next_multiple_of(limits::RAFT_LOG_ALLOCATION_BYTES);
    let file = disk.open(&aside, OpenMode::CreateOrTruncate, Lane::Background).await;
    let file = file.map_err(StoreError::io("create", &aside))?;
    file.allocate(allocated).await.map_err(StoreError::io("allocate", &aside))?;
    file.write_at(0, vec![Bytes::from(image)]).await.map_err(StoreError::io("write", &aside))?;
    file.sync_data().await.map_err(StoreError::io("sync", &aside))?;
    Ok(NewFile { file, aside, path, number, end, allocated })
}

async fn name_new(disk: &Arc<dyn Disk>, directory: &Path, new: &NewFile) -> Result<(), StoreError> {
    disk.rename(&new.aside, &new.path).await.map_err(StoreError::io("rename", &new.aside))?;
    disk.sync_dir(directory).await.map_err(StoreError::io("sync", directory))?;
    tracing::debug!(number = new.number, bytes = new.end, "controller log file begun");
    Ok(())
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        Ok(self.memory().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.memory().vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let memory = self.memory();
        let last = memory.entries.last_key_value().map(|(_, entry)| entry.log_id).or(memory.purged);
        Ok(LogState { last_purged_log_id: memory.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.write(vec![Record::Vote(*vote)]).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records: Vec<_> = entries.into_iter().map(Record::Entry).collect();
        // The round is synced here and not behind: it is one write and one sync for all that waited meanwhile.
        match self.write(records).await {
            Ok(()) => {
                callback.io_completed(Ok(()));
                Ok(())
            }
            Err(why) => {
                callback.io_completed(Err(io::Error::new(why.kind(), why.to_string())));
                Err(why)
            }
        }
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        self.write(vec![Record::TruncateAfter(last_log_id)]).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.write(vec![Record::Purge(log_id)]).await?;
        self.compact().await
    }
}
