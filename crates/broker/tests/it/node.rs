//! A whole node in this process: log, controller, partitions and broker, on a folder of its own and free ports.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tempfile::TempDir;
use tidelog_broker::{Advertised, BoundListener, Broker, BrokerConfig, BrokerParts, ListenerConfig};
use tidelog_controller::{Controller, ControllerConfig};
use tidelog_core::cluster::{BrokerRegistration, Command, Listener, LogIndex, MetadataImage, Outcome};
use tidelog_log::{Log, LogConfig};
use tidelog_replica::{ReplicaConfig, ReplicaManager};
use tidelog_runtime::{
    Clock, Disk, FileDisk, FileDiskConfig, RandomIds, Registry, Supervisor, SystemClock, SystemRng,
};
use tidelog_testkit::raw_client::RawClient;
use tidelog_types::{BootId, BrokerId, BrokerIncarnation, ByteSize, DirectoryId, Timestamp};

pub(crate) const BROKER: BrokerId = BrokerId(1);

/// Long enough for everything in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

const DIRECTORY: DirectoryId = DirectoryId::from_bytes([7; 16]);

/// What differs from node to node.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) listeners: Vec<ListenerConfig>,
    pub(crate) connections_max: usize,
    pub(crate) journal_bytes_max: ByteSize,
    /// Of the file system, below which nothing is appended; all of it makes the disk full.
    pub(crate) free_space_floor_percent: u8,
    /// `broker.rack`.
    pub(crate) rack: Option<String>,
    /// In the place of the machine's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// In the place of the machine's.
    pub(crate) disk: Option<Arc<dyn Disk>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settings: BTreeMap::new(),
            listeners: vec![listener("PLAINTEXT", None)],
            connections_max: 1_000,
            journal_bytes_max: ByteSize::mib(64),
            free_space_floor_percent: 0,
            rack: None,
            clock: None,
            disk: None,
        }
    }
}

impl Options {
    pub(crate) fn with(settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Self { settings, ..Self::default() }
    }
}

pub(crate) fn listener(name: &str, advertised: Option<&str>) -> ListenerConfig {
    ListenerConfig {
        name: name.to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 0,
        advertised: advertised.map(|host| Advertised { host: host.to_owned(), port: 0 }),
    }
}

