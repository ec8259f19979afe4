//! One controller: starts the Raft node, takes proposals, publishes images.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use openraft::{
    Config, ConfigError, Raft, ReadPolicy, SnapshotPolicy,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, LinearizableReadError, RaftError},
    impls::BasicNode,
    storage::Snapshot,
};
use thiserror::Error;
use tidelog_core::cluster::{Command, LogIndex, MetadataImage, Outcome};
use tidelog_runtime::{Clock, Disk, Registry, Rng, Supervisor};
use tidelog_types::{ClusterId, ProducerId, limits};
use tokio::sync::{Semaphore, watch};

use crate::{
    codec::StoreError,
    identity::Identity,
    log_store::LogStore,
    metrics::ControllerMetrics,
    raft_types::{Proposal, TypeConfig},
    snapshot_store::SnapshotStore,
    state_machine::StateMachine,
    transport::{Answer, CallError, Message, Network, Receiver, Request, Transport},
};

/// How often the leader looks whether the state machine's time must move.
const TICK: Duration = Duration::from_secs(1);

/// How long a proposer waits before it looks for a leader again.
const LEADER_RETRY: Duration = Duration::from_millis(50);

/// How long tasks and Raft get to end.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// Raft's timers and the deadlines of callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How often a leader is heard of.
    pub heartbeat: Duration,
    /// The least silence after which a follower asks for votes; the most is twice as much.
    pub election_timeout: Duration,
    /// How long a proposal may take before its outcome is given up as unknown.
    pub propose_deadline: Duration,
}

impl Timing {
    /// One voter: nobody waits for a heartbeat, so the timers are slow and an idle node sleeps.
    #[must_use]
    pub const fn single() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            election_timeout: Duration::from_secs(3),
            propose_deadline: Duration::from_secs(10),
        }
    }

    /// Several voters: a new leader within about two seconds.
    #[must_use]
    pub const fn group() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election_timeout: Duration::from_secs(1),
            propose_deadline: Duration::from_secs(10),
        }
    }
}

/// How a controller is started.
#[derive(Clone)]
pub struct ControllerConfig {
    /// Its directory; created at the first start.
    pub directory: PathBuf,
    /// Its number among the voters.
    pub node_id: u64,
    /// All voters and their addresses, this one included. Used at the first start; later the log says who votes.
    pub voters: BTreeMap<u64, String>,
    /// The cluster it must belong to; `None`: whatever the directory says, or a new one where it is empty.
    pub cluster_id: Option<ClusterId>,
    /// Whether an empty directory may be taken into use. `false` where the node is known to have had one: it was
    /// lost then, and starting over would break what other nodes remember.
    pub may_create: bool,
    /// How many restores from the bucket came before.
    pub restore_number: u32,
    /// The first producer id of a new cluster.
    pub producer_ids_from: ProducerId,
    /// Raft's timers.
    pub timing: Timing,
    /// A snapshot is taken after this many entries, and as many are kept behind it.
    pub snapshot_entries: u64,
    /// How to reach the other voters; `None` for one voter.
    pub transport: Option<Arc<dyn Transport>>,
}

impl ControllerConfig {
    /// One voter in `directory`.
    #[must_use]
    pub fn single(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            node_id: 1,
            voters: BTreeMap::from([(1, String::new())]),
            cluster_id: None,
            may_create: true,
            restore_number: 0,
            producer_ids_from: ProducerId(0),
            timing: Timing::single(),
            snapshot_entries: 1_000,
            transport: None,
        }
    }
}

/// Why a controller does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Its files cannot be used, or the disk refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its directory belongs to another cluster.
    #[error("the controller's directory belongs to cluster {found}, not {expected}")]
    AnotherCluster {
        /// What the directory says.
        found: ClusterId,
        /// What was expected.
        expected: ClusterId,
    },
    /// Its directory belongs to another node.
    #[error("the controller's directory belongs to node {found}, not {expected}")]
    AnotherNode {
        /// What the directory says.
        found: u64,
        /// What was expected.
        expected: u64,
    },
    /// This node had a controller's state, and it is gone.
    #[error("the controller's state in {} is missing, but this node had one: restore it, or remove the node from the cluster", directory.display())]
    StateMissing {
        /// Where it was.
        directory: PathBuf,
    },
    /// The timers contradict each other.
    #[error("the timing is not valid: {0}")]
    Timing(#[from] ConfigError),
    /// Raft could not be started.
    #[error("raft did not start: {0}")]
    Raft(String),
}

