//! A disk on which one sync fails, as it fails on Linux: what it covered is lost, it is told once, and the next sync succeeds.
//!
//! **Owns** the plan ([`SyncFailure`]), and what every file would lose: whatever was written since its last sync. At the planned
//! sync those bytes are taken back in the file itself, so that whoever believes a later sync, or acknowledges all the same, is
//! found out by the next start.
//!
//! **Does not own** what a file is for: that is told from its path.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use rustix::io::Errno;
use tidelog_runtime::{Disk, DiskFile, IoFuture, Lane, OpenMode};
use tidelog_types::TopicPartition;

use crate::KillSwitch;

/// What is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncedFile {
    /// A round of the journal.
    Journal,
    /// A journal file in the making.
    JournalFile,
    /// A segment's batches.
    Segment,
    /// A segment's index.
    Index,
    /// A partition's leader epochs.
    Epochs,
    /// A partition's producers.
    Producers,
    /// A partition's fence.
    Fence,
    /// The log's checkpoint.
    Checkpoint,
    /// Whose the directory is.
    Meta,
    /// The controller's log.
    ControllerLog,
    /// The controller's snapshot.
    ControllerSnapshot,
    /// The controller's identity.
    ControllerIdentity,
    /// The names in a directory.
    Directory,
}

impl SyncedFile {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Journal,
        Self::JournalFile,
        Self::Segment,
        Self::Index,
        Self::Epochs,
        Self::Producers,
        Self::Fence,
        Self::Checkpoint,
        Self::Meta,
        Self::ControllerLog,
        Self::ControllerSnapshot,
        Self::ControllerIdentity,
        Self::Directory,
    ];

    /// Its name in plans and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::JournalFile => "journal-file",
            Self::Segment => "segment",
            Self::Index => "index",
            Self::Epochs => "epochs",
            Self::Producers => "producers",
            Self::Fence => "fence",
            Self::Checkpoint => "checkpoint",
            Self::Meta => "meta",
            Self::ControllerLog => "controller-log",
            Self::ControllerSnapshot => "controller-snapshot",
            Self::ControllerIdentity => "controller-identity",
            Self::Directory => "directory",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }

    fn of(path: &Path, lane: Lane) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let name = name.strip_suffix(".new").unwrap_or(name);
        let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str())?;
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        if folder.parse::<TopicPartition>().is_ok() {
            return match extension {
                "log" => Some(Self::Segment),
                "index" => Some(Self::Index),
                "snapshot" => Some(Self::Producers),
                _ => (name == "leader-epoch-checkpoint").then_some(Self::Epochs),
            };
        }
        match (folder, name, extension) {
            ("controller", "identity", _) => Some(Self::ControllerIdentity),
            ("controller", name, _) if name.starts_with("log-") => Some(Self::ControllerLog),
            ("controller", name, _) if name.starts_with("snapshot-") => Some(Self::ControllerSnapshot),
            (_, "log.checkpoint", _) => Some(Self::Checkpoint),
            (_, "meta.properties", _) => Some(Self::Meta),
            (_, _, "fence") => Some(Self::Fence),
            (_, _, "journal") if lane == Lane::Journal => Some(Self::Journal),
            (_, _, "journal") => Some(Self::JournalFile),
            _ => None,
        }
    }
}

/// The sync that fails: `file:nth`, such as `journal:20`, and `file:nth:full` where the disk says that it is full, as file
/// systems do that give blocks out late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncFailure {
    /// Of what.
    pub file: SyncedFile,
    /// The how-manyeth of the process, from 1.
    pub nth: u32,
    /// No space instead of an error of the device.
    pub full: bool,
}

impl FromStr for SyncFailure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || format!("`{text}` is no failure: write file:nth, or file:nth:full");
        let mut parts = text.split(':');
        let (file, nth) = parts.next().zip(parts.next()).ok_or_else(refused)?;
        let full = match (parts.next(), parts.next()) {
            (None, _) => false,
            (Some("full"), None) => true,
            _ => return Err(refused()),
        };
        let file = SyncedFile::ALL.into_iter().find(|known| known.name() == file).ok_or_else(refused)?;
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or_else(refused)?;
        Ok(Self { file, nth, full })
    }
}

/// Bytes that a write replaced.
struct Replaced {
    position: u64,
    length: usize,
    /// Fewer than `length` where the file ended.
    before: Vec<u8>,
}

/// What is known of a file, whoever has it open, under whatever name.
struct Known {
    path: Mutex<PathBuf>,
    unsynced: Mutex<Vec<Replaced>>,
}

struct Shared {
    plan: Option<SyncFailure>,
    counts: [AtomicU32; SyncedFile::ALL.len()],
    files: Mutex<BTreeMap<PathBuf, Arc<Known>>>,
    switch: KillSwitch,
}

