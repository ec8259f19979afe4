//! Snapshots on disk: the state machine as of one log index, newest two kept.
//!
//! A snapshot is written aside, synced, renamed, and its directory synced before anybody hears of it. Where the newest
//! one is damaged the one before it is used, if the log still continues from there; otherwise the start is refused.
//!
//! What a snapshot is written into is `snapshot-spare`, whose blocks are allocated ahead; the oldest one is the next
//! spare. So a full disk does not keep the log from being purged. Where the spare is too small all the same, nothing has
//! changed, and the snapshot is tried again once there is space.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidelog_core::cluster::ClusterState;
use tidelog_runtime::{CancellationToken, Clock, Disk, DiskFile, Lane, OpenMode};
use tidelog_types::limits;

use crate::{
    codec::{StoreError, decode_snapshot, encode_snapshot, seal, unseal},
    identity::read_file,
    raft_types::SnapshotMeta,
};

pub(crate) const MAGIC: &[u8; 8] = b"TIDESNAP";
pub(crate) const VERSION: u16 = 1;
const KEPT: usize = 2;

/// The name of the next snapshot's file while it waits.
const SPARE: &str = "snapshot-spare";

/// How often a received snapshot that found the disk full is tried again.
const SPACE_RETRY: Duration = Duration::from_millis(500);

/// The directory's snapshots. Clones are the same ones.
#[derive(Clone)]
pub struct SnapshotStore {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    directory: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Held by whoever uses the spare file.
    turn: tokio::sync::Mutex<()>,
    /// Bytes that the spare file must have before it is worth building a snapshot: what did not fit, or nothing.
    missing: AtomicU64,
    /// Ends the wait for space.
    closing: CancellationToken,
}

/// One snapshot, read and checked.
pub(crate) struct StoredSnapshot {
    pub(crate) meta: SnapshotMeta,
    pub(crate) state: ClusterState,
    pub(crate) bytes: Bytes,
}