/// Why a proposal has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProposeError {
    /// Too many are in flight. It was not applied and never will be: it may be proposed again.
    #[error("the controller is busy")]
    Busy,
    /// The command is larger than [`limits::COMMAND_BYTES_MAX`]. It was not applied.
    #[error("the command has {bytes} bytes, at most {} are allowed", limits::COMMAND_BYTES_MAX)]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// No leader was found in time. It was not applied and never will be: it may be proposed again.
    #[error("there is no controller to lead")]
    NoLeader,
    /// It was sent, and may have been applied, now or later: look before proposing again.
    #[error("the outcome of the command is not known: {why}")]
    Unknown {
        /// What happened.
        why: String,
    },
}

impl ProposeError {
    /// Whether the command was certainly not applied, so that it may be proposed again.
    #[must_use]
    pub const fn is_not_applied(&self) -> bool {
        match self {
            Self::Busy | Self::TooLarge { .. } | Self::NoLeader => true,
            Self::Unknown { .. } => false,
        }
    }
}

/// Why no linearizable read is possible. It may be tried again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no linearizable read: {why}")]
pub struct LinearizeError {
    /// What happened.
    pub why: String,
}

/// What a controller says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerStatus {
    /// Its number.
    pub node_id: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<u64>,
    /// Raft's term.
    pub term: u64,
    /// Its last entry.
    pub last_log_index: Option<u64>,
    /// Its last applied entry.
    pub applied_index: Option<u64>,
    /// The last entry in its newest snapshot.
    pub snapshot_index: Option<u64>,
    /// The last entry that was purged.
    pub purged_index: Option<u64>,
}

/// A running controller. Clones are handles to the same one.
#[derive(Clone)]
pub struct Controller {
    inner: Arc<Inner>,
    tasks: Supervisor,
}

struct Inner {
    raft: Raft<TypeConfig, StateMachine>,
    config: ControllerConfig,
    cluster_id: ClusterId,
    images: watch::Receiver<Arc<MetadataImage>>,
    in_flight: Semaphore,
    clock: Arc<dyn Clock>,
    metrics: ControllerMetrics,
}

/// Why the leader did not take a command.
enum Refused {
    NotLeader(Option<u64>),
    Unknown(String),
}

impl Controller {
    /// Recovers what the directory holds, or takes it into use, and joins the group. With one voter it returns once
    /// this node leads and everything committed is applied; with several as soon as it takes part.
    ///
    /// # Errors
    /// The directory is another cluster's or node's, lost, or damaged: a person must look. [`StoreError::Io`] may
    /// pass.
    pub async fn start(
        config: ControllerConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        supervisor: Supervisor,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let metrics = ControllerMetrics::new(registry);
        let (log, cluster_id) = open_directory(&config, &disk, &clock, rng.as_ref(), &metrics).await?;
        let snapshots = SnapshotStore::new(disk, &config.directory);
        let machine = StateMachine::open(snapshots, log.purged_index(), cluster_id, metrics.clone()).await?;
        let images = machine.images();
        let raft_config = Arc::new(raft_config(&config, cluster_id).validate()?);
        let network = Network { cluster_id, node_id: config.node_id, transport: config.transport.clone() };
        let raft = Raft::new(config.node_id, raft_config, network, log, machine).await;
        let raft = raft.map_err(|why| StartError::Raft(why.to_string()))?;
        let tasks = supervisor.child("controller");
        let in_flight = Semaphore::new(limits::PROPOSALS_IN_FLIGHT_MAX);
        let inner = Arc::new(Inner { raft, config, cluster_id, images, in_flight, clock, metrics });
        let controller = Self { inner, tasks };
        if let Err(why) = controller.join().await {
            controller.shutdown().await;
            return Err(why);
        }
        let (inner, token) = (Arc::clone(&controller.inner), controller.tasks.shutdown_token());
        controller
            .tasks
            .spawn("controller-ticks", async move {
                tokio::select! {
                    biased;
                    () = token.cancelled() => {}
                    () = inner.run_ticks() => {}
                }
            })
            .detach();
        Ok(controller)
    }

