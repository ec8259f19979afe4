//! Deliberate faults and mistakes.

use std::{fmt, io, path::Path, sync::Arc, time::Duration};

/// A kind of operation on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    /// [`Disk::open`](tidelog_runtime::Disk::open).
    Open,
    /// [`Disk::create_dir_all`](tidelog_runtime::Disk::create_dir_all).
    CreateDir,
    /// [`Disk::sync_dir`](tidelog_runtime::Disk::sync_dir).
    SyncDir,
    /// [`Disk::rename`](tidelog_runtime::Disk::rename); a fault's path is the old one.
    Rename,
    /// [`Disk::remove_file`](tidelog_runtime::Disk::remove_file).
    RemoveFile,
    /// [`Disk::remove_dir_all`](tidelog_runtime::Disk::remove_dir_all).
    RemoveDir,
    /// [`Disk::list_dir`](tidelog_runtime::Disk::list_dir).
    List,
    /// [`Disk::space`](tidelog_runtime::Disk::space).
    Space,
    /// [`DiskFile::write_at`](tidelog_runtime::DiskFile::write_at).
    Write,
    /// [`DiskFile::read_at`](tidelog_runtime::DiskFile::read_at).
    Read,
    /// [`DiskFile::sync_data`](tidelog_runtime::DiskFile::sync_data).
    Sync,
    /// [`DiskFile::allocate`](tidelog_runtime::DiskFile::allocate).
    Allocate,
    /// [`DiskFile::set_len`](tidelog_runtime::DiskFile::set_len).
    SetLen,
    /// [`DiskFile::len`](tidelog_runtime::DiskFile::len).
    Len,
}

/// What happens to the operations that a [`Fault`] meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// It ends in this `errno`. A write may have written any first part; a failed sync leaves its data counted as clean, so that
    /// a later sync succeeds without it.
    Errno(i32),
    /// It answers with success and does nothing: a sync or directory sync that was never made, a write that was lost.
    /// Operations with a result are performed.
    Lie,
    /// A read's answer has one flipped bit; what is stored is unharmed.
    FlipBit,
    /// It takes this much longer.
    Slow(Duration),
}

impl FaultEffect {
    /// The device's error.
    pub const EIO: Self = Self::Errno(5);
    /// No space left.
    pub const ENOSPC: Self = Self::Errno(28);

    /// The outcome that replaces an operation without a result.
    pub(super) fn replaces(self) -> Option<io::Result<()>> {
        match self {
            Self::Errno(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
            Self::Lie => Some(Ok(())),
            Self::FlipBit | Self::Slow(_) => None,
        }
    }
}

type Predicate = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// Which operations go wrong, and how. Operations are counted as they are submitted.
#[derive(Clone)]
pub struct Fault {
    pub(super) kind: Option<OperationKind>,
    pub(super) path: Predicate,
    /// Matching operations that go well first.
    pub(super) skip: u64,
    /// Matching operations that go wrong then.
    pub(super) times: u64,
    pub(super) effect: FaultEffect,
}

impl Fault {
    /// Every operation of `kind` goes wrong.
    #[must_use]
    pub fn on(kind: OperationKind, effect: FaultEffect) -> Self {
        Self { kind: Some(kind), path: Arc::new(|_| true), skip: 0, times: u64::MAX, effect }
    }

    /// Every operation goes wrong.
    #[must_use]
    pub fn on_all(effect: FaultEffect) -> Self {
        Self { kind: None, ..Self::on(OperationKind::Open, effect) }
    }

    /// A mistake: `sync_data` answers without making anything durable.
    #[must_use]
    pub fn sync_lies() -> Self {
        Self::on(OperationKind::Sync, FaultEffect::Lie)
    }

    /// A mistake: `sync_dir` answers without making anything durable.
    #[must_use]
    pub fn dir_sync_lies() -> Self {
        Self::on(OperationKind::SyncDir, FaultEffect::Lie)
    }

    /// Only paths for which `predicate` holds.
    #[must_use]
    pub fn where_path(mut self, predicate: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Self {
        self.path = Arc::new(predicate);
        self
    }

    /// Only paths that end in `suffix`, read as text.
    #[must_use]
    pub fn where_path_ends(self, suffix: &'static str) -> Self {
        self.where_path(move |path| path.to_string_lossy().ends_with(suffix))
    }

    /// Only after `count` matching operations went well.
    #[must_use]
    pub fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Only `count` times.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Counts an operation; says what happens to it, should it match.
    pub(super) fn meets(&mut self, kind: OperationKind, path: &Path) -> Option<FaultEffect> {
        if self.times == 0 || self.kind.is_some_and(|own| own != kind) || !(self.path)(path) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.times = self.times.saturating_sub(u64::from(self.times != u64::MAX));
        Some(self.effect)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault")
            .field("kind", &self.kind)
            .field("skip", &self.skip)
            .field("times", &self.times)
            .field("effect", &self.effect)
            .finish_non_exhaustive()
    }
}
