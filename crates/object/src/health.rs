//! Whether the store serves, as its requests tell: said once when it stops, and once when it serves again.
//!
//! **Owns** the state that all requests of a client feed, its log lines and its metrics. **Does not own** tries, and asks
//! the store nothing by itself: of a store that nobody asks nothing new is known.
//!
//! ```text
//!          3 failures of one operation in a row,          its success, or
//!          or 5 s of nothing else                         5 s of others' alone
//!   serving ----------------------------------> away ------------------------> serving
//!      |  one operation is refused                        its success  |
//!      `-------------------------------> refused ----------------------'
//! ```
//!
//! A store that is *away* does not answer, or not with sense; a store that *refuses* answered with an authoritative no to
//! one operation: others may go on. Keys may be changed and rights be given while a node runs, so neither is final here.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidelog_runtime::{
    Clock, Registry,
    metrics::{Counter, Gauge},
    watch,
};

use crate::{
    limits::{AWAY_AFTER, AWAY_AFTER_FAILURES, EXPIRED_ADVICE, REFUSAL_LOGGED_EVERY},
    metrics::RequestKind,
    transfer::TryError,
};

/// What keeps a store from serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageCause {
    /// Nothing listens at its address.
    ConnectionRefused,
    /// The name of its host has no address.
    NameNotResolved,
    /// No connection came about in time.
    ConnectTimeout,
    /// No connection came about otherwise: no route, no common TLS, a certificate.
    NotConnected,
    /// It was connected, and no byte moved.
    Silent,
    /// Bytes moved slower than the floor rate.
    Slow,
    /// It asks for fewer requests: 503 or 429.
    Throttles,
    /// It answers with errors of its own: 5xx.
    Fails,
    /// It breaks connections or bodies off.
    BreaksOff,
    /// It answers other than it is asked.
    WrongAnswers,
    /// There are no keys for it now.
    NoKeys,
    /// Its keys are expired, and new ones are asked for.
    ExpiredKeys,
    /// It refuses this operation, with authority.
    Refuses,
    /// The folder does not work.
    Folder,
}

impl fmt::Display for OutageCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionRefused => "the connection is refused",
            Self::NameNotResolved => "its host name is not resolved",
            Self::ConnectTimeout => "no connection in time",
            Self::NotConnected => "no connection",
            Self::Silent => "it is silent",
            Self::Slow => "it is slower than the floor rate",
            Self::Throttles => "it throttles",
            Self::Fails => "it answers with errors",
            Self::BreaksOff => "it breaks off",
            Self::WrongAnswers => "it answers other than it is asked",
            Self::NoKeys => "there are no keys for it",
            Self::ExpiredKeys => "its keys are expired",
            Self::Refuses => "it refuses",
            Self::Folder => "the folder does not work",
        })
    }
}

/// A store that does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOutage {
    /// For how long: from the beginning of the first request that failed.
    pub lasts: Duration,
    /// Requests that failed since.
    pub failure_count: u64,
    /// The operation that failed last: `get`, `put`, `head`, `list` or `delete`.
    pub operation: &'static str,
    /// What keeps it from serving.
    pub cause: OutageCause,
    /// The last reason, as the store or the network gave it.
    pub reason: Arc<str>,
}

impl fmt::Display for StoreOutage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, for {:.1?}): {}", self.cause, self.operation, self.lasts, self.reason)
    }
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct StoreHealth {
    shared: Arc<Shared>,
}

struct Shared {
    store: String,
    clock: Arc<dyn Clock>,
    opened: Duration,
    state: Mutex<State>,
    changed: watch::Sender<()>,
    up: Gauge,
    refusals: [Counter; 5],
}

#[derive(Default)]
struct State {
    last_success: Option<Duration>,
    /// The first success since the last failure: what fails no more is not asked for at once.
    calm_since: Option<Duration>,
    /// By the kind of request: failures since its last success.
    kinds: [OfKind; 5],
    /// It was logged that the store went away.
    is_away: bool,
}

#[derive(Default)]
struct OfKind {
    last_success: Option<Duration>,
    failing: Option<Failing>,
    /// The failures are an outage.
    is_away: bool,
    refused: Option<Failing>,
}

#[derive(Clone)]
struct Failing {
    since: Duration,
    count: u64,
    kind: RequestKind,
    cause: OutageCause,
    reason: Arc<str>,
    last: Duration,
    /// When it was logged last.
    logged: Option<Duration>,
}

impl Failing {
    fn new(since: Duration, kind: RequestKind) -> Self {
        let (cause, reason) = (OutageCause::Silent, "".into());
        Self { since, count: 0, kind, cause, reason, last: since, logged: None }
    }

    fn note(&mut self, kind: RequestKind, cause: OutageCause, reason: Arc<str>, now: Duration) {
        self.count = self.count.saturating_add(1);
        (self.kind, self.cause, self.reason, self.last) = (kind, cause, reason, now);
    }

    fn outage(&self, now: Duration) -> StoreOutage {
        StoreOutage {
            lasts: now.saturating_sub(self.since),
            failure_count: self.count,
            operation: self.kind.label(),
            cause: self.cause,
            reason: Arc::clone(&self.reason),
        }
    }
}

