//! The admin listener: metrics, health, readiness, and status documents for the command line.
//!
//! **Owns** the HTTP server and its bounds. **Does not own** what it shows: [`AdminSource`] answers for the node.
//!
//! | path | answer |
//! | --- | --- |
//! | `/metrics` | Prometheus' text format |
//! | `/healthz` | 200 while the process runs |
//! | `/readyz` | 200 once clients are served, else 503 and what is waited for |
//! | `/v1/cluster` | the cluster, as JSON |
//! | `/v1/tier/status` | what is in the bucket and what is not yet, as JSON |
//! | `/v1/tier/segments?topic=NAME[&partition=N][&limit=N]` | the objects of a topic, as JSON |
//! | `/v1/fences` | the partitions that take no appends, and what was lost of each, as JSON |
//! | `POST /v1/fences/lift?topic=NAME&partition=N&accept_loss_from=OFFSET` | lifts one, for whoever names its loss |
//! | `POST /v1/cache/clear` | drops what was read from the bucket |
//!
//! Requests have no body, connections are few, and each request has a time limit: a monitor that hangs costs a slot for
//! some seconds, never memory.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tidelog_runtime::{Registry, Supervisor};
use tokio::net::{TcpListener, TcpStream};

/// Connections at once: a scraper, a probe, a person or two.
const CONNECTIONS_MAX: usize = 32;

/// How long the head of a request may take, and a connection may be without one.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(15);

/// How long an answer may take to be made and sent.
const CONNECTION_WAIT_MAX: Duration = Duration::from_secs(120);

/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Objects that one answer lists at most.
pub const SEGMENTS_MAX: usize = 10_000;

/// A JSON document, or why there is none.
pub type AdminAnswer = Pin<Box<dyn Future<Output = Result<Value, AdminError>> + Send>>;

/// Why a status document cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// What was asked about does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The question makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// What is asked for does not fit what there is: looking again helps, asking again does not.
    #[error("{0}")]
    Conflict(String),
    /// The node cannot answer at the moment.
    #[error("{0}")]
    Unavailable(String),
}

/// Which objects are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentsQuery {
    /// The topic's name.
    pub topic: String,
    /// One partition only.
    pub partition: Option<i32>,
    /// At most so many.
    pub limit: usize,
}

/// Which fence is to be lifted, and the loss that is accepted with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiftFence {
    /// The topic's name.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Where what is lost begins, as the list of fences says.
    pub accept_loss_from: u64,
}

/// What the admin listener shows of a node.
pub trait AdminSource: Send + Sync + 'static {
    /// What is waited for before clients are served; empty once they are.
    fn waits_for(&self) -> Vec<String>;
    /// The cluster's brokers and topics.
    fn cluster(&self) -> AdminAnswer;
    /// What is in the bucket, and what is not yet.
    fn tier_status(&self) -> AdminAnswer;
    /// The objects of a topic.
    fn tier_segments(&self, query: SegmentsQuery) -> AdminAnswer;
    /// The partitions that are fenced.
    fn fences(&self) -> AdminAnswer;
    /// Lifts a fence: an operator's decision, which nothing takes back.
    fn lift_fence(&self, lift: LiftFence) -> AdminAnswer;
    /// Drops what was read from the bucket, so that the next cold read goes there.
    fn clear_cache(&self) -> AdminAnswer {
        Box::pin(async { Err(AdminError::Unavailable("this node has no cache".to_owned())) })
    }
}

/// An admin listener that is bound.
#[derive(Debug)]
pub struct AdminListener {
    socket: TcpListener,
    address: SocketAddr,
}

impl AdminListener {
    /// Binds `address`, which is `host:port`.
    ///
    /// # Errors
    /// The system's.
    pub async fn bind(address: &str) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// The address that is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the group of tasks shuts down.
    pub fn serve(self, source: Arc<dyn AdminSource>, registry: Registry, supervisor: &Supervisor) {
        let tasks = supervisor.clone();
        supervisor.spawn("admin listener", accept(self.socket, source, registry, tasks)).detach();
    }
}

async fn accept(socket: TcpListener, source: Arc<dyn AdminSource>, registry: Registry, tasks: Supervisor) {
    let ended = tasks.shutdown_token();
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = tokio::select! {
            biased;
            () = ended.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "an admin connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let slot = Slot::take(&open);
        let (source, registry, ended) = (Arc::clone(&source), registry.clone(), ended.clone());
        tasks
            .spawn("admin connection", async move {
                let Some(_slot) = slot else { return };
                tokio::select! {
                    biased;
                    () = ended.cancelled() => {}
                    _ = tokio::time::timeout(CONNECTION_WAIT_MAX, converse(stream, source, registry)) => {}
                }
            })
            .detach();
    }
}

