//! What the background tasks share, and the views that the planners see.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tidelog_core::{
    cluster::{MetadataImage, PartitionImage},
    retention::{Keep, PageStart, RetentionPlan, RetentionView},
    topic_config::TopicConfig,
    upload::{LocalSegment, PageEntries, UploadView},
};
use tidelog_format::manifest::{ManifestEntry, PageId};
use tidelog_object::{ChunkCache, GuardedClaim, ObjectClient};
use tidelog_replica::{PartitionHandle, ReplicaManager};
use tidelog_runtime::{Budget, Clock, Rng, Supervisor};
use tidelog_types::{LeaderEpoch, Offset, TopicName, TopicPartition, UploadId, UploadSequence};
use tracing::{info, warn};

use crate::{
    TierConfig,
    commands::ClusterCommands,
    metrics::TierMetrics,
    pages::{ManifestPages, PageError},
    task::TickError,
};

/// Room for objects where the bucket is a folder beside the log.
#[derive(Default)]
pub(crate) struct Room {
    /// The bucket is on the file system of the data directory.
    pub(crate) is_shared: AtomicBool,
    /// Uploads wait for free space.
    waits: AtomicBool,
}

/// Everything that a task may use.
pub(crate) struct Context {
    pub(crate) config: TierConfig,
    pub(crate) partitions: ReplicaManager,
    pub(crate) commands: Arc<dyn ClusterCommands>,
    pub(crate) store: ObjectClient,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) supervisor: Supervisor,
    pub(crate) metrics: TierMetrics,
    pub(crate) memory: Budget,
    pub(crate) pages: ManifestPages,
    pub(crate) cache: OnceLock<Arc<dyn ChunkCache>>,
    pub(crate) claim: OnceLock<GuardedClaim>,
    pub(crate) room: Room,
    pub(crate) sequence: AtomicU64,
}

impl Context {
    /// A name for an upload that this incarnation never gave before, above what is fenced. The incarnation is new at each
    /// start, so the count need not outlive it.
    pub(crate) fn next_upload(&self) -> UploadId {
        let image = self.commands.image();
        let fenced = image.broker(self.config.broker).and_then(|broker| broker.fenced_uploads);
        let above = fenced.map_or(0, |fenced| fenced.0.saturating_add(1));
        self.sequence.fetch_max(above, Ordering::Relaxed);
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        UploadId { incarnation: self.config.incarnation, sequence: UploadSequence(sequence) }
    }

    /// Whether this start is the newest of its node: everything of an older one is refused (T7), so it tries nothing.
    pub(crate) fn is_newest(&self, image: &MetadataImage) -> bool {
        image.broker(self.config.broker).is_some_and(|broker| broker.incarnation == self.config.incarnation)
    }

    /// Whether this start still is the newest of its broker by the bucket, too, where a copy of the data directory would be
    /// seen: without that, nothing is deleted.
    pub(crate) async fn may_delete(&self) -> Result<(), TickError> {
        match self.claim.get() {
            Some(claim) => {
                claim.check().await.map_err(|error| TickError::new("the claim of the bucket", error))
            }
            None => Ok(()),
        }
    }

    /// Takes room for an object: false where the bucket would take it from the log, whose producers are refused at the same
    /// floor. It is tried again at each tick.
    pub(crate) fn take_room(&self, partition: &PartitionHandle, bytes: u64) -> bool {
        let has_room = !self.room.is_shared.load(Ordering::Relaxed) || partition.take_room(bytes);
        if self.room.waits.swap(!has_room, Ordering::Relaxed) == has_room {
            self.metrics.uploads_wait_for_space.set(u64::from(!has_room));
            if has_room {
                info!("there is space for uploads again");
            } else {
                warn!(
                    bytes,
                    "uploads wait: the bucket is a folder on the log's own disk, whose free space is at its floor"
                );
            }
        }
        has_room
    }

    /// Whether work that belongs to no partition is this node's: it has the least id of those that live.
    pub(crate) fn does_cluster_work(&self, image: &MetadataImage) -> bool {
        let first = image.brokers().find(|broker| !broker.fenced);
        first.is_some_and(|broker| broker.id == self.config.broker)
    }

