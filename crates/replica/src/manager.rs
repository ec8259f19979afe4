//! All partitions of this node: opened at the start, and kept to what the cluster's metadata says.

mod deletions;
mod follow;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;
use tidelog_core::{
    cluster::{LogIndex, MetadataImage},
    topic_config::BrokerSettings,
};
use tidelog_log::{Log, RecoveredPartition};
use tidelog_runtime::{Clock, Supervisor, metrics::Registry, watch};
use tidelog_types::{PartitionIndex, TopicName, TopicPartition, limits};
use tokio::sync::Semaphore;

use self::deletions::Deletions;
use crate::{
    ColdError, ColdReader, Metadata, PartitionHandle, ReplicaConfig, StartError, metrics::ReplicaMetrics,
    retention,
};

/// What the partitions of a node share.
pub(crate) struct Shared {
    pub(crate) config: ReplicaConfig,
    pub(crate) log: Log,
    pub(crate) metadata: Arc<dyn Metadata>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) supervisor: Supervisor,
    pub(crate) metrics: ReplicaMetrics,
    pub(crate) codec_turns: Semaphore,
    cold: OnceLock<Arc<dyn ColdReader>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("broker", &self.config.broker).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn cold(&self) -> Result<Arc<dyn ColdReader>, ColdError> {
        self.cold.get().cloned().ok_or(ColdError::NotSetUp)
    }
}

/// What a start did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// Partitions found on disk and kept.
    pub opened: usize,
    /// Partitions made anew.
    pub created: usize,
    /// Partitions deleted, since their topics are gone.
    pub deleted: usize,
    /// Logs begun anew at the tiered end or the log start, since they ended below it (T5).
    pub reset: usize,
}

/// Bytes of one partition on local disk, for DescribeLogDirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionUsage {
    /// The partition.
    pub place: TopicPartition,
    /// Its topic's name.
    pub topic: TopicName,
    /// Bytes of its local log.
    pub local_bytes: u64,
}

pub(crate) type Partitions = BTreeMap<TopicPartition, PartitionHandle>;

/// The partitions of this node. Clones are the same.
#[derive(Clone)]
pub struct ReplicaManager {
    shared: Arc<Shared>,
    partitions: Arc<ArcSwap<Partitions>>,
    /// The broker's settings under the newest image.
    broker: Arc<ArcSwap<BrokerSettings>>,
    deletions: Arc<Deletions>,
    applied: watch::Sender<Arc<MetadataImage>>,
}

impl std::fmt::Debug for ReplicaManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicaManager")
            .field("partitions", &self.partitions.load().len())
            .finish_non_exhaustive()
    }
}

impl ReplicaManager {
    /// Waits until the image has passed the node's registration, opens every partition that it places here, and follows
    /// it from then on. What the log recovered and the image does not know is deleted.
    ///
    /// # Errors
    /// A partition could not be created, cut or deleted: the log is not to be trusted further.
    #[allow(clippy::too_many_arguments, reason = "the components of a node, handed over once")]
    pub async fn start(
        config: ReplicaConfig,
        log: Log,
        recovered: Vec<RecoveredPartition>,
        metadata: Arc<dyn Metadata>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
        registry: &Registry,
    ) -> Result<(Self, Started), StartError> {
        let mut images = metadata.watch();
        let registered_at = config.registered_at;
        let first = images
            .wait_for(|image| image.index >= registered_at)
            .await
            .map_err(|_| StartError::MetadataEnded)?
            .clone();
        let shared = Arc::new(Shared {
            config,
            log,
            metadata,
            clock,
            supervisor: supervisor.child("replica"),
            metrics: ReplicaMetrics::new(registry),
            codec_turns: Semaphore::new(limits::CODEC_TURNS),
            cold: OnceLock::new(),
        });
        let (applied, _) = watch::channel(Arc::new(MetadataImage::empty()));
        let manager = Self {
            shared,
            partitions: Arc::default(),
            broker: Arc::default(),
            deletions: Arc::default(),
            applied,
        };
        let started = manager.open(recovered, first).await?;
        manager.spawn_tasks(images);
        Ok((manager, started))
    }