/// A place among [`CONNECTIONS_MAX`].
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let taken = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < CONNECTIONS_MAX).then_some(count + 1)
        });
        taken.is_ok().then(|| Self(Arc::clone(open)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn converse(stream: TcpStream, source: Arc<dyn AdminSource>, registry: Registry) {
    let service = service_fn(move |request| {
        let (source, registry) = (Arc::clone(&source), registry.clone());
        async move { Ok::<_, Infallible>(respond(&request, source.as_ref(), &registry).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection ended");
    }
}

async fn respond(
    request: &Request<Incoming>,
    source: &dyn AdminSource,
    registry: &Registry,
) -> Response<Full<Bytes>> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    if request.method() == Method::POST {
        return match path {
            "/v1/cache/clear" => document(source.clear_cache().await),
            "/v1/fences/lift" => match lift_fence(query) {
                Ok(lift) => document(source.lift_fence(lift).await),
                Err(error) => document(Err(error)),
            },
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "nothing is posted here\n".to_owned()),
        };
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served\n".to_owned());
    }
    match path {
        "/metrics" => {
            let mut response = text(StatusCode::OK, registry.encode());
            let kind = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        "/healthz" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => {
            let waits_for = source.waits_for();
            if waits_for.is_empty() {
                text(StatusCode::OK, "ready\n".to_owned())
            } else {
                text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", waits_for.join(", ")))
            }
        }
        "/v1/cluster" => document(source.cluster().await),
        "/v1/tier/status" => document(source.tier_status().await),
        "/v1/fences" => document(source.fences().await),
        "/v1/tier/segments" => match segments_query(query) {
            Ok(query) => document(source.tier_segments(query).await),
            Err(error) => document(Err(error)),
        },
        _ => text(StatusCode::NOT_FOUND, "no such page\n".to_owned()),
    }
}

/// Reads the query of `/v1/tier/segments`.
#[doc(hidden)]
pub fn segments_query(query: &str) -> Result<SegmentsQuery, AdminError> {
    let Some(topic) = topic(query) else {
        return Err(AdminError::Invalid("topic is missing: /v1/tier/segments?topic=NAME".to_owned()));
    };
    let limit = match number::<i32>(query, "limit")? {
        Some(limit) => usize::try_from(limit).unwrap_or(0).min(SEGMENTS_MAX),
        None => SEGMENTS_MAX,
    };
    Ok(SegmentsQuery { topic, partition: number(query, "partition")?, limit })
}

/// Reads the query of `/v1/fences/lift`: nothing of it may be left out.
fn lift_fence(query: &str) -> Result<LiftFence, AdminError> {
    match (topic(query), number(query, "partition")?, number(query, "accept_loss_from")?) {
        (Some(topic), Some(partition), Some(accept_loss_from)) => {
            Ok(LiftFence { topic, partition, accept_loss_from })
        }
        _ => Err(AdminError::Invalid(
            "something is missing: /v1/fences/lift?topic=NAME&partition=N&accept_loss_from=OFFSET".to_owned(),
        )),
    }
}

/// A value of a query, as it stands there: a valid topic name, and a number, have no character that a URL escapes.
fn value<'query>(query: &'query str, name: &str) -> Option<&'query str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn topic(query: &str) -> Option<String> {
    value(query, "topic").filter(|topic| !topic.is_empty()).map(str::to_owned)
}

fn number<N: FromStr>(query: &str, name: &str) -> Result<Option<N>, AdminError> {
    let parsed = value(query, name).map(str::parse).transpose();
    parsed.map_err(|_| AdminError::Invalid(format!("{name} is not a number")))
}

fn document(answer: Result<Value, AdminError>) -> Response<Full<Bytes>> {
    let (status, value) = match answer {
        Ok(value) => (StatusCode::OK, value),
        Err(error) => {
            let status = match error {
                AdminError::NotFound(_) => StatusCode::NOT_FOUND,
                AdminError::Invalid(_) => StatusCode::BAD_REQUEST,
                AdminError::Conflict(_) => StatusCode::CONFLICT,
                AdminError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, json!({ "error": error.to_string() }))
        }
    };
    let mut response = text(status, format!("{value}\n"));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_its_topic() {
        let query = segments_query("topic=flights&partition=3&limit=7").unwrap();
        assert_eq!(query, SegmentsQuery { topic: "flights".to_owned(), partition: Some(3), limit: 7 });
        assert_eq!(segments_query("topic=a").unwrap().limit, SEGMENTS_MAX);
        assert_eq!(segments_query("topic=a&limit=2000000").unwrap().limit, SEGMENTS_MAX);
        assert!(matches!(segments_query(""), Err(AdminError::Invalid(_))));
        assert!(matches!(segments_query("topic=a&partition=x"), Err(AdminError::Invalid(_))));
    }

    #[test]
    fn a_lift_names_all_of_what_it_gives_up() {
        let lift = lift_fence("topic=flights&partition=3&accept_loss_from=42").unwrap();
        assert_eq!(lift, LiftFence { topic: "flights".to_owned(), partition: 3, accept_loss_from: 42 });
        for query in [
            "",
            "topic=&partition=0&accept_loss_from=1",
            "topic=a&partition=0",
            "topic=a&accept_loss_from=1",
            "topic=a&partition=0&accept_loss_from=-1",
            "topic=a&partition=0&accept_loss_from=18446744073709551616",
        ] {
            assert!(matches!(lift_fence(query), Err(AdminError::Invalid(_))), "{query}");
        }
    }
}
