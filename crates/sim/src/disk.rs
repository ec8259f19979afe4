//! A disk in memory that crashes, tears, lies and fills up, as its seed and its test want it.
//!
//! ```text
//! submitted -> in flight (a seeded time) -> takes effect, answered
//!                  |
//!                  +-- halted: takes effect or not, never answered
//!
//! [`SimDisk::kill`]   the process dies, the page cache lives: what took effect stays, synced or not
//! [`SimDisk::crash`]  the power goes: of what is unsynced, any blocks and any prefix of a directory's changes stay
//! ```
//!
//! Operations overlap and take effect in any order, except that [`Lane::Journal`] keeps its order. A sync covers what has
//! taken effect before it does. On a current-thread runtime with paused time, equal seeds give equal traces.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};
use tidelog_runtime::{
    CancellationToken, DirEntry, Disk, DiskFile, DiskSpace, IoFuture, Lane, OpenMode, Rng, SeededRng,
};
use tokio::sync::oneshot;

use crate::{Trace, digest};

mod content;
mod fault;
mod files;
mod schedule;

pub use fault::{Fault, FaultEffect, OperationKind};
use files::Files;
use schedule::{Deliver, Operation, State};

/// How a [`SimDisk`] behaves.
#[derive(Debug, Clone)]
pub struct SimDiskConfig {
    /// Determines every choice.
    pub seed: u64,
    /// Bytes that fit, if that is limited.
    pub capacity: Option<u64>,
    /// Whether a power cut may tear an edit inside a 512-byte block.
    pub tears: bool,
    /// The longest time in milliseconds that an operation other than a sync takes.
    pub operation_ms_max: u64,
    /// The longest time in milliseconds that a sync takes.
    pub sync_ms_max: u64,
}

impl SimDiskConfig {
    /// The defaults, with this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed, capacity: None, tears: true, operation_ms_max: 4, sync_ms_max: 10 }
    }
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// The machine loses its power.
    PowerCut,
    /// The process is killed; the operating system lives on.
    Kill,
}

/// The simulated disk. Clones are the same disk.
///
/// It must be used inside a tokio runtime with time.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    halted: CancellationToken,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(config: SimDiskConfig) -> Self {
        Self::traced(config, Trace::default())
    }

    /// An empty disk on which what happens is part of a trace.
    #[must_use]
    pub fn traced(config: SimDiskConfig, trace: Trace) -> Self {
        Self::of(State::new(config, trace))
    }

    fn of(state: State) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(state), halted: CancellationToken::new() }) }
    }

    /// Cuts the power; returns the disk as it is found afterwards. Operations on this one never end any more.
    #[must_use = "what survives is on the returned disk"]
    pub fn crash(&self) -> Self {
        self.halt(Halt::PowerCut);
        self.reopen()
    }

    /// Kills the process; returns the disk as the next one finds it. Operations on this one never end any more.
    #[must_use = "what survives is on the returned disk"]
    pub fn kill(&self) -> Self {
        self.halt(Halt::Kill);
        self.reopen()
    }

    /// Ends this life. Nothing happens where it has ended already.
    pub fn halt(&self, halt: Halt) {
        let unanswered = self.shared.lock().halt(halt);
        self.shared.halted.cancel();
        drop(unanswered);
    }

    /// Cuts the power once operation `number` is about to take effect, counted from 1 over those that change anything
    /// ([`SimDisk::operations`]): whether it still does is drawn, as for all others in flight.
    pub fn crash_at(&self, number: u64) {
        self.halt_at(number, Halt::PowerCut);
    }

    /// As [`SimDisk::crash_at`], with either end.
    pub fn halt_at(&self, number: u64, halt: Halt) {
        self.shared.lock().halt_at = Some((number, halt));
    }

    /// Waits until this life has ended.
    pub async fn halted(&self) {
        self.shared.halted.cancelled().await;
    }

    /// Whether this life has ended.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.shared.lock().halted
    }

    /// A new disk on what survived, with all faults that still apply. Called again, it is another copy.
    ///
    /// # Panics
    /// Where this life has not ended.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let state = self.shared.lock();
        assert!(state.halted, "a disk in use is crashed or killed before it is opened again");
        Self::of(state.reborn())
    }

    /// Adds a fault. Of several that match an operation the first counts.
    pub fn inject(&self, fault: Fault) {
        self.shared.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Changes how many bytes fit; what is there stays.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.shared.lock().files.set_capacity(capacity);
    }

    /// Flips a stored bit, in the page cache and on the device, now.
    ///
    /// # Errors
    /// Where there is no such file, or it ends before.
    pub fn flip_bit(&self, path: &Path, position: u64, bit: u32) -> io::Result<()> {
        let flipped = self.shared.lock().files.content_at(path)?.flip_bit(position, bit);
        if flipped { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// A file's bytes as the running system sees them, now.
    ///
    /// # Errors
    /// Where there is no such file.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.shared.lock().files.content_at(path)?.live().to_vec())
    }

    /// A file's bytes as of its last honest sync.
    ///
    /// # Errors
    /// Where there is no such file.
    pub fn durable_contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.shared.lock().files.content_at(path)?.durable().to_vec())
    }

    /// The paths of all files, sorted.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.shared.lock().files.paths()
    }

    /// How many file handles are open.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.shared.lock().files.open_count()
    }

    /// Operations that took effect and changed, or made durable, anything, over all lives.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.lock().operations
    }

    /// Every operation that took effect, over all lives, as text, and what else is part of its trace. Written bytes appear
    /// as a hash.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        self.shared.lock().trace.lines()
    }

    /// A hash of [`SimDisk::trace`].
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    fn directory<T: Send + 'static>(
        &self,
        kind: OperationKind,
        path: &Path,
        changes: bool,
        act: impl FnOnce(&mut Files, &Path) -> io::Result<T> + Send + 'static,
        replaced: fn(io::Result<()>) -> Option<io::Result<T>>,
    ) -> IoFuture<T> {
        let path = path.to_owned();
        let operation =
            Operation { kind, path: path.clone(), lane: Lane::Background, detail: String::new(), changes };
        self.shared.submit(operation, move |files, effect| {
            match effect.and_then(FaultEffect::replaces).and_then(replaced) {
                Some(outcome) => outcome,
                None => act(files, &path),
            }
        })
    }
}

