//! What all connections of a broker share.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidelog_core::{
    cluster::{ConfigResource, MetadataImage},
    topic_config::BrokerSettings,
};
use tidelog_replica::{Metadata, ReplicaManager};
use tidelog_runtime::{Budget, Clock, Disk, IdGen, LogLimit, Rng, Supervisor};
use tidelog_types::{BrokerId, ByteSize, ProducerId, TopicName};
use tidelog_wire::Str;

use crate::{
    config::{BrokerConfig, ConnectionLimits},
    connection::FrameBudget,
    coordinator::{GroupCoordinator, OFFSETS_TOPIC},
    fetch::{ColdReads, SessionCache},
    metrics::BrokerMetrics,
};

/// Memory for requests other than Produce: acks=all never waits behind producers for it. A request larger than its part for
/// large ones is read alone.
const REQUEST_RESERVE: ByteSize = ByteSize::mib(64);

/// Memory that fetch answers pin until they are sent: the tail's slices may outlive the tail's own budget by this much.
const FETCH_BUDGET: ByteSize = ByteSize::mib(256);

/// Memory for the answers of all other requests, those from 64 KiB to 1 MiB, until they are sent.
const ANSWER_BUDGET: ByteSize = ByteSize::mib(32);

/// The same of those above 1 MiB, for which the others do not wait: whoever asks for much may read it slowly.
const LARGE_ANSWER_BUDGET: ByteSize = ByteSize::mib(64);

/// Answers of either kind that are made at one time: each takes a few milliseconds of a thread that uploads and codecs share.
const LARGE_ANSWERS_AT_ONCE: usize = 1;

/// Memory for reads of the bucket that fetches began: on their way, and until a fetch takes them.
const COLD_FETCH_BUDGET: ByteSize = ByteSize::mib(128);

/// Lines of the log a minute about connections that end badly, for each reason: anybody can cause them.
const CONNECTION_LINES_PER_MINUTE: u32 = 10;

/// What one request may name of one topic, [`crate::api`] lets begin at once.
const DELETIONS_AT_ONCE: usize = 256;

/// How long an administrative request may wait for its effect to be seen here, whatever its own timeout says.
const APPLY_WAIT_MAX: Duration = Duration::from_secs(60);

/// What all connections share.
pub(crate) struct Node {
    pub id: BrokerId,
    pub config: BrokerConfig,
    pub limits: ConnectionLimits,
    pub metadata: Arc<dyn Metadata>,
    pub replicas: ReplicaManager,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub ids: Arc<dyn IdGen>,
    pub disk: Arc<dyn Disk>,
    pub data_directory: PathBuf,
    pub metrics: BrokerMetrics,
    /// What is written of connections that end badly.
    pub connection_lines: LogLimit,
    pub produce_budget: FrameBudget,
    pub request_budget: FrameBudget,
    pub fetch_budget: Budget,
    pub answers: AnswerLane,
    pub large_answers: AnswerLane,
    /// Large copies from and to sockets that are made at one time.
    pub copy_turns: tokio::sync::Semaphore,
    /// Partitions whose records are being deleted at one time, whether or not somebody still waits for it.
    pub deletion_turns: Arc<tokio::sync::Semaphore>,
    pub cold_budget: Budget,
    pub cold_reads: ColdReads,
    pub supervisor: Supervisor,
    /// The tasks of the coordinators: they end after the connections, which they answer.
    pub coordinators: Supervisor,
    pub groups: GroupCoordinator,
    sessions: Mutex<SessionCache>,
    connections: Arc<AtomicUsize>,
    /// The producer ids of our block that are left: the next one, and the end.
    pub producer_ids: tokio::sync::Mutex<Option<(ProducerId, ProducerId)>>,
}

/// What a node is made of, besides its configuration.
pub(crate) struct NodeParts {
    pub metadata: Arc<dyn Metadata>,
    pub replicas: ReplicaManager,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub ids: Arc<dyn IdGen>,
    pub disk: Arc<dyn Disk>,
    pub supervisor: Supervisor,
    pub metrics: BrokerMetrics,
    pub groups: GroupCoordinator,
}

/// What answers of one kind share.
pub(crate) struct AnswerLane {
    pub budget: Budget,
    /// Answers that are made at one time.
    pub turns: tokio::sync::Semaphore,
}

