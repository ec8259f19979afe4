//! Retention of tiered topics, and eviction from local disk.
//!
//! **Owns** the two tasks. *Retention* moves log starts of the partitions that this node leads, through the controller.
//! *Eviction* deletes local segments of every partition that it hosts: below the log start, past `local.retention.*`, or
//! oldest first when local disk holds more than it may. Both only ask the partition; it refuses what would lose a byte (T4).
//!
//! Retention reads a page of a manifest only to decide which part of it goes: behind the partitions that need none, so that a
//! bucket that is away keeps no disk full, and then not again before the first entry that stayed may go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use tidelog_core::{
    cluster::MetadataImage,
    retention::{DiskView, Keep, PageStart, RetentionPlan, evictable_end, plan_disk, plan_local},
    upload::PageEntries,
};
use tidelog_format::manifest::{ManifestEntry, PageId};
use tidelog_replica::PartitionHandle;
use tidelog_types::{Offset, TopicPartition};
use tracing::{debug, info};

use crate::{
    context::{Context, Standing},
    task::{Task, TickError},
};

/// Pages that one tick reads for one partition: each lists thousands of segments.
const PAGES_PER_TICK: usize = 4;

/// Moves log starts by `retention.ms` and `retention.bytes`.
pub(crate) struct Retention {
    context: Arc<Context>,
    /// Of the page at each log start: when it is needed.
    known: Mutex<BTreeMap<TopicPartition, PageStart>>,
    /// The partition for which a page was wanted last: the next tick begins behind it.
    last: Mutex<Option<TopicPartition>>,
}