    async fn join(&self) -> Result<(), StartError> {
        let Inner { raft, config, cluster_id, .. } = &*self.inner;
        let refused = |why: &dyn std::fmt::Display| StartError::Raft(why.to_string());
        if !raft.is_initialized().await.map_err(|why| refused(&why))? {
            let voters: BTreeMap<u64, BasicNode> = config
                .voters
                .iter()
                .map(|(id, address)| (*id, BasicNode { addr: address.clone() }))
                .collect();
            match raft.initialize(voters).await {
                // Another voter was faster, and its log arrived here.
                Ok(()) | Err(RaftError::APIError(openraft::errors::InitializeError::NotAllowed(_))) => {}
                Err(why) => return Err(refused(&why)),
            }
        }
        if config.voters.len() > 1 {
            return Ok(());
        }
        if !raft.is_leader() {
            raft.trigger().elect(false).await.map_err(|why| refused(&why))?;
        }
        let command = self.inner.initialize_command();
        self.propose(command)
            .await
            .map_err(|why| refused(&why))?
            .into_result()
            .map_err(|why| refused(&why))?;
        self.linearize().await.map_err(|why| refused(&why))?;
        tracing::info!(cluster_id = %cluster_id, index = %self.image().index, "controller leads");
        Ok(())
    }

    /// Proposes a command and waits until it is applied here. Dropping the future cancels nothing.
    ///
    /// # Errors
    /// [`ProposeError::is_not_applied`] says whether the command may be proposed again at once.
    pub async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
        let before = self.inner.clock.monotonic();
        let result = self.inner.propose(Arc::new(command)).await;
        let metrics = &self.inner.metrics;
        metrics.propose_seconds.observe_duration(self.inner.clock.monotonic().saturating_sub(before));
        match &result {
            Ok(_) => metrics.proposals.inc(),
            Err(why) if why.is_not_applied() => metrics.proposals_refused.inc(),
            Err(_) => metrics.proposals_unknown.inc(),
        }
        result
    }

    /// Waits until the image here holds everything that was committed when this was called; its index.
    ///
    /// # Errors
    /// No leader was reached, or it could not reach a quorum.
    pub async fn linearize(&self) -> Result<LogIndex, LinearizeError> {
        self.inner.linearize().await
    }

    /// The newest metadata applied here.
    #[must_use]
    pub fn image(&self) -> Arc<MetadataImage> {
        Arc::clone(&self.inner.images.borrow())
    }

    /// Follows the metadata: every change is seen, though several may come as one.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.inner.images.clone()
    }

    /// The cluster it belongs to.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.inner.cluster_id
    }

    /// Whether it leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.inner.raft.is_leader()
    }

    /// What it says of itself.
    #[must_use]
    pub fn status(&self) -> ControllerStatus {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        ControllerStatus {
            node_id: self.inner.config.node_id,
            leader: metrics.current_leader,
            term: metrics.current_term,
            last_log_index: metrics.last_log_index,
            applied_index: metrics.last_applied.map(|id| id.index),
            snapshot_index: metrics.snapshot.map(|id| id.index),
            purged_index: metrics.purged.map(|id| id.index),
        }
    }

    /// Takes requests of other controllers.
    #[must_use]
    pub fn receiver(&self) -> Arc<dyn Receiver> {
        Arc::clone(&self.inner) as Arc<dyn Receiver>
    }

    /// Takes a snapshot soon, whatever the policy says.
    pub async fn snapshot(&self) {
        if let Err(why) = self.inner.raft.trigger().snapshot().await {
            tracing::warn!(error = %why, "controller snapshot was not begun");
        }
    }

    /// Completes when the controller has stopped by itself, with the reason: its disk failed, or a bug was found. The
    /// node must stop then.
    pub async fn failed(&self) -> String {
        let mut metrics = self.inner.raft.metrics();
        loop {
            if let Err(why) = &metrics.borrow_watched().running_state {
                return why.to_string();
            }
            if metrics.changed().await.is_err() {
                return "raft has ended".to_owned();
            }
        }
    }

    /// Ends the controller. What was proposed and not answered is unknown.
    pub async fn shutdown(&self) {
        let late = self.tasks.shutdown(SHUTDOWN_DEADLINE).await;
        if !late.is_empty() {
            tracing::warn!(?late, "controller tasks did not end in time");
        }
        if let Err(why) = self.inner.raft.shutdown().await {
            tracing::warn!(error = %why, "raft did not end well");
        }
    }
}

