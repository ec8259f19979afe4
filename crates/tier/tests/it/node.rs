//! One node: log, controller, partitions, tiering.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use tidelog_controller::{Controller, ControllerConfig, LinearizeError};
use tidelog_core::cluster::{
    BrokerRegistration, Command, LogIndex, MetadataImage, NewTopic, Outcome, PartitionImage,
};
use tidelog_format::batch::{BatchBuilder, NewRecord};
use tidelog_log::{Log, LogConfig};
use tidelog_object::{ObjectClient, StoreOptions};
use tidelog_replica::{
    Acks, AppendRequest, Metadata, PartitionHandle, ProposeFailure, ProposeFuture, ReplicaConfig,
    ReplicaManager,
};
use tidelog_runtime::{Clock, Disk, Registry, SeededRng, Supervisor};
use tidelog_sim::{Context, SimDisk};
use tidelog_testkit::FaultyStore;
use tidelog_tier::{ClusterCommands, ManifestPages, PartitionStatus, Tier, TierConfig};
use tidelog_types::{
    BootId, BrokerId, BrokerIncarnation, ByteSize, ClusterId, DirectoryId, Offset, PartitionIndex, Timestamp,
    TopicId, TopicName, TopicPartition,
};
use tokio::sync::Notify;

/// The node's number.
pub(crate) const BROKER: BrokerId = BrokerId(1);

/// Long enough for everything in these tests, in virtual time.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

const DIRECTORY: DirectoryId = DirectoryId::from_bytes([7; 16]);

/// Which proposals are meant.
type Which = fn(&Command) -> bool;

/// A controller whose proposals of some kinds a test holds back.
#[derive(Clone)]
pub(crate) struct HeldCommands {
    controller: Controller,
    held: Arc<Mutex<Option<Which>>>,
    lost: Arc<Mutex<Option<(Which, u32)>>>,
    failed: Arc<Mutex<Option<(Which, u32)>>>,
    waiting: Arc<Mutex<usize>>,
    released: Arc<Notify>,
}

impl HeldCommands {
    /// Proposals of which `of` says so wait until [`HeldCommands::release`].
    pub(crate) fn hold(&self, of: Which) {
        *self.held.lock().unwrap() = Some(of);
    }

    /// The next `count` proposals of which `of` says so are made, and their outcomes are lost.
    pub(crate) fn lose(&self, of: Which, count: u32) {
        *self.lost.lock().unwrap() = Some((of, count));
    }

    /// The next `count` proposals of which `of` says so are not made.
    pub(crate) fn fail(&self, of: Which, count: u32) {
        *self.failed.lock().unwrap() = Some((of, count));
    }

    /// How many proposals are still to fail.
    pub(crate) fn to_fail(&self) -> u32 {
        self.failed.lock().unwrap().map_or(0, |(_, count)| count)
    }

    pub(crate) fn release(&self) {
        *self.held.lock().unwrap() = None;
        self.released.notify_waiters();
    }

    /// How many proposals wait.
    pub(crate) fn waiting(&self) -> usize {
        *self.waiting.lock().unwrap()
    }
}

/// Whether a proposal is one of those that are meant.
fn takes(planned: &Mutex<Option<(Which, u32)>>, command: &Command) -> bool {
    match &mut *planned.lock().unwrap() {
        Some((of, count)) if *count > 0 && of(command) => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

impl Metadata for HeldCommands {
    fn image(&self) -> Arc<MetadataImage> {
        self.controller.image()
    }

    fn watch(&self) -> tidelog_runtime::watch::Receiver<Arc<MetadataImage>> {
        self.controller.watch()
    }

    fn propose(&self, command: Command) -> ProposeFuture {
        let this = self.clone();
        Box::pin(async move {
            let released = this.released.notified();
            let is_held = this.held.lock().unwrap().is_some_and(|of| of(&command));
            if is_held {
                *this.waiting.lock().unwrap() += 1;
                released.await;
                *this.waiting.lock().unwrap() -= 1;
            }
            if takes(&this.failed, &command) {
                return Err(ProposeFailure::Unavailable("it is busy".to_owned()));
            }
            let loses = takes(&this.lost, &command);
            let outcome = Metadata::propose(&this.controller, command).await;
            if loses { Err(ProposeFailure::Unknown("the answer was lost".to_owned())) } else { outcome }
        })
    }
}

impl ClusterCommands for HeldCommands {
    fn linearize(&self) -> BoxFuture<'static, Result<LogIndex, LinearizeError>> {
        ClusterCommands::linearize(&self.controller)
    }
}

/// The bucket of a test, and the settings of its node.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: SeededRng,
    /// Where its folders are.
    pub(crate) root: PathBuf,
    /// A client in place of one of the store.
    pub(crate) client: Option<ObjectClient>,
    pub(crate) store: FaultyStore,
    pub(crate) tier: TierConfig,
    pub(crate) options: StoreOptions,
    /// For pages that were read.
    pub(crate) page_memory: ByteSize,
}