impl SnapshotStore {
    /// The snapshots of `directory`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, directory: &Path) -> Self {
        Self { disk, clock, directory: directory.to_owned(), shared: Arc::default() }
    }

    /// The newest snapshot that can be used with a log that was purged up to `purged_index`; `None` where neither
    /// says that there ever was one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where the log does not continue from any snapshot that is whole.
    pub(crate) async fn newest(
        &self,
        purged_index: Option<u64>,
    ) -> Result<Option<StoredSnapshot>, StoreError> {
        let mut damage = None;
        for index in self.list().await?.into_iter().rev() {
            let path = self.path(index);
            match self.read(&path).await {
                Ok(found) => {
                    let covers = found.meta.last_log_id.map(|last| last.index);
                    if purged_index <= covers {
                        return Ok(Some(found));
                    }
                    break;
                }
                Err(why @ StoreError::Damaged { .. }) => {
                    tracing::error!(path = %path.display(), error = %why, "controller snapshot is damaged");
                    damage = Some(why);
                }
                Err(why) => return Err(why),
            }
        }
        match (purged_index, damage) {
            (None, _) => Ok(None),
            (Some(_), Some(damage)) => Err(damage),
            (Some(purged), None) => Err(StoreError::damaged(
                &self.directory,
                format!("no snapshot covers the log up to {purged}, which was purged"),
            )),
        }
    }

    /// Makes a snapshot durable, and removes all but the newest two.
    ///
    /// # Errors
    /// [`StoreError::Io`]; it may then be there or not. Where [`StoreError::is_disk_full`] nothing has changed.
    pub(crate) async fn write(&self, meta: &SnapshotMeta, state: &[u8]) -> Result<(), StoreError> {
        let _turn = self.shared.turn.lock().await;
        let index = meta.last_log_id.map_or(0, |last| last.index);
        let bytes = Bytes::from(seal(MAGIC, VERSION, &encode_snapshot(meta, state)));
        let length = u64::try_from(bytes.len()).map_err(|why| StoreError::damaged(&self.directory, why))?;
        let spare = self.directory.join(SPARE);
        let file = self.spare_of(length).await;
        let file = file.inspect_err(|why| {
            if why.is_disk_full() {
                self.shared.missing.store(length, Ordering::Release);
            }
        })?;
        self.shared.missing.store(0, Ordering::Release);
        file.set_len(length).await.map_err(StoreError::io("cut", &spare))?;
        file.write_at(0, vec![bytes]).await.map_err(StoreError::io("write", &spare))?;
        file.sync_data().await.map_err(StoreError::io("sync", &spare))?;
        drop(file);
        self.disk.rename(&spare, &self.path(index)).await.map_err(StoreError::io("rename", &spare))?;
        self.disk.sync_dir(&self.directory).await.map_err(StoreError::io("sync", &self.directory))?;
        if let Err(error) = self.make_spare(length).await {
            tracing::warn!(directory = %self.directory.display(), %error, "no room ahead for the next controller snapshot");
        }
        Ok(())
    }

    /// As [`SnapshotStore::write`], but waits for space where the disk is full: a received snapshot has no other way.
    ///
    /// # Errors
    /// As there; a full disk only once [`SnapshotStore::close`] was called.
    pub(crate) async fn write_when_it_fits(
        &self,
        meta: &SnapshotMeta,
        state: &[u8],
    ) -> Result<(), StoreError> {
        loop {
            match self.write(meta, state).await {
                Err(why) if why.is_disk_full() => {
                    tracing::error!(error = %why, "the disk is full: a received snapshot waits for space");
                    tokio::select! {
                        // The end first: nobody hears of this snapshot any more.
                        biased;
                        () = self.shared.closing.cancelled() => return Err(why),
                        () = self.clock.sleep(SPACE_RETRY) => {}
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Makes room ahead for the next snapshot, twice the newest one's size.
    ///
    /// # Errors
    /// The disk's. Nothing is lost by it; it is to be tried again.
    pub(crate) async fn prepare(&self) -> Result<(), StoreError> {
        let _turn = self.shared.turn.lock().await;
        let newest = match self.list().await?.last() {
            Some(index) => self.length_of(&self.path(*index)).await?,
            None => 0,
        };
        self.make_spare(newest.max(self.shared.missing.load(Ordering::Acquire))).await
    }

    /// Whether a snapshot would find room; where the last one did not, room is looked for again first.
    pub(crate) async fn has_room(&self) -> bool {
        if self.shared.missing.load(Ordering::Acquire) == 0 {
            return true;
        }
        let _turn = self.shared.turn.lock().await;
        match self.spare_of(self.shared.missing.load(Ordering::Acquire)).await {
            Ok(_) => {
                self.shared.missing.store(0, Ordering::Release);
                true
            }
            Err(_) => false,
        }
    }

    /// Ends what waits for space.
    pub(crate) fn close(&self) {
        self.shared.closing.cancel();
    }

    /// The spare file, made where it is missing, with at least `length` bytes.
    async fn spare_of(&self, length: u64) -> Result<Arc<dyn DiskFile>, StoreError> {
        let path = self.directory.join(SPARE);
        let file = match self.disk.open(&path, OpenMode::ReadWrite, Lane::Background).await {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                self.disk.open(&path, OpenMode::CreateNew, Lane::Background).await
            }
            found => found,
        };
        let file = file.map_err(StoreError::io("open", &path))?;
        file.allocate(length).await.map_err(StoreError::io("allocate", &path))?;
        Ok(file)
    }

    /// Removes all but the newest two snapshots, one of them into the spare's place where there is none, and makes the
    /// spare large enough for one that is twice as large as `length`.
    async fn make_spare(&self, length: u64) -> Result<(), StoreError> {
        let spare = self.directory.join(SPARE);
        let names = self.disk.list_dir(&self.directory).await;
        let names = names.map_err(StoreError::io("list", &self.directory))?;
        let mut has_spare = names.iter().any(|entry| entry.name == SPARE);
        let present = self.list().await?;
        let formers = &present[..present.len().saturating_sub(KEPT)];
        for former in formers {
            let path = self.path(*former);
            if has_spare {
                self.disk.remove_file(&path).await.map_err(StoreError::io("remove", path))?;
            } else {
                self.disk.rename(&path, &spare).await.map_err(StoreError::io("rename", path))?;
                has_spare = true;
            }
        }
        if !formers.is_empty() {
            // Before anything is written into the spare: a crash would give it its former name back.
            self.disk.sync_dir(&self.directory).await.map_err(StoreError::io("sync", &self.directory))?;
        }
        let wanted = length.saturating_mul(2).max(limits::RAFT_SNAPSHOT_ALLOCATION_BYTES);
        self.spare_of(wanted).await.map(drop)
    }

    async fn length_of(&self, path: &Path) -> Result<u64, StoreError> {
        let file =
            self.disk.open(path, OpenMode::Read, Lane::Read).await.map_err(StoreError::io("open", path))?;
        file.len().await.map_err(StoreError::io("measure", path))
    }

    fn path(&self, index: u64) -> PathBuf {
        self.directory.join(file_name(index))
    }

    async fn read(&self, path: &Path) -> Result<StoredSnapshot, StoreError> {
        let bytes = read_file(&self.disk, path).await?;
        let refused = |why: tidelog_core::cluster::persist::DecodeError| StoreError::damaged(path, why);
        let (meta, state) =
            decode_snapshot(unseal(MAGIC, VERSION, &bytes).map_err(refused)?).map_err(refused)?;
        if path != self.path(meta.last_log_id.map_or(0, |last| last.index)) {
            return Err(StoreError::damaged(path, "it is another snapshot than its name says"));
        }
        let decoded = ClusterState::decode_snapshot(state).map_err(refused)?;
        Ok(StoredSnapshot { meta, state: decoded, bytes: Bytes::copy_from_slice(state) })
    }

    /// The indexes of all snapshots, ascending.
    async fn list(&self) -> Result<Vec<u64>, StoreError> {
        let entries =
            self.disk.list_dir(&self.directory).await.map_err(StoreError::io("list", &self.directory))?;
        let parse = |name: &str| name.strip_prefix("snapshot-").and_then(|rest| rest.parse().ok());
        let mut indexes: Vec<u64> = entries.iter().filter_map(|entry| parse(&entry.name)).collect();
        indexes.sort_unstable();
        Ok(indexes)
    }
}

fn file_name(index: u64) -> String {
    format!("snapshot-{index:020}")
}
