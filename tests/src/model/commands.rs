//! The way to the controller: proposals that come late, whose answers are lost, or that a mistake changes.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use tidelog_controller::{Controller, LinearizeError};
use tidelog_core::cluster::{Command, LogIndex, MetadataImage, Outcome};
use tidelog_replica::{Metadata, ProposeFailure, ProposeFuture};
use tidelog_runtime::{Clock, Rng, SeededRng};
use tidelog_sim::{Trace, digest};
use tidelog_testkit::SimBucket;
use tidelog_tier::ClusterCommands;
use tidelog_types::{Offset, OffsetRange};

use super::Mistake;

/// How old a stale image is.
const STALE: Duration = Duration::from_secs(6);

/// Images with when they were seen.
type Seen = VecDeque<(Duration, Arc<MetadataImage>)>;

/// The controller's client of one life. Clones are the same.
#[derive(Clone)]
pub(crate) struct Commands {
    controller: Controller,
    clock: Arc<dyn Clock>,
    rng: SeededRng,
    /// Proposals suffer while the bucket does.
    bucket: SimBucket,
    trace: Trace,
    mistake: Option<Mistake>,
    seen: Arc<Mutex<Seen>>,
}

impl Commands {
    pub(crate) fn new(
        controller: Controller,
        clock: Arc<dyn Clock>,
        rng: SeededRng,
        bucket: SimBucket,
        trace: Trace,
        mistake: Option<Mistake>,
    ) -> Self {
        Self { controller, clock, rng, bucket, trace, mistake, seen: Arc::default() }
    }

    /// The image of some seconds ago, or the oldest one seen.
    fn stale(&self) -> Arc<MetadataImage> {
        let (now, image) = (self.clock.monotonic(), self.controller.image());
        let mut seen = self.seen.lock().unwrap();
        seen.push_back((now, image));
        while seen.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= STALE) {
            seen.pop_front();
        }
        Arc::clone(&seen.front().expect("one was put in").1)
    }

    async fn carry(self, command: Command) -> Result<Outcome, ProposeFailure> {
        let proposal = digest(&command.encode());
        self.trace.note(format_args!("proposal {proposal:016x}: {}", name(&command)));
        let rough = !self.bucket.is_calm() && is_of_tier(&command);
        if rough && self.rng.chance(1, 20) {
            let most_ms = if self.rng.chance(1, 2) { 40_000 } else { 3_000 };
            self.clock.sleep(Duration::from_millis(500 + self.rng.below(most_ms))).await;
        }
        if rough && self.rng.chance(1, 25) {
            return Err(ProposeFailure::Unavailable("no leader".to_owned()));
        }
        let outcome = self.propose_with_mistake(command).await;
        self.trace.note(format_args!("proposal {proposal:016x}: {outcome:?}"));
        if rough && self.rng.chance(1, 20) {
            return Err(ProposeFailure::Unknown("the answer was lost".to_owned()));
        }
        outcome
    }

    async fn propose_with_mistake(&self, mut command: Command) -> Result<Outcome, ProposeFailure> {
        let propose = |command| Metadata::propose(&self.controller, command);
        match (&mut command, self.mistake) {
            (Command::FenceUploads { .. }, Some(Mistake::SweepWithoutFence)) => return Ok(Outcome::Done),
            (Command::AdvanceLogStart { place, to, .. }, Some(Mistake::LogStartNotCommitted)) => {
                let image = self.controller.image();
                let tiered_end = image.partition(place).map_or(*to, |known| known.manifest.tiered_end);
                return Ok(Outcome::LogStart { log_start: *to, tiered_end: tiered_end.max(*to) });
            }
            (Command::CommitSegments { commits }, Some(Mistake::RangeTooLong)) => {
                for commit in commits {
                    commit.entry.range.end = commit.entry.range.end.next();
                }
            }
            (Command::CommitSegments { commits }, Some(Mistake::RangeTooShort)) => {
                for range in commits.iter_mut().map(|commit| &mut commit.entry.range) {
                    let last = Offset::new(range.end.get() - 1).unwrap();
                    range.end = if last > range.base { last } else { range.end };
                }
            }
            (Command::CommitSegments { commits }, Some(Mistake::CommitTwice)) => {
                let mut again = commits.clone();
                let outcome = propose(command).await;
                if outcome.is_ok() {
                    for commit in &mut again {
                        let range = commit.entry.range;
                        let count = range.end.distance_from(range.base);
                        let end = Offset::new(range.end.get() + count).unwrap();
                        commit.entry.range = OffsetRange { base: range.end, end };
                        commit.entry.object.base = range.end;
                    }
                    drop(propose(Command::CommitSegments { commits: again }).await);
                }
                return outcome;
            }
            _ => {}
        }
        propose(command).await
    }
}

/// The kind of a command.
fn name(command: &Command) -> String {
    let all = format!("{command:?}");
    all.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// What partitions and tiering propose, each of which may be proposed again.
const fn is_of_tier(command: &Command) -> bool {
    matches!(
        command,
        Command::CommitSegments { .. }
            | Command::SpillManifest { .. }
            | Command::AdvanceLogStart { .. }
            | Command::FenceUploads { .. }
            | Command::ManifestPublished { .. }
            | Command::DeletionDone { .. }
    )
}

impl Metadata for Commands {
    fn image(&self) -> Arc<MetadataImage> {
        match self.mistake {
            Some(Mistake::DeleteBeforeGrace) => {
                let mut image = (*self.controller.image()).clone();
                image.now_ms = u64::MAX;
                Arc::new(image)
            }
            Some(Mistake::SweepWithStaleImage) => self.stale(),
            _ => self.controller.image(),
        }
    }

    fn watch(&self) -> tidelog_runtime::watch::Receiver<Arc<MetadataImage>> {
        self.controller.watch()
    }

    fn propose(&self, command: Command) -> ProposeFuture {
        Box::pin(self.clone().carry(command))
    }
}

impl ClusterCommands for Commands {
    fn linearize(&self) -> BoxFuture<'static, Result<LogIndex, LinearizeError>> {
        if self.mistake == Some(Mistake::SweepWithStaleImage) {
            return Box::pin(std::future::ready(Ok(LogIndex(0))));
        }
        ClusterCommands::linearize(&self.controller)
    }
}