impl Setup {
    /// Short periods, and objects of one batch each.
    pub(crate) fn new(context: &Context) -> Self {
        Self::with(Arc::new(context.clock.clone()), context.rng.fork())
    }

    pub(crate) fn with(clock: Arc<dyn Clock>, rng: SeededRng) -> Self {
        let tier = TierConfig {
            check_interval: Duration::from_secs(1),
            object_target: ByteSize::bytes(1),
            deletion_grace: Duration::from_secs(2),
            orphan_age: Duration::from_secs(20),
            manifest_publish: Duration::from_secs(5),
            ..TierConfig::new(BROKER, BrokerIncarnation(0), ClusterId::from_bytes([0; 16]))
        };
        let options = StoreOptions {
            retry_deadline: Duration::from_secs(2),
            silence_timeout: Duration::from_secs(5),
            ..StoreOptions::default()
        };
        Self {
            store: FaultyStore::memory(Arc::clone(&clock)),
            clock,
            rng,
            root: PathBuf::from("/"),
            client: None,
            tier,
            options,
            page_memory: ByteSize::mib(8),
        }
    }
}

/// A running node.
pub(crate) struct Node {
    pub(crate) log: Log,
    pub(crate) controller: Controller,
    pub(crate) commands: HeldCommands,
    pub(crate) replica: ReplicaManager,
    pub(crate) tier: Tier,
    pub(crate) client: ObjectClient,
    pub(crate) registry: Registry,
    clock: Arc<dyn Clock>,
}

impl Node {
    pub(crate) async fn start(setup: &Setup, disk: &SimDisk, supervisor: Supervisor) -> Self {
        Self::start_on(setup, Arc::new(disk.clone()), supervisor).await
    }

    /// Starts one on any disk.
    pub(crate) async fn start_on(setup: &Setup, disk: Arc<dyn Disk>, supervisor: Supervisor) -> Self {
        let registry = Registry::new();
        let clock = Arc::clone(&setup.clock);
        let log_config = LogConfig {
            journal_bytes_max: ByteSize::mib(16),
            journal_file_bytes: ByteSize::mib(1),
            reserve_bytes: ByteSize::ZERO,
            ..LogConfig::new(setup.root.join("log"), DIRECTORY)
        };
        let (log, recovered) =
            Log::open(log_config, Arc::clone(&disk), Arc::clone(&clock), supervisor.clone(), &registry)
                .await
                .unwrap();
        let rng = Arc::new(setup.rng.fork());
        let config = ControllerConfig::single(setup.root.join("controller"));
        let controller =
            Controller::start(config, disk, Arc::clone(&clock), rng.clone(), supervisor.clone(), &registry)
                .await
                .unwrap();
        let (epoch, incarnation) = register(&controller).await;
        let config = ReplicaConfig {
            retention_check_interval: Duration::from_secs(3_600),
            producer_check_interval: Duration::from_secs(3_600),
            ..ReplicaConfig::new(BROKER, LogIndex(epoch))
        };
        let commands = HeldCommands {
            controller: controller.clone(),
            held: Arc::default(),
            lost: Arc::default(),
            failed: Arc::default(),
            waiting: Arc::default(),
            released: Arc::default(),
        };
        let (replica, _) = ReplicaManager::start(
            config,
            log.clone(),
            recovered,
            Arc::new(commands.clone()),
            Arc::clone(&clock),
            supervisor.clone(),
            &registry,
        )
        .await
        .unwrap();
        let client = setup.client.clone().unwrap_or_else(|| {
            ObjectClient::with_store(
                Arc::new(setup.store.clone()),
                setup.options.clone(),
                Arc::clone(&clock),
                rng.clone(),
                &registry,
            )
        });
        let config = TierConfig { incarnation, cluster_id: controller.cluster_id(), ..setup.tier.clone() };
        let tier = Tier::start(
            config,
            replica.clone(),
            Arc::new(commands.clone()),
            client.clone(),
            ManifestPages::new(controller.cluster_id(), setup.page_memory),
            Arc::clone(&clock),
            rng,
            &supervisor,
            &registry,
        );
        Self { log, controller, commands, replica, tier, client, registry, clock }
    }

    /// Stops in the product's order.
    pub(crate) async fn stop(self) {
        assert_eq!(self.tier.shutdown(DEADLINE).await, Vec::<&str>::new());
        assert!(self.replica.shutdown(DEADLINE).await.is_empty());
        self.controller.shutdown().await;
        self.log.close().await.unwrap();
    }

    /// Ends this incarnation: the partition's leader epoch rises, and what it uploads is refused.
    pub(crate) async fn register_again(&self) {
        register(&self.controller).await;
        self.settled().await;
    }

    pub(crate) async fn propose(&self, command: Command) -> Outcome {
        self.controller.propose(command).await.unwrap().into_result().unwrap()
    }