/// See the module.
pub struct FailingDisk {
    inner: Arc<dyn Disk>,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for FailingDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailingDisk").field("plan", &self.shared.plan).finish_non_exhaustive()
    }
}

impl FailingDisk {
    /// Wraps a disk of this machine's files; `switch` is told of the failure.
    #[must_use]
    pub fn over(inner: Arc<dyn Disk>, plan: Option<SyncFailure>, switch: KillSwitch) -> Self {
        let counts = std::array::from_fn(|_| AtomicU32::new(0));
        Self { inner, shared: Arc::new(Shared { plan, counts, files: Mutex::default(), switch }) }
    }
}

impl Shared {
    /// Counts a sync, and says whether it is the planned one.
    fn meet(&self, file: Option<SyncedFile>, path: &Path) -> Option<io::Error> {
        let file = file?;
        let nth = self.counts[file.index()].fetch_add(1, Ordering::SeqCst).saturating_add(1);
        let plan = self.plan.filter(|plan| plan.file == file && plan.nth == nth)?;
        self.switch.tell(&serde_json::json!({
            "event": "sync failed", "file": file.name(), "nth": nth, "target": path.to_string_lossy(),
        }));
        Some(if plan.full { Errno::NOSPC } else { Errno::IO }.into())
    }

    fn known(&self, path: &Path, emptied: bool) -> Arc<Known> {
        let mut files = lock(&self.files);
        let fresh = || Arc::new(Known { path: Mutex::new(path.to_owned()), unsynced: Mutex::default() });
        let known = files.entry(path.to_owned()).or_insert_with(fresh);
        if emptied {
            *known = fresh();
        }
        Arc::clone(known)
    }

    fn renamed(&self, from: &Path, to: &Path) {
        let mut files = lock(&self.files);
        files.remove(to);
        if let Some(known) = files.remove(from) {
            to.clone_into(&mut lock(&known.path));
            files.insert(to.to_owned(), known);
        }
    }
}

