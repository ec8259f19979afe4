//! The broker: what clients connect to.
//!
//! **Owns** listeners and connections, the Kafka APIs (one file each in `api/`), incremental fetch sessions, which error is
//! which of Kafka's codes (`error_code.rs` alone), and the admin listener.
//!
//! **Never** decides what a partition does (`tidelog-replica`), changes the cluster's metadata but through a proposal, or
//! looks into record batches.
//!
//! Start reading at `connection.rs`, which takes a frame in and gives an answer out, then `handlers.rs`, the table of what
//! is served, then any file of `api/`.
//!
//! ```text
//! socket -> frame -> handlers -> api/produce  -> PartitionHandle::append -> ack  -> slices -> socket
//!                             -> api/fetch    -> PartitionHandle::read   -> wait -> slices -> socket
//!                             -> api/...      -> Metadata::propose, images
//! ```
//!
//! # The hot path
//! A frame is read into one buffer of its size; a batch is a slice of it, which the log's tail keeps and fetches send. The
//! header of a batch, 61 bytes, is patched apart from it. No controller and no bucket stands in that way.

mod admin;
mod api;
mod config;
mod connection;
mod coordinator;
mod error_code;
mod fetch;
mod handlers;
mod listener;
mod metrics;
mod node;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tidelog_replica::{Metadata, ReplicaManager};
use tidelog_runtime::{Clock, Disk, IdGen, Registry, Rng, Supervisor};

#[doc(hidden)]
pub use admin::segments_query;
pub use admin::{
    AdminAnswer, AdminError, AdminListener, AdminSource, LiftFence, SEGMENTS_MAX, SegmentsQuery,
};
pub use config::{Advertised, BrokerConfig, ListenerConfig, ListenerError, check_listeners};
pub use listener::{BindError, BoundListener, Endpoint};
pub use metrics::request_seconds;

use crate::{
    coordinator::GroupCoordinator,
    metrics::BrokerMetrics,
    node::{Node, NodeParts},
};

/// What a broker is made of.
pub struct BrokerParts {
    /// The cluster's metadata, and the way to change it.
    pub metadata: Arc<dyn Metadata>,
    /// The partitions of this node.
    pub replicas: ReplicaManager,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance, for fetch session ids.
    pub rng: Arc<dyn Rng>,
    /// Ids of new topics.
    pub ids: Arc<dyn IdGen>,
    /// Where the data directory lies, for its free space.
    pub disk: Arc<dyn Disk>,
    /// Who runs the tasks.
    pub supervisor: Supervisor,
    /// Where metrics go.
    pub registry: Registry,
}

/// A broker that serves.
pub struct Broker {
    listeners: Supervisor,
    connections: Supervisor,
    addresses: Vec<(String, SocketAddr)>,
    node: Arc<Node>,
}

impl Broker {
    /// Begins to accept on listeners that were bound before. The replicas must have passed the node's registration.
    #[must_use]
    pub fn start(config: BrokerConfig, listeners: Vec<BoundListener>, parts: BrokerParts) -> Self {
        let metrics = BrokerMetrics::new(&parts.registry, handlers::served());
        let (accepting, connections) =
            (parts.supervisor.child("listeners"), parts.supervisor.child("connections"));
        let addresses =
            listeners.iter().map(|listener| (listener.endpoint().name.clone(), listener.address())).collect();
        let node = Arc::new(Node::new(
            config,
            NodeParts {
                metadata: parts.metadata,
                replicas: parts.replicas,
                clock: parts.clock,
                rng: parts.rng,
                ids: parts.ids,
                disk: parts.disk,
                supervisor: parts.supervisor,
                metrics,
                groups: GroupCoordinator::new(&parts.registry),
            },
        ));
        coordinator::register_lag(&parts.registry, &node);
        coordinator::start(&node);
        for listener in listeners {
            let tasks = listener.accept(Arc::clone(&node), accepting.shutdown_token(), connections.clone());
            accepting.spawn("listener", tasks).detach();
        }
        Self { listeners: accepting, connections, addresses, node }
    }

    /// The listeners by name, with the addresses that are bound.
    #[must_use]
    pub fn addresses(&self) -> &[(String, SocketAddr)] {
        &self.addresses
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.node.metrics.connections.get()
    }

    /// Stops accepting, takes no further request, answers what was begun, and closes the connections; whatever takes longer
    /// than `deadline` is cut. Returns the names of tasks that were.
    pub async fn drain(&self, deadline: Duration) -> Vec<&'static str> {
        let mut left = self.listeners.shutdown(deadline).await;
        left.extend(self.connections.shutdown(deadline).await);
        left.extend(self.node.coordinators.shutdown(deadline).await);
        left
    }
}
