//! One life of the node: every part made and wired as the program does it, over the simulated machine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tidelog_controller::{Controller, ControllerConfig};
use tidelog_core::cluster::{BrokerRegistration, Command, LogIndex, Outcome};
use tidelog_log::{Log, LogConfig};
use tidelog_object::{ChunkCache, ObjectClient, StoreOptions};
use tidelog_replica::{ColdReader, ReplicaConfig, ReplicaManager};
use tidelog_runtime::{Clock, Disk, Registry, Rng, Supervisor};
use tidelog_sim::{Context, SimDisk};
use tidelog_testkit::{CarelessDisk, CarelessStore, SimBucket};
use tidelog_tier::{ColdConfig, ColdTier, Tier, TierConfig};
use tidelog_types::{BootId, BrokerId, BrokerIncarnation, ByteSize, ClusterId, DirectoryId};

use super::{Mistake, cache::LastingCache, commands::Commands};

const BROKER: BrokerId = BrokerId(1);
const DIRECTORY: DirectoryId = DirectoryId::from_bytes([7; 16]);

/// How long an object stays after it left the manifest.
pub(crate) const GRACE: Duration = Duration::from_secs(8);

/// The age at which an object that nothing names is deleted.
pub(crate) const ORPHAN_AGE: Duration = Duration::from_secs(16);

/// How long a stop may take: longer than proposals in a row that are late, 40 s each.
const STOP: Duration = Duration::from_secs(200);

/// What outlives a process.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) context: Context,
    pub(crate) bucket: SimBucket,
    pub(crate) store: Arc<dyn object_store::ObjectStore>,
    pub(crate) cache: LastingCache,
    pub(crate) mistake: Option<Mistake>,
    /// Batches of one object, at least.
    pub(crate) object_target: ByteSize,
}

impl Machine {
    pub(crate) fn new(context: &Context, mistake: Option<Mistake>) -> Self {
        let clock = Arc::new(context.clock.clone());
        let bucket = SimBucket::new(context.rng.next_u64(), clock, context.trace.clone());
        if mistake == Some(Mistake::PutAnsweredEarly) {
            bucket.answer_early();
        }
        let plain: Arc<dyn object_store::ObjectStore> = Arc::new(bucket.clone());
        let store: Arc<dyn object_store::ObjectStore> = match mistake.and_then(Mistake::carelessness) {
            Some(careless) => Arc::new(CarelessStore::over(plain, careless)),
            None => plain,
        };
        Self {
            context: context.clone(),
            bucket,
            store,
            cache: LastingCache::new(mistake == Some(Mistake::CacheKeyWithoutTopic)),
            mistake,
            object_target: ByteSize::bytes(if context.rng.chance(2, 3) { 1 } else { 2_500 }),
        }
    }

    fn disk(&self, disk: &SimDisk) -> Arc<dyn Disk> {
        let plain: Arc<dyn Disk> = Arc::new(disk.clone());
        match self.mistake.and_then(Mistake::carelessness) {
            Some(careless) => Arc::new(CarelessDisk::over(plain, careless)),
            None => plain,
        }
    }

    fn log_config(&self) -> LogConfig {
        LogConfig {
            journal_bytes_max: ByteSize::kib(256),
            journal_file_bytes: ByteSize::kib(24),
            round_bytes_max: ByteSize::kib(16),
            tail_bytes: ByteSize::kib(48),
            write_behind_bytes: ByteSize::kib(4),
            write_behind_delay: Duration::from_millis(300),
            checkpoint_interval: Duration::from_millis(1_500),
            descriptors_max: 8,
            reserve_bytes: ByteSize::ZERO,
            mistakes: self.mistake.map(Mistake::of_log).unwrap_or_default(),
            ..LogConfig::new(PathBuf::from("/log"), DIRECTORY)
        }
    }

    fn tier_config(&self, incarnation: BrokerIncarnation, cluster_id: ClusterId) -> TierConfig {
        let young = self.mistake == Some(Mistake::SweepTheYoung)
            || self.mistake == Some(Mistake::SweepWithStaleImage);
        TierConfig {
            check_interval: Duration::from_secs(1),
            upload_lag_max: Duration::from_secs(20),
            object_target: self.object_target,
            deletion_grace: GRACE,
            orphan_age: if young { Duration::from_millis(1) } else { ORPHAN_AGE },
            manifest_publish: Duration::from_secs(4),
            manifest_publish_daily: Duration::from_secs(60),
            mistakes: self.mistake.map(Mistake::of_tier).unwrap_or_default(),
            ..TierConfig::new(BROKER, incarnation, cluster_id)
        }
    }
}

/// A running node.
pub(crate) struct Node {
    pub(crate) log: Log,
    pub(crate) controller: Controller,
    pub(crate) commands: Commands,
    pub(crate) replica: ReplicaManager,
    pub(crate) tier: Tier,
    pub(crate) cold: Arc<ColdTier>,
    pub(crate) incarnation: BrokerIncarnation,
}

