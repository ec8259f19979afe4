//! Deliberate mistakes of a disk or a store, to prove that a campaign finds them: it must go red with each.
//!
//! **Owns** the mistakes that outlive no restart by themselves, such as an acknowledgement before its write. They are wrappers, so
//! that the node is the same one.

use std::{
    collections::VecDeque,
    fmt,
    path::Path as FilePath,
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::{ObjectStore, ObjectStoreExt as _, PutOptions, PutPayload, PutResult, Result, path::Path};
use tidelog_runtime::{Disk, DiskFile, IoFuture, Lane, OpenMode};

use crate::forward::{forward_to, own_puts};

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carelessness {
    /// Rounds of the journal are acknowledged while they wait to be written.
    AckBeforeWrite,
    /// Rounds of the controller's log are: local segments go before their commit is in any file.
    CommitBeforeWrite,
    /// Every tenth segment object is gone once the next one is put.
    LoseObject,
    /// One byte of every tenth segment object is another one.
    RotObject,
    /// Deletions are answered and not done.
    KeepDeleted,
}

impl Carelessness {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::AckBeforeWrite, Self::CommitBeforeWrite, Self::LoseObject, Self::RotObject, Self::KeepDeleted];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AckBeforeWrite => "ack-before-write",
            Self::CommitBeforeWrite => "commit-before-write",
            Self::LoseObject => "lose-object",
            Self::RotObject => "rot-object",
            Self::KeepDeleted => "keep-deleted",
        }
    }
}

impl FromStr for Carelessness {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|mistake| mistake.name() == text)
            .ok_or_else(|| format!("`{text}` is none of {}", known()))
    }
}

/// Rounds that a careless file has acknowledged and not written. A kill takes them.
const ROUNDS_BEHIND: usize = 16;

/// A disk that makes one of the mistakes.
pub struct CarelessDisk {
    inner: Arc<dyn Disk>,
    mistake: Carelessness,
    behind: Arc<Behind>,
}

/// What was acknowledged and is not written, in order over all files: a kill takes the newest of it and leaves no hole, which the
/// next start would see.
#[derive(Default)]
struct Behind {
    writes: Mutex<VecDeque<Write>>,
}

struct Write {
    file: Arc<dyn DiskFile>,
    position: u64,
    chunks: Vec<Bytes>,
}

impl Behind {
    /// Submits what waits, but for the newest `kept`.
    fn write_out(&self, kept: usize) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        while writes.len() > kept {
            let Some(Write { file, position, chunks }) = writes.pop_front() else { return };
            // A submitted write is done whether or not its answer is waited for.
            drop(file.write_at(position, chunks));
        }
    }
}

impl CarelessDisk {
    /// Wraps a disk; mistakes of stores change nothing.
    #[must_use]
    pub fn over(inner: Arc<dyn Disk>, mistake: Carelessness) -> Self {
        Self { inner, mistake, behind: Arc::default() }
    }

    fn is_careless(&self, path: &FilePath, lane: Lane) -> bool {
        let folder = path.parent().and_then(FilePath::file_name);
        match self.mistake {
            Carelessness::AckBeforeWrite => lane == Lane::Journal,
            Carelessness::CommitBeforeWrite => {
                let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                folder.is_some_and(|folder| folder == "controller") && name.starts_with("log")
            }
            _ => false,
        }
    }
}

impl Disk for CarelessDisk {
    fn open(&self, path: &FilePath, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>> {
        let opened = self.inner.open(path, mode, lane);
        if !self.is_careless(path, lane) {
            return opened;
        }
        let behind = Arc::clone(&self.behind);
        Box::pin(async move {
            let file = CarelessFile { inner: opened.await?, behind };
            Ok(Arc::new(file) as Arc<dyn DiskFile>)
        })
    }

    crate::forward_disk!(inner: create_dir_all, sync_dir, rename, remove_file, remove_dir_all, list_dir, space);
}

struct CarelessFile {
    inner: Arc<dyn DiskFile>,
    behind: Arc<Behind>,
}

impl DiskFile for CarelessFile {
    fn write_at(&self, position: u64, chunks: Vec<Bytes>) -> IoFuture<()> {
        let write = Write { file: Arc::clone(&self.inner), position, chunks };
        self.behind.writes.lock().unwrap_or_else(PoisonError::into_inner).push_back(write);
        // The first bytes of a file make it one.
        self.behind.write_out(if position == 0 { 0 } else { ROUNDS_BEHIND });
        Box::pin(std::future::ready(Ok(())))
    }

