//! Metrics of the store and of the cache.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidelog_runtime::{
    Registry,
    metrics::{Counter, Gauge, Histogram},
};

use crate::Usage;

/// What a request is billed as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Get,
    Put,
    Head,
    List,
    Delete,
}

impl RequestKind {
    pub(crate) const ALL: [Self; 5] = [Self::Get, Self::Put, Self::Head, Self::List, Self::Delete];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Get => 0,
            Self::Put => 1,
            Self::Head => 2,
            Self::List => 3,
            Self::Delete => 4,
        }
    }
}

/// Requests and bytes of one client: its own numbers beside the process's metrics.
pub(crate) struct StoreMetrics {
    requests: [Counter; 5],
    failures: [Counter; 5],
    seconds: [Histogram; 5],
    sent: Counter,
    received: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) resumed: Counter,
    pub(crate) settled: Counter,
    own_requests: [AtomicU64; 5],
    own_failures: AtomicU64,
    own_sent: AtomicU64,
    own_received: AtomicU64,
}

impl StoreMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let each = |name, doc| {
            RequestKind::ALL.map(|kind| registry.counter_with(name, doc, &[("kind", kind.label())]))
        };
        Self {
            requests: each(
                "object_requests_total",
                "Requests to the store, retries included, as they are billed",
            ),
            failures: each(
                "object_request_failures_total",
                "Requests to the store that failed, by whatever cause",
            ),
            seconds: RequestKind::ALL.map(|kind| {
                registry.histogram_with(
                    "object_request_seconds",
                    "Time of one request to the store, its body included",
                    tidelog_runtime::metrics::SECONDS,
                    &[("kind", kind.label())],
                )
            }),
            sent: registry.counter("object_sent_bytes_total", "Bytes of bodies sent to the store"),
            received: registry
                .counter("object_received_bytes_total", "Bytes of bodies received from the store"),
            in_flight: registry.gauge("object_requests_in_flight", "Requests to the store that are running"),
            resumed: registry
                .counter("object_bodies_resumed_total", "Bodies that were cut short and resumed"),
            settled: registry
                .counter("object_puts_settled_total", "Puts whose lost answer was settled by looking"),
            own_requests: std::array::from_fn(|_| AtomicU64::new(0)),
            own_failures: AtomicU64::new(0),
            own_sent: AtomicU64::new(0),
            own_received: AtomicU64::new(0),
        }
    }

    pub(crate) fn begin(self: &Arc<Self>, kind: RequestKind, sent: u64) -> InFlight {
        self.requests[kind.index()].inc();
        self.own_requests[kind.index()].fetch_add(1, Ordering::Relaxed);
        self.sent.add(sent);
        self.own_sent.fetch_add(sent, Ordering::Relaxed);
        self.in_flight.add(1);
        InFlight(Arc::clone(self))
    }

    pub(crate) fn end(&self, kind: RequestKind, took: Duration, failed: bool) {
        self.seconds[kind.index()].observe_duration(took);
        if failed {
            self.failures[kind.index()].inc();
            self.own_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received.add(bytes);
        self.own_received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> Usage {
        let count = |kind: RequestKind| self.own_requests[kind.index()].load(Ordering::Relaxed);
        Usage {
            get_count: count(RequestKind::Get),
            put_count: count(RequestKind::Put),
            head_count: count(RequestKind::Head),
            list_count: count(RequestKind::List),
            delete_count: count(RequestKind::Delete),
            failure_count: self.own_failures.load(Ordering::Relaxed),
            sent_bytes: self.own_sent.load(Ordering::Relaxed),
            received_bytes: self.own_received.load(Ordering::Relaxed),
        }
    }
}

/// A request that runs; the gauge falls when it is dropped, however it ended.
pub(crate) struct InFlight(Arc<StoreMetrics>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.sub(1);
    }
}

/// Metrics of the chunk cache.
#[derive(Clone)]
pub(crate) struct CacheMetrics {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) inserts: Counter,
    pub(crate) failures: Counter,
}

impl CacheMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            hits: registry.counter("object_cache_hits_total", "Chunks found in the cache"),
            misses: registry.counter("object_cache_misses_total", "Chunks not found in the cache"),
            inserts: registry.counter("object_cache_inserts_total", "Chunks given to the cache"),
            failures: registry
                .counter("object_cache_failures_total", "Errors of the cache, each served as a miss"),
        }
    }
}
