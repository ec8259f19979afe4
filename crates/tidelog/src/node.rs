//! A node: every part made, given to the parts that need it, and ended in the one order that loses nothing.
//!
//! ```text
//!  start:  lock directory, look whose it is, bind listeners, open store ─ controller ─ claim the prefix ─ log ─
//!          register ─ claim for this directory ─ replicas ─ tier ─ accept clients
//!  stop:   stop accepting, answer what is queued ─ finish the uploads on their way ─ end the session (leadership) ─
//!          drain replicas ─ close the log (flush, checkpoint, clean mark) ─ controller ─ store
//! ```
//!
//! Uploads end before the session does: their commits are accepted from the leader alone, and without its commit an object
//! is an orphan. What clients were answered is written by then, and needs no flush to survive the end of the process.
//!
//! **Owns** that order, and what `/readyz` waits for. **Does not own** any rule of the parts.

mod admin;
mod claim;
mod ending;
mod parts;
mod refusal;
mod store;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;
use tidelog_broker::{AdminListener, BoundListener, Broker, BrokerConfig, ListenerConfig};
use tidelog_controller::{Controller, ControllerConfig, ProposeError};
use tidelog_core::cluster::{BrokerRegistration, Command, Listener, LogIndex, Outcome};
use tidelog_log::{Log, LogStatus};
use tidelog_replica::{ReplicaConfig, ReplicaManager};
use tidelog_types::{BrokerIncarnation, ClusterId, limits};
use tokio::runtime::Handle;

use crate::config::NodeConfig;

pub(crate) use store::check_cache_bytes;

pub use self::parts::{DiskLayer, Layers};
use self::{
    admin::NodeAdmin,
    claim::Claimant,
    ending::{Begun, StopTime},
    parts::Parts,
    store::{Identity, Store},
};

/// How long a start that is not gone on with may take to end.
const START_END_DEADLINE: Duration = Duration::from_secs(10);

/// How often the node looks whether its log has failed.
const FAILURE_CHECK: Duration = Duration::from_millis(500);

/// A running node.
pub struct Node {
    config: NodeConfig,
    cluster_id: ClusterId,
    incarnation: BrokerIncarnation,
    addresses: Vec<(String, SocketAddr)>,
    admin_address: SocketAddr,
    broker: Broker,
    controller: Controller,
    log: Log,
    store: Arc<Store>,
    begun: Begun,
    parts: Parts,
}

/// What a node says of itself once it serves.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The node's number.
    pub node_id: i32,
    /// Its Kafka listeners: name and bound address.
    pub listeners: Vec<(String, SocketAddr)>,
    /// Its admin HTTP listener.
    pub admin: SocketAddr,
    /// Its store.
    pub store: String,
}

impl Node {
    /// Starts a node and returns once it serves clients. `back` runs what clients never wait for.
    ///
    /// # Errors
    /// What is wrong and what to do: a port in use, a directory of another cluster, a store that refuses. A store that is
    /// only away or busy is no error: hot partitions are served meanwhile.
    pub async fn start(config: NodeConfig, back: &Handle) -> Result<Self> {
        Self::start_under(Layers::default(), config, back).await
    }

    /// Starts a node under layers: the same node, whose disk and store a test owns.
    ///
    /// # Errors
    /// As [`Node::start`], and what the layers make of it.
    pub async fn start_under(layers: Layers, config: NodeConfig, back: &Handle) -> Result<Self> {
        let started = Self::start_unless(std::future::pending(), layers, config, back).await?;
        started.context("the start was ended")
    }

    /// Starts a node unless `ended` completes before it serves, whatever the start waits for: then what was begun ends again,
    /// in seconds, and there is no node.
    ///
    /// # Errors
    /// As [`Node::start_under`].
    pub async fn start_unless(
        ended: impl Future<Output = ()>,
        layers: Layers,
        config: NodeConfig,
        back: &Handle,
    ) -> Result<Option<Self>> {
        if !config.without_effect.is_empty() {
            let keys = config.without_effect.join(",");
            tracing::warn!(keys, "settings of Apache Kafka that have no effect here");
        }
        let parts = Parts::new(layers, back)?;
        let begun = Begun::default();
        let outcome = tokio::select! {
            biased;
            () = ended => Ok(None),
            outcome = Self::start_with(config, &parts, &begun) => outcome.map(Some),
        };
        match outcome {
            Ok(Some(mut node)) => {
                node.begun = begun;
                Ok(Some(node))
            }
            // The parts that were begun end here, so that the directory is free again when this is seen.
            other => {
                let time = StopTime::new(&parts.clock, START_END_DEADLINE);
                if let Err(error) = begun.end(time, &parts.supervisor).await {
                    tracing::warn!(error = format!("{error:#}"), "the start did not end cleanly");
                }
                other
            }
        }
    }

