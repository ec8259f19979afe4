//! The Raft log on disk.
//!
//! **Owns** one append-only file at a time: entries, votes, truncations and purges as records in the order in which
//! they happened, each round synced before it is acknowledged; and the entries in memory, since they are few (a
//! snapshot comes every thousand).
//!
//! **Does not own** snapshots, or what entries mean.
//!
//! ```text
//! log-7:      header | image: vote, purged, live entries | round | round | round | zeros, allocated ahead
//!                    ^ written and synced before the file got its name        ^ where the next one goes
//! log-spare:  blocks for log-8
//! ```
//!
//! A start, and a purge that leaves more garbage than entries, writes what is live to the next file; the former one
//! waits to be the one after it. So a file that was recovered is not appended to: bytes beyond a torn tail cannot come
//! back. On a full disk it is, once zeros were written over all of them and synced.
//!
//! **A full disk** is an answer: room and the next file are allocated ahead, a proposal that finds none is refused
//! before Raft hears of it ([`LogStore::admit`]), what frees space goes on in what is kept for it, and a round that finds
//! none all the same waits for it.
//!
//! **Crash behaviour**: a start takes the file of the highest number and plays it up to the first bad record. Where a
//! later record says that the bad one had been synced, the file is damaged and the start is refused: a voter that
//! forgets what it acknowledged breaks the group. After a failed write or sync everything is refused.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    ops::RangeBounds,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::{
    OptionalSend, RaftLogReader,
    storage::{IOFlushed, LogState, RaftLogStorage},
};
use tidelog_runtime::{CancellationToken, Clock, Disk, is_disk_full};
use tidelog_types::limits;

use crate::{
    codec::{FILE_HEADER_BYTES, FileHeader, Place, Record, StoreError, find_record, synced_later},
    identity::read_file,
    metrics::ControllerMetrics,
    raft_types::{Entry, LogId, TypeConfig, Vote},
};

mod room;
mod writer;

use room::Room;
pub(crate) use room::{Admission, Urgency};
use writer::Writer;

/// How often a round that found the disk full is tried again.
const SPACE_RETRY: Duration = Duration::from_millis(200);

/// The log of one controller. Clones are the same log.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<Shared>,
}

struct Shared {
    memory: Mutex<Memory>,
    writer: tokio::sync::Mutex<Writer>,
    room: Room,
    /// Ends the wait of a round for space.
    closing: CancellationToken,
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
        let recovered = match newest {
            Some(number) => Some(recover(&disk, directory, number).await?),
            None => None,
        };
        let (memory, recovered) = recovered.unzip();
        let memory = memory.unwrap_or_default();
        let number = newest
            .unwrap_or(0)
            .checked_add(1)
            .ok_or_else(|| StoreError::damaged(directory, "no file number is left"))?;
        let begun = Writer::begin(Arc::clone(&disk), directory, number, &memory, &numbers).await;
        let writer = match (begun, recovered) {
            (Err(why), Some(recovered)) if why.is_disk_full() => {
                tracing::warn!(error = %why, "no new controller log file fits, the recovered one is continued");
                Writer::resume(disk, directory, recovered).await?
            }
            (begun, _) => begun?,
        };
        metrics.log_entries.set(u64::try_from(memory.entries.len()).unwrap_or(u64::MAX));
        let room = Room::new(writer.room(), metrics.log_room_bytes.clone());
        let shared = Shared {
            memory: Mutex::new(memory),
            writer: tokio::sync::Mutex::new(writer),
            room,
            closing: CancellationToken::new(),
            metrics,
            clock,
        };
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