impl Inner {
    fn initialize_command(&self) -> Command {
        Command::Initialize {
            cluster_id: self.cluster_id,
            feature_level: limits::FEATURE_LEVEL,
            restore_number: self.config.restore_number,
            producer_ids_from: self.config.producer_ids_from,
        }
    }

    async fn propose(&self, command: Arc<Command>) -> Result<Outcome, ProposeError> {
        let _permit = self.in_flight.try_acquire().map_err(|_| ProposeError::Busy)?;
        let bytes = command.encode().len();
        if bytes > limits::COMMAND_BYTES_MAX {
            return Err(ProposeError::TooLarge { bytes });
        }
        let deadline = self.clock.monotonic().saturating_add(self.config.timing.propose_deadline);
        loop {
            match self.propose_once(&command, deadline).await {
                Ok((index, outcome)) => {
                    self.wait_applied(index, deadline).await.map_err(|why| ProposeError::Unknown { why })?;
                    return Ok(outcome);
                }
                Err(Refused::Unknown(why)) => return Err(ProposeError::Unknown { why }),
                Err(Refused::NotLeader(_)) if self.clock.monotonic() >= deadline => {
                    return Err(ProposeError::NoLeader);
                }
                Err(Refused::NotLeader(_)) => self.clock.sleep(LEADER_RETRY).await,
            }
        }
    }

    /// Proposes here, or at the leader where that is another one.
    async fn propose_once(
        &self,
        command: &Arc<Command>,
        deadline: Duration,
    ) -> Result<(u64, Outcome), Refused> {
        let here = self.until(deadline, self.propose_here(command)).await;
        let leader = match here.unwrap_or_else(|| Err(Refused::Unknown("no answer in time".to_owned()))) {
            Err(Refused::NotLeader(Some(leader))) if leader != self.config.node_id => leader,
            other => return other,
        };
        let answer = self.until(deadline, self.call(leader, Message::Propose(Arc::clone(command)))).await;
        match answer.unwrap_or_else(|| Err(CallError::Unknown { why: "no answer in time".to_owned() })) {
            Ok(Answer::Proposed { index, outcome }) => Ok((index, outcome)),
            Ok(_) => Err(Refused::Unknown("the answer is to another question".to_owned())),
            Err(CallError::Unknown { why }) => Err(Refused::Unknown(why)),
            Err(CallError::NotLeader | CallError::Unreachable { .. } | CallError::AnotherCluster { .. }) => {
                Err(Refused::NotLeader(None))
            }
        }
    }