    /// Creates a topic of one partition and waits until it is hosted.
    pub(crate) async fn create_topic(
        &self,
        name: &str,
        number: u8,
        configs: &[(&str, &str)],
    ) -> PartitionHandle {
        let topic = NewTopic {
            topic_id: TopicId::from_bytes([number; 16]),
            name: TopicName::new(name).unwrap(),
            partition_count: 1,
            replication_factor: 1,
            assignments: Vec::new(),
            configs: configs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        self.propose(Command::CreateTopic { topic }).await;
        self.settled().await;
        self.partition(name)
    }

    /// Waits until everything committed so far is applied.
    pub(crate) async fn settled(&self) {
        let index = self.controller.linearize().await.unwrap();
        tokio::time::timeout(DEADLINE, self.replica.wait_applied(index)).await.unwrap();
    }

    pub(crate) fn partition(&self, name: &str) -> PartitionHandle {
        self.replica
            .partition_by_name(&TopicName::new(name).unwrap(), PartitionIndex(0))
            .expect("it is hosted")
    }

    pub(crate) fn image(&self, place: TopicPartition) -> Arc<PartitionImage> {
        Arc::clone(self.controller.image().partition(&place).unwrap())
    }

    /// Lets virtual time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        self.clock.sleep(time).await;
    }

    /// Lets virtual time pass until something holds; panics where it never does.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..3_000 {
            if holds() {
                return;
            }
            self.pass(Duration::from_millis(100)).await;
        }
        panic!("never: {what}");
    }

    /// Waits until the bucket holds the partition up to `end`, as the partition itself knows it.
    pub(crate) async fn until_tiered(&self, partition: &PartitionHandle, end: u64) {
        self.until("the records are in the bucket", || partition.snapshot().tiered_end == offset(end)).await;
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.registry.encode();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).parse().unwrap()
    }

    pub(crate) async fn status(&self, name: &str) -> PartitionStatus {
        let status = self.tier.status().await;
        let topic =
            status.topics.into_iter().find(|topic| topic.topic.as_str() == name).expect("it is there");
        topic.partitions.into_iter().next().unwrap()
    }

    /// Keys of the bucket that contain a text, in order, with their sizes.
    pub(crate) async fn keys(&self, part: &str) -> BTreeMap<String, u64> {
        let page = self.client.list("", None, 1_000).await.unwrap();
        assert!(!page.more);
        page.objects
            .into_iter()
            .filter(|listed| listed.key.contains(part))
            .map(|listed| (listed.key, listed.bytes))
            .collect()
    }
}

async fn register(controller: &Controller) -> (u64, BrokerIncarnation) {
    let registration = BrokerRegistration {
        broker: BROKER,
        directory: DIRECTORY,
        boot: BootId::from_bytes([1; 16]),
        clean: true,
        listeners: Vec::new(),
        rack: None,
        feature_level_max: 1,
    };
    let outcome = controller.propose(Command::RegisterBroker { registration }).await.unwrap();
    let Outcome::Registered { epoch, incarnation } = outcome else { panic!("{outcome:?}") };
    (epoch, incarnation)
}

/// The wall clock of the simulation.
pub(crate) fn now(context: &Context) -> Timestamp {
    context.clock.wall()
}

pub(crate) fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

/// Runs a test of one node with the usual setup, in virtual time.
pub(crate) fn with_node(seed: u64, test: impl AsyncFnOnce(&Context, &Setup, Node)) {
    tidelog_sim::run(seed, |context| async move {
        let setup = Setup::new(&context);
        let life = async |supervisor| {
            let node = Node::start(&setup, &context.disk, supervisor).await;
            test(&context, &setup, node).await;
        };
        context.life(&context.disk, life).await.expect("the node was not killed");
    });
}

/// A batch of values, written at `time`.
pub(crate) fn batch(time: Timestamp, values: &[&str]) -> Bytes {
    let builder = values.iter().fold(BatchBuilder::new(Offset::ZERO), |builder, value| {
        builder.record(&NewRecord {
            timestamp: Some(time),
            key: Some(b"key"),
            value: Some(value.as_bytes()),
            headers: &[],
        })
    });
    builder.build().unwrap().to_bytes()
}

/// Appends a batch with acks=all and waits.
pub(crate) async fn append(partition: &PartitionHandle, records: Bytes) {
    let request = AppendRequest { records, frame_bytes: 0, acks: Acks::All, internal: false };
    let appended = partition.append(request).await.unwrap();
    tokio::time::timeout(DEADLINE, appended.ack.wait()).await.unwrap().unwrap();
}

/// Appends `count` batches of one record each, written now, and seals the segment.
pub(crate) async fn sealed(context: &Context, partition: &PartitionHandle, count: usize) {
    for _ in 0..count {
        append(partition, batch(now(context), &["value"])).await;
    }
    partition.roll().await.unwrap();
}