    /// Whether this node leads a partition, by the cluster's metadata.
    pub(crate) fn leads(&self, partition: &PartitionImage) -> bool {
        partition.leader == Some(self.config.broker)
    }

    /// What a page lists.
    pub(crate) async fn page(
        &self,
        topic: &TopicName,
        place: TopicPartition,
        page: PageId,
    ) -> Result<Arc<[ManifestEntry]>, PageError> {
        self.pages.read(&self.store, topic, place, page).await
    }

    /// What of a partition retention would take now, as far as the pages at hand tell.
    pub(crate) fn retention_plan(&self, at: &Standing) -> RetentionPlan {
        self.retention_plan_with(at, PageEntries::new(), None)
    }

    /// As [`Context::retention_plan`], with pages that are at hand whether they are kept or not, and what is known of the page
    /// at the log start.
    pub(crate) fn retention_plan_with(
        &self,
        at: &Standing,
        mut read: PageEntries,
        known: Option<PageStart>,
    ) -> RetentionPlan {
        let keep = retention_limits(&at.topic);
        if keep == Keep::default() {
            return RetentionPlan::default();
        }
        read.extend(self.pages.held(at.place, &at.image.manifest.lines));
        RetentionView { known, ..at.retention_view(&read) }.plan(self.clock.wall(), keep)
    }
}

/// One partition of this node at one moment.
pub(crate) struct Standing {
    pub(crate) place: TopicPartition,
    pub(crate) name: TopicName,
    /// The epoch that both this node and the cluster say it leads in.
    pub(crate) leader_epoch: Option<LeaderEpoch>,
    pub(crate) snapshot: Arc<tidelog_core::partition::PartitionSnapshot>,
    /// The newest image: ahead of the snapshot for the moment that a change takes to reach the partition.
    pub(crate) image: Arc<PartitionImage>,
    pub(crate) topic: TopicConfig,
    pub(crate) segments: Vec<LocalSegment>,
}

impl Standing {
    /// `None` where the cluster does not know the partition any more.
    pub(crate) fn of(handle: &PartitionHandle, metadata: &MetadataImage) -> Option<Self> {
        let place = handle.place();
        let image = Arc::clone(metadata.partition(&place)?);
        let snapshot = handle.snapshot();
        let segments = handle.local_segments().into_iter();
        let leads = snapshot.leading && snapshot.leader_epoch == image.leader_epoch && image.leader.is_some();
        Some(Self {
            place,
            name: handle.topic().clone(),
            leader_epoch: leads.then_some(image.leader_epoch),
            topic: handle.settings().topic.clone(),
            segments: segments.filter(|segment| !segment.range.is_empty() || !segment.sealed).collect(),
            snapshot,
            image,
        })
    }

    pub(crate) fn log_start(&self) -> Offset {
        self.snapshot.log_start.max(self.image.log_start)
    }

    pub(crate) fn upload_view(&self, retention: &RetentionPlan) -> UploadView {
        UploadView {
            leader_epoch: self.leader_epoch,
            tiered: self.image.tiered && self.snapshot.tiered,
            copy_disabled: self.topic.remote_log_copy_disable,
            log_start: self.log_start(),
            tiered_end: self.image.manifest.tiered_end,
            stable_end: self.snapshot.last_stable_offset.min(self.snapshot.synced_end),
            retained_from: retention.log_start.unwrap_or_default(),
            segments: self.segments.clone(),
        }
    }

    pub(crate) fn retention_view<'a>(&'a self, pages: &'a PageEntries) -> RetentionView<'a> {
        RetentionView {
            log_start: self.log_start(),
            high_watermark: self.snapshot.high_watermark,
            manifest: &self.image.manifest,
            pages,
            known: None,
            segments: &self.segments,
        }
    }

    /// A topic whose state the node itself needs: it keeps its whole local log.
    pub(crate) fn is_internal(&self) -> bool {
        matches!(self.name.as_str(), "__consumer_offsets" | "__transaction_state")
    }
}

/// What a tiered topic keeps in both tiers.
pub(crate) fn retention_limits(topic: &TopicConfig) -> Keep {
    if topic.cleanup_policy.delete {
        Keep { age_ms: topic.retention_ms, bytes: topic.retention_bytes }
    } else {
        Keep::default()
    }
}
