//! The journal's files: filled with zeros once, used one after another, recycled after a durable checkpoint.
//!
//! **Owns** which file is written, which still hold what a recovery needs, and which are spare. A file takes a new
//! generation each time it is used; generations are never used twice.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidelog_runtime::{Disk, DiskFile, Lane, OpenMode, is_disk_full};
use tokio::sync::Notify;

use crate::{LogConfig, engine::Engine};

/// Rounds, and the file's header, begin on this border.
pub(crate) const BLOCK: u64 = 4096;

/// Zeros are written in pieces of this size.
const FILL_BYTES: usize = 1024 * 1024;

/// What a new file is filled with: of the program, not of the heap, for every file needs it.
static ZEROS: [u8; FILL_BYTES] = [0; FILL_BYTES];

/// How often a spare file that found no space is tried again.
const SPACE_RETRY: Duration = Duration::from_secs(1);

/// Spare files kept at least; one is made ready when the file in use is begun, another when it is half full.
const SPARES_MIN: usize = 2;

/// A file that may be used.
#[derive(Clone)]
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    pub(crate) length: u64,
    /// Open: a round takes it without any wait.
    pub(crate) file: Option<Arc<dyn DiskFile>>,
}

impl std::fmt::Debug for Spare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spare").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A file in use, or one that a recovery would still need.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) path: PathBuf,
    pub(crate) length: u64,
    pub(crate) generation: u64,
    /// The journal position of its first byte.
    pub(crate) start: u64,
    /// Its header and rounds so far, in bytes.
    pub(crate) used: u64,
    pub(crate) file: Arc<dyn DiskFile>,
}

impl Live {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.used
    }
}

#[derive(Default)]
struct Inner {
    live: VecDeque<Live>,
    spare: Vec<Spare>,
    next_number: u64,
    next_generation: u64,
    start: u64,
}

