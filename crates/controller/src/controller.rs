//! One controller: starts the Raft node, takes proposals, publishes images.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use openraft::{
    Raft, ReadPolicy,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, LinearizableReadError, RaftError},
    impls::BasicNode,
    storage::Snapshot,
};
use tidelog_core::cluster::{Command, LogIndex, MetadataImage, Outcome};
use tidelog_runtime::{Clock, Disk, Registry, Rng, Supervisor, watch};
use tidelog_types::{ClusterId, limits};
use tokio::sync::Semaphore;

use crate::{
    codec::entry_record_bytes_max,
    config::{ControllerConfig, raft_config},
    directory::open_directory,
    error::{LinearizeError, ProposeError, StartError},
    log_store::{LogStore, Urgency},
    metrics::ControllerMetrics,
    raft_types::{Proposal, RaftRuntime, TypeConfig},
    snapshot_store::SnapshotStore,
    state_machine::StateMachine,
    transport::{Answer, CallError, Message, Network, Receiver, Request},
};

/// How often the leader looks whether the state machine's time must move.
const TICK: Duration = Duration::from_secs(1);

/// How long a proposer waits before it looks for a leader again.
const LEADER_RETRY: Duration = Duration::from_millis(50);

/// How often room that was not found is looked for again.
const ROOM_RETRY: Duration = Duration::from_secs(1);

/// How often room is looked after where nothing seems to be missing.
const ROOM_PERIOD: Duration = Duration::from_secs(60);

/// How long tasks and Raft get to end.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

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
    log: LogStore,
    snapshots: SnapshotStore,
    images: watch::Receiver<Arc<MetadataImage>>,
    in_flight: Semaphore,
    clock: Arc<dyn Clock>,
    metrics: ControllerMetrics,
}