    async fn propose_here(&self, command: &Arc<Command>) -> Result<(u64, Outcome), Refused> {
        match self.raft.client_write(Proposal(Arc::clone(command))).await {
            Ok(answer) => match answer.data.0 {
                Some(outcome) => Ok((answer.log_id.index, outcome)),
                None => Err(Refused::Unknown("the entry carried no command".to_owned())),
            },
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                Err(Refused::NotLeader(to.leader_id))
            }
            Err(why) => Err(Refused::Unknown(why.to_string())),
        }
    }

    async fn linearize(&self) -> Result<LogIndex, LinearizeError> {
        let deadline = self.clock.monotonic().saturating_add(self.config.timing.propose_deadline);
        loop {
            let (leader, why) = match self.until(deadline, self.read_index_here()).await {
                Some(Ok(index)) => {
                    return self.wait_applied(index, deadline).await.map_err(|why| LinearizeError { why });
                }
                Some(Err((leader, why))) => (leader, why),
                None => return Err(LinearizeError { why: "no answer in time".to_owned() }),
            };
            if let Some(leader) = leader.filter(|leader| *leader != self.config.node_id) {
                let answer = self.until(deadline, self.call(leader, Message::ReadIndex)).await;
                if let Some(Ok(Answer::ReadIndex(index))) = answer {
                    return self.wait_applied(index, deadline).await.map_err(|why| LinearizeError { why });
                }
            }
            if self.clock.monotonic() >= deadline {
                return Err(LinearizeError { why });
            }
            self.clock.sleep(LEADER_RETRY).await;
        }
    }

    /// The index that a linearizable read must have applied, if this node leads; else who does, and why not.
    async fn read_index_here(&self) -> Result<u64, (Option<u64>, String)> {
        match self.raft.get_read_log_id(ReadPolicy::ReadIndex).await {
            Ok((read, _)) => Ok(read.log_id().index),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => {
                Err((to.leader_id, "this controller does not lead".to_owned()))
            }
            Err(why) => Err((None, why.to_string())),
        }
    }

    async fn wait_applied(&self, index: u64, deadline: Duration) -> Result<LogIndex, String> {
        let mut images = self.images.clone();
        let applied = async {
            let image = images.wait_for(|image| image.index >= LogIndex(index)).await;
            image.map(|image| image.index).map_err(|_| "the state machine has ended".to_owned())
        };
        self.until(deadline, applied)
            .await
            .unwrap_or_else(|| Err(format!("entry {index} was not applied here in time")))
    }

    async fn call(&self, target: u64, message: Message) -> Result<Answer, CallError> {
        let Some(transport) = &self.config.transport else {
            return Err(CallError::Unreachable { node: target });
        };
        transport
            .call(target, Request { cluster_id: self.cluster_id, from: self.config.node_id, message })
            .await
    }

    /// What a future gives before `deadline` on the monotonic clock.
    async fn until<T>(&self, deadline: Duration, future: impl Future<Output = T>) -> Option<T> {
        let left = deadline.saturating_sub(self.clock.monotonic());
        tokio::select! {
            // The result first: one that is there is never given up.
            biased;
            value = future => Some(value),
            () = self.clock.sleep(left) => None,
        }
    }

    /// Moves the state machine's time while something waits for it; a new group gets its cluster id here.
    async fn run_ticks(&self) {
        let mut last = self.clock.monotonic();
        loop {
            self.metrics.leader.set(u64::from(self.raft.is_leader()));
            let image = Arc::clone(&self.images.borrow());
            let leads = self.raft.is_leader();
            let now = self.clock.monotonic();
            if leads && image.cluster_id.is_none() {
                self.propose_quietly(self.initialize_command()).await;
            } else if leads && time_matters(&image) {
                // Never more than two periods at once: time may run slow, but never ahead of what was queued.
                let elapsed = now.saturating_sub(last).min(TICK * 2);
                let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(0);
                self.propose_quietly(Command::Tick { elapsed_ms }).await;
            }
            last = now;
            self.clock.sleep(TICK).await;
        }
    }

    async fn propose_quietly(&self, command: Command) {
        if let Err(why) = self.propose(Arc::new(command)).await {
            tracing::debug!(error = %why, "controller's own command has no outcome");
        }
    }

    async fn answer(&self, request: Request) -> Result<Answer, CallError> {
        if request.cluster_id != self.cluster_id {
            tracing::warn!(from = request.from, cluster_id = %request.cluster_id, "a controller of another cluster calls");
            return Err(CallError::AnotherCluster { cluster_id: self.cluster_id });
        }
        let unknown = |why: &dyn std::fmt::Display| CallError::Unknown { why: why.to_string() };
        match request.message {
            Message::AppendEntries(rpc) => {
                self.raft.append_entries(rpc).await.map(Answer::AppendEntries).map_err(|why| unknown(&why))
            }
            Message::Vote(rpc) => self.raft.vote(rpc).await.map(Answer::Vote).map_err(|why| unknown(&why)),
            Message::PreVote(rpc) => {
                self.raft.pre_vote(rpc).await.map(Answer::Vote).map_err(|why| unknown(&why))
            }
            Message::Snapshot { vote, meta, state } => {
                let snapshot = Snapshot { meta, snapshot: state };
                let installed = self.raft.install_full_snapshot(vote, snapshot).await;
                installed.map(Answer::Snapshot).map_err(|why| unknown(&why))
            }
            Message::TransferLeader(rpc) => self
                .raft
                .handle_transfer_leader(rpc)
                .await
                .map(Answer::TransferLeader)
                .map_err(|why| unknown(&why)),
            Message::Propose(command) => match self.propose_here(&command).await {
                Ok((index, outcome)) => Ok(Answer::Proposed { index, outcome }),
                Err(Refused::NotLeader(_)) => Err(CallError::NotLeader),
                Err(Refused::Unknown(why)) => Err(CallError::Unknown { why }),
            },
            Message::ReadIndex => match self.read_index_here().await {
                Ok(index) => Ok(Answer::ReadIndex(index)),
                Err(_) => Err(CallError::NotLeader),
            },
        }
    }
}

