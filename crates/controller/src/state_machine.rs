//! The state machine behind Raft: applies committed entries, publishes images, builds and installs snapshots.
//!
//! Its state is memory: after a start it is the newest snapshot, and the log is applied again from there.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::{
    EntryPayload, OptionalSend,
    storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot},
};
use tidelog_core::cluster::{ClusterState, LogIndex, MetadataImage};
use tidelog_runtime::watch;
use tidelog_types::ClusterId;

use crate::{
    codec::StoreError,
    metrics::ControllerMetrics,
    raft_types::{Applied, LogId, Proposal, SnapshotMeta, StoredMembership, TypeConfig},
    snapshot_store::SnapshotStore,
};

type RaftSnapshot = openraft::alias::SnapshotOf<TypeConfig, Bytes>;

/// The cluster's state as of the last applied entry.
pub struct StateMachine {
    state: ClusterState,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    snapshots: SnapshotStore,
    /// A snapshot of another cluster is not installed.
    cluster_id: ClusterId,
    images: watch::Sender<Arc<MetadataImage>>,
    metrics: ControllerMetrics,
}

impl StateMachine {
    /// Starts from the newest snapshot that the log continues from.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where there must be one and none can be used, or it is another cluster's.
    pub async fn open(
        snapshots: SnapshotStore,
        purged_index: Option<u64>,
        cluster_id: ClusterId,
        metrics: ControllerMetrics,
    ) -> Result<Self, StoreError> {
        let mut machine = Self {
            state: ClusterState::new(),
            last_applied: None,
            membership: StoredMembership::default(),
            snapshots,
            cluster_id,
            images: watch::Sender::new(Arc::new(MetadataImage::empty())),
            metrics,
        };
        if let Some(found) = machine.snapshots.newest(purged_index).await? {
            machine.check_cluster(&found.state).map_err(|why| StoreError::damaged("snapshot", why))?;
            machine.take(&found.meta, found.state, &found.bytes);
        }
        Ok(machine)
    }

    /// The images, one after each batch of applied entries.
    #[must_use]
    pub fn images(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.images.subscribe()
    }

    fn check_cluster(&self, state: &ClusterState) -> Result<(), String> {
        match state.image().cluster_id {
            Some(other) if other != self.cluster_id => {
                Err(format!("the snapshot is of cluster {other}, this is {}", self.cluster_id))
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, meta: &SnapshotMeta, state: ClusterState, bytes: &Bytes) {
        self.state = state;
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.metrics.snapshot_bytes.set(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.publish();
    }

    fn publish(&self) {
        let image = self.state.image();
        self.metrics.applied_index.set(image.index.0);
        self.metrics.deletions_queued.set(u64::try_from(image.deletions().len()).unwrap_or(u64::MAX));
        self.images.send_replace(Arc::new(image.clone()));
    }

    fn apply_entry(
        &mut self,
        log_id: LogId,
        payload: EntryPayload<Proposal, u64, openraft::impls::BasicNode>,
    ) -> Applied {
        let index = LogIndex(log_id.index);
        self.last_applied = Some(log_id);
        match payload {
            EntryPayload::Normal(Proposal(command)) => {
                let outcome = self.state.apply(index, &command);
                tracing::debug!(index = index.0, ?command, ?outcome, "command applied");
                Applied(Some(outcome))
            }
            EntryPayload::Blank => {
                self.state.advance(index);
                Applied(None)
            }
            EntryPayload::Membership(membership) => {
                self.state.advance(index);
                self.membership = StoredMembership::new(Some(log_id), membership);
                Applied(None)
            }
        }
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Bytes;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut answers = Vec::new();
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let applied = self.apply_entry(entry.log_id, entry.payload);
            answers.extend(responder.map(|responder| (responder, applied)));
        }
        // Who hears that its command was applied finds it in the image.
        self.publish();
        for (responder, applied) in answers {
            responder.send(applied);
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        // A snapshot that would not fit is not encoded to find that out.
        if !force && !self.snapshots.has_room().await {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            meta: SnapshotMeta { last_log_id: self.last_applied, last_membership: self.membership.clone() },
            state: self.state.clone(),
            snapshots: self.snapshots.clone(),
            metrics: self.metrics.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Bytes) -> Result<(), io::Error> {
        let state = ClusterState::decode_snapshot(&snapshot).map_err(io::Error::other)?;
        self.check_cluster(&state).map_err(io::Error::other)?;
        self.snapshots.write_when_it_fits(meta, &snapshot).await.map_err(io::Error::other)?;
        self.metrics.snapshots.inc();
        tracing::info!(last = ?meta.last_log_id, bytes = snapshot.len(), "controller snapshot installed");
        self.take(meta, state, &snapshot);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot>, io::Error> {
        let found = self.snapshots.newest(None).await.map_err(io::Error::other)?;
        Ok(found.map(|found| Snapshot { meta: found.meta, snapshot: found.bytes }))
    }
}

/// Builds one snapshot of the state as it was when this was made.
pub struct SnapshotBuilder {
    meta: SnapshotMeta,
    state: ClusterState,
    snapshots: SnapshotStore,
    metrics: ControllerMetrics,
}

impl SnapshotBuilder {
    /// The newest snapshot there is. Raft takes one that is not newer than the one it knows for none.
    async fn former(&self) -> Result<RaftSnapshot, io::Error> {
        let found = self.snapshots.newest(None).await.map_err(io::Error::other)?;
        Ok(match found {
            Some(found) => Snapshot { meta: found.meta, snapshot: found.bytes },
            None => Snapshot { meta: SnapshotMeta::default(), snapshot: Bytes::new() },
        })
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<RaftSnapshot, io::Error> {
        let bytes = Bytes::from(self.state.encode_snapshot());
        match self.snapshots.write(&self.meta, &bytes).await {
            Ok(()) => {}
            Err(why) if why.is_disk_full() => {
                tracing::warn!(error = %why, bytes = bytes.len(), "the disk is full: the former controller snapshot stays");
                return self.former().await;
            }
            Err(why) => return Err(io::Error::other(why)),
        }
        self.metrics.snapshots.inc();
        self.metrics.snapshot_bytes.set(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        tracing::debug!(last = ?self.meta.last_log_id, bytes = bytes.len(), "controller snapshot built");
        Ok(Snapshot { meta: self.meta.clone(), snapshot: bytes })
    }
}
