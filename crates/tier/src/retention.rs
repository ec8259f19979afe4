//! Retention of tiered topics, and eviction from local disk.
//!
//! **Owns** the two tasks. *Retention* moves log starts of the partitions that this node leads, through the controller.
//! *Eviction* deletes local segments of every partition that it hosts: below the log start, past `local.retention.*`, or
//! oldest first when local disk holds more than it may. Both only ask the partition; it refuses what would lose a byte (T4).

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use tidelog_core::{
    cluster::MetadataImage,
    retention::{DiskView, Keep, evictable_end, plan_disk, plan_local},
};
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
}

impl Retention {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    async fn apply(&self, handle: &PartitionHandle, image: &MetadataImage) -> Result<(), TickError> {
        let context = &self.context;
        let Some(at) = Standing::of(handle, image) else { return Ok(()) };
        if at.leader_epoch.is_none() || !at.image.tiered {
            return Ok(());
        }
        let mut plan = context.retention_plan(&at);
        for _ in 0..PAGES_PER_TICK {
            let Some(page) = plan.look_into else { break };
            let read = context.page(&at.name, at.place, page).await;
            read.map_err(|error| TickError::new(format!("retention of {}", at.place), error))?;
            plan = context.retention_plan(&at);
        }
        let Some(to) = plan.log_start.filter(|to| *to > at.log_start()) else { return Ok(()) };
        let failed =
            |error: &dyn std::fmt::Display| TickError::new(format!("retention of {}", at.place), error);
        if plan.seal_active {
            handle.roll().await.map_err(|error| failed(&error))?;
        }
        handle.advance_log_start(to).await.map_err(|error| failed(&error))?;
        context.metrics.retention_bytes.add(plan.bytes);
        info!(partition = %at.place, topic = %at.name, log_start = %to, bytes = plan.bytes, "retention moved the log start");
        Ok(())
    }
}

impl Task for Retention {
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>> {
        Box::pin(async move {
            let token = self.context.supervisor.shutdown_token();
            let image = self.context.commands.image();
            let mut outcome = Ok(());
            for handle in self.context.partitions.partitions() {
                if token.is_cancelled() {
                    break;
                }
                if let Err(error) = self.apply(&handle, &image).await {
                    outcome = Err(error);
                }
            }
            outcome
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
