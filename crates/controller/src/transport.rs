//! How controllers talk to each other.
//!
//! **Owns** the messages, the check that both ends belong to one cluster, and the deadline of each call. How bytes
//! travel is behind [`Transport`]; [`InProcessTransport`] joins controllers of one process.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft::{
    RaftNetworkFactory, RaftNetworkV2,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    impls::BasicNode,
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
    storage::Snapshot,
};
use thiserror::Error;
use tidelog_core::cluster::{Command, Outcome};
use tidelog_types::ClusterId;

use crate::raft_types::{SnapshotMeta, TypeConfig, Vote};

/// One message from a controller to another.
#[derive(Debug, Clone)]
pub struct Request {
    /// The sender's cluster: another one's is refused, whatever it says.
    pub cluster_id: ClusterId,
    /// The sender.
    pub from: u64,
    /// What it says.
    pub message: Message,
}

/// What a controller says.
#[derive(Debug, Clone)]
pub enum Message {
    /// Entries, or a heartbeat.
    AppendEntries(AppendEntriesRequest<TypeConfig>),
    /// A candidate asks for a vote.
    Vote(VoteRequest<TypeConfig>),
    /// A node asks whether it would get a vote.
    PreVote(VoteRequest<TypeConfig>),
    /// A whole snapshot.
    Snapshot {
        /// The leader's vote.
        vote: Vote,
        /// What it covers.
        meta: SnapshotMeta,
        /// The state.
        state: Bytes,
    },
    /// The leader asks the receiver to take over.
    TransferLeader(TransferLeaderRequest<TypeConfig>),
    /// A command for the leader.
    Propose(Arc<Command>),
    /// Asks the leader for the index that a linearizable read must have applied.
    ReadIndex,
}

/// What the other one answers.
#[derive(Debug, Clone)]
pub enum Answer {
    /// To [`Message::AppendEntries`].
    AppendEntries(AppendEntriesResponse<TypeConfig>),
    /// To [`Message::Vote`] and [`Message::PreVote`].
    Vote(VoteResponse<TypeConfig>),
    /// To [`Message::Snapshot`].
    Snapshot(SnapshotResponse<TypeConfig>),
    /// To [`Message::TransferLeader`].
    TransferLeader(TransferLeaderResponse<TypeConfig>),
    /// To [`Message::Propose`].
    Proposed {
        /// Where the command was applied.
        index: u64,
        /// What it did.
        outcome: Outcome,
    },
    /// To [`Message::ReadIndex`].
    ReadIndex(u64),
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The request certainly did not arrive.
    #[error("controller {node} cannot be reached")]
    Unreachable {
        /// Who was called.
        node: u64,
    },
    /// The receiver does not lead; nothing was done.
    #[error("the controller does not lead")]
    NotLeader,
    /// The receiver leads, but its disk is full; nothing was done.
    #[error("the controller has no space on its disk: {why}")]
    NoSpace {
        /// What the disk said.
        why: String,
    },
    /// The receiver belongs to another cluster; nothing was done.
    #[error("the controller belongs to cluster {cluster_id}")]
    AnotherCluster {
        /// The receiver's.
        cluster_id: ClusterId,
    },
    /// It may have arrived and may have been done.
    #[error("the answer is not known: {why}")]
    Unknown {
        /// What happened.
        why: String,
    },
}

/// Carries requests. A call that is dropped may still arrive.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request to a node and waits for its answer. The caller sets the deadline.
    fn call(&self, target: u64, request: Request) -> BoxFuture<'static, Result<Answer, CallError>>;
}

/// Takes requests that arrived.
pub trait Receiver: Send + Sync + 'static {
    /// Carries a request out.
    fn receive(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, CallError>>;
}

