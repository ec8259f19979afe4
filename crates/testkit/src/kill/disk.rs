//! A disk that ends the process at a planned operation.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tidelog_runtime::{Disk, DiskFile, IoFuture, Lane, OpenMode};

use super::{
    Blow, KillSwitch, Moment, Phase,
    phase::{Place, controller_phase, place_of},
};

/// See the module.
pub struct KillingDisk {
    inner: Arc<dyn Disk>,
    switch: KillSwitch,
    /// The folder that lost a segment last: its sync belongs to the eviction.
    evicted_from: Mutex<Option<PathBuf>>,
}

impl KillingDisk {
    /// Wraps a disk.
    #[must_use]
    pub fn over(inner: Arc<dyn Disk>, switch: KillSwitch) -> Self {
        Self { inner, switch, evicted_from: Mutex::default() }
    }

    fn meet(&self, phase: Option<Phase>, operation: &'static str, path: &Path) -> Option<Blow> {
        self.switch.meet(phase, operation, &path.to_string_lossy())
    }

    fn evicted_from(&self) -> std::sync::MutexGuard<'_, Option<PathBuf>> {
        self.evicted_from.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What making, renaming or writing at a place belongs to.
fn making(place: Option<Place>) -> Option<Phase> {
    match place? {
        Place::JournalFile | Place::CheckpointFile | Place::Directory => Some(Phase::Checkpoint),
        Place::Controller => Some(Phase::Commit),
        Place::Segment | Place::PartitionFile | Place::PartitionFolder => Some(Phase::Roll),
    }
}

/// Runs an operation around a blow, if it meets one.
fn around<T: Send + 'static>(blow: Option<Blow>, work: impl FnOnce() -> IoFuture<T>) -> IoFuture<T> {
    let Some(blow) = blow else { return work() };
    match blow.plan.moment {
        Moment::Before => failed(blow.strike()),
        Moment::During => {
            // It is submitted, and somewhere between its beginning and its end.
            let submitted = work();
            let error = blow.strike();
            drop(submitted);
            failed(error)
        }
        Moment::After => {
            let submitted = work();
            Box::pin(async move {
                submitted.await?;
                Err(blow.strike())
            })
        }
    }
}

fn failed<T: Send + 'static>(error: io::Error) -> IoFuture<T> {
    Box::pin(std::future::ready(Err(error)))
}

