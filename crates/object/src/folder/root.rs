//! Whether the folder is still the one that was opened.
//!
//! A mount that ends leaves the empty folder beneath it; a folder that is moved leaves none, and whoever puts an object makes it
//! anew. What is put there is not in the bucket: it is gone for readers as soon as the mount is back. So an operation counts where
//! the folder is, behind it, what it was: the same directory, or, since a mount that comes back may have another number, one that
//! holds the same `cluster.json`.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidelog_format::cluster_json::CLUSTER_JSON_BYTES_MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Device and number of the directory.
    place: Option<(u64, u64)>,
    /// What its `cluster.json` holds, once there is one.
    claim: Option<Vec<u8>>,
}

impl Root {
    /// The folder as it is now. Blocks.
    pub(super) fn new(path: PathBuf) -> Self {
        let known = Known { place: place_of(&path).ok(), claim: claim_in(&path) };
        Self { path, known: Mutex::new(known) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Blocks.
    ///
    /// # Errors
    /// The folder is absent, is another one, or cannot be looked at. It may be tried again.
    pub(super) fn check(&self) -> io::Result<()> {
        let place = place_of(&self.path)?;
        let (is_same, has_claim) = {
            let known = self.lock();
            (known.place == Some(place), known.claim.is_some())
        };
        if is_same && has_claim {
            return Ok(());
        }
        // Without the lock: a file system may hang.
        let claim = claim_in(&self.path);
        let mut known = self.lock();
        if is_same {
            known.claim = known.claim.take().or(claim);
            return Ok(());
        }
        if claim.is_none() || known.claim != claim {
            let why = "another folder is in the place of the bucket's: it was moved, or a mount ended";
            return Err(io::Error::other(format!("{}: {why}", self.path.display())));
        }
        known.place = Some(place);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn claim_in(path: &Path) -> Option<Vec<u8>> {
    let mut claim = Vec::new();
    let file = File::open(path.join("cluster.json")).ok()?;
    file.take(CLUSTER_JSON_BYTES_MAX as u64 + 1).read_to_end(&mut claim).ok()?;
    (!claim.is_empty()).then_some(claim)
}