impl Node {
    /// Starts one; says why where a start is refused.
    pub(crate) async fn start(
        machine: &Machine,
        disk: &SimDisk,
        supervisor: &Supervisor,
    ) -> Result<Self, String> {
        let registry = Registry::new();
        let clock: Arc<dyn Clock> = Arc::new(machine.context.clock.clone());
        let rng: Arc<dyn Rng> = Arc::new(machine.context.rng.fork());
        let disk = machine.disk(disk);
        let mut config = ControllerConfig::single("/controller");
        config.snapshot_entries = 60;
        let parts = (Arc::clone(&disk), Arc::clone(&clock), Arc::clone(&rng));
        let controller = Controller::start(config, parts.0, parts.1, parts.2, supervisor.clone(), &registry)
            .await
            .map_err(|error| format!("the controller does not start: {error}"))?;
        let (log, recovered) =
            Log::open(machine.log_config(), disk, Arc::clone(&clock), supervisor.clone(), &registry)
                .await
                .map_err(|error| format!("the log does not open: {error}"))?;
        let (epoch, incarnation) = register(&controller, &log).await?;
        let commands = Commands::new(
            controller.clone(),
            Arc::clone(&clock),
            machine.context.rng.fork(),
            machine.bucket.clone(),
            machine.context.trace.clone(),
            machine.mistake,
        );
        let config = ReplicaConfig {
            retention_check_interval: Duration::from_secs(5),
            mistakes: machine.mistake.map(Mistake::of_replica).unwrap_or_default(),
            ..ReplicaConfig::new(BROKER, LogIndex(epoch))
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
        .map_err(|error| format!("the partitions do not open: {error}"))?;
        let options = StoreOptions {
            retry_deadline: Duration::from_secs(4),
            silence_timeout: Duration::from_secs(3),
            first_byte_timeout: Duration::from_secs(1),
            ..StoreOptions::default()
        };
        let store = Arc::clone(&machine.store);
        let client =
            ObjectClient::with_store(store, options, Arc::clone(&clock), Arc::clone(&rng), &registry);
        let cluster_id = controller.cluster_id();
        let mistakes = machine.mistake.map(Mistake::of_tier).unwrap_or_default();
        let config = ColdConfig { mistakes, ..ColdConfig::default() };
        let chunks: Arc<dyn ChunkCache> = Arc::new(machine.cache.clone());
        let (reader, reader_clock) = (client.clone(), Arc::clone(&clock));
        let cold = ColdTier::new(
            &config,
            reader,
            Arc::clone(&chunks),
            cluster_id,
            reader_clock,
            supervisor,
            &registry,
        );
        replica.set_cold_reader(Arc::clone(&cold) as Arc<dyn ColdReader>);
        let tier = Tier::start(
            machine.tier_config(incarnation, cluster_id),
            replica.clone(),
            Arc::new(commands.clone()),
            client,
            cold.pages(),
            clock,
            rng,
            supervisor,
            &registry,
        );
        tier.set_cache(chunks);
        Ok(Self { log, controller, commands, replica, tier, cold, incarnation })
    }

    /// Stops in the product's order.
    pub(crate) async fn stop(self) -> Result<(), String> {
        let mut late = self.tier.shutdown(STOP).await;
        let session = Command::EndSession { broker: BROKER, incarnation: self.incarnation };
        drop(self.controller.propose(session).await);
        late.extend(self.replica.shutdown(STOP).await);
        let closed = self.log.close().await;
        self.controller.shutdown().await;
        late.extend(self.cold.stop(STOP).await);
        closed.map_err(|failure| format!("the log is not closed: {failure}"))?;
        if late.is_empty() { Ok(()) } else { Err(format!("not stopped in time: {late:?}")) }
    }

    /// Why the node must not go on, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        let failed = self.log.status().failure.map(|failure| format!("the log failed: {failure}"));
        failed.or_else(super::first_panic)
    }

    /// Waits until everything committed so far is hosted.
    pub(crate) async fn settled(&self) -> Result<(), String> {
        let index = self.controller.linearize().await.map_err(|error| error.to_string())?;
        self.replica.wait_applied(index).await;
        Ok(())
    }
}

async fn register(controller: &Controller, log: &Log) -> Result<(u64, BrokerIncarnation), String> {
    let registration = BrokerRegistration {
        broker: BROKER,
        directory: log.directory_id(),
        boot: BootId::from_bytes([1; 16]),
        clean: !log.status().unclean,
        listeners: Vec::new(),
        rack: None,
        feature_level_max: 1,
    };
    match controller.propose(Command::RegisterBroker { registration }).await {
        Ok(Outcome::Registered { epoch, incarnation }) => Ok((epoch, incarnation)),
        other => Err(format!("the registration: {other:?}")),
    }
}
