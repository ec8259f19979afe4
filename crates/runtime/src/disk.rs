//! The seam to files.
//!
//! A call submits its operation at once and returns a future of its completion; a dropped future cancels nothing (reads
//! excepted, which wait in their future where many are queued). Outside [`Lane::Journal`] operations run in any order:
//! who needs an order awaits. The real implementation is [`crate::FileDisk`]; the simulated one, which crashes, tears and lies, lives in
//! `tidelog-sim`. Both pass the same contract suite.

use std::{future::Future, io, path::Path, pin::Pin, sync::Arc};

use bytes::Bytes;

/// The completion of a submitted operation. Dropping it does not cancel the operation.
pub type IoFuture<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'static>>;

/// Which threads carry an open file's operations, so that one kind of work never waits behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The journal's: operations run in the order they were submitted, except that a sync holds up nothing behind it.
    /// It begins once everything submitted before it has ended, syncs end in their order, and what is submitted after
    /// it may be written, and reach the device, before it ends.
    Journal,
    /// Reads that a client waits for.
    Read,
    /// Write-behind, checkpoints, everything that nobody waits for.
    Background,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// It exists, and is only read.
    Read,
    /// It exists, and is read and written.
    ReadWrite,
    /// It is created, empty; an existing file is an error ([`io::ErrorKind::AlreadyExists`]).
    CreateNew,
    /// It is created, or emptied.
    CreateOrTruncate,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without its directory. Names that are not UTF-8 are listed lossily.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Length in bytes, of a file.
    pub length: u64,
}

/// How full a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Its size in bytes.
    pub total: u64,
    /// What this process may still write, in bytes.
    pub free: u64,
}

/// Whether an operation failed for lack of space, the file system's or a quota's: that passes when space is freed.
#[must_use]
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The error of a sync. It is never one of a full disk, whatever the system said: what the sync covered is lost, space does not
/// bring it back, and no later sync of the same bytes is to be believed.
#[must_use]
pub fn sync_error(error: io::Error) -> io::Error {
    if is_disk_full(&error) { io::Error::other(error) } else { error }
}

/// Files of one node.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file; its operations run on `lane`.
    ///
    /// # Errors
    /// As [`std::fs::OpenOptions`].
    fn open(&self, path: &Path, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>>;
    /// Creates a directory and what leads to it. Durable once [`Disk::sync_dir`] of its parent is.
    fn create_dir_all(&self, path: &Path) -> IoFuture<()>;
    /// Makes the names in a directory durable: creations, renames and removals.
    fn sync_dir(&self, path: &Path) -> IoFuture<()>;
    /// Renames a file over whatever is there. Durable once the directory is synced.
    fn rename(&self, from: &Path, to: &Path) -> IoFuture<()>;
    /// Removes a file. Durable once the directory is synced.
    fn remove_file(&self, path: &Path) -> IoFuture<()>;
    /// Removes a directory with everything in it. Absence is success.
    fn remove_dir_all(&self, path: &Path) -> IoFuture<()>;
    /// What a directory holds, sorted by name.
    fn list_dir(&self, path: &Path) -> IoFuture<Vec<DirEntry>>;
    /// How full the file system of `path` is.
    fn space(&self, path: &Path) -> IoFuture<DiskSpace>;
}

/// One open file.
#[expect(
    clippy::len_without_is_empty,
    reason = "a length is an operation here, and nobody asks for emptiness"
)]
pub trait DiskFile: Send + Sync + 'static {
    /// Writes all chunks one after another from `position` on, extending the file where it must. After an error or
    /// a crash any part of it may have been written, in any order of its blocks.
    fn write_at(&self, position: u64, chunks: Vec<Bytes>) -> IoFuture<()>;
    /// Reads up to `length` bytes from `position`: fewer only where the file ends.
    fn read_at(&self, position: u64, length: usize) -> IoFuture<Bytes>;
    /// Makes everything durable that was written before this was submitted, and the file's length (`fdatasync`).
    /// After an error nothing is known of what was written: it is never retried and believed.
    fn sync_data(&self) -> IoFuture<()>;
    /// Reserves blocks for `length` bytes and makes the file at least that long, new bytes being zero.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] where they do not fit.
    fn allocate(&self, length: u64) -> IoFuture<()>;
    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, length: u64) -> IoFuture<()>;
    /// The file's length in bytes.
    fn len(&self) -> IoFuture<u64>;
    /// Asks that a written range be pushed to the device soon; a hint without an answer.
    fn push_out(&self, position: u64, length: u64);
}
