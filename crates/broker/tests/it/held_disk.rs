//! A disk whose syncs of the journal a test holds back, and whose power it cuts: what was not synced then is not there.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use tempfile::TempDir;
use tidelog_runtime::{Disk, DiskFile, FileDisk, FileDiskConfig, IoFuture, Lane, OpenMode, watch};

/// What a write replaced, and where.
type Replaced = (u64, Vec<u8>);

pub(crate) struct HeldDisk {
    inner: FileDisk,
    shared: Arc<Shared>,
}

struct Shared {
    held: watch::Sender<bool>,
    /// Of each file of the journal what its writes since the last sync replaced, in their order.
    unsynced: Mutex<BTreeMap<PathBuf, Vec<Replaced>>>,
}

impl HeldDisk {
    pub(crate) fn new() -> Arc<Self> {
        let shared = Shared { held: watch::Sender::new(false), unsynced: Mutex::default() };
        Arc::new(Self { inner: FileDisk::new(FileDiskConfig::default()).unwrap(), shared: Arc::new(shared) })
    }

    /// Whether syncs wait.
    pub(crate) fn hold(&self, held: bool) {
        self.shared.held.send_replace(held);
    }

    /// A copy of this node's folder, as a cut of the power would leave it now.
    pub(crate) fn cut(&self, folder: &TempDir) -> Arc<TempDir> {
        let copied = tempfile::tempdir().unwrap();
        let unsynced = self.shared.unsynced.lock().unwrap();
        copy(folder.path(), copied.path());
        for (path, replaced) in &*unsynced {
            let place = copied.path().join(path.strip_prefix(folder.path()).unwrap());
            let file = File::options().write(true).open(place).unwrap();
            for (position, before) in replaced.iter().rev() {
                file.write_all_at(before, *position).unwrap();
            }
        }
        Arc::new(copied)
    }
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &place);
        } else {
            fs::copy(entry.path(), place).unwrap();
        }
    }
}

impl Disk for HeldDisk {
    fn open(&self, path: &Path, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>> {
        let (opened, shared, path) =
            (self.inner.open(path, mode, lane), Arc::clone(&self.shared), path.to_owned());
        Box::pin(async move {
            let inner = opened.await?;
            let is_journal = lane == Lane::Journal && mode != OpenMode::Read;
            Ok(if is_journal { Arc::new(HeldFile { inner, shared, path }) } else { inner })
        })
    }

    tidelog_testkit::forward_disk!(inner: create_dir_all, sync_dir, rename, remove_file, remove_dir_all, list_dir, space);
}

struct HeldFile {
    inner: Arc<dyn DiskFile>,
    shared: Arc<Shared>,
    path: PathBuf,
}

impl DiskFile for HeldFile {
    fn write_at(&self, position: u64, chunks: Vec<Bytes>) -> IoFuture<()> {
        // A file of the journal is as long as it will be before it is written to.
        let mut before = vec![0; chunks.iter().map(Bytes::len).sum()];
        File::open(&self.path).unwrap().read_exact_at(&mut before, position).unwrap();
        self.shared.unsynced.lock().unwrap().entry(self.path.clone()).or_default().push((position, before));
        self.inner.write_at(position, chunks)
    }

    fn sync_data(&self) -> IoFuture<()> {
        let (inner, shared, path) = (Arc::clone(&self.inner), Arc::clone(&self.shared), self.path.clone());
        Box::pin(async move {
            shared.held.subscribe().wait_for(|held| !held).await.unwrap();
            let covered = shared.unsynced.lock().unwrap().get(&path).map_or(0, Vec::len);
            inner.sync_data().await?;
            if let Some(replaced) = shared.unsynced.lock().unwrap().get_mut(&path) {
                replaced.drain(..covered);
            }
            Ok(())
        })
    }

    tidelog_testkit::forward_disk!(inner: read_at, allocate, set_len, len, push_out);
}
