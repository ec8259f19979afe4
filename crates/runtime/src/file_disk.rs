//! The real [`Disk`]: files of this machine, with the threads that wait for them.
//!
//! **Owns** the threads of every lane and their queues.
//!
//! ```text
//! Lane::Journal     -> one thread, in order      -- sync --> one thread, in order
//! Lane::Read        -> a pool of slightly lower priority
//! Lane::Background  -> a pool of lower priority; also directories, and whatever opens or allocates a journal file
//! ```
//!
//! Large writes of the background and large reads that a client waits for go past the page cache.
//!
//! The journal's syncs have a thread of their own, so that what arrives during a sync is written while it runs.
//! A short write is continued and an interrupted call repeated; every other error is the caller's. Nothing is retried.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use rustix::fs::FallocateFlags;

use crate::{
    DirectIo,
    disk::{DirEntry, Disk, DiskFile, DiskSpace, IoFuture, Lane, OpenMode},
    metrics::{Counter, Histogram, Registry, SECONDS},
    threads::{lower_priority, lower_priority_of_reads, short_turns},
};

mod queue;

use queue::Queue;

/// Most buffers that one `pwritev` takes: the kernel's `UIO_MAXIOV`.
const BUFFERS_PER_WRITE_MAX: usize = 1024;

/// Zeros that are written at once where a file system cannot allocate.
const ZEROS: &[u8] = &[0; 64 * 1024];

/// How a [`FileDisk`] is built.
#[derive(Debug, Clone)]
pub struct FileDiskConfig {
    /// Threads of [`Lane::Read`].
    pub read_threads: usize,
    /// Threads of [`Lane::Background`].
    pub background_threads: usize,
    /// Where its metrics are registered.
    pub registry: Registry,
}

impl Default for FileDiskConfig {
    /// Four reads keep one NVMe device busy enough for a client. Whoever writes behind bounds itself; the threads are for
    /// the syncs of many files, which a file system takes together.
    fn default() -> Self {
        Self { read_threads: 4, background_threads: 8, registry: Registry::new() }
    }
}

/// Files of this machine. Clones share threads, which end with the last clone and the last open file.
#[derive(Debug, Clone)]
pub struct FileDisk {
    lanes: Arc<Lanes>,
}

#[derive(Debug)]
struct Lanes {
    journal: Queue,
    journal_sync: Queue,
    read: Queue,
    background: Queue,
    direct: DirectIo,
    metrics: DiskMetrics,
}

/// What is measured of one kind of operation, on the thread that performs it.
#[derive(Debug, Clone)]
struct Measure {
    seconds: Histogram,
    errors: Counter,
}

#[derive(Debug)]
struct DiskMetrics {
    write: Measure,
    read: Measure,
    sync: Measure,
    meta: Measure,
}

impl FileDisk {
    /// Starts the threads.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn new(config: FileDiskConfig) -> io::Result<Self> {
        Ok(Self {
            lanes: Arc::new(Lanes {
                journal: Queue::start("tidelog-journal", 1, short_turns)?,
                journal_sync: Queue::start("tidelog-sync", 1, short_turns)?,
                read: Queue::start("tidelog-read", config.read_threads, lower_priority_of_reads)?,
                background: Queue::start("tidelog-behind", config.background_threads, lower_priority)?,
                direct: DirectIo::new(),
                metrics: DiskMetrics::new(&config.registry),
            }),
        })
    }

    fn directory<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        self.lanes.background.submit(self.lanes.metrics.meta.around(work))
    }
}