    async fn start_with(config: NodeConfig, parts: &Parts, begun: &Begun) -> Result<Self> {
        let (lock, owner) = parts.lock_directory(&config.data_dir).await?;
        let listeners = bind(&config).await?;
        let admin_address = config.admin_listen.to_string();
        let admin_listener = AdminListener::bind(&admin_address)
            .await
            .map_err(|error| refusal::admin_listener(&admin_address, &error))?;
        let store = Arc::new(Store::open(&config, parts).await?);
        let status = Arc::new(NodeAdmin::default());
        let admin_tasks = parts.supervisor.child("admin");
        let _ = (begun.store.set(Arc::clone(&store)), begun.admin_tasks.set(admin_tasks.clone()));
        let admin_bound = admin_listener.address();
        admin_listener.serve(Arc::clone(&status) as _, parts.registry.clone(), &admin_tasks);

        status.waits_for("the controller");
        let controller = start_controller(&config, parts, owner).await?;
        let _ = begun.controller.set(controller.clone());
        let cluster_id = controller.cluster_id();
        status.waits_for("the store's answer to whose prefix it is");
        let claimed = store.claim(cluster_id, &controller).await?;
        status.waits_for("the log's recovery");
        let (log, recovered) = parts.open_log(&config, cluster_id, lock).await?;
        status.waits_for("the registration");
        let (incarnation, registered_at) = register(&config, parts, &controller, &log, &listeners).await?;
        let claimant = Claimant::new(&config, parts, incarnation);
        status.waits_for("the store's answer to which data directory it is used with");
        let claim = if claimed { store.claim_directory(&claimant).await? } else { None };
        let metadata: Arc<dyn tidelog_replica::Metadata> = Arc::new(controller.clone());
        let mut replica_config = ReplicaConfig {
            static_values: config.settings.static_values.clone(),
            ..ReplicaConfig::new(config.node_id, registered_at)
        };
        if let Some(interval) = config.settings.amount("log.retention.check.interval.ms") {
            replica_config.retention_check_interval = Duration::from_millis(interval);
        }
        status.waits_for("the partitions");
        let (replicas, started) = ReplicaManager::start(
            replica_config,
            log.clone(),
            recovered,
            Arc::clone(&metadata),
            Arc::clone(&parts.clock),
            parts.supervisor.clone(),
            &parts.registry,
        )
        .await
        .context("open the partitions")?;
        let _ = begun.partitions.set((replicas.clone(), log.clone()));
        tracing::info!(?started, "partitions are open");
        let identity = Identity { cluster_id, claimant };
        let space = parts.disk.space(&config.data_dir).await.context("ask for the disk's space")?;
        store.start_tier(&config, parts, identity, &replicas, &controller, space.total, claim)?;
        let addresses =
            listeners.iter().map(|bound| (bound.endpoint().name.clone(), bound.address())).collect();
        let broker =
            Broker::start(broker_config(&config), listeners, parts.broker_parts(metadata, &replicas));
        status.serves(&controller, &replicas, &store, &parts.supervisor);
        tracing::info!(cluster_id = %cluster_id, node_id = %config.node_id, ?addresses, %admin_bound, store = %store.url(), "serving");
        Ok(Self {
            config,
            cluster_id,
            incarnation,
            addresses,
            admin_address: admin_bound,
            broker,
            controller,
            log,
            store,
            begun: Begun::default(),
            parts: parts.clone(),
        })
    }