    fn spawn_tasks(&self, mut images: watch::Receiver<Arc<MetadataImage>>) {
        self.spawn_deletions();
        let supervisor = &self.shared.supervisor;
        let (following, token) = (self.clone(), supervisor.shutdown_token());
        supervisor
            .spawn("follow metadata", async move {
                loop {
                    tokio::select! {
                        biased;
                        () = token.cancelled() => return,
                        changed = images.changed() => if changed.is_err() { return },
                    }
                    let image = images.borrow_and_update().clone();
                    following.follow(image).await;
                }
            })
            .detach();
        let (ticking, token) = (self.clone(), supervisor.shutdown_token());
        supervisor
            .spawn_back("local retention", async move {
                let clock = Arc::clone(&ticking.shared.clock);
                loop {
                    tokio::select! {
                        biased;
                        () = token.cancelled() => return,
                        () = clock.sleep(ticking.shared.config.retention_check_interval) => {}
                    }
                    retention::tick(ticking.partitions()).await;
                }
            })
            .detach();
        let (ticking, token) = (self.clone(), supervisor.shutdown_token());
        supervisor
            .spawn_back("expire producers", async move {
                let clock = Arc::clone(&ticking.shared.clock);
                loop {
                    tokio::select! {
                        biased;
                        () = token.cancelled() => return,
                        () = clock.sleep(ticking.shared.config.producer_check_interval) => {}
                    }
                    for partition in ticking.partitions() {
                        partition.inner.expire_producers();
                    }
                }
            })
            .detach();
    }

    /// Gives the partitions their reader of the bucket; the first one stays.
    pub fn set_cold_reader(&self, reader: Arc<dyn ColdReader>) {
        let _ = self.shared.cold.set(reader);
    }

    /// One partition that is hosted here.
    #[must_use]
    pub fn partition(&self, place: &TopicPartition) -> Option<PartitionHandle> {
        self.partitions.load().get(place).cloned()
    }

    /// One partition of the topic that has this name now.
    #[must_use]
    pub fn partition_by_name(&self, topic: &TopicName, partition: PartitionIndex) -> Option<PartitionHandle> {
        let topic_id = self.applied.borrow().topic_by_name(topic)?.id;
        self.partition(&TopicPartition { topic_id, partition })
    }

    /// All partitions, in the order of their ids.
    #[must_use]
    pub fn partitions(&self) -> Vec<PartitionHandle> {
        self.partitions.load().values().cloned().collect()
    }

    /// The metadata that clients may see: what it places here is hosted.
    #[must_use]
    pub fn applied_image(&self) -> Arc<MetadataImage> {
        self.applied.borrow().clone()
    }

    /// Every applied image from now on; intermediate ones may be skipped.
    #[must_use]
    pub fn watch_applied(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.applied.subscribe()
    }

    /// Waits until everything up to `index` is applied here: a topic that was created there is hosted.
    pub async fn wait_applied(&self, index: LogIndex) {
        let mut images = self.applied.subscribe();
        // The sender lives as long as this.
        let _ = images.wait_for(|image| image.index >= index).await;
    }

    /// Waits until `seen` says that an applied image is the awaited one, and answers it.
    pub async fn wait_applied_until(
        &self,
        seen: impl FnMut(&Arc<MetadataImage>) -> bool,
    ) -> Arc<MetadataImage> {
        let mut images = self.applied.subscribe();
        match images.wait_for(seen).await {
            Ok(image) => image.clone(),
            Err(_) => self.applied_image(),
        }
    }

    /// Bytes of every partition on local disk.
    #[must_use]
    pub fn usage(&self) -> Vec<PartitionUsage> {
        let usage = |partition: PartitionHandle| PartitionUsage {
            place: partition.place(),
            topic: partition.topic().clone(),
            local_bytes: partition.local_bytes(),
        };
        self.partitions().into_iter().map(usage).collect()
    }

    /// Waits while the log has no room for appends: connections that sent Produce are not read meanwhile.
    pub async fn append_room(&self) {
        self.shared.log.append_room().await;
    }

    /// Ends the tasks of this crate. The log is closed by its owner afterwards, which stores the producers' state.
    pub async fn shutdown(&self, deadline: std::time::Duration) -> Vec<&'static str> {
        self.shared.supervisor.shutdown(deadline).await
    }
}