/// A running node.
pub(crate) struct Node {
    pub(crate) broker: Broker,
    pub(crate) replicas: ReplicaManager,
    pub(crate) registry: Registry,
    pub(crate) folder: Arc<TempDir>,
    pub(crate) incarnation: BrokerIncarnation,
    controller: Controller,
    log: Log,
    supervisor: Supervisor,
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().unwrap()), options).await
    }

    pub(crate) async fn start_in(folder: Arc<TempDir>, options: Options) -> Self {
        let registry = Registry::new();
        let here = tokio::runtime::Handle::current();
        let supervisor = Supervisor::new(here.clone(), here, &registry);
        let clock = options.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::new()));
        let rng = Arc::new(SystemRng);
        let own = || Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap()) as Arc<dyn Disk>;
        let disk = options.disk.clone().unwrap_or_else(own);
        let path = |name: &str| Path::new(folder.path()).join(name);
        let log_config = LogConfig {
            journal_bytes_max: options.journal_bytes_max,
            journal_file_bytes: ByteSize::mib(8),
            tail_bytes: ByteSize::mib(16),
            reserve_bytes: ByteSize::ZERO,
            free_space_floor_percent: options.free_space_floor_percent,
            ..LogConfig::new(path("log"), DIRECTORY)
        };
        let (log, recovered) =
            Log::open(log_config, disk.clone(), clock.clone(), supervisor.clone(), &registry).await.unwrap();
        let controller = Controller::start(
            ControllerConfig::single(path("controller")),
            disk.clone(),
            clock.clone(),
            rng.clone(),
            supervisor.clone(),
            &registry,
        )
        .await
        .unwrap();
        let mut listeners = Vec::new();
        for config in &options.listeners {
            listeners.push(BoundListener::bind(config).await.unwrap());
        }
        let registration = BrokerRegistration {
            broker: BROKER,
            directory: DIRECTORY,
            boot: BootId::from_bytes([1; 16]),
            clean: true,
            listeners: listeners
                .iter()
                .map(|listener| {
                    let endpoint = listener.endpoint();
                    Listener { name: endpoint.name.clone(), host: endpoint.host.clone(), port: endpoint.port }
                })
                .collect(),
            rack: options.rack.clone(),
            feature_level_max: 1,
        };
        let registered = controller.propose(Command::RegisterBroker { registration }).await.unwrap();
        let Outcome::Registered { epoch, incarnation } = registered else { panic!("{registered:?}") };
        let replica_config = ReplicaConfig {
            static_values: options.settings.clone(),
            ..ReplicaConfig::new(BROKER, LogIndex(epoch))
        };
        let metadata = Arc::new(controller.clone());
        let (replicas, _) = ReplicaManager::start(
            replica_config,
            log.clone(),
            recovered,
            metadata.clone(),
            clock.clone(),
            supervisor.clone(),
            &registry,
        )
        .await
        .unwrap();
        let config = BrokerConfig {
            node_id: BROKER,
            rack: options.rack,
            settings: options.settings,
            data_directory: folder.path().to_string_lossy().into_owned(),
            connections_max: options.connections_max,
        };
        let parts = BrokerParts {
            metadata,
            replicas: replicas.clone(),
            clock,
            rng: rng.clone(),
            ids: Arc::new(RandomIds::new(rng)),
            disk,
            supervisor: supervisor.clone(),
            registry: registry.clone(),
        };
        let broker = Broker::start(config, listeners, parts);
        Self { broker, replicas, registry, folder, incarnation, controller, log, supervisor }
    }

    /// The address of the first listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.broker.addresses()[0].1
    }

    pub(crate) async fn client(&self) -> RawClient {
        RawClient::connect(self.address()).await
    }

    /// Stops in the product's order; the folder can be started on again.
    pub(crate) async fn stop(self) -> Arc<TempDir> {
        assert_eq!(self.broker.drain(DEADLINE).await, Vec::<&str>::new());
        assert_eq!(self.replicas.shutdown(DEADLINE).await, Vec::<&str>::new());
        self.controller.shutdown().await;
        self.log.close().await.unwrap();
        assert_eq!(self.supervisor.shutdown(DEADLINE).await, Vec::<&str>::new());
        self.folder
    }

    /// Proposes a change and waits until it is applied here.
    pub(crate) async fn propose(&self, command: Command) -> Outcome {
        let outcome = self.controller.propose(command).await.unwrap().into_result().unwrap();
        self.replicas.wait_applied(self.controller.image().index).await;
        outcome
    }

    /// The newest metadata.
    pub(crate) fn image(&self) -> Arc<MetadataImage> {
        self.controller.image()
    }

    /// Ends the controller: nothing can be asked of it any more, and nothing is decided.
    pub(crate) async fn stop_controller(&self) {
        self.controller.shutdown().await;
    }

    /// Waits until it holds; fails where that takes longer than anything may.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = tokio::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < DEADLINE, "{what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.registry.encode();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no metric {name}")).split(' ').nth(1).unwrap().parse().unwrap()
    }
}

/// A clock whose wall stands where a test puts it. What waits goes by the machine's.
pub(crate) struct OwnWall {
    system: SystemClock,
    wall_ms: AtomicU64,
}

impl OwnWall {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { system: SystemClock::new(), wall_ms: AtomicU64::new(1_700_000_000_000) })
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.wall_ms.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for OwnWall {
    fn monotonic(&self) -> Duration {
        self.system.monotonic()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.wall_ms.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.system.sleep(duration)
    }
}
