//! What the broker counts.

use std::collections::BTreeMap;

use tidelog_runtime::metrics::{Counter, Gauge, Histogram, Registry, SECONDS};
use tidelog_wire::ApiKey;

/// Per API: requests, and how long they took.
#[derive(Debug)]
pub(crate) struct ApiMetrics {
    pub requests: Counter,
    pub seconds: Histogram,
}

/// The broker's metrics.
#[derive(Debug)]
pub(crate) struct BrokerMetrics {
    pub connections: Gauge,
    pub connections_opened: Counter,
    pub connections_refused: Counter,
    pub bad_frames: Counter,
    pub not_kafka: Counter,
    pub slow_sockets: Counter,
    pub idle_sockets: Counter,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    pub fetch_sessions: Gauge,
    pub fetch_sessions_evicted: Counter,
    pub fetch_wakeups: Counter,
    pub fetch_memory_waits: Counter,
    pub topics_auto_created: Counter,
    apis: BTreeMap<ApiKey, ApiMetrics>,
}

/// How long requests of `api` take, in seconds: from a request's last byte to its answer, the wait it asked for included.
#[must_use]
pub fn request_seconds(registry: &Registry, api: ApiKey) -> Histogram {
    registry.histogram_with(
        "broker_request_seconds",
        "Time from a request's last byte to its answer, the wait it asked for included.",
        SECONDS,
        &[("api", api.name())],
    )
}

impl BrokerMetrics {
    pub(crate) fn new(registry: &Registry, served: impl Iterator<Item = ApiKey>) -> Self {
        let apis = served.map(|api| {
            let labels = [("api", api.name())];
            let seconds = request_seconds(registry, api);
            let requests =
                registry.counter_with("broker_requests_total", "Requests that were answered.", &labels);
            (api, ApiMetrics { requests, seconds })
        });
        Self {
            apis: apis.collect(),
            connections: registry.gauge("broker_connections", "Connections that are open."),
            connections_opened: registry.counter("broker_connections_opened_total", "Connections accepted."),
            connections_refused: registry.counter(
                "broker_connections_refused_total",
                "Connections closed because max.connections, or what there are descriptors for, were open.",
            ),
            bad_frames: registry.counter(
                "broker_bad_frames_total",
                "Frames that could not be decoded; each closed its connection.",
            ),
            not_kafka: registry
                .counter("broker_not_kafka_total", "Connections that spoke HTTP or TLS to a Kafka listener."),
            slow_sockets: registry.counter(
                "broker_slow_sockets_total",
                "Connections closed because they took or sent no byte for 30 s, or took or sent them too slowly while others waited for memory.",
            ),
            idle_sockets: registry
                .counter("broker_idle_sockets_total", "Connections closed by connections.max.idle.ms."),
            bytes_in: registry.counter("broker_received_bytes_total", "Bytes of request frames."),
            bytes_out: registry.counter("broker_sent_bytes_total", "Bytes of response frames."),
            fetch_sessions: registry
                .gauge("broker_fetch_sessions", "Incremental fetch sessions that are kept."),
            fetch_sessions_evicted: registry
                .counter("broker_fetch_sessions_evicted_total", "Fetch sessions that gave way to others."),
            fetch_wakeups: registry.counter(
                "broker_fetch_wakeups_total",
                "Times that a waiting fetch looked again because a partition moved.",
            ),
            fetch_memory_waits: registry.counter(
                "broker_fetch_memory_waits_total",
                "Times that a fetch waited for memory that other answers held.",
            ),
            topics_auto_created: registry.counter(
                "broker_topics_auto_created_total",
                "Topics created because a client asked for them by name.",
            ),
        }
    }

    pub(crate) fn api(&self, api: ApiKey) -> Option<&ApiMetrics> {
        self.apis.get(&api)
    }
}
