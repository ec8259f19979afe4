//! The budget of open segment files.
//!
//! **Owns** every open file of every segment. A file is opened at its first use and closed when it was idle longest and
//! another is wanted. Whoever works on a file holds a reference of its own, so closing never interrupts.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tidelog_runtime::{Disk, DiskFile, Lane, OpenMode};

use crate::segment::Segment;

/// Which use a file is open for; each has its own thread lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// A client waits.
    Read,
    /// Write-behind and repair.
    Write,
}

#[derive(Default)]
struct Open {
    files: BTreeMap<(PathBuf, Use), (Arc<dyn DiskFile>, u64)>,
    by_age: BTreeMap<u64, (PathBuf, Use)>,
    tick: u64,
}

/// Open segment files, the least recently used one closed first.
pub(crate) struct Descriptors {
    disk: Arc<dyn Disk>,
    max: usize,
    open: Mutex<Open>,
}

impl std::fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptors").field("max", &self.max).finish_non_exhaustive()
    }
}

impl Descriptors {
    pub(crate) fn new(disk: Arc<dyn Disk>, max: usize) -> Self {
        Self { disk, max: max.max(8), open: Mutex::new(Open::default()) }
    }

    /// How many files are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().files.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, opened if it is not.
    pub(crate) async fn get(&self, path: &Path, usage: Use) -> io::Result<Arc<dyn DiskFile>> {
        let key = (path.to_path_buf(), usage);
        if let Some(file) = self.lock().touch(&key) {
            return Ok(file);
        }
        let (mode, lane) = match usage {
            Use::Read => (OpenMode::Read, Lane::Read),
            Use::Write => (OpenMode::ReadWrite, Lane::Background),
        };
        let file = self.disk.open(path, mode, lane).await?;
        self.lock().insert(key, Arc::clone(&file), self.max);
        Ok(file)
    }

    /// A file of a segment, for who holds no lock of its files. Of one that is removed meanwhile it is good for this use alone:
    /// kept open, its space would not come back.
    pub(crate) async fn get_of(
        &self,
        segment: &Segment,
        extension: &str,
        usage: Use,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let path = segment.path(extension);
        let file = self.get(&path, usage).await?;
        // Looked at after the file is in the list: who removes the segment sets this first, and takes it out of the list then.
        if segment.is_removed() {
            self.forget(&path);
        }
        Ok(file)
    }

    /// Creates the file, empty.
    pub(crate) async fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.forget(path);
        let file = self.disk.open(path, OpenMode::CreateOrTruncate, Lane::Background).await?;
        self.lock().insert((path.to_path_buf(), Use::Write), Arc::clone(&file), self.max);
        Ok(file)
    }

    /// Closes a file that is about to go.
    pub(crate) fn forget(&self, path: &Path) {
        let mut open = self.lock();
        for usage in [Use::Read, Use::Write] {
            if let Some((_, tick)) = open.files.remove(&(path.to_path_buf(), usage)) {
                open.by_age.remove(&tick);
            }
        }
    }
}

impl Open {
    fn touch(&mut self, key: &(PathBuf, Use)) -> Option<Arc<dyn DiskFile>> {
        self.tick += 1;
        let tick = self.tick;
        let (file, last) = self.files.get_mut(key)?;
        let before = std::mem::replace(last, tick);
        let file = Arc::clone(file);
        self.by_age.remove(&before);
        self.by_age.insert(tick, key.clone());
        Some(file)
    }

    fn insert(&mut self, key: (PathBuf, Use), file: Arc<dyn DiskFile>, max: usize) {
        self.tick += 1;
        if let Some((_, before)) = self.files.insert(key.clone(), (file, self.tick)) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.tick, key);
        while self.files.len() > max {
            let Some((_, oldest)) = self.by_age.pop_first() else { return };
            self.files.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidelog_runtime::{FileDisk, FileDiskConfig};
    use tidelog_types::{Offset, PartitionIndex, Timestamp, TopicId, TopicPartition};

    use super::*;
    use crate::segment::{Content, LOG};

    #[tokio::test]
    async fn a_file_of_a_segment_that_goes_is_not_kept_open() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::new(FileDiskConfig::default()).unwrap();
        let descriptors = Descriptors::new(Arc::new(disk), 8);
        let place = TopicPartition { topic_id: TopicId::from_bytes([1; 16]), partition: PartitionIndex(0) };
        let content = Content::empty(Offset::ZERO, Timestamp::from_millis(0));
        let segment = Segment::new(place, folder.path(), Offset::ZERO, content);
        let path = segment.path(LOG);
        let file = descriptors.create(&path).await.unwrap();
        file.write_at(0, vec!["abc".into()]).await.unwrap();
        descriptors.get_of(&segment, LOG, Use::Read).await.unwrap();
        assert_eq!(descriptors.count(), 2);
        segment.note_removed();
        descriptors.forget(&path);
        let late = descriptors.get_of(&segment, LOG, Use::Read).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(late.read_at(0, 3).await.unwrap(), "abc");
        assert_eq!(descriptors.count(), 0);
        assert!(descriptors.get_of(&segment, LOG, Use::Read).await.is_err());
    }
}
