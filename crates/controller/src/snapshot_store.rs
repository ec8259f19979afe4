//! Snapshots on disk: the state machine as of one log index, newest two kept.
//!
//! A snapshot is written aside, synced, renamed, and its directory synced before anybody hears of it. Where the newest
//! one is damaged the one before it is used, if the log still continues from there; otherwise the start is refused.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tidelog_core::cluster::ClusterState;
use tidelog_runtime::{Disk, write_aside};

use crate::{
    codec::{StoreError, decode_snapshot, encode_snapshot, seal, unseal},
    identity::read_file,
    raft_types::SnapshotMeta,
};

const MAGIC: &[u8; 8] = b"TIDESNAP";
const VERSION: u16 = 1;
const KEPT: usize = 2;

/// The directory's snapshots.
#[derive(Clone)]
pub struct SnapshotStore {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
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
    pub fn new(disk: Arc<dyn Disk>, directory: &Path) -> Self {
        Self { disk, directory: directory.to_owned() }
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
    /// [`StoreError::Io`]; it may then be there or not.
    pub(crate) async fn write(&self, meta: &SnapshotMeta, state: &[u8]) -> Result<(), StoreError> {
        let index = meta.last_log_id.map_or(0, |last| last.index);
        let bytes = seal(MAGIC, VERSION, &encode_snapshot(meta, state));
        let written = write_aside(&*self.disk, &self.directory, &file_name(index), bytes.into()).await;
        written.map_err(StoreError::io("write", self.path(index)))?;
        self.disk.sync_dir(&self.directory).await.map_err(StoreError::io("sync", &self.directory))?;
        let present = self.list().await?;
        for former in &present[..present.len().saturating_sub(KEPT)] {
            let path = self.path(*former);
            self.disk.remove_file(&path).await.map_err(StoreError::io("remove", path))?;
        }
        Ok(())
    }

    fn path(&self, index: u64) -> PathBuf {
        self.directory.join(file_name(index))
    }

    async fn read(&self, path: &Path) -> Result<StoredSnapshot, StoreError> {
        let bytes = read_file(&self.disk, path).await?;
        let refused = |why: tidelog_core::cluster::persist::DecodeError| StoreError::damaged(path, why);
        let (meta, state) =
            decode_snapshot(unseal(MAGIC, VERSION, &bytes).map_err(refused)?).map_err(refused)?;
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
