//! Tiering: sealed segments to the bucket, and everything that follows from their being there.
//!
//! **Owns** background work on segments: upload, manifest pages and published manifests, retention over both tiers, eviction
//! from local disk, the deletion queue, the sweep of orphans; and reads of what is in the bucket ([`ColdTier`]).
//!
//! **Never** touches a partition but through [`tidelog_replica::PartitionHandle`], decides anything that a pure planner of
//! `tidelog_core` could (`upload`, `retention`, `sweep`), or changes a manifest but by a proposal to the controllers, which
//! refuse what is stale (T3). No local byte goes before its manifest entry is committed (T4).
//!
//! Start reading at [`Tier`], then `task` (the table of tasks), `upload`, `sweep`.
//!
//! ```text
//!             image, snapshots                      idempotent IO                 conditional commit
//!   every tick: plan (pure, core) ---> execute (log, bucket) ---> propose (controllers) ---> next image
//!                 ^ a wake-up is a hint, the period is the truth
//! ```

mod cold;
mod commands;
mod commit;
mod config;
mod context;
mod delete;
mod kept;
mod metrics;
mod mistakes;
mod pages;
mod publish;
mod put;
mod retention;
mod segment_object;
mod spill;
mod status;
mod sweep;
mod task;
mod upload;

use std::{
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use tidelog_object::{ChunkCache, GuardedClaim, ObjectClient};
use tidelog_replica::ReplicaManager;
use tidelog_runtime::{Budget, Clock, Rng, Supervisor, metrics::Registry};
use tokio::sync::Notify;
use tracing::{debug, warn};

pub use cold::{ColdConfig, ColdTier, ColdUsage};
pub use commands::ClusterCommands;
pub use config::TierConfig;
#[doc(hidden)]
pub use mistakes::Mistakes;
pub use pages::{ManifestPages, PageError};
pub use status::{PartitionStatus, SegmentStatus, SegmentsError, TierSegments, TierStatus, TopicStatus};

use context::Context;
use task::{POLICIES, Policy, Task, TaskKind};

/// The background work of one node. Clones are the same.
#[derive(Clone)]
pub struct Tier {
    context: Arc<Context>,
    wakes: Arc<[(TaskKind, Arc<Notify>); POLICIES.len()]>,
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier").field("config", &self.context.config).finish_non_exhaustive()
    }
}

impl Tier {
    /// Starts all tasks on the back runtime; `pages`: those of [`ColdTier::pages`] where this node reads the bucket, too. No request is made before the first tick, and a store that is away only delays
    /// (C5).
    #[must_use]
    #[allow(clippy::too_many_arguments, reason = "the components of a node, handed over once")]
    pub fn start(
        config: TierConfig,
        partitions: ReplicaManager,
        commands: Arc<dyn ClusterCommands>,
        store: ObjectClient,
        pages: ManifestPages,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        supervisor: &Supervisor,
        registry: &Registry,
    ) -> Self {
        let context = Arc::new(Context {
            memory: Budget::new("tier.upload.memory.bytes", config.upload_memory),
            config,
            partitions,
            commands,
            store,
            clock,
            rng,
            supervisor: supervisor.child("tier"),
            metrics: metrics::TierMetrics::new(registry),
            pages,
            cache: OnceLock::new(),
            claim: OnceLock::new(),
            room: context::Room::default(),
            sequence: AtomicU64::new(0),
        });
        let wakes = Arc::new(POLICIES.map(|policy| (policy.kind, Arc::new(Notify::new()))));
        let tier = Self { context, wakes };
        tier.start_tasks();
        tier
    }

    fn start_tasks(&self) {
        let context = &self.context;
        let (committer, commits) = commit::channel();
        context.supervisor.spawn_back("tier-commit", commits.run(Arc::clone(context))).detach();
        context.supervisor.spawn_back("tier-grace", announce_grace(Arc::clone(context))).detach();
        for (policy, (_, wake)) in POLICIES.into_iter().zip(self.wakes.iter()) {
            let (context, wake) = (Arc::clone(context), Arc::clone(wake));
            let task: Arc<dyn Task> = match policy.kind {
                TaskKind::Upload => {
                    let (context, wake) = (Arc::clone(&context), Arc::clone(&wake));
                    Arc::new(upload::Uploader::new(context, committer.clone(), wake))
                }
                TaskKind::Publish => Arc::new(publish::Publisher::new(Arc::clone(&context))),
                TaskKind::Retention => Arc::new(retention::Retention::new(Arc::clone(&context))),
                TaskKind::Eviction => Arc::new(retention::Eviction::new(Arc::clone(&context))),
                TaskKind::Deletion => Arc::new(delete::Deleter::new(Arc::clone(&context))),
                TaskKind::Sweep => Arc::new(sweep::Sweeper::new(Arc::clone(&context))),
            };
            let Policy { kind, .. } = policy;
            self.context.supervisor.spawn_back(kind.name(), task::run(context, policy, task, wake)).detach();
        }
    }

    /// Tells the status of the cache of chunks that cold reads use.
    pub fn set_cache(&self, cache: Arc<dyn ChunkCache>) {
        if self.context.cache.set(cache).is_err() {
            debug!("the cache of chunks was told twice");
        }
    }

    /// Tells the claim that is looked at before anything is deleted.
    pub fn set_claim(&self, claim: GuardedClaim) {
        if self.context.claim.set(claim).is_err() {
            debug!("the claim of the bucket was told twice");
        }
    }

    /// Tells that the bucket is a folder on the file system of the log: uploads then leave the log its room.
    pub fn share_disk(&self) {
        self.context.room.is_shared.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Has every task look for work now. A hint, for those who do not want to wait for the period.
    pub fn wake(&self) {
        for (_, wake) in self.wakes.iter() {
            wake.notify_one();
        }
    }

    /// Ends all tasks: none begins anything new, uploads on the way may finish until `deadline`. Answers the names of those
    /// that did not; what they left is made good by the next start.
    pub async fn shutdown(&self, deadline: Duration) -> Vec<&'static str> {
        let late = self.context.supervisor.shutdown(deadline).await;
        if !late.is_empty() {
            warn!(?late, "background work did not end in time");
        }
        late
    }
}

/// Tells the cluster the grace period of deletions that this node is configured with, until it has it.
async fn announce_grace(context: Arc<Context>) {
    use tidelog_core::cluster::{Command, ConfigChange, ConfigResource, TIER_DELETION_GRACE_MS};
    let token = context.supervisor.shutdown_token();
    let wanted = config::millis(context.config.deletion_grace).to_string();
    loop {
        let image = context.commands.image();
        let known = image.broker_configs(None).and_then(|configs| configs.get(TIER_DELETION_GRACE_MS));
        if known == Some(&wanted) || !context.does_cluster_work(&image) {
            return;
        }
        let changes = vec![(TIER_DELETION_GRACE_MS.to_owned(), ConfigChange::Set { value: wanted.clone() })];
        let command = Command::AlterConfigs { resource: ConfigResource::ClusterDefault {}, changes };
        match context.commands.propose(command).await {
            Ok(_) => return,
            Err(error) => debug!(%error, "the grace period of deletions is not set yet"),
        }
        tokio::select! {
            biased;
            () = token.cancelled() => return,
            () = context.clock.sleep(context.config.check_interval) => {}
        }
    }
}
