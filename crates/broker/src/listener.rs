//! Listeners: bound before the broker registers, accepting once it serves.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use thiserror::Error;
use tidelog_runtime::{CancellationToken, Supervisor};
use tidelog_wire::Str;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    config::{ListenerConfig, ListenerError},
    connection::{self, Caller},
    node::Node,
};

/// A wait after an accept that failed for want of descriptors: the next one would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener's name and what clients are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The listener's name.
    pub name: String,
    /// The host that clients connect to.
    pub host: String,
    /// The port that clients connect to.
    pub port: u16,
}

/// A listener that is bound and does not accept yet.
#[derive(Debug)]
pub struct BoundListener {
    endpoint: Arc<Endpoint>,
    socket: TcpListener,
    address: SocketAddr,
}

/// Why a listener could not be bound.
#[derive(Debug, Error)]
pub enum BindError {
    /// Its settings are wrong.
    #[error("{0}")]
    Config(#[from] ListenerError),
    /// Another process has the port.
    #[error("listener {name}: {address} is in use by another process")]
    InUse {
        /// The listener.
        name: String,
        /// What was bound.
        address: String,
    },
    /// The system refused.
    #[error("listener {name}: {address} cannot be bound")]
    Io {
        /// The listener.
        name: String,
        /// What was bound.
        address: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

impl BoundListener {
    /// Binds a listener.
    ///
    /// # Errors
    /// Which listener, and what is wrong with it.
    pub async fn bind(config: &ListenerConfig) -> Result<Self, BindError> {
        let host = config.advertised_host()?.to_owned();
        let failed = |source: io::Error| {
            let (name, address) = (config.name.clone(), format!("{}:{}", config.host, config.port));
            if source.kind() == io::ErrorKind::AddrInUse {
                BindError::InUse { name, address }
            } else {
                BindError::Io { name, address, source }
            }
        };
        let socket = TcpListener::bind((config.host.as_str(), config.port)).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let port = match config.advertised.as_ref().map_or(config.port, |advertised| advertised.port) {
            0 => address.port(),
            port => port,
        };
        Ok(Self { endpoint: Arc::new(Endpoint { name: config.name.clone(), host, port }), socket, address })
    }

    /// What clients are told, for the broker's registration.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The address that is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until `ended`; each connection is a task of `connections`.
    pub(crate) async fn accept(self, node: Arc<Node>, ended: CancellationToken, connections: Supervisor) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = ended.cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => self.open(&node, &connections, stream, address),
                Err(error) => {
                    if let Some(suppressed) = node.connection_lines.pass("not accepted") {
                        let listener = self.endpoint.name.as_str();
                        tracing::warn!(listener, %error, suppressed, "a connection could not be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn open(&self, node: &Arc<Node>, supervisor: &Supervisor, stream: TcpStream, address: SocketAddr) {
        let Some(open) = node.open_connection() else {
            node.metrics.connections_refused.inc();
            if let Some(suppressed) = node.connection_lines.pass("refused") {
                let (listener, open) = (self.endpoint.name.as_str(), node.metrics.connections.get());
                tracing::warn!(
                    peer = %address, listener, open, suppressed,
                    "connection refused: max.connections, or what the process has descriptors for, are open"
                );
            }
            return;
        };
        let caller = Caller {
            endpoint: Arc::clone(&self.endpoint),
            address,
            client_id: Str::default(),
            ended: supervisor.shutdown_token().child_token(),
            in_work: Arc::default(),
        };
        let node = Arc::clone(node);
        supervisor
            .spawn("connection", async move {
                let _open = open;
                connection::serve(node, stream, caller).await;
            })
            .detach();
    }
}
