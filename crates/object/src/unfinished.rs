//! What puts into a folder leave behind when their process ends: a folder has no server that would forget them.
//!
//! **Owns** how they are named and found. **Does not own** when they are old enough to go, or whose they are.
//!
//! A put into a folder is written beside its key, under the key, a `#` and a number, synced, linked to its key and removed. A
//! process that is killed in between leaves that file, with or without the key, and no listing of the store shows it. To remove
//! one whose put is still on its way makes that put fail, and nothing else.

use std::{fs, io, path::PathBuf, sync::Arc};

use tidelog_types::Timestamp;

use crate::{ObjectClient, StoreKind};

/// Folders below one another that are looked into: keys have at most seven parts.
const DEPTH_MAX: usize = 16;

/// The puts that are not finished in a folder. Its calls block.
#[derive(Debug, Clone)]
pub struct UnfinishedPuts {
    folder: Arc<PathBuf>,
}

/// A file of a put that is not finished, or never will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedPut {
    /// The key that was put.
    pub key: String,
    /// When it was last written to, by the file system.
    pub modified: Timestamp,
    path: PathBuf,
}

impl ObjectClient {
    /// The unfinished puts of a store that is a folder; none of any other, which keep their own house.
    #[must_use]
    pub fn unfinished_puts(&self) -> Option<UnfinishedPuts> {
        let folder = self.url().folder().filter(|_| self.url().kind() == StoreKind::File)?;
        Some(UnfinishedPuts { folder: Arc::new(folder.to_owned()) })
    }
}

impl UnfinishedPuts {
    /// All of them, in the order of their keys.
    ///
    /// # Errors
    /// The folder cannot be read. What goes while it is read is no error.
    pub fn list(&self) -> io::Result<Vec<UnfinishedPut>> {
        let mut found = Vec::new();
        self.look_into(self.folder.as_ref().clone(), DEPTH_MAX, &mut found)?;
        found.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(found)
    }

    /// Removes the file of one. That it is gone is success.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(&self, put: &UnfinishedPut) -> io::Result<()> {
        match fs::remove_file(&put.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn look_into(&self, folder: PathBuf, depth: usize, found: &mut Vec<UnfinishedPut>) -> io::Result<()> {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && depth > 0 {
                self.look_into(entry.path(), depth - 1, found)?;
            } else if kind.is_file() {
                found.extend(self.unfinished(&entry));
            }
        }
        Ok(())
    }

    fn unfinished(&self, entry: &fs::DirEntry) -> Option<UnfinishedPut> {
        let path = entry.path();
        let key = path.strip_prefix(self.folder.as_ref()).ok()?.to_str()?;
        let (key, number) = key.rsplit_once('#')?;
        if key.is_empty() || number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let modified = entry.metadata().ok()?.modified().ok()?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let modified = Timestamp::from_wire(i64::try_from(since.as_millis()).ok()?)?;
        Some(UnfinishedPut { key: key.to_owned(), modified, path })
    }
}

#[cfg(test)]
mod tests {
    use tidelog_runtime::{Clock as _, Registry, SystemClock, SystemRng};

    use super::*;
    use crate::{StoreOptions, StoreUrl};

    #[tokio::test]
    async fn what_a_killed_put_left_is_found_and_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("topics/t-1/0");
        fs::create_dir_all(&below).unwrap();
        for name in ["a.seg", "a.seg#1", "b.seg#23", "c.seg#", "d.seg#x1", "#4"] {
            fs::write(below.join(name), name).unwrap();
        }
        fs::write(folder.path().join("cluster.json#1"), "{}").unwrap();
        let clock = Arc::new(SystemClock::new());
        let url = StoreUrl::file(folder.path()).unwrap();
        let (options, rng, registry) = (StoreOptions::default(), Arc::new(SystemRng), Registry::new());
        let client =
            ObjectClient::open(&url, options, Arc::clone(&clock) as _, rng, &registry).await.unwrap();
        let puts = client.unfinished_puts().unwrap();
        let found = puts.list().unwrap();
        let keys: Vec<&str> = found.iter().map(|put| put.key.as_str()).collect();
        assert_eq!(keys, ["cluster.json", "topics/t-1/0/", "topics/t-1/0/a.seg", "topics/t-1/0/b.seg"]);
        assert!(found.iter().all(|put| clock.wall().millis_since(put.modified) < 60_000));
        puts.remove(&found[2]).unwrap();
        puts.remove(&found[2]).unwrap();
        assert!(below.join("a.seg").exists() && !below.join("a.seg#1").exists());
        assert_eq!(puts.list().unwrap().len(), 3);
        let (memory, rng, registry) = (StoreUrl::memory(), Arc::new(SystemRng), Registry::new());
        let options = StoreOptions::default();
        let client = ObjectClient::open(&memory, options, clock, rng, &registry).await.unwrap();
        assert!(client.unfinished_puts().is_none());
    }
}