impl AnswerLane {
    fn new(name: &'static str, bytes: ByteSize) -> Self {
        let turns = tokio::sync::Semaphore::new(LARGE_ANSWERS_AT_ONCE);
        Self { budget: Budget::new(name, bytes), turns }
    }
}

/// Counts a connection while it is open.
pub(crate) struct OpenConnection {
    node: Arc<Node>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.node.connections.fetch_sub(1, Ordering::Relaxed);
        self.node.metrics.connections.sub(1);
    }
}

impl Node {
    pub(crate) fn new(config: BrokerConfig, parts: NodeParts) -> Self {
        let settings = BrokerSettings { static_values: config.settings.clone(), ..BrokerSettings::default() };
        let limits = ConnectionLimits::new(&settings);
        Self {
            id: config.node_id,
            data_directory: PathBuf::from(&config.data_directory),
            config,
            limits,
            metadata: parts.metadata,
            replicas: parts.replicas,
            connection_lines: LogLimit::new(Arc::clone(&parts.clock), CONNECTION_LINES_PER_MINUTE),
            clock: parts.clock,
            rng: parts.rng,
            ids: parts.ids,
            disk: parts.disk,
            metrics: parts.metrics,
            produce_budget: FrameBudget::new(
                "produce requests",
                limits.produce_bytes,
                limits.request_bytes_max,
            ),
            request_budget: FrameBudget::new("other requests", REQUEST_RESERVE, limits.request_bytes_max),
            fetch_budget: Budget::new("fetch answers", FETCH_BUDGET),
            answers: AnswerLane::new("other answers", ANSWER_BUDGET),
            large_answers: AnswerLane::new("large other answers", LARGE_ANSWER_BUDGET),
            copy_turns: tokio::sync::Semaphore::new(copy_turns()),
            deletion_turns: Arc::new(tokio::sync::Semaphore::new(DELETIONS_AT_ONCE)),
            cold_budget: Budget::new("reads of the bucket", COLD_FETCH_BUDGET),
            cold_reads: ColdReads::default(),
            coordinators: parts.supervisor.child("coordinators"),
            groups: parts.groups,
            supervisor: parts.supervisor,
            sessions: Mutex::new(SessionCache::new(limits.fetch_sessions_max)),
            connections: Arc::default(),
            producer_ids: tokio::sync::Mutex::new(None),
        }
    }

    /// Takes a place among `max.connections`, and among those that there are descriptors for; `None` where all are taken.
    pub(crate) fn open_connection(self: &Arc<Self>) -> Option<OpenConnection> {
        let max = self.limits.connections_max.min(self.config.connections_max);
        let taken = self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < max).then(|| open.saturating_add(1))
        });
        taken.ok()?;
        self.metrics.connections.add(1);
        self.metrics.connections_opened.inc();
        Some(OpenConnection { node: Arc::clone(self) })
    }

    /// The incremental fetch sessions.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, SessionCache> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What clients may see: topics that are hosted.
    pub(crate) fn image(&self) -> Arc<MetadataImage> {
        self.replicas.applied_image()
    }

    /// The settings in force, the replicated ones included.
    pub(crate) fn settings(&self, image: &MetadataImage) -> BrokerSettings {
        let values = |resource| image.configs(resource).cloned().unwrap_or_default();
        BrokerSettings {
            static_values: self.config.settings.clone(),
            dynamic_values: values(ConfigResource::Broker { broker: self.id }),
            dynamic_defaults: values(ConfigResource::ClusterDefault {}),
        }
    }

    /// Waits until `visible` holds for what clients see, at most for `timeout_ms` of the request. Answers whether it does.
    pub(crate) async fn wait_visible(
        &self,
        timeout_ms: i32,
        visible: impl Fn(&MetadataImage) -> bool,
    ) -> bool {
        let wait = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)).min(APPLY_WAIT_MAX);
        let mut watch = self.replicas.watch_applied();
        let seen = async {
            loop {
                if visible(&watch.borrow_and_update()) {
                    return true;
                }
                if watch.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(wait, seen).await.unwrap_or(false)
    }
}

/// All threads of the front but one, which is there for whoever wants little.
fn copy_turns() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).saturating_sub(1).max(1)
}

/// Whether a topic is one of the cluster's own.
pub(crate) fn is_internal(name: &TopicName) -> bool {
    matches!(name.as_str(), OFFSETS_TOPIC | "__transaction_state")
}

/// A topic's name as the wire has it.
pub(crate) fn wire_name(name: &TopicName) -> Str {
    Str::from(name.as_str())
}