    fn read_at(&self, position: u64, length: usize) -> IoFuture<Bytes> {
        self.behind.write_out(0);
        self.inner.read_at(position, length)
    }

    fn set_len(&self, length: u64) -> IoFuture<()> {
        self.behind.write_out(0);
        self.inner.set_len(length)
    }

    crate::forward_disk!(inner: sync_data, allocate, len, push_out);
}

/// Every how-manyeth segment object suffers.
const OBJECTS_BETWEEN: u32 = 10;

/// A store that makes one of the mistakes.
#[derive(Debug, Clone)]
pub struct CarelessStore {
    inner: Arc<dyn ObjectStore>,
    mistake: Carelessness,
    segments: Arc<AtomicU32>,
    doomed: Arc<Mutex<Option<Path>>>,
}

impl CarelessStore {
    /// Wraps a store; mistakes of disks change nothing.
    #[must_use]
    pub fn over(inner: Arc<dyn ObjectStore>, mistake: Carelessness) -> Self {
        Self { inner, mistake, segments: Arc::default(), doomed: Arc::default() }
    }

    async fn put(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let is_segment = location.as_ref().ends_with(".seg");
        let suffers =
            is_segment && self.segments.fetch_add(1, Ordering::Relaxed).is_multiple_of(OBJECTS_BETWEEN);
        if suffers && self.mistake == Carelessness::RotObject {
            let mut bytes = Bytes::from(payload).to_vec();
            // In the batches, which come first.
            if let Some(byte) = bytes.get_mut(100) {
                *byte ^= 0x20;
            }
            return self.inner.put_opts(location, bytes.into(), options).await;
        }
        let done = self.inner.put_opts(location, payload, options).await?;
        if is_segment && self.mistake == Carelessness::LoseObject {
            // Its uploader has looked at the one before, and committed it.
            let next = suffers.then(|| location.clone());
            let doomed = std::mem::replace(&mut *self.doomed(), next);
            if let Some(doomed) = doomed {
                self.inner.delete(&doomed).await?;
            }
        }
        Ok(done)
    }

    fn doomed(&self) -> std::sync::MutexGuard<'_, Option<Path>> {
        self.doomed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for CarelessStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CarelessStore({})", self.inner)
    }
}

impl ObjectStore for CarelessStore {
    own_puts!();
    forward_to!(inner, and reads and lists);

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.mistake {
            Carelessness::KeepDeleted => locations,
            _ => self.inner.delete_stream(locations),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use tidelog_runtime::{FileDisk, FileDiskConfig};

    use super::*;

    #[tokio::test]
    async fn each_mistake_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.journal");
        let inner = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
        let disk = CarelessDisk::over(inner, Carelessness::AckBeforeWrite);
        let file = disk.open(&path, OpenMode::CreateNew, Lane::Journal).await.unwrap();
        file.write_at(0, vec![Bytes::from_static(b"head")]).await.unwrap();
        file.write_at(4, vec![Bytes::from_static(b"lost")]).await.unwrap();
        file.sync_data().await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"head");

        for (mistake, first, after_delete) in [
            (Carelessness::LoseObject, None, false),
            (Carelessness::RotObject, Some([vec![0; 100], vec![0x20], vec![0; 9]].concat()), false),
            (Carelessness::KeepDeleted, Some(vec![0; 110]), true),
        ] {
            let memory = Arc::new(InMemory::new());
            let store = CarelessStore::over(Arc::clone(&memory) as _, mistake);
            let key = Path::from("a.seg");
            store.put_opts(&key, vec![0; 110].into(), PutOptions::default()).await.unwrap();
            store.put_opts(&Path::from("b.seg"), vec![1].into(), PutOptions::default()).await.unwrap();
            let found = match memory.get(&key).await {
                Ok(found) => Some(found.bytes().await.unwrap().to_vec()),
                Err(_) => None,
            };
            assert_eq!(found, first, "{}", mistake.name());
            store.delete(&key).await.unwrap();
            assert_eq!(memory.head(&key).await.is_ok(), after_delete, "{}", mistake.name());
        }
    }
}