/// All files of the journal.
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    file_bytes: u64,
    /// Files kept, spare ones included: as many as the journal may take, so that none is filled anew in steady use.
    files_max: usize,
    inner: Mutex<Inner>,
    /// One file is made ready at a time: a round that finds none waits for the one that is being filled.
    making: tokio::sync::Mutex<()>,
    /// Where the next round goes.
    head: AtomicU64,
    /// Everything below is covered by a durable checkpoint.
    covered: AtomicU64,
    /// Told when a spare was taken, and when the next is soon wanted.
    pub(crate) spare_wanted: Notify,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// What a start found, and where the journal goes on.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) spare: Vec<Spare>,
    pub(crate) next_number: u64,
    pub(crate) next_generation: u64,
    pub(crate) start: u64,
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>, directory: PathBuf, config: &LogConfig, found: Found) -> Self {
        let file_bytes = config.journal_file_bytes.get().max(4 * BLOCK).next_multiple_of(BLOCK);
        let files_max = config.journal_bytes_max.get() / file_bytes;
        Self {
            disk,
            directory,
            file_bytes,
            files_max: usize::try_from(files_max).unwrap_or(usize::MAX).max(2 * SPARES_MIN),
            head: AtomicU64::new(found.start),
            covered: AtomicU64::new(found.start),
            spare_wanted: Notify::new(),
            making: tokio::sync::Mutex::new(()),
            inner: Mutex::new(Inner {
                live: VecDeque::new(),
                spare: found.spare,
                next_number: found.next_number,
                next_generation: found.next_generation,
                start: found.start,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The position of the next round: everything that is not in a round yet lands at or above it.
    pub(crate) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Bytes that a recovery would have to look at.
    pub(crate) fn bytes(&self) -> u64 {
        self.head().saturating_sub(self.covered.load(Ordering::Acquire))
    }

    /// The generation of the newest file.
    pub(crate) fn newest_generation(&self) -> u64 {
        self.lock().next_generation.saturating_sub(1)
    }

    /// The file that has room for a round of `bytes`, and whether it is new and needs its header first; `None` where none is
    /// ready: [`Files::provide`] makes one.
    pub(crate) fn for_round(&self, bytes: u64) -> Option<(Live, bool)> {
        let mut inner = self.lock();
        if let Some(live) = inner.live.back()
            && live.used + bytes <= live.length
        {
            return Some((live.clone(), false));
        }
        let ready =
            inner.spare.iter().position(|spare| spare.file.is_some() && spare.length >= BLOCK + bytes)?;
        let Spare { path, length, file } = inner.spare.remove(ready);
        let generation = inner.next_generation;
        inner.next_generation += 1;
        let start = inner.live.back().map_or(inner.start, Live::end);
        let live = Live { path, length, generation, start, used: 0, file: file? };
        inner.live.push_back(live.clone());
        drop(inner);
        self.spare_wanted.notify_one();
        Some((live, true))
    }

    /// Makes a spare ready that has room for a round of `bytes`, unless one is by now.
    pub(crate) async fn provide(&self, bytes: u64) -> io::Result<()> {
        let _one = self.making.lock().await;
        let bytes = BLOCK + bytes;
        let known = {
            let mut inner = self.lock();
            if inner.spare.iter().any(|spare| spare.file.is_some() && spare.length >= bytes) {
                return Ok(());
            }
            let closed = inner.spare.iter().position(|spare| spare.file.is_none() && spare.length >= bytes);
            closed.map(|index| inner.spare.remove(index))
        };
        self.make_ready(known, bytes).await
    }

    async fn make_ready(&self, known: Option<Spare>, bytes: u64) -> io::Result<()> {
        let spare = match known {
            Some(spare) => spare,
            None => self.make(bytes.max(self.file_bytes).next_multiple_of(BLOCK)).await?,
        };
        let file = self.disk.open(&spare.path, OpenMode::ReadWrite, Lane::Journal).await?;
        self.lock().spare.push(Spare { file: Some(file), ..spare });
        Ok(())
    }

    /// Counts a round of `bytes` (with the header, where there was one) to the newest file. From here on the head lies
    /// behind it.
    pub(crate) fn advance(&self, bytes: u64) {
        let mut inner = self.lock();
        let Some(live) = inner.live.back_mut() else { return };
        let before = is_half_full(live);
        live.used += bytes;
        self.head.store(live.end(), Ordering::Release);
        if is_half_full(live) && !before {
            self.spare_wanted.notify_one();
        }
    }

    /// Makes spare files ready for what is coming, and removes those that are too many.
    pub(crate) async fn prepare(&self) -> io::Result<()> {
        let surplus = {
            let mut inner = self.lock();
            let kept = inner.spare.len().min(self.files_max);
            let mut surplus = inner.spare.split_off(kept);
            // A stop left them before they had their length, or the setting was another one.
            surplus.extend(inner.spare.extract_if(.., |spare| spare.length < self.file_bytes));
            surplus
        };
        for spare in surplus {
            self.disk.remove_file(&spare.path).await?;
        }
        while self.wants_spare() {
            let _one = self.making.lock().await;
            let known = {
                let mut inner = self.lock();
                let closed = inner.spare.iter().position(|spare| spare.file.is_none());
                closed.map(|index| inner.spare.remove(index))
            };
            self.make_ready(known, self.file_bytes).await?;
        }
        Ok(())
    }

    /// Bytes of the spare files that are still to be made, at the most.
    pub(crate) fn bytes_to_make(&self) -> u64 {
        let missing = SPARES_MIN.saturating_sub(self.lock().spare.len());
        self.file_bytes.saturating_mul(missing as u64)
    }

    fn wants_spare(&self) -> bool {
        let inner = self.lock();
        let ready = inner.spare.iter().filter(|spare| spare.file.is_some()).count();
        let wanted = if inner.live.back().is_some_and(is_half_full) { SPARES_MIN } else { 1 };
        ready < wanted
    }

    /// Creates a file full of zeros; its name and length are durable before it is used.
    async fn make(&self, length: u64) -> io::Result<Spare> {
        let number = {
            let mut inner = self.lock();
            inner.next_number += 1;
            inner.next_number - 1
        };
        let path = self.directory.join(format!("{number:020}.journal"));
        let filled = self.fill(&path, length).await;
        if filled.is_err()
            && let Err(error) = self.disk.remove_file(&path).await
        {
            // It is found by the next start, and counted among its files.
            tracing::debug!(path = %path.display(), %error, "a journal file that was not filled stays");
        }
        filled?;
        Ok(Spare { path, length, file: None })
    }

    async fn fill(&self, path: &Path, length: u64) -> io::Result<()> {
        let file = self.disk.open(path, OpenMode::CreateOrTruncate, Lane::Background).await?;
        file.allocate(length).await?;
        // Blocks that were only reserved cost a change of the file's map at their first sync; zeros written now do not.
        let zeros = Bytes::from_static(&ZEROS);
        let mut position = 0;
        while position < length {
            let piece = usize::try_from(length - position).unwrap_or(FILL_BYTES).min(FILL_BYTES);
            file.write_at(position, vec![zeros.slice(..piece)]).await?;
            position += piece as u64;
        }
        file.sync_data().await?;
        self.disk.sync_dir(&self.directory).await
    }

    /// A durable checkpoint covers everything below `position`: files wholly below are spare now.
    pub(crate) async fn free_below(&self, position: u64) -> io::Result<()> {
        let mut removed = Vec::new();
        {
            let mut inner = self.lock();
            let before = inner.live.len();
            while inner.live.len() > 1 && inner.live.get(1).is_some_and(|next| next.start <= position) {
                let Some(freed) = inner.live.pop_front() else { break };
                if inner.spare.len() + inner.live.len() < self.files_max && freed.length == self.file_bytes {
                    inner.spare.push(Spare {
                        path: freed.path,
                        length: freed.length,
                        file: Some(freed.file),
                    });
                } else {
                    removed.push(freed.path);
                }
            }
            // A journal that rests gives back what it needed in its busiest time, a file at a time.
            if inner.live.len() == before && inner.spare.len() > SPARES_MIN {
                removed.extend(inner.spare.pop().map(|spare| spare.path));
            }
        }
        self.covered.fetch_max(position.min(self.head()), Ordering::AcqRel);
        for path in removed {
            self.disk.remove_file(&path).await?;
        }
        Ok(())
    }
}

fn is_half_full(live: &Live) -> bool {
    live.used >= live.length / 2
}

/// Keeps a spare file ready, so that no round waits for one to be filled with zeros.
pub(crate) async fn run(engine: Arc<Engine>) {
    let stop = engine.supervisor.shutdown_token();
    while engine.check().is_ok() {
        let prepared = engine.journal.prepare().await;
        let full = prepared.as_ref().is_err_and(is_disk_full);
        if full {
            // At once, while there still are files for what was accepted, and for what frees space.
            engine.note_full();
        }
        if let Err(error) = prepared
            && let Some(suppressed) = engine.space.lines.pass("spare journal file")
        {
            // The committer makes the file itself when it must, and then an error of the device is final.
            tracing::warn!(%error, suppressed, "no spare journal file");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = engine.journal.spare_wanted.notified() => {}
            () = engine.clock.sleep(SPACE_RETRY), if full => {}
        }
    }
}