impl fmt::Debug for StoreHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHealth").field("outage", &self.outage()).finish_non_exhaustive()
    }
}

/// What a failed try says of the store; `None` where it is an answer.
fn trouble(error: &TryError) -> Option<(OutageCause, &str)> {
    match error {
        TryError::NotFound
        | TryError::Exists
        | TryError::Precondition
        | TryError::OutOfRange
        | TryError::Conflict(_)
        | TryError::Unsupported(_)
        | TryError::Corrupt(_) => None,
        TryError::ShortBody(reason) => Some((OutageCause::BreaksOff, reason)),
        TryError::WrongAnswer(reason) => Some((OutageCause::WrongAnswers, reason)),
        TryError::Expired(reason) => Some((OutageCause::ExpiredKeys, reason)),
        TryError::Throttled(reason) => Some((OutageCause::Throttles, reason)),
        TryError::Failed { cause, reason, .. } => Some((*cause, reason)),
        TryError::Refused { reason, .. } => Some((OutageCause::Refuses, reason)),
    }
}

impl StoreHealth {
    pub(crate) fn new(store: String, clock: Arc<dyn Clock>, registry: &Registry) -> Self {
        let up = registry.gauge(
            "object_store_up",
            "1 while the store serves as far as its requests tell, 0 while it is away or refuses an operation",
        );
        up.set(1);
        let refusals = RequestKind::ALL.map(|kind| {
            registry.counter_with(
                "object_refusals_total",
                "Requests that the store refused with authority: no bucket, no right, a wrong key",
                &[("kind", kind.label())],
            )
        });
        let (opened, state) = (clock.monotonic(), Mutex::default());
        let shared =
            Arc::new(Shared { store, clock, opened, state, changed: watch::Sender::new(()), up, refusals });
        let aged = Arc::clone(&shared);
        registry.gauge_computed(
            "object_store_success_age_seconds",
            "Seconds since a request to the store succeeded, or since the start where none has; grows too while \
             nothing is asked",
            &[],
            move || aged.success_age().as_secs(),
        );
        Self { shared }
    }

    /// What keeps the store from serving some operation, if anything is known to.
    #[must_use]
    pub fn outage(&self) -> Option<StoreOutage> {
        self.outage_of(&RequestKind::ALL)
    }

    /// What keeps the store from serving reads.
    #[must_use]
    pub fn reads_outage(&self) -> Option<StoreOutage> {
        self.outage_of(&[RequestKind::Get])
    }

    /// What keeps the store from taking writes.
    #[must_use]
    pub fn writes_outage(&self) -> Option<StoreOutage> {
        self.outage_of(&[RequestKind::Put])
    }

    /// The failures that no success has followed, also where they are too few to be an outage.
    #[must_use]
    pub fn failures(&self) -> Option<StoreOutage> {
        let now = self.shared.clock.monotonic();
        let state = self.shared.lock();
        let all = state.kinds.iter().flat_map(|kind| kind.failing.iter().chain(&kind.refused));
        all.max_by_key(|failing| failing.last).map(|failing| failing.outage(now))
    }

    /// How long ago a request succeeded; since the client was opened, where none has.
    #[must_use]
    pub fn success_age(&self) -> Duration {
        self.shared.success_age()
    }

    /// Completes once reads are known not to be served; at once while they are.
    pub async fn reads_fail(&self) -> StoreOutage {
        let mut changed = self.shared.changed.subscribe();
        loop {
            if let Some(outage) = self.reads_outage() {
                return outage;
            }
            if changed.changed().await.is_err() {
                // The sender lives as long as this.
                return std::future::pending().await;
            }
        }
    }

    fn outage_of(&self, kinds: &[RequestKind]) -> Option<StoreOutage> {
        let now = self.shared.clock.monotonic();
        let state = self.shared.lock();
        let of_kind = |kind: &RequestKind| {
            let of_kind = &state.kinds[kind.index()];
            let away = of_kind.failing.as_ref().filter(|_| of_kind.is_away);
            away.or(of_kind.refused.as_ref()).map(|failing| failing.outage(now))
        };
        kinds.iter().find_map(of_kind)
    }