impl Disk for FailingDisk {
    fn open(&self, path: &Path, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>> {
        let (opened, shared, path) =
            (self.inner.open(path, mode, lane), Arc::clone(&self.shared), path.to_owned());
        Box::pin(async move {
            let inner = opened.await?;
            if mode == OpenMode::Read {
                return Ok(inner);
            }
            let known = shared.known(&path, mode != OpenMode::ReadWrite);
            let file = Arc::new(File::options().read(true).write(true).open(&path)?);
            Ok(Arc::new(FailingFile { inner, shared, known, file, lane }) as Arc<dyn DiskFile>)
        })
    }

    fn sync_dir(&self, path: &Path) -> IoFuture<()> {
        match self.shared.meet(Some(SyncedFile::Directory), path) {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => self.inner.sync_dir(path),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> IoFuture<()> {
        let (renamed, shared) = (self.inner.rename(from, to), Arc::clone(&self.shared));
        let (from, to) = (from.to_owned(), to.to_owned());
        Box::pin(async move {
            renamed.await?;
            shared.renamed(&from, &to);
            Ok(())
        })
    }

    fn remove_file(&self, path: &Path) -> IoFuture<()> {
        lock(&self.shared.files).remove(path);
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> IoFuture<()> {
        lock(&self.shared.files).retain(|known, _| !known.starts_with(path));
        self.inner.remove_dir_all(path)
    }

    crate::forward_disk!(inner: create_dir_all, list_dir, space);
}

struct FailingFile {
    inner: Arc<dyn DiskFile>,
    shared: Arc<Shared>,
    known: Arc<Known>,
    /// The same file, for what is read before it is overwritten and written back.
    file: Arc<File>,
    lane: Lane,
}

fn read_up_to(file: &File, position: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut read = 0;
    while read < length {
        match file.read_at(&mut bytes[read..], position + read as u64) {
            Ok(0) | Err(_) => break,
            Ok(count) => read += count,
        }
    }
    bytes.truncate(read);
    bytes
}

/// Takes back what was written, the newest first. Behind a former end zeros are left.
fn take_back(file: &File, lost: Vec<Replaced>) -> io::Result<()> {
    for Replaced { position, length, mut before } in lost.into_iter().rev() {
        before.resize(length, 0);
        file.write_all_at(&before, position)?;
    }
    Ok(())
}

impl DiskFile for FailingFile {
    fn write_at(&self, position: u64, chunks: Vec<Bytes>) -> IoFuture<()> {
        let length = chunks.iter().map(Bytes::len).sum();
        // Nothing is written twice between two syncs but by who awaited the first write.
        let before = read_up_to(&self.file, position, length);
        lock(&self.known.unsynced).push(Replaced { position, length, before });
        self.inner.write_at(position, chunks)
    }

    fn sync_data(&self) -> IoFuture<()> {
        let path = lock(&self.known.path).clone();
        let failure = self.shared.meet(SyncedFile::of(&path, self.lane), &path);
        let covered = std::mem::take(&mut *lock(&self.known.unsynced));
        let synced = self.inner.sync_data();
        let Some(error) = failure else { return synced };
        let file = Arc::clone(&self.file);
        Box::pin(async move {
            // Everything before it has been written then.
            synced.await?;
            take_back(&file, covered)?;
            Err(error)
        })
    }

    crate::forward_disk!(inner: read_at, allocate, set_len, len, push_out);
}

#[cfg(test)]
mod tests {
    use tidelog_runtime::{FileDisk, FileDiskConfig};

    use super::*;

    fn failing(plan: &str) -> FailingDisk {
        let inner = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
        FailingDisk::over(inner, Some(plan.parse().unwrap()), KillSwitch::new(None, None))
    }

    async fn write(file: &Arc<dyn DiskFile>, position: u64, text: &'static str) {
        file.write_at(position, vec![Bytes::from_static(text.as_bytes())]).await.unwrap();
    }

    #[tokio::test]
    async fn the_planned_sync_loses_what_it_covered_and_the_next_one_believes_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.journal");
        let disk = failing("journal:2");
        let file = disk.open(&path, OpenMode::CreateNew, Lane::Journal).await.unwrap();
        write(&file, 0, "kept").await;
        file.sync_data().await.unwrap();
        write(&file, 2, "LOST").await;
        write(&file, 6, "LOST").await;
        let failed = file.sync_data().await.unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(5));
        write(&file, 10, "more").await;
        file.sync_data().await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"kept\0\0\0\0\0\0more");
    }

    #[tokio::test]
    async fn a_file_is_known_under_its_new_name_and_by_every_handle() {
        let folder = tempfile::tempdir().unwrap();
        let controller = folder.path().join("controller");
        std::fs::create_dir(&controller).unwrap();
        let disk = failing("controller-log:2:full");
        let spare = controller.join("log-spare");
        let named = controller.join("log-00000000000000000001");
        let file = disk.open(&spare, OpenMode::CreateOrTruncate, Lane::Background).await.unwrap();
        write(&file, 0, "image").await;
        file.sync_data().await.unwrap();
        disk.rename(&spare, &named).await.unwrap();
        write(&file, 5, "round").await;
        let again = disk.open(&named, OpenMode::ReadWrite, Lane::Background).await.unwrap();
        let failed = again.sync_data().await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
        assert_eq!(std::fs::read(&named).unwrap(), b"image\0\0\0\0\0");
    }

    #[test]
    fn a_plan_is_read_and_nonsense_is_not() {
        for file in SyncedFile::ALL {
            let plan: SyncFailure = format!("{}:7:full", file.name()).parse().unwrap();
            assert_eq!(plan, SyncFailure { file, nth: 7, full: true });
        }
        for wrong in ["", "journal", "journal:0", "journal:1:empty", "journal:1:full:2", "house:1"] {
            assert!(wrong.parse::<SyncFailure>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_have_their_kinds() {
        let of = |path: &str, lane| SyncedFile::of(Path::new(path), lane).map(SyncedFile::name);
        let partition = TopicPartition {
            topic_id: tidelog_types::TopicId::from_bytes([7; 16]),
            partition: tidelog_types::PartitionIndex(3),
        };
        let base = "00000000000000000000";
        for (name, kind) in [
            (format!("{base}.log"), Some("segment")),
            (format!("{base}.index"), Some("index")),
            (format!("{base}.index.new"), Some("index")),
            (format!("{base}.snapshot.new"), Some("producers")),
            ("leader-epoch-checkpoint.new".to_owned(), Some("epochs")),
            ("other".to_owned(), None),
        ] {
            assert_eq!(of(&format!("/d/{partition}/{name}"), Lane::Background), kind, "{name}");
        }
        for (path, kind) in [
            ("/d/journal/1.journal", Some("journal-file")),
            ("/d/log.checkpoint.new", Some("checkpoint")),
            ("/d/meta.properties.new", Some("meta")),
            ("/d/AAA-0.fence.new", Some("fence")),
            ("/d/controller/log-spare", Some("controller-log")),
            ("/d/controller/snapshot-spare", Some("controller-snapshot")),
            ("/d/controller/identity.new", Some("controller-identity")),
            ("/d/reserve", None),
        ] {
            assert_eq!(of(path, Lane::Background), kind, "{path}");
        }
        assert_eq!(of("/d/journal/1.journal", Lane::Journal), Some("journal"));
    }
}
