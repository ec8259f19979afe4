//! The journal's files: filled with zeros once, used one after another, recycled after a durable checkpoint.
//!
//! **Owns** which file is written, which still hold what a recovery needs, and which are spare. A file takes a new
//! generation each time it is used; generations are never used twice.

use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidelog_runtime::{Disk, DiskFile, Lane, OpenMode};
use tokio::sync::Notify;

use crate::engine::Engine;

/// Rounds, and the file's header, begin on this border.
pub(crate) const BLOCK: u64 = 4096;

/// Zeros are written in pieces of this size.
const FILL_BYTES: usize = 1024 * 1024;

/// What a new file is filled with: of the program, not of the heap, for every file needs it.
static ZEROS: [u8; FILL_BYTES] = [0; FILL_BYTES];

/// Spare files kept; more are removed.
const SPARES_MAX: usize = 2;

/// A file that may be used.
#[derive(Debug, Clone)]
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    pub(crate) length: u64,
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
    inner: Mutex<Inner>,
    /// One file is made at a time: a round that needs one waits for the spare that is being filled.
    making: tokio::sync::Mutex<()>,
    /// Where the next round goes.
    head: AtomicU64,
    /// Everything below is covered by a durable checkpoint.
    covered: AtomicU64,
    /// Told when a spare was taken.
    pub(crate) spare_taken: Notify,
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
    pub(crate) fn new(disk: Arc<dyn Disk>, directory: PathBuf, file_bytes: u64, found: Found) -> Self {
        let file_bytes = file_bytes.max(4 * BLOCK).next_multiple_of(BLOCK);
        Self {
            disk,
            directory,
            file_bytes,
            head: AtomicU64::new(found.start),
            covered: AtomicU64::new(found.start),
            spare_taken: Notify::new(),
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

    /// The file that has room for a round of `bytes`, and whether it is new and needs its header first.
    pub(crate) async fn for_round(&self, bytes: u64) -> io::Result<(Live, bool)> {
        if let Some(live) = self.lock().live.back()
            && live.used + bytes <= live.length
        {
            return Ok((live.clone(), false));
        }
        let spare = self.take_spare(BLOCK + bytes).await?;
        self.spare_taken.notify_one();
        let file = self.disk.open(&spare.path, OpenMode::ReadWrite, Lane::Journal).await?;
        let mut inner = self.lock();
        let generation = inner.next_generation;
        inner.next_generation += 1;
        let start = inner.live.back().map_or(inner.start, Live::end);
        let live = Live { path: spare.path, length: spare.length, generation, start, used: 0, file };
        inner.live.push_back(live.clone());
        Ok((live, true))
    }

    async fn take_spare(&self, bytes: u64) -> io::Result<Spare> {
        let take = || {
            let mut inner = self.lock();
            let fitting = inner.spare.iter().position(|spare| spare.length >= bytes);
            fitting.map(|index| inner.spare.remove(index))
        };
        if let Some(spare) = take() {
            return Ok(spare);
        }
        let _one = self.making.lock().await;
        match take() {
            Some(spare) => Ok(spare),
            None => self.make(bytes.max(self.file_bytes).next_multiple_of(BLOCK)).await,
        }
    }

    /// Counts a round of `bytes` (with the header, where there was one) to the newest file. From here on the head lies
    /// behind it.
    pub(crate) fn advance(&self, bytes: u64) {
        let mut inner = self.lock();
        if let Some(live) = inner.live.back_mut() {
            live.used += bytes;
            self.head.store(live.end(), Ordering::Release);
        }
    }

    /// Makes a spare file where there is none, and removes those that are too many.
    pub(crate) async fn prepare(&self) -> io::Result<()> {
        let (count, surplus) = {
            let mut inner = self.lock();
            let kept = inner.spare.len().min(SPARES_MAX);
            (kept, inner.spare.split_off(kept))
        };
        for spare in surplus {
            self.disk.remove_file(&spare.path).await?;
        }
        if count > 0 {
            return Ok(());
        }
        let _one = self.making.lock().await;
        let spare = self.make(self.file_bytes).await?;
        self.lock().spare.push(spare);
        Ok(())
    }

    /// Creates a file full of zeros; its name and length are durable before it is used.
    async fn make(&self, length: u64) -> io::Result<Spare> {
        let number = {
            let mut inner = self.lock();
            inner.next_number += 1;
            inner.next_number - 1
        };
        let path = self.directory.join(format!("{number:020}.journal"));
        let file = self.disk.open(&path, OpenMode::CreateOrTruncate, Lane::Background).await?;
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
        self.disk.sync_dir(&self.directory).await?;
        Ok(Spare { path, length })
    }

    /// A durable checkpoint covers everything below `position`: files wholly below are spare now, or removed.
    pub(crate) async fn free_below(&self, position: u64) -> io::Result<()> {
        let mut removed = Vec::new();
        {
            let mut inner = self.lock();
            while inner.live.len() > 1 && inner.live.get(1).is_some_and(|next| next.start <= position) {
                let Some(freed) = inner.live.pop_front() else { break };
                if inner.spare.len() < SPARES_MAX && freed.length == self.file_bytes {
                    inner.spare.push(Spare { path: freed.path, length: freed.length });
                } else {
                    removed.push(freed.path);
                }
            }
        }
        self.covered.fetch_max(position.min(self.head()), Ordering::AcqRel);
        for path in removed {
            self.disk.remove_file(&path).await?;
        }
        Ok(())
    }
}

/// Keeps a spare file ready, so that no round waits for one to be filled with zeros.
pub(crate) async fn run(engine: Arc<Engine>) {
    let stop = engine.supervisor.shutdown_token();
    while engine.check().is_ok() {
        if let Err(error) = engine.journal.prepare().await {
            // The committer makes the file itself when it must, and then an error is final.
            tracing::warn!(%error, "no spare journal file");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = engine.journal.spare_taken.notified() => {}
        }
    }
}