/// Why the leader did not take a command.
enum Refused {
    NotLeader(Option<u64>),
    NoSpace(String),
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
        let snapshots = SnapshotStore::new(disk, Arc::clone(&clock), &config.directory);
        let machine =
            StateMachine::open(snapshots.clone(), log.purged_index(), cluster_id, metrics.clone()).await?;
        let images = machine.images();
        let raft_config = Arc::new(raft_config(&config, cluster_id).validate()?);
        let network = Network { cluster_id, node_id: config.node_id, transport: config.transport.clone() };
        let raft = Raft::new(config.node_id, raft_config, network, log.clone(), machine);
        // Whatever openraft draws, now and in its tasks, comes from the controller's chance.
        let raft = RaftRuntime::scope(rng.next_u64(), raft).await;
        let raft = raft.map_err(|why| StartError::Raft(why.to_string()))?;
        let tasks = supervisor.child("controller");
        let in_flight = Semaphore::new(limits::PROPOSALS_IN_FLIGHT_MAX);
        let inner = Inner { raft, config, cluster_id, log, snapshots, images, in_flight, clock, metrics };
        let inner = Arc::new(inner);
        let controller = Self { inner, tasks };
        controller.spawn("controller-room", |inner| async move { inner.run_room().await });
        if let Err(why) = controller.join().await {
            controller.shutdown().await;
            return Err(why);
        }
        controller.spawn("controller-ticks", |inner| async move { inner.run_ticks().await });
        Ok(controller)
    }

    /// Runs a task until it ends or the controller does.
    fn spawn<F>(&self, name: &'static str, task: impl FnOnce(Arc<Inner>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (task, token) = (task(Arc::clone(&self.inner)), self.tasks.shutdown_token());
        let until_the_end = async move {
            tokio::select! {
                // The end first: a task that always has something to do must not outlive it.
                biased;
                () = token.cancelled() => {}
                () = task => {}
            }
        };
        self.tasks.spawn(name, until_the_end).detach();
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
        let deadline = self.inner.clock.monotonic().saturating_add(config.timing.propose_deadline);
        let initialized = loop {
            match self.propose(self.inner.initialize_command()).await {
                // The log is being shortened meanwhile.
                Err(ProposeError::NoSpace { .. }) if self.inner.clock.monotonic() < deadline => {
                    self.inner.clock.sleep(LEADER_RETRY).await;
                }
                outcome => break outcome,
            }
        };
        initialized.map_err(|why| refused(&why))?.into_result().map_err(|why| refused(&why))?;
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
        // What waits for space would keep Raft from ending.
        self.inner.log.close();
        self.inner.snapshots.close();
        let late = self.tasks.shutdown(SHUTDOWN_DEADLINE).await;
        if !late.is_empty() {
            tracing::warn!(?late, "controller tasks did not end in time");
        }
        if let Err(why) = self.inner.raft.shutdown().await {
            tracing::warn!(error = %why, "raft did not end well");
        }
        match tokio::time::timeout(SHUTDOWN_DEADLINE, self.inner.log.mark_synced()).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::debug!(error = %why, "the controller's log is not marked as synced"),
            Err(_) => tracing::warn!("the controller's disk did not take the last mark in time"),
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
                Err(Refused::NoSpace(why)) => return Err(ProposeError::NoSpace { why }),
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
            Err(CallError::NoSpace { why }) => Err(Refused::NoSpace(why)),
            Err(CallError::Unknown { why }) => Err(Refused::Unknown(why)),
            Err(CallError::NotLeader | CallError::Unreachable { .. } | CallError::AnotherCluster { .. }) => {
                Err(Refused::NotLeader(None))
            }
        }
    }

    async fn propose_here(&self, command: &Arc<Command>) -> Result<(u64, Outcome), Refused> {
        // A new group's id comes before everything else. Where it has one that is not applied here yet, it is asked
        // for again, which changes nothing.
        if self.images.borrow().cluster_id.is_none() && !matches!(**command, Command::Initialize { .. }) {
            self.write(Arc::new(self.initialize_command())).await?;
        }
        self.write(Arc::clone(command)).await
    }

    async fn write(&self, command: Arc<Command>) -> Result<(u64, Outcome), Refused> {
        // Raft ends with the first entry that cannot be written, so room is promised before it hears of one. Where
        // another node leads, it is that one's room.
        let bytes = command.encode().len();
        let _admission = if self.raft.is_leader() {
            let admitted = self.log.admit(entry_record_bytes_max(bytes), Urgency::of(&command, bytes)).await;
            Some(admitted.map_err(|why| Refused::NoSpace(why.to_string()))?)
        } else {
            None
        };
        match self.raft.client_write(Proposal(command)).await {
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

    /// Keeps room ahead in the log and for the next snapshot. Where the disk has none, what is applied goes into a
    /// snapshot and out of the log, so that its file can be compacted in place.
    async fn run_room(&self) {
        let mut was_short = false;
        loop {
            let (log, snapshots) = (self.log.prepare().await, self.snapshots.prepare().await);
            let short = log.err().map(|why| why.to_string()).or(snapshots.err().map(|why| why.to_string()));
            match &short {
                Some(why) if !was_short => {
                    tracing::warn!(error = why, "the controller finds no room ahead on its disk");
                }
                None if was_short => tracing::info!("the controller has room ahead on its disk again"),
                _ => {}
            }
            was_short = short.is_some();
            if let Err(why) = self.log.mark_synced().await {
                tracing::debug!(error = %why, "the controller's log is not marked as synced");
            }
            if was_short {
                self.shorten_log().await;
                self.clock.sleep(ROOM_RETRY).await;
            } else {
                tokio::select! {
                    // Both only say that it is time to look.
                    biased;
                    () = self.log.room_taken() => {}
                    () = self.clock.sleep(ROOM_PERIOD) => {}
                }
            }
        }
    }

    async fn shorten_log(&self) {
        let (applied, snapshot, purged) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.last_applied, metrics.snapshot, metrics.purged)
        };
        let trigger = self.raft.trigger();
        let asked = match snapshot {
            Some(snapshot) if Some(snapshot) > purged => trigger.purge_log(snapshot.index).await,
            _ if applied > snapshot => trigger.snapshot().await,
            _ => Ok(()),
        };
        if let Err(why) = asked {
            tracing::debug!(error = %why, "the controller's log is not shortened");
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
                Err(Refused::NoSpace(why)) => Err(CallError::NoSpace { why }),
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
