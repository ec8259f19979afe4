//! Background tasks: one trait, and one table of what each kind does when, and when something goes wrong.
//!
//! Every tick is *plan* (pure, from a snapshot), *execute* (idempotent IO), *commit* (conditional). A wake-up is a hint; the
//! periodic tick is the truth. So a tick that was dropped, failed or panicked at any point is made good by the next one.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tidelog_runtime::{Backoff, BackoffConfig};
use tokio::sync::Notify;
use tracing::warn;

use crate::{TierConfig, context::Context};

/// The kinds of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TaskKind {
    /// Segments to the bucket, entries to pages.
    Upload,
    /// Manifests to the bucket.
    Publish,
    /// Log starts, by age and size of both tiers.
    Retention,
    /// Local log starts, by local retention and the disk limit.
    Eviction,
    /// The deletion queue.
    Deletion,
    /// Orphans.
    Sweep,
}

impl TaskKind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Upload, Self::Publish, Self::Retention, Self::Eviction, Self::Deletion, Self::Sweep];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Upload => "tier-upload",
            Self::Publish => "tier-publish",
            Self::Retention => "tier-retention",
            Self::Eviction => "tier-eviction",
            Self::Deletion => "tier-deletion",
            Self::Sweep => "tier-sweep",
        }
    }
}

/// What happens to a running tick at a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnCancel {
    /// It ends by itself, soon: it looks at the token between steps.
    Finishes,
    /// It is dropped at its next await: nothing that it does needs an end.
    Dropped,
}

/// When a tick that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnError {
    /// After the period: the tick deals with its partitions apart, and an error is of one of them.
    NextTick,
    /// After a backoff that grows to ten periods.
    BacksOff,
}

/// What happens after a panic. It is a defect, is logged and counted by the supervisor, and ends no other task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnPanic {
    /// The next tick comes after a backoff.
    BacksOff,
}

/// The rules of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) kind: TaskKind,
    pub(crate) period: fn(&TierConfig) -> Duration,
    /// What bounds its use of memory and of the store.
    pub(crate) budget: &'static str,
    pub(crate) on_cancel: OnCancel,
    pub(crate) on_error: OnError,
    pub(crate) on_panic: OnPanic,
}

fn check_interval(config: &TierConfig) -> Duration {
    config.check_interval
}

/// Eight looks in the age of an orphan, at most one per check interval.
fn sweep_interval(config: &TierConfig) -> Duration {
    (config.orphan_age / 8).max(config.check_interval)
}

/// The table.
pub(crate) const POLICIES: [Policy; 6] = [
    Policy {
        kind: TaskKind::Upload,
        period: check_interval,
        budget: "tier.upload.memory.bytes; as many partitions as uploads_at_once",
        on_cancel: OnCancel::Finishes,
        on_error: OnError::NextTick,
        on_panic: OnPanic::BacksOff,
    },
    Policy {
        kind: TaskKind::Publish,
        period: check_interval,
        budget: "one manifest at a time, PUBLISHED_PER_TICK_MAX a tick",
        on_cancel: OnCancel::Finishes,
        on_error: OnError::NextTick,
        on_panic: OnPanic::BacksOff,
    },
    Policy {
        kind: TaskKind::Retention,
        period: check_interval,
        budget: "one page at a time",
        on_cancel: OnCancel::Finishes,
        on_error: OnError::NextTick,
        on_panic: OnPanic::BacksOff,
    },
    Policy {
        kind: TaskKind::Eviction,
        period: check_interval,
        budget: "local disk only",
        on_cancel: OnCancel::Finishes,
        on_error: OnError::NextTick,
        on_panic: OnPanic::BacksOff,
    },
    Policy {
        kind: TaskKind::Deletion,
        period: check_interval,
        budget: "ITEMS_PER_TICK_MAX items, one listing page in memory",
        on_cancel: OnCancel::Dropped,
        on_error: OnError::BacksOff,
        on_panic: OnPanic::BacksOff,
    },
    Policy {
        kind: TaskKind::Sweep,
        period: sweep_interval,
        budget: "one listing page in memory",
        on_cancel: OnCancel::Dropped,
        on_error: OnError::BacksOff,
        on_panic: OnPanic::BacksOff,
    },
];

/// Why a tick did not do everything; the next one tries again.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub(crate) struct TickError {
    pub(crate) what: String,
    pub(crate) why: String,
}

impl TickError {
    pub(crate) fn new(what: impl ToString, why: impl ToString) -> Self {
        Self { what: what.to_string(), why: why.to_string() }
    }
}

/// One kind of background work.
pub(crate) trait Task: Send + Sync + 'static {
    /// Does what is due.
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>>;
}

/// Ticks a task until the shutdown.
pub(crate) async fn run(context: Arc<Context>, policy: Policy, task: Arc<dyn Task>, wake: Arc<Notify>) {
    let token = context.supervisor.shutdown_token();
    let period = (policy.period)(&context.config);
    tracing::debug!(task = policy.kind.name(), ?period, budget = policy.budget, "background task starts");
    let mut backoff = Backoff::new(BackoffConfig { first: period, max: period.saturating_mul(10) });
    loop {
        let mut tick = context.supervisor.spawn_back(policy.kind.name(), Arc::clone(&task).tick());
        let ended = tokio::select! {
            // A tick that has ended counts, also during a shutdown.
            biased;
            ended = &mut tick => ended,
            () = token.cancelled() => {
                match policy.on_cancel {
                    OnCancel::Finishes => drop(tick.await),
                    OnCancel::Dropped => tick.abort(),
                }
                return;
            }
        };
        let delay = match ended {
            Ok(Ok(())) => {
                backoff.reset();
                period
            }
            Ok(Err(error)) => {
                context.metrics.task_failed(policy.kind);
                warn!(task = policy.kind.name(), %error, "background work is tried again");
                match policy.on_error {
                    OnError::NextTick => period,
                    OnError::BacksOff => backoff.next_delay(&*context.rng),
                }
            }
            Err(_) => {
                context.metrics.task_failed(policy.kind);
                match policy.on_panic {
                    OnPanic::BacksOff => backoff.next_delay(&*context.rng),
                }
            }
        };
        tokio::select! {
            // The shutdown comes first, or a task that is always woken would never see it.
            biased;
            () = token.cancelled() => return,
            () = wake.notified() => {}
            () = context.clock.sleep(delay) => {}
        }
    }
}