impl Disk for FileDisk {
    fn open(&self, path: &Path, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>> {
        let (path, lanes) = (path.to_owned(), Arc::clone(&self.lanes));
        let queue = match lane {
            Lane::Read => &self.lanes.read,
            // Creating a file may wait for the file system's own journal; rounds must not wait behind it.
            Lane::Journal | Lane::Background => &self.lanes.background,
        };
        queue.submit(self.lanes.metrics.meta.around(move || {
            let file = Arc::new(open(&path, mode)?);
            Ok(Arc::new(OpenFile { file, lane, lanes }) as Arc<dyn DiskFile>)
        }))
    }

    fn create_dir_all(&self, path: &Path) -> IoFuture<()> {
        let path = path.to_owned();
        self.directory(move || std::fs::create_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> IoFuture<()> {
        let path = path.to_owned();
        let work = move || File::open(path)?.sync_all();
        self.lanes.background.submit(self.lanes.metrics.sync.around(work))
    }

    fn rename(&self, from: &Path, to: &Path) -> IoFuture<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.directory(move || std::fs::rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> IoFuture<()> {
        let path = path.to_owned();
        self.directory(move || std::fs::remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> IoFuture<()> {
        let path = path.to_owned();
        self.directory(move || match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        })
    }

    fn list_dir(&self, path: &Path) -> IoFuture<Vec<DirEntry>> {
        let path = path.to_owned();
        self.directory(move || list_dir(&path))
    }

    fn space(&self, path: &Path) -> IoFuture<DiskSpace> {
        let path = path.to_owned();
        self.directory(move || space(&path))
    }
}

#[derive(Debug)]
struct OpenFile {
    file: Arc<File>,
    lane: Lane,
    lanes: Arc<Lanes>,
}

impl OpenFile {
    fn queue(&self) -> &Queue {
        match self.lane {
            Lane::Journal => &self.lanes.journal,
            Lane::Read => &self.lanes.read,
            Lane::Background => &self.lanes.background,
        }
    }

    fn meta<T: Send + 'static>(
        &self,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let file = Arc::clone(&self.file);
        self.queue().submit(self.lanes.metrics.meta.around(move || work(&file)))
    }
}

impl DiskFile for OpenFile {
    fn write_at(&self, position: u64, chunks: Vec<Bytes>) -> IoFuture<()> {
        let (file, lanes, lane) = (Arc::clone(&self.file), Arc::clone(&self.lanes), self.lane);
        self.queue().submit(self.lanes.metrics.write.around(move || match lane {
            Lane::Background => lanes.direct.write(&file, position, chunks),
            Lane::Journal | Lane::Read => write_buffered(&file, position, &chunks),
        }))
    }

    fn read_at(&self, position: u64, length: usize) -> IoFuture<Bytes> {
        let (file, lanes, lane) = (Arc::clone(&self.file), Arc::clone(&self.lanes), self.lane);
        self.queue().submit_read(self.lanes.metrics.read.around(move || match lane {
            Lane::Read => lanes.direct.read(&file, position, length),
            Lane::Journal | Lane::Background => read_up_to(&file, position, length),
        }))
    }

    fn sync_data(&self) -> IoFuture<()> {
        let file = Arc::clone(&self.file);
        let work = self.lanes.metrics.sync.around(move || file.sync_data());
        match self.lane {
            Lane::Journal => self.lanes.journal.submit_through(&self.lanes.journal_sync, work),
            Lane::Read | Lane::Background => self.queue().submit(work),
        }
    }

    fn allocate(&self, length: u64) -> IoFuture<()> {
        self.meta(move |file| allocate(file, length))
    }

    fn set_len(&self, length: u64) -> IoFuture<()> {
        self.meta(move |file| file.set_len(length))
    }

    fn len(&self) -> IoFuture<u64> {
        self.meta(|file| Ok(file.metadata()?.len()))
    }

    fn push_out(&self, position: u64, length: u64) {
        let file = Arc::clone(&self.file);
        // It waits where the device's own queue is full, and nobody waits for it.
        drop(self.lanes.background.submit(move || push_out(&file, position, length)));
    }
}

pub(crate) fn open(path: &Path, mode: OpenMode) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match mode {
        OpenMode::Read => options.read(true),
        OpenMode::ReadWrite => options.read(true).write(true),
        OpenMode::CreateNew => options.read(true).write(true).create_new(true),
        OpenMode::CreateOrTruncate => options.read(true).write(true).create(true).truncate(true),
    };
    options.open(path)
}

/// Writes through the page cache.
pub(crate) fn write_buffered(file: &File, position: u64, chunks: &[Bytes]) -> io::Result<()> {
    write_all(position, chunks, |buffers, position| {
        rustix::io::pwritev(file, buffers, position).map_err(io::Error::from)
    })
}

/// Writes `chunks` through `write`, which may write less than it was given.
fn write_all(
    mut position: u64,
    chunks: &[Bytes],
    mut write: impl FnMut(&[IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let mut buffers = [IoSlice::new(&[]); BUFFERS_PER_WRITE_MAX];
    for chunks in chunks.chunks(BUFFERS_PER_WRITE_MAX) {
        for (buffer, chunk) in buffers.iter_mut().zip(chunks) {
            *buffer = IoSlice::new(chunk);
        }
        let mut left = &mut buffers[..chunks.len()];
        // Empty chunks are passed over, at the front here and behind by every advance.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let count = match write(left, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            position = u64::try_from(count)
                .ok()
                .and_then(|count| position.checked_add(count))
                .ok_or(io::ErrorKind::FileTooLarge)?;
            IoSlice::advance_slices(&mut left, count);
        }
    }
    Ok(())
}

pub(crate) fn read_up_to(file: &File, position: u64, length: usize) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    while bytes.len() < length {
        let at = u64::try_from(bytes.len())
            .ok()
            .and_then(|read| position.checked_add(read))
            .ok_or(io::ErrorKind::InvalidInput)?;
        // The allocator may have given more than was asked for: what exceeds `length` is cut below.
        let read = rustix::io::retry_on_intr(|| {
            rustix::io::pread(file, rustix::buffer::spare_capacity(&mut bytes), at)
        })?;
        if read == 0 {
            break;
        }
    }
    bytes.truncate(length);
    if bytes.len() < bytes.capacity() / 2 {
        // The end of the file: a small slice would pin the whole allocation.
        bytes.shrink_to_fit();
    }
    Ok(Bytes::from(bytes))
}

fn allocate(file: &File, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length)) {
        // A file system that cannot: its blocks are reserved by writing them.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => fill(file, length),
        outcome => Ok(outcome?),
    }
}

fn fill(file: &File, length: u64) -> io::Result<()> {
    let mut end = file.metadata()?.len();
    while end < length {
        let chunk = usize::try_from(length - end).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        write_buffered(file, end, &[Bytes::from_static(&ZEROS[..chunk])])?;
        end += u64::try_from(chunk).unwrap_or(u64::MAX);
    }
    Ok(())
}

#[allow(unsafe_code, reason = "no safe wrapper of sync_file_range is among the dependencies")]
fn push_out(file: &File, position: u64, length: u64) -> io::Result<()> {
    let (Ok(position), Ok(length)) = (i64::try_from(position), i64::try_from(length)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the call touches no memory.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), position, length, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn list_dir(path: &PathBuf) -> io::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // Removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            outcome => outcome?,
        };
        let length = if metadata.is_dir() { 0 } else { metadata.len() };
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push(DirEntry { name, is_dir: metadata.is_dir(), length });
    }
    entries.sort_unstable();
    Ok(entries)
}