impl Receiver for Inner {
    fn receive(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, CallError>> {
        Box::pin(async move { self.answer(request).await })
    }
}

/// Whether anything waits for the state machine's time: deletions for their grace, sessions for their end.
fn time_matters(image: &MetadataImage) -> bool {
    let session_runs = |heard_ms: u64| image.now_ms.saturating_sub(heard_ms) < limits::BROKER_SESSION_MS;
    !image.deletions().is_empty()
        || image.brokers().any(|broker| !broker.fenced && session_runs(broker.heard_ms))
}

fn raft_config(config: &ControllerConfig, cluster_id: ClusterId) -> Config {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let election = millis(config.timing.election_timeout);
    Config {
        cluster_name: cluster_id.to_string(),
        heartbeat_interval: millis(config.timing.heartbeat),
        election_timeout_min: election,
        election_timeout_max: election.saturating_mul(2),
        // A snapshot travels whole; it is at most some 100 MB.
        install_snapshot_timeout: 30_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_entries),
        // As many as lie between two snapshots: the one before the newest can be used too.
        max_in_snapshot_log_to_keep: config.snapshot_entries,
        replication_lag_threshold: config.snapshot_entries.saturating_mul(5),
        purge_batch_size: (config.snapshot_entries / 4).max(1),
        enable_pre_vote: Some(true),
        // Without a persisted commit index a restarted leader would serve what it had not applied.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
}

/// The log of the directory and the cluster it belongs to; both are made where it is empty and may be.
async fn open_directory(
    config: &ControllerConfig,
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    rng: &dyn Rng,
    metrics: &ControllerMetrics,
) -> Result<(LogStore, ClusterId), StartError> {
    let directory = &config.directory;
    disk.create_dir_all(directory).await.map_err(StoreError::io("create", directory))?;
    if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_dir(parent).await.map_err(StoreError::io("sync", parent))?;
    }
    let identity = Identity::read(disk, directory).await?;
    let log_exists = LogStore::exists(disk, directory).await?;
    let missing = || StartError::StateMissing { directory: directory.clone() };
    if let Some(found) = identity {
        if let Some(expected) = config.cluster_id.filter(|expected| *expected != found.cluster_id) {
            return Err(StartError::AnotherCluster { found: found.cluster_id, expected });
        }
        if found.node_id != config.node_id {
            return Err(StartError::AnotherNode { found: found.node_id, expected: config.node_id });
        }
        if !log_exists {
            return Err(missing());
        }
    } else if !config.may_create {
        return Err(missing());
    }
    let log = LogStore::open(Arc::clone(disk), Arc::clone(clock), directory, metrics.clone()).await?;
    if let Some(found) = identity {
        return Ok((log, found.cluster_id));
    }
    if !log.is_pristine() {
        return Err(StoreError::damaged(directory, "it holds a log, but does not say whose").into());
    }
    let cluster_id = config.cluster_id.unwrap_or_else(|| new_cluster_id(rng));
    Identity { cluster_id, node_id: config.node_id }.write(disk, directory).await?;
    Ok((log, cluster_id))
}

fn new_cluster_id(rng: &dyn Rng) -> ClusterId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
    bytes[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    ClusterId::from_bytes(bytes)
}