/// An injected outcome stands for any operation without a result.
#[allow(clippy::unnecessary_wraps, reason = "the other way to replace an outcome may decline")]
fn any(outcome: io::Result<()>) -> Option<io::Result<()>> {
    Some(outcome)
}

/// An operation with a result cannot be lied about: only errors replace it.
fn errors_only<T>(outcome: io::Result<()>) -> Option<io::Result<T>> {
    outcome.err().map(Err)
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk(after {} operations)", self.operations())
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>> {
        let changes = matches!(mode, OpenMode::CreateNew | OpenMode::CreateOrTruncate);
        let detail = format!("{mode:?}");
        let path = path.to_owned();
        let operation = Operation {
            kind: OperationKind::Open,
            path: path.clone(),
            lane: Lane::Background,
            detail,
            changes,
        };
        // Weak, since operations in flight are part of what is shared.
        let shared = Arc::downgrade(&self.shared);
        self.shared.submit(operation, move |files, effect| {
            if let Some(Err(error)) = effect.and_then(FaultEffect::replaces) {
                return Err(error);
            }
            let shared = shared.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            let inode = files.open(&path, mode)?;
            Ok(Arc::new(SimFile { shared, inode, path, lane, writable: mode != OpenMode::Read })
                as Arc<dyn DiskFile>)
        })
    }

    fn create_dir_all(&self, path: &Path) -> IoFuture<()> {
        self.directory(OperationKind::CreateDir, path, true, Files::create_dir_all, any)
    }

    fn sync_dir(&self, path: &Path) -> IoFuture<()> {
        self.directory(OperationKind::SyncDir, path, true, Files::sync_dir, any)
    }

    fn rename(&self, from: &Path, to: &Path) -> IoFuture<()> {
        let to = to.to_owned();
        self.directory(OperationKind::Rename, from, true, move |files, from| files.rename(from, &to), any)
    }

    fn remove_file(&self, path: &Path) -> IoFuture<()> {
        self.directory(OperationKind::RemoveFile, path, true, Files::remove_file, any)
    }

    fn remove_dir_all(&self, path: &Path) -> IoFuture<()> {
        self.directory(OperationKind::RemoveDir, path, true, Files::remove_dir_all, any)
    }

    fn list_dir(&self, path: &Path) -> IoFuture<Vec<DirEntry>> {
        self.directory(OperationKind::List, path, false, |files, path| files.list_dir(path), errors_only)
    }

    fn space(&self, path: &Path) -> IoFuture<DiskSpace> {
        self.directory(OperationKind::Space, path, false, |files, _| Ok(files.space()), errors_only)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        operation: Operation,
        act: impl FnOnce(&mut Files, Option<FaultEffect>) -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.lock();
        if !state.halted {
            let effect = state.fault(operation.kind, &operation.path);
            let act = Box::new(move |files: &mut Files| {
                let outcome = act(files, effect);
                let text =
                    outcome.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |_| "ok".to_owned());
                let deliver: Deliver = Box::new(move || drop(answer.send(outcome)));
                (text, deliver)
            });
            let (id, due) = state.submit(operation, effect, act);
            let shared = Arc::clone(self);
            #[allow(clippy::disallowed_methods, reason = "the device is outside of what is simulated on it")]
            drop(tokio::spawn(async move {
                tokio::time::sleep_until(due).await;
                shared.perform(id);
            }));
        }
        drop(state);
        let halted = self.halted.clone();
        Box::pin(async move {
            match answered.await {
                Ok(outcome) if !halted.is_cancelled() => outcome,
                _ => std::future::pending().await,
            }
        })
    }

    fn perform(&self, id: u64) {
        let mut state = self.lock();
        let was_halted = state.halted;
        let deliveries = state.perform(id);
        let halted = state.halted;
        drop(state);
        if halted {
            // In a halt nothing is delivered any more, what was performed in the same breath included.
            if !was_halted {
                self.halted.cancel();
            }
            return;
        }
        for deliver in deliveries {
            deliver();
        }
    }
}