/// Joins controllers of one process, and cuts them apart again.
#[derive(Default)]
pub struct InProcessTransport {
    nodes: Mutex<BTreeMap<u64, Weak<dyn Receiver>>>,
    cuts: Mutex<BTreeSet<(u64, u64)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InProcessTransport {
    /// No nodes.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Requests to `node` go to this receiver, as long as it lives.
    pub fn attach(&self, node: u64, receiver: &Arc<dyn Receiver>) {
        lock(&self.nodes).insert(node, Arc::downgrade(receiver));
    }

    /// Nothing passes between two nodes, in either direction, answers included.
    pub fn cut(&self, one: u64, other: u64) {
        lock(&self.cuts).extend([(one, other), (other, one)]);
    }

    /// Everything passes between all nodes.
    pub fn heal(&self) {
        lock(&self.cuts).clear();
    }

    fn passes(&self, from: u64, to: u64) -> bool {
        !lock(&self.cuts).contains(&(from, to))
    }
}

/// A handle, so that calls can outlive the borrow.
impl Transport for Arc<InProcessTransport> {
    fn call(&self, target: u64, request: Request) -> BoxFuture<'static, Result<Answer, CallError>> {
        let transport = Self::clone(self);
        Box::pin(async move {
            let from = request.from;
            let receiver = lock(&transport.nodes).get(&target).and_then(Weak::upgrade);
            let Some(receiver) = receiver.filter(|_| transport.passes(from, target)) else {
                return Err(CallError::Unreachable { node: target });
            };
            let answer = receiver.receive(request).await;
            if transport.passes(target, from) {
                answer
            } else {
                Err(CallError::Unknown { why: "the connection was cut".to_owned() })
            }
        })
    }
}

/// Makes openraft's clients out of a [`Transport`].
pub(crate) struct Network {
    pub(crate) cluster_id: ClusterId,
    pub(crate) node_id: u64,
    pub(crate) transport: Option<Arc<dyn Transport>>,
}

/// Calls one node for openraft.
pub(crate) struct Peer {
    cluster_id: ClusterId,
    from: u64,
    target: u64,
    transport: Option<Arc<dyn Transport>>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Peer {
        Peer { cluster_id: self.cluster_id, from: self.node_id, target, transport: self.transport.clone() }
    }
}

/// The answer was to another question.
fn mismatched() -> CallError {
    CallError::Unknown { why: "the answer is to another question".to_owned() }
}

impl Peer {
    async fn call(&self, message: Message, option: &RPCOption) -> Result<Answer, CallError> {
        let Some(transport) = &self.transport else {
            return Err(CallError::Unreachable { node: self.target });
        };
        let request = Request { cluster_id: self.cluster_id, from: self.from, message };
        match tokio::time::timeout(option.soft_ttl(), transport.call(self.target, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Unknown { why: "no answer in time".to_owned() }),
        }
    }
}

fn rpc_error(error: &CallError) -> RPCError<TypeConfig> {
    match error {
        CallError::Unreachable { .. } | CallError::AnotherCluster { .. } => {
            RPCError::Unreachable(Unreachable::new(error))
        }
        CallError::NotLeader | CallError::NoSpace { .. } | CallError::Unknown { .. } => {
            RPCError::Network(NetworkError::new(error))
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(Message::AppendEntries(rpc), &option).await {
            Ok(Answer::AppendEntries(answer)) => Ok(answer),
            Ok(_) => Err(rpc_error(&mismatched())),
            Err(why) => Err(rpc_error(&why)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(Message::Vote(rpc), &option).await {
            Ok(Answer::Vote(answer)) => Ok(answer),
            Ok(_) => Err(rpc_error(&mismatched())),
            Err(why) => Err(rpc_error(&why)),
        }
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(Message::PreVote(rpc), &option).await {
            Ok(Answer::Vote(answer)) => Ok(answer),
            Ok(_) => Err(rpc_error(&mismatched())),
            Err(why) => Err(rpc_error(&why)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<openraft::alias::CommittedLeaderIdOf<TypeConfig>, u64, BasicNode, Bytes>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let message = Message::Snapshot { vote, meta: snapshot.meta, state: snapshot.snapshot };
        let answer = tokio::select! {
            // A closed replication first: its snapshot is not waited for.
            biased;
            closed = cancel => return Err(StreamingError::Closed(closed)),
            answer = self.call(message, &option) => answer,
        };
        match answer {
            Ok(Answer::Snapshot(answer)) => Ok(answer),
            Ok(_) => Err(rpc_error(&mismatched()).into()),
            Err(why) => Err(rpc_error(&why).into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(Message::TransferLeader(request), &option).await {
            Ok(Answer::TransferLeader(answer)) => Ok(answer),
            Ok(_) => Err(rpc_error(&mismatched())),
            Err(why) => Err(rpc_error(&why)),
        }
    }
}