impl Disk for KillingDisk {
    fn open(&self, path: &Path, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>> {
        let place = place_of(path);
        let creates = matches!(mode, OpenMode::CreateNew | OpenMode::CreateOrTruncate);
        let blow = if creates { self.meet(making(place), "create", path) } else { None };
        let (switch, path_kept) = (self.switch.clone(), path.to_owned());
        let opened = around(blow, || self.inner.open(path, mode, lane));
        Box::pin(async move {
            let inner = opened.await?;
            let file = KillingFile { inner, switch, path: path_kept, place, lane, wrote: Mutex::new(None) };
            Ok(Arc::new(file) as Arc<dyn DiskFile>)
        })
    }

    fn create_dir_all(&self, path: &Path) -> IoFuture<()> {
        around(self.meet(making(place_of(path)), "create directory", path), || {
            self.inner.create_dir_all(path)
        })
    }

    fn sync_dir(&self, path: &Path) -> IoFuture<()> {
        let after_eviction = self.evicted_from().take_if(|folder| folder == path).is_some();
        let phase = if after_eviction { Some(Phase::Eviction) } else { making(place_of(path)) };
        around(self.meet(phase, "sync directory", path), || self.inner.sync_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> IoFuture<()> {
        around(self.meet(making(place_of(to)), "rename", to), || self.inner.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> IoFuture<()> {
        let phase = match place_of(path) {
            Some(Place::Segment) => {
                *self.evicted_from() = path.parent().map(Path::to_owned);
                Some(Phase::Eviction)
            }
            place => making(place),
        };
        around(self.meet(phase, "remove", path), || self.inner.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> IoFuture<()> {
        around(self.meet(Some(Phase::RetentionAndDeletion), "remove directory", path), || {
            self.inner.remove_dir_all(path)
        })
    }

    crate::forward_disk!(inner: list_dir, space);
}

struct KillingFile {
    inner: Arc<dyn DiskFile>,
    switch: KillSwitch,
    path: PathBuf,
    place: Option<Place>,
    lane: Lane,
    /// The phase of the last write: its sync belongs to the same one.
    wrote: Mutex<Option<Phase>>,
}

impl KillingFile {
    fn meet(&self, phase: Option<Phase>, operation: &'static str) -> Option<Blow> {
        self.switch.meet(phase, operation, &self.path.to_string_lossy())
    }

    fn phase_of_write(&self, chunks: &[Bytes]) -> Option<Phase> {
        match (self.place, self.lane) {
            (Some(Place::JournalFile), Lane::Journal) => Some(Phase::Produce),
            (Some(Place::Controller), _) => match chunks {
                [round] => controller_phase(round),
                _ => None,
            },
            (place, _) => making(place),
        }
    }

    fn phase_of_sync(&self) -> Option<Phase> {
        match (self.place, self.lane) {
            (Some(Place::JournalFile), Lane::Journal) => Some(Phase::Produce),
            (Some(Place::Controller), _) => *self.wrote.lock().unwrap_or_else(PoisonError::into_inner),
            (place, _) => making(place),
        }
    }
}

/// The first half of some chunks.
fn half(chunks: &[Bytes]) -> Vec<Bytes> {
    let mut left = chunks.iter().map(Bytes::len).sum::<usize>() / 2;
    let mut kept = Vec::new();
    for chunk in chunks {
        let take = chunk.len().min(left);
        left -= take;
        if take > 0 {
            kept.push(chunk.slice(..take));
        }
    }
    kept
}

impl DiskFile for KillingFile {
    fn write_at(&self, position: u64, chunks: Vec<Bytes>) -> IoFuture<()> {
        let phase = self.phase_of_write(&chunks);
        *self.wrote.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        let Some(blow) = self.meet(phase, "write") else { return self.inner.write_at(position, chunks) };
        if blow.plan.moment != Moment::During {
            return around(Some(blow), || self.inner.write_at(position, chunks));
        }
        let torn = self.inner.write_at(position, half(&chunks));
        Box::pin(async move {
            torn.await?;
            Err(blow.strike())
        })
    }

    fn sync_data(&self) -> IoFuture<()> {
        around(self.meet(self.phase_of_sync(), "sync"), || self.inner.sync_data())
    }

    fn allocate(&self, length: u64) -> IoFuture<()> {
        around(self.meet(making(self.place), "allocate"), || self.inner.allocate(length))
    }

    fn set_len(&self, length: u64) -> IoFuture<()> {
        around(self.meet(making(self.place), "set length"), || self.inner.set_len(length))
    }

    crate::forward_disk!(inner: read_at, len, push_out);
}

#[cfg(test)]
mod tests {
    use tidelog_runtime::{FileDisk, FileDiskConfig};

    use super::*;
    use crate::kill::KillPlan;

    async fn journal_after(plan: &str) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.journal");
        let plan: KillPlan = plan.parse().unwrap();
        let switch = KillSwitch::ending(Some(plan), None, || ());
        switch.serving();
        let inner = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
        let disk = KillingDisk::over(inner, switch.clone());
        drop(disk.open(&path, OpenMode::CreateNew, Lane::Background).await.unwrap());
        assert_eq!((switch.count(Phase::Checkpoint), switch.count(Phase::Produce)), (1, 0));
        let file = disk.open(&path, OpenMode::ReadWrite, Lane::Journal).await.unwrap();
        file.write_at(0, vec![Bytes::from_static(b"ab")]).await.unwrap();
        let second = vec![Bytes::from_static(b"cd"), Bytes::from_static(b"efgh")];
        assert!(file.write_at(2, second).await.is_err(), "this is the planned one");
        assert_eq!(switch.count(Phase::Produce), 2);
        std::fs::read(&path).unwrap()
    }

    #[tokio::test]
    async fn the_process_ends_before_in_the_middle_of_and_after_the_planned_write() {
        assert_eq!(journal_after("produce:2:before").await, b"ab");
        assert_eq!(journal_after("produce:2:during").await, b"abcde");
        assert_eq!(journal_after("produce:2:after").await, b"abcdefgh");
    }

    #[tokio::test]
    async fn removals_of_segments_and_the_sync_behind_them_are_evictions() {
        let folder = tempfile::tempdir().unwrap();
        let partition = folder.path().join("AAAAAAAAAAAAAAAAAAAAAQ-0");
        let switch = KillSwitch::ending(None, None, || ());
        switch.serving();
        let inner = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
        let disk = KillingDisk::over(inner, switch.clone());
        disk.create_dir_all(&partition).await.unwrap();
        let path = partition.join("00000000000000000000.log");
        drop(disk.open(&path, OpenMode::CreateOrTruncate, Lane::Background).await.unwrap());
        disk.sync_dir(&partition).await.unwrap();
        assert_eq!((switch.count(Phase::Roll), switch.count(Phase::Eviction)), (3, 0));
        disk.remove_file(&path).await.unwrap();
        disk.sync_dir(&partition).await.unwrap();
        disk.sync_dir(&partition).await.unwrap();
        assert_eq!((switch.count(Phase::Roll), switch.count(Phase::Eviction)), (4, 2));
        disk.remove_dir_all(&partition).await.unwrap();
        assert_eq!(switch.count(Phase::RetentionAndDeletion), 1);
    }
}