struct SimFile {
    shared: Arc<Shared>,
    inode: u64,
    path: PathBuf,
    lane: Lane,
    writable: bool,
}

impl SimFile {
    fn operation(&self, kind: OperationKind, detail: String) -> Operation {
        let changes = !matches!(kind, OperationKind::Read | OperationKind::Len);
        Operation { kind, path: self.path.clone(), lane: self.lane, detail, changes }
    }

    /// Submits what needs the file to be open for writing.
    fn edit(
        &self,
        kind: OperationKind,
        detail: String,
        act: impl FnOnce(&mut Files, Option<FaultEffect>) -> io::Result<()> + Send + 'static,
    ) -> IoFuture<()> {
        let writable = self.writable;
        self.shared.submit(self.operation(kind, detail), move |files, effect| {
            // EBADF, as the system says it of a file opened for reading.
            if writable { act(files, effect) } else { Err(io::Error::from_raw_os_error(9)) }
        })
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, position: u64, chunks: Vec<Bytes>) -> IoFuture<()> {
        let mut whole = BytesMut::new();
        chunks.iter().for_each(|chunk| whole.extend_from_slice(chunk));
        let bytes = whole.freeze();
        let detail = format!("{position}+{} #{:016x}", bytes.len(), digest(&bytes));
        let inode = self.inode;
        self.edit(OperationKind::Write, detail, move |files, effect| {
            match effect.and_then(FaultEffect::replaces) {
                Some(Err(error)) => {
                    files.fail_write(inode, position, &bytes)?;
                    Err(error)
                }
                Some(Ok(())) => Ok(()),
                None => files.write(inode, position, bytes),
            }
        })
    }

    fn read_at(&self, position: u64, length: usize) -> IoFuture<Bytes> {
        let (inode, seed) = (self.inode, self.shared.lock().operations);
        let operation = self.operation(OperationKind::Read, format!("{position}+{length}"));
        self.shared.submit(operation, move |files, effect| {
            if let Some(Err(error)) = effect.and_then(FaultEffect::replaces) {
                return Err(error);
            }
            let bytes = files.content(inode)?.read(position, length);
            if effect == Some(FaultEffect::FlipBit) && !bytes.is_empty() {
                let at = SeededRng::new(seed).below(bytes.len() as u64 * 8);
                let mut rotten = bytes.to_vec();
                rotten[usize::try_from(at / 8).unwrap_or(0)] ^= 1 << (at % 8);
                return Ok(Bytes::from(rotten));
            }
            Ok(bytes)
        })
    }

    fn sync_data(&self) -> IoFuture<()> {
        let inode = self.inode;
        let operation = self.operation(OperationKind::Sync, String::new());
        self.shared.submit(operation, move |files, effect| match effect.and_then(FaultEffect::replaces) {
            Some(Err(error)) => {
                files.fail_sync(inode)?;
                Err(error)
            }
            Some(Ok(())) => Ok(()),
            None => {
                files.content(inode)?.sync();
                Ok(())
            }
        })
    }

    fn allocate(&self, length: u64) -> IoFuture<()> {
        let inode = self.inode;
        self.edit(OperationKind::Allocate, length.to_string(), move |files, effect| {
            effect.and_then(FaultEffect::replaces).unwrap_or_else(|| files.allocate(inode, length))
        })
    }

    fn set_len(&self, length: u64) -> IoFuture<()> {
        let inode = self.inode;
        self.edit(OperationKind::SetLen, length.to_string(), move |files, effect| {
            effect
                .and_then(FaultEffect::replaces)
                .unwrap_or_else(|| files.content(inode).and_then(|content| content.set_len(length)))
        })
    }

    fn len(&self) -> IoFuture<u64> {
        let inode = self.inode;
        self.shared.submit(self.operation(OperationKind::Len, String::new()), move |files, effect| {
            match effect.and_then(FaultEffect::replaces) {
                Some(Err(error)) => Err(error),
                _ => Ok(files.content(inode)?.live().len() as u64),
            }
        })
    }

    fn push_out(&self, _position: u64, _length: u64) {
        // A hint, and not a promise: nothing may come to depend on it.
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().files.close(self.inode);
    }
}