    /// A try ended that began at `begun`.
    pub(crate) fn note<T>(&self, kind: RequestKind, begun: Duration, result: &Result<T, TryError>) {
        match result.as_ref().err().and_then(trouble) {
            None => self.shared.succeeded(kind),
            Some((OutageCause::Refuses, reason)) => {
                let advice = match result {
                    Err(TryError::Refused { advice, .. }) => advice,
                    _ => "",
                };
                self.shared.refused(kind, begun, reason, advice);
            }
            // Keys were asked for anew after the first time.
            Some((OutageCause::ExpiredKeys, reason)) if self.shared.is_expired() => {
                self.shared.refused(kind, begun, reason, EXPIRED_ADVICE);
            }
            Some((cause, reason)) => self.shared.failed(kind, begun, cause, reason),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last thing that was heard of the store is that its keys are expired.
    fn is_expired(&self) -> bool {
        let state = self.lock();
        let refused = |kind: &OfKind| {
            kind.refused.as_ref().is_some_and(|refused| refused.reason.starts_with(EXPIRED_ADVICE))
        };
        let expired = |kind: &OfKind| {
            kind.failing.as_ref().is_some_and(|failing| failing.cause == OutageCause::ExpiredKeys)
        };
        state.kinds.iter().any(|kind| refused(kind) || expired(kind))
    }

    fn success_age(&self) -> Duration {
        let last = self.lock().last_success.unwrap_or(self.opened);
        self.clock.monotonic().saturating_sub(last)
    }

    fn succeeded(&self, kind: RequestKind) {
        let now = self.clock.monotonic();
        let mut state = self.lock();
        state.last_success = Some(now);
        state.kinds[kind.index()].last_success = Some(now);
        let refused = state.kinds[kind.index()].refused.take();
        let was_down = refused.is_some() || state.is_away;
        let back = state.answered(kind, now);
        self.tell(&state, was_down);
        drop(state);
        self.log_return(kind, now, back);
        if let Some(failing) = refused {
            tracing::info!(
                store = %self.store, operation = kind.label(), refused_for = ?now.saturating_sub(failing.since),
                refused_requests = failing.count, "the store accepts the operation again"
            );
        }
    }

    fn refused(&self, kind: RequestKind, begun: Duration, reason: &str, advice: &str) {
        self.refusals[kind.index()].inc();
        let now = self.clock.monotonic();
        let mut state = self.lock();
        // A refusal is an answer: the store is not away.
        let back = state.answered(kind, now);
        let refused = &mut state.kinds[kind.index()].refused;
        let is_new = refused.is_none();
        let failing = refused.get_or_insert_with(|| Failing::new(begun, kind));
        failing.note(kind, OutageCause::Refuses, format!("{advice} ({reason})").into(), now);
        let is_due = failing.logged.is_none_or(|logged| now.saturating_sub(logged) >= REFUSAL_LOGGED_EVERY);
        if is_due {
            failing.logged = Some(now);
        }
        let (count, lasts) = (failing.count, now.saturating_sub(failing.since));
        self.tell(&state, is_new || back.is_some());
        drop(state);
        self.log_return(kind, now, back);
        if is_due {
            tracing::error!(
                store = %self.store, operation = kind.label(), advice, reason, refused_requests = count,
                refused_for = ?lasts, "the store refuses an operation"
            );
        }
    }

    fn failed(&self, kind: RequestKind, begun: Duration, cause: OutageCause, reason: &str) {
        let now = self.clock.monotonic();
        let mut state = self.lock();
        state.calm_since = None;
        let of_kind = &mut state.kinds[kind.index()];
        // What began before the last success says nothing about the time after it.
        let since = of_kind.last_success.map_or(begun, |success| begun.max(success));
        let failing = of_kind.failing.get_or_insert_with(|| Failing::new(since, kind));
        failing.note(kind, cause, reason.into(), now);
        let (count, lasts) = (failing.count, now.saturating_sub(failing.since));
        if of_kind.is_away || (count < AWAY_AFTER_FAILURES && lasts < AWAY_AFTER) {
            return;
        }
        of_kind.is_away = true;
        let is_new = !std::mem::replace(&mut state.is_away, true);
        self.tell(&state, true);
        drop(state);
        if is_new {
            tracing::warn!(
                store = %self.store, operation = kind.label(), %cause, reason, failing_for = ?lasts,
                failed_requests = count, "the store went away"
            );
        }
    }

    fn log_return(&self, kind: RequestKind, now: Duration, back: Option<Failing>) {
        if let Some(failing) = back {
            tracing::info!(
                store = %self.store, operation = kind.label(), away_for = ?now.saturating_sub(failing.since),
                failed_requests = failing.count, "the store is back"
            );
        }
    }

    /// Publishes what changed.
    fn tell(&self, state: &State, changed: bool) {
        if changed {
            let serves = state.kinds.iter().all(|kind| !kind.is_away && kind.refused.is_none());
            self.up.set(u64::from(serves));
            self.changed.send_replace(());
        }
    }
}

impl State {
    /// A request was answered. What it was no longer fails; nor does what was not heard of while others were answered for a
    /// while. Answers the first failure of an outage that ends.
    fn answered(&mut self, kind: RequestKind, now: Duration) -> Option<Failing> {
        let calm_since = *self.calm_since.get_or_insert(now);
        let is_calm = now.saturating_sub(calm_since) >= AWAY_AFTER;
        let mut ended: Option<Failing> = None;
        for (of_kind, other) in self.kinds.iter_mut().zip(RequestKind::ALL) {
            if other != kind && !is_calm {
                continue;
            }
            let failing = of_kind.failing.take();
            let was_away = std::mem::take(&mut of_kind.is_away);
            let failing = failing.filter(|_| was_away);
            ended = match (ended, failing) {
                (Some(one), Some(other)) if other.since < one.since => Some(other),
                (one, other) => one.or(other),
            };
        }
        if !self.is_away || self.kinds.iter().any(|kind| kind.is_away) {
            return None;
        }
        self.is_away = false;
        ended
    }
}

#[cfg(test)]
mod tests;