    /// Makes records durable in one round, then visible. On a full disk it waits for space: what comes here was
    /// admitted, or is Raft's own, and Raft takes every error for its end.
    async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        let mut writer = self.shared.writer.lock().await;
        let before = self.shared.clock.monotonic();
        let written = self.round(&mut writer, &records).await?;
        self.shared
            .metrics
            .log_round_seconds
            .observe_duration(self.shared.clock.monotonic().saturating_sub(before));
        self.shared.metrics.log_rounds.inc();
        self.shared.metrics.log_written_bytes.add(written);
        self.shared.room.set(writer.room());
        let mut memory = self.memory();
        for record in records {
            memory.apply(record);
        }
        self.shared.metrics.log_entries.set(u64::try_from(memory.entries.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    async fn round(&self, writer: &mut Writer, records: &[Record]) -> io::Result<u64> {
        let mut told = false;
        loop {
            let why = match writer.round(records).await {
                Err(why) if is_disk_full(&why) && writer.check().is_ok() => why,
                outcome => {
                    self.shared.room.set_round_waits(false);
                    return outcome;
                }
            };
            if !told {
                tracing::error!(error = %why, "the disk is full: the controller's log waits for space");
                told = true;
            }
            self.shared.room.set_round_waits(true);
            tokio::select! {
                // The end first: nobody hears of this round any more.
                biased;
                () = self.shared.closing.cancelled() => {
                    writer.fail("it was closed while a round waited for space");
                    return Err(why);
                }
                () = self.shared.clock.sleep(SPACE_RETRY) => {}
            }
        }
    }

    /// Promises room for a record of `bytes`, so that its round cannot meet a full disk.
    ///
    /// # Errors
    /// The disk is full, or room could not be allocated; nothing has changed and it may be tried again.
    pub(crate) async fn admit(&self, bytes: u64, urgency: Urgency) -> io::Result<Admission> {
        let room = &self.shared.room;
        loop {
            if let Some(admission) = room.try_admit(bytes, urgency) {
                return Ok(admission);
            }
            room.needed(bytes)?;
            let mut writer = self.shared.writer.lock().await;
            // Asked again: others were promised more meanwhile, or room was made.
            let needed = room.needed(bytes)?;
            if needed <= writer.room() {
                room.set(writer.room());
                continue;
            }
            writer.make_room(needed).await?;
            room.set(writer.room());
        }
    }

    /// Makes room ahead of need, and the next file.
    ///
    /// # Errors
    /// The disk's. Nothing is lost by it; it is to be tried again.
    pub(crate) async fn prepare(&self) -> io::Result<()> {
        let mut writer = self.shared.writer.lock().await;
        let ahead = writer.make_room(limits::RAFT_LOG_AHEAD_BYTES).await;
        self.shared.room.set(writer.room());
        // The spare in any case: it is what a compaction needs, and that makes room too.
        let spare = writer.prepare_spare().await;
        ahead.and(spare)
    }

    /// Writes a record that says that everything before it is synced, where none does: so rot in the last round is told
    /// from a torn tail at the next start. It repeats the vote, which changes nothing.
    pub(crate) async fn mark_synced(&self) -> io::Result<()> {
        let mut writer = self.shared.writer.lock().await;
        // Only now: a vote that is being saved is in memory when its round is done, and the older one must not be behind it.
        let Some(vote) = self.memory().vote else { return Ok(()) };
        // Not for a mark: on a full disk room is for others.
        if writer.is_marked() || writer.room() < limits::RAFT_LOG_OWN_BYTES / 2 {
            return Ok(());
        }
        writer.round(&[Record::Vote(vote)]).await?;
        writer.set_marked();
        self.shared.room.set(writer.room());
        Ok(())
    }

    /// Completes once [`LogStore::prepare`] has something to do.
    pub(crate) async fn room_taken(&self) {
        self.shared.room.taken().await;
    }

    /// Ends what waits for space. Nothing is written any more where something waited.
    pub(crate) fn close(&self) {
        self.shared.closing.cancel();
    }

    /// Writes a new file where the old one is mostly garbage.
    async fn compact(&self) -> io::Result<()> {
        let mut writer = self.shared.writer.lock().await;
        let memory = self.memory().clone();
        writer.compact(&memory).await?;
        self.shared.room.set(writer.room());
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

/// Where the records of a recovered file end.
#[derive(Debug, Clone, Copy)]
struct Recovered {
    number: u64,
    image_end: u64,
    end: u64,
}

async fn recover(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    number: u64,
) -> Result<(Memory, Recovered), StoreError> {
    let path = directory.join(file_name(number));
    let bytes = read_file(disk, &path).await?;
    replay(&path, &bytes, number)
}

/// What a whole file says; `path` is for errors.
fn replay(path: &Path, bytes: &[u8], number: u64) -> Result<(Memory, Recovered), StoreError> {
    // The header was synced before the file got its name: a bad one is damage.
    let header = FileHeader::decode(bytes).map_err(|why| StoreError::damaged(path, why))?;
    if header.number != number {
        return Err(StoreError::damaged(path, format!("its header says {}", header.number)));
    }
    let mut memory = Memory::default();
    let mut position = FILE_HEADER_BYTES;
    while let Some(found) = find_record(bytes, number, position) {
        let record =
            found.record.map_err(|why| StoreError::damaged(path, format!("{why}, at {position}")))?;
        memory.apply(record);
        position = found.next;
    }
    let end = u64::try_from(position).map_err(|why| StoreError::damaged(path, why))?;
    let synced = header.image_end.max(synced_later(bytes, number, position));
    if synced > end {
        return Err(StoreError::damaged(
            path,
            format!("bad bytes at {end}, below {synced}, which was synced"),
        ));
    }
    Ok((memory, Recovered { number, image_end: header.image_end, end }))
}

/// As a recovery reads a log file's bytes, whatever its number: the file that says the same anew, if it is one.
pub(crate) fn rewritten(bytes: &[u8]) -> Option<Vec<u8>> {
    let number = FileHeader::decode(bytes).ok()?.number;
    let (memory, _) = replay(Path::new("log"), bytes, number).ok()?;
    let mut out = FileHeader { number, image_end: 0 }.encode().to_vec();
    for record in memory.records() {
        let position = u64::try_from(out.len()).ok()?;
        record.encode(Place { number, position, synced: 0 }, &mut out);
    }
    Some(out)
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