fn space(path: &PathBuf) -> io::Result<DiskSpace> {
    let found = rustix::io::retry_on_intr(|| rustix::fs::statvfs(path))?;
    Ok(DiskSpace {
        total: found.f_blocks.saturating_mul(found.f_frsize),
        free: found.f_bavail.saturating_mul(found.f_frsize),
    })
}

impl Measure {
    /// The same work, timed and its error counted, on whatever thread it runs.
    fn around<T>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> impl FnOnce() -> io::Result<T> + Send + 'static {
        let measure = self.clone();
        move || {
            #[allow(
                clippy::disallowed_methods,
                reason = "a real device's time is measured, never acted upon"
            )]
            let start = std::time::Instant::now();
            let outcome = work();
            measure.seconds.observe_duration(start.elapsed());
            if outcome.is_err() {
                measure.errors.inc();
            }
            outcome
        }
    }
}

impl DiskMetrics {
    fn new(registry: &Registry) -> Self {
        let measure = |operation| Measure {
            seconds: registry.histogram_with(
                "runtime_disk_operation_seconds",
                "Time that the device took, without the time in the queue.",
                SECONDS,
                &[("operation", operation)],
            ),
            errors: registry.counter_with(
                "runtime_disk_errors_total",
                "Operations on files that ended in an error, those included that look for what is absent.",
                &[("operation", operation)],
            ),
        };
        Self { write: measure("write"), read: measure("read"), sync: measure("sync"), meta: measure("meta") }
    }
}

#[cfg(test)]
mod tests;