impl Retention {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, known: Mutex::default(), last: Mutex::default() }
    }

    /// A partition that this is about.
    fn standing(handle: &PartitionHandle, image: &MetadataImage) -> Option<Standing> {
        Standing::of(handle, image).filter(|at| at.leader_epoch.is_some() && at.image.tiered)
    }

    fn plan(&self, at: &Standing, read: PageEntries) -> RetentionPlan {
        let known = lock(&self.known).get(&at.place).copied();
        let plan = self.context.retention_plan_with(at, read, known);
        if let Some(stays) = plan.stays {
            lock(&self.known).insert(at.place, stays);
        }
        plan
    }

    /// Does what needs no page. Answers those whose plan needs one.
    async fn at_hand(&self, image: &MetadataImage) -> (Vec<PartitionHandle>, Result<(), TickError>) {
        let token = self.context.supervisor.shutdown_token();
        let handles = self.context.partitions.partitions();
        let places: BTreeSet<TopicPartition> = handles.iter().map(PartitionHandle::place).collect();
        lock(&self.known).retain(|place, _| places.contains(place));
        let (mut wanting, mut outcome) = (Vec::new(), Ok(()));
        for handle in handles {
            if token.is_cancelled() {
                break;
            }
            let Some(at) = Self::standing(&handle, image) else { continue };
            let plan = self.plan(&at, PageEntries::new());
            if let Err(error) = self.apply(&handle, &at, &plan).await {
                outcome = Err(error);
            } else if plan.look_into.is_some() {
                wanting.push(handle);
            }
        }
        (wanting, outcome)
    }

    /// Reads the pages that are needed. While the bucket is known not to serve, one request finds out when it does again.
    async fn with_pages(
        &self,
        mut wanting: Vec<PartitionHandle>,
        image: &MetadataImage,
    ) -> Result<(), TickError> {
        let token = self.context.supervisor.shutdown_token();
        let mut outcome = Ok(());
        let last = *lock(&self.last);
        wanting.sort_unstable_by_key(PartitionHandle::place);
        let behind = wanting.partition_point(|handle| last.is_some_and(|last| handle.place() <= last));
        wanting.rotate_left(behind);
        for handle in wanting {
            if token.is_cancelled() {
                break;
            }
            *lock(&self.last) = Some(handle.place());
            let Some(at) = Self::standing(&handle, image) else { continue };
            if let Err(error) = self.look_into(&handle, &at).await {
                outcome = Err(error);
            }
            if self.context.store.health().reads_outage().is_some() {
                break;
            }
        }
        outcome
    }

    async fn look_into(&self, handle: &PartitionHandle, at: &Standing) -> Result<(), TickError> {
        // What was read counts, also where it is not kept.
        let mut read = PageEntries::new();
        let mut plan = self.plan(at, read.clone());
        for _ in 0..PAGES_PER_TICK {
            let Some(page) = plan.look_into else { break };
            read.insert(page, self.page(at, page).await?);
            plan = self.plan(at, read.clone());
        }
        self.apply(handle, at, &plan).await
    }

    async fn page(&self, at: &Standing, page: PageId) -> Result<Arc<[ManifestEntry]>, TickError> {
        let context = &self.context;
        let failed =
            |error: &dyn std::fmt::Display| TickError::new(format!("retention of {}", at.place), error);
        let health = context.store.health();
        let is_away = health.reads_outage().is_some();
        // All tries of one page would keep others waiting that need none.
        let patience = async {
            match is_away {
                true => context.clock.sleep(context.config.check_interval).await,
                false => drop(health.reads_fail().await),
            }
        };
        tokio::select! {
            // An answer that is there counts.
            biased;
            read = context.page(&at.name, at.place, page) => read.map_err(|error| failed(&error)),
            () = patience => Err(failed(&"the bucket does not serve a page that it needs")),
        }
    }

    async fn apply(
        &self,
        handle: &PartitionHandle,
        at: &Standing,
        plan: &RetentionPlan,
    ) -> Result<(), TickError> {
        let Some(to) = plan.log_start.filter(|to| *to > at.log_start()) else { return Ok(()) };
        let failed =
            |error: &dyn std::fmt::Display| TickError::new(format!("retention of {}", at.place), error);
        if plan.seal_active {
            handle.roll().await.map_err(|error| failed(&error))?;
        }
        handle.advance_log_start(to).await.map_err(|error| failed(&error))?;
        self.context.metrics.retention_bytes.add(plan.bytes);
        info!(partition = %at.place, topic = %at.name, log_start = %to, bytes = plan.bytes, "retention moved the log start");
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Task for Retention {
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>> {
        Box::pin(async move {
            let (wanting, at_hand) = self.at_hand(&self.context.commands.image()).await;
            // The log starts that were just moved count.
            let with_pages = self.with_pages(wanting, &self.context.commands.image()).await;
            at_hand.and(with_pages)
        })
    }
}

/// Deletes local segments that the bucket holds.
pub(crate) struct Eviction {
    context: Arc<Context>,
}

impl Eviction {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Local retention, one partition after another.
    async fn local_retention(&self) -> Result<(), TickError> {
        let image = self.context.commands.image();
        let mut outcome = Ok(());
        for handle in self.context.partitions.partitions() {
            let Some(at) = Standing::of(&handle, &image) else { continue };
            let end = self.evictable(&at);
            let keeps_all = at.is_internal() || !at.image.tiered || at.topic.remote_log_copy_disable;
            let keep = if keeps_all {
                Keep::default()
            } else {
                Keep { age_ms: at.topic.local_retention_ms, bytes: at.topic.local_retention_bytes }
            };
            let now = self.context.clock.wall();
            if let Some(to) = plan_local(&at.segments, at.snapshot.log_start, end, now, keep)
                && let Err(error) = self.evict(&handle, &at, to).await
            {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// Below it nothing is needed on local disk.
    fn evictable(&self, at: &Standing) -> Offset {
        let sealed = at.segments.iter().rev().find(|segment| segment.sealed).map(|segment| segment.range.end);
        match sealed.filter(|_| self.context.config.mistakes.evict_before_commit) {
            Some(sealed) => sealed.min(at.snapshot.high_watermark),
            None => committed_end(at),
        }
    }

    /// The disk limit, over all partitions.
    async fn disk_limit(&self) -> Result<(), TickError> {
        let Some(limit) = self.context.config.local_disk_bytes_max else { return Ok(()) };
        let image = self.context.commands.image();
        let mut handles: BTreeMap<TopicPartition, (PartitionHandle, Standing)> = BTreeMap::new();
        for handle in self.context.partitions.partitions() {
            if let Some(at) = Standing::of(&handle, &image) {
                handles.insert(at.place, (handle, at));
            }
        }
        let views: Vec<DiskView> = handles.values().map(|(_, at)| view_of(at)).collect();
        let mut outcome = Ok(());
        for (place, to) in plan_disk(&views, limit.get()) {
            if let Some((handle, at)) = handles.get(&place)
                && let Err(error) = self.evict(handle, at, to).await
            {
                outcome = Err(error);
            }
        }
        let used: u64 = self.context.partitions.usage().iter().map(|usage| usage.local_bytes).sum();
        self.context.metrics.disk_excess.set(used.saturating_sub(limit.get()));
        outcome
    }

    async fn evict(&self, handle: &PartitionHandle, at: &Standing, to: Offset) -> Result<(), TickError> {
        if to <= at.snapshot.local_log_start {
            return Ok(());
        }
        let before = handle.local_bytes();
        let moved = handle.set_local_log_start(to).await;
        let start = moved.map_err(|error| TickError::new(format!("eviction from {}", at.place), error))?;
        let freed = before.saturating_sub(handle.local_bytes());
        self.context.metrics.evicted_bytes.add(freed);
        debug!(partition = %at.place, local_log_start = %start, freed_bytes = freed, "local segments are gone");
        Ok(())
    }
}

/// Below it every byte is in the manifest, or below the log start, as the partition itself knows it.
fn committed_end(at: &Standing) -> Offset {
    let tiered_end =
        if at.image.tiered && at.snapshot.tiered { at.snapshot.tiered_end } else { Offset::ZERO };
    evictable_end(at.snapshot.log_start, tiered_end.min(at.image.manifest.tiered_end))
}

fn view_of(at: &Standing) -> DiskView {
    let stays = at.is_internal() || at.topic.remote_log_copy_disable;
    let evictable_end = if stays { at.snapshot.log_start } else { committed_end(at) };
    DiskView { place: at.place, segments: at.segments.clone(), evictable_end }
}

impl Task for Eviction {
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>> {
        Box::pin(async move {
            let local = self.local_retention().await;
            let disk = self.disk_limit().await;
            local.and(disk)
        })
    }
}