    /// What it says of itself.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        NodeReport {
            cluster_id: self.cluster_id,
            node_id: self.config.node_id.0,
            listeners: self.addresses.clone(),
            admin: self.admin_address,
            store: self.store.url().to_string(),
        }
    }

    /// The address of the first Kafka listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses[0].1
    }

    /// The log's own status.
    #[must_use]
    pub fn log_status(&self) -> LogStatus {
        self.log.status()
    }

    /// The bucket side: status of the tier, the cache.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Completes with the reason when the node must not go on: its disk failed, or its controller.
    pub async fn failed(&self) -> anyhow::Error {
        let log_failed = async {
            loop {
                if let Some(failure) = self.log.status().failure {
                    return anyhow!(failure).context("the log failed: nothing was acknowledged since");
                }
                self.parts.clock.sleep(FAILURE_CHECK).await;
            }
        };
        tokio::select! {
            biased;
            failure = log_failed => failure,
            why = self.controller.failed() => anyhow!("the controller failed: {why}"),
            why = self.store.failed() => why,
        }
    }

    /// Stops in the one order: no client waits in vain, everything acknowledged is on disk, the next start need not
    /// recover.
    ///
    /// # Errors
    /// The log was not closed, or not in time; the next start recovers.
    pub async fn stop(&self, deadline: Duration) -> Result<()> {
        let mut time = StopTime::new(&self.parts.clock, deadline);
        let late = self.broker.drain(time.share / 2).await;
        time.add_late(late);
        let late = self.store.finish_uploads(time.limit(time.share * 2)).await;
        time.add_late(late);
        let limit = time.limit(time.share);
        if let Some(Err(error)) = time.step("the session's end", limit, self.end_session()).await {
            tracing::warn!(%error, "the session was not ended");
        }
        self.begun.end(time, &self.parts.supervisor).await?;
        tracing::info!("stopped");
        Ok(())
    }

    /// Gives leadership up, so that nobody waits for this node.
    async fn end_session(&self) -> Result<(), ProposeError> {
        let session = Command::EndSession { broker: self.config.node_id, incarnation: self.incarnation };
        self.controller.propose(session).await.map(drop)
    }
}

async fn bind(config: &NodeConfig) -> Result<Vec<BoundListener>> {
    let mut bound = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        let advertised = tidelog_broker::Advertised {
            host: listener.advertise.host().to_owned(),
            port: if listener.advertise == listener.listen { 0 } else { listener.advertise.port() },
        };
        let one = ListenerConfig {
            name: listener.name.clone(),
            host: listener.listen.host().to_owned(),
            port: listener.listen.port(),
            advertised: Some(advertised),
        };
        bound.push(BoundListener::bind(&one).await.map_err(|error| refusal::listener(&error))?);
    }
    Ok(bound)
}

fn broker_config(config: &NodeConfig) -> BrokerConfig {
    BrokerConfig {
        node_id: config.node_id,
        rack: config.rack.clone(),
        settings: config.settings.static_values.clone(),
        data_directory: config.data_dir.display().to_string(),
        connections_max: parts::connections_max(),
    }
}

async fn start_controller(
    config: &NodeConfig,
    parts: &Parts,
    owner: Option<ClusterId>,
) -> Result<Controller> {
    let node_id = u64::try_from(config.node_id.0).unwrap_or_default();
    let controller = ControllerConfig {
        node_id,
        voters: [(node_id, String::new())].into(),
        cluster_id: owner,
        // A log that belongs to a cluster had a controller beside it.
        may_create: owner.is_none(),
        ..ControllerConfig::single(config.data_dir.join("controller"))
    };
    Controller::start(
        controller,
        Arc::clone(&parts.disk),
        Arc::clone(&parts.clock),
        Arc::clone(&parts.rng),
        parts.supervisor.clone(),
        &parts.registry,
    )
    .await
    .map_err(|error| refusal::controller(&config.data_dir, &error))
}

/// Registers the broker: the former incarnation ends, and every partition that it led gets a new epoch.
async fn register(
    config: &NodeConfig,
    parts: &Parts,
    controller: &Controller,
    log: &Log,
    listeners: &[BoundListener],
) -> Result<(BrokerIncarnation, LogIndex)> {
    let listener = |bound: &BoundListener| {
        let endpoint = bound.endpoint();
        Listener { name: endpoint.name.clone(), host: endpoint.host.clone(), port: endpoint.port }
    };
    let registration = BrokerRegistration {
        broker: config.node_id,
        directory: log.directory_id(),
        boot: parts.boot_id().await?,
        clean: !log.status().unclean,
        listeners: listeners.iter().map(listener).collect(),
        rack: config.rack.clone(),
        feature_level_max: limits::FEATURE_LEVEL,
    };
    let outcome = controller.propose(Command::RegisterBroker { registration }).await;
    let outcome =
        outcome.context("register the broker")?.into_result().context("the controller refuses this node")?;
    match outcome {
        Outcome::Registered { incarnation, epoch } => Ok((incarnation, LogIndex(epoch))),
        other => Err(anyhow!("the controller answered a registration with {other:?}")),
    }
}
