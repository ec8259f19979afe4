//! The end of a node, whole or half started: what was begun ends in the one order, in a time that all steps share.
//!
//! **Owns** the time, and what is said of a step that did not end in it. **Does not own** what each part does to end.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Result, anyhow};
use tidelog_controller::Controller;
use tidelog_log::Log;
use tidelog_replica::ReplicaManager;
use tidelog_runtime::{Clock, Supervisor};

use super::store::Store;

/// What every step has, however late it is: enough where nothing is wrong.
const STEP_MIN: Duration = Duration::from_millis(500);

/// The time of a stop: what one step took too long goes off the later ones.
pub(super) struct StopTime {
    clock: Arc<dyn Clock>,
    end: Duration,
    /// A fifth of it all.
    pub(super) share: Duration,
    late: Vec<&'static str>,
}

impl StopTime {
    pub(super) fn new(clock: &Arc<dyn Clock>, deadline: Duration) -> Self {
        let end = clock.monotonic() + deadline;
        Self { clock: Arc::clone(clock), end, share: deadline / 5, late: Vec::new() }
    }

    /// What a step may take of a share.
    pub(super) fn limit(&self, share: Duration) -> Duration {
        share.min(self.end.saturating_sub(self.clock.monotonic())).max(STEP_MIN)
    }

    /// What a step may take where the ones after it need no more than `kept`.
    fn all_but(&self, kept: Duration) -> Duration {
        self.end.saturating_sub(self.clock.monotonic()).saturating_sub(kept).max(STEP_MIN)
    }

    /// Adds what did not end in its time.
    pub(super) fn add_late(&mut self, late: Vec<&'static str>) {
        self.late.extend(late);
    }

    /// Takes a step for at most `limit`; says so where it is cut.
    pub(super) async fn step<T>(
        &mut self,
        what: &'static str,
        limit: Duration,
        step: impl Future<Output = T>,
    ) -> Option<T> {
        let ended = tokio::time::timeout(limit, step).await.ok();
        if ended.is_none() {
            tracing::warn!(what, ?limit, "a step of the stop did not end in time and was cut");
            self.late.push(what);
        }
        ended
    }

    /// What did not end in its time.
    pub(super) fn late(self) -> Vec<&'static str> {
        self.late
    }
}

/// What a start has begun so far. Each is set once.
#[derive(Default)]
pub(super) struct Begun {
    pub(super) admin_tasks: OnceLock<Supervisor>,
    pub(super) store: OnceLock<Arc<Store>>,
    pub(super) controller: OnceLock<Controller>,
    /// The log, once its partitions are open: closed before, its last checkpoint would not know their producers. The next
    /// start recovers it instead.
    pub(super) partitions: OnceLock<(ReplicaManager, Log)>,
}

impl Begun {
    /// Ends it all, and every task of `tasks`.
    ///
    /// # Errors
    /// The log was not closed; the next start recovers.
    pub(super) async fn end(&self, mut time: StopTime, tasks: &Supervisor) -> Result<()> {
        let mut closed = Ok(());
        if let Some((replicas, log)) = self.partitions.get() {
            let late = replicas.shutdown(time.limit(time.share)).await;
            time.add_late(late);
            let limit = time.all_but(time.share / 2);
            closed = match time.step("the log's close", limit, log.close()).await {
                Some(outcome) => outcome.map_err(|failure| anyhow!(failure).context("close the log")),
                None => Err(anyhow!("the log was not closed in time: the next start recovers it")),
            };
        }
        if let Some(controller) = self.controller.get() {
            let limit = time.limit(time.share);
            time.step("the controller's end", limit, controller.shutdown()).await;
        }
        if let Some(store) = self.store.get() {
            let late = store.close(time.limit(time.share)).await;
            time.add_late(late);
        }
        if let Some(admin) = self.admin_tasks.get() {
            let late = admin.shutdown(Duration::from_secs(1)).await;
            time.add_late(late);
        }
        let late = tasks.shutdown(Duration::from_secs(2)).await;
        time.add_late(late);
        let late = time.late();
        if !late.is_empty() {
            tracing::warn!(?late, "what did not end in time was cut");
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use tidelog_runtime::SystemClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_step_that_does_not_end_is_cut_and_named() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut time = StopTime::new(&clock, Duration::from_secs(25));
        let begun = tokio::time::Instant::now();
        let limit = time.limit(time.share);
        assert_eq!(limit, Duration::from_secs(5));
        assert_eq!(time.step("what hangs", limit, std::future::pending::<()>()).await, None);
        assert_eq!(begun.elapsed(), limit);
        assert_eq!(time.step("what ends", limit, async { 7 }).await, Some(7));
        assert_eq!(time.late(), ["what hangs"]);
    }

    #[tokio::test]
    async fn a_step_has_some_time_however_late_it_is() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let time = StopTime::new(&clock, Duration::ZERO);
        assert_eq!((time.limit(Duration::from_secs(5)), time.all_but(Duration::ZERO)), (STEP_MIN, STEP_MIN));
    }
}
