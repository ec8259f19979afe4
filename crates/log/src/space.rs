//! The floor of free space: producers are refused before the disk is full.
//!
//! **Owns** what is known of the file system between two looks. A look costs a system call and comes once a second; a fast
//! fill writes more than the floor in that time. So bytes that were accepted since, and those that wait in memory for their
//! segment, count as used: once they reach what was free above the floor, appends wait for the next look, which comes at
//! once.
//!
//! ```text
//!  0          floor        floor + what memory still holds,       free, when last looked
//!  |            |          and journal files to be made ahead       |
//!  |------------|------------------------|============= room ==============|
//!                                          accepted since: in the journal and in a segment
//! ```

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tidelog_runtime::LogLimit;

use crate::{LogFailure, PartitionLog, engine::Engine, partition::Partition};

/// How long producers stay refused after a write that did not fit, whatever the file system says of its free space: quotas
/// and reserved blocks do not show there.
const FULL_HOLD: Duration = Duration::from_secs(1);

/// Lines a minute about a full disk, for each thing that it stops.
pub(crate) const LINES_PER_MINUTE: u32 = 2;

/// What is known of the file system.
pub(crate) struct Space {
    ok: AtomicBool,
    free: AtomicU64,
    /// Bytes above the floor that nothing in memory needs, when last looked.
    room: AtomicU64,
    /// Bytes of batches accepted since.
    accepted: AtomicU64,
    /// When a write last did not fit, in milliseconds of monotonic time; `u64::MAX`: never.
    full_at_ms: AtomicU64,
    pub(crate) lines: LogLimit,
}

impl Space {
    pub(crate) fn new(lines: LogLimit) -> Self {
        Self {
            ok: AtomicBool::new(true),
            free: AtomicU64::new(u64::MAX),
            room: AtomicU64::new(u64::MAX),
            accepted: AtomicU64::new(0),
            full_at_ms: AtomicU64::new(u64::MAX),
            lines,
        }
    }

    /// Whether free space was above its floor.
    pub(crate) fn ok(&self) -> bool {
        self.ok.load(Ordering::Relaxed)
    }

    /// What was free.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Counts bytes that memory holds now and the disk will.
    pub(crate) fn accept(&self, bytes: u64) {
        self.accepted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether what was accepted may have used the room up: nothing more is taken before the next look.
    pub(crate) fn unknown(&self) -> bool {
        // Each byte goes to the journal, which may have to grow for it, and to a segment.
        self.ok()
            && self.accepted.load(Ordering::Relaxed).saturating_mul(2) >= self.room.load(Ordering::Relaxed)
    }
}

impl PartitionLog {
    /// Takes room above the floor of free space for what another part of the node is about to write beside the log: false where
    /// the log needs it. Until the next look it counts as used, behind that the file system tells.
    #[must_use]
    pub fn take_room(&self, bytes: u64) -> bool {
        let space = &self.engine.space;
        // What is accepted counts twice.
        let half = bytes.div_ceil(2);
        let accepted = space.accepted.load(Ordering::Relaxed).saturating_add(half);
        if !space.ok() || accepted.saturating_mul(2) >= space.room.load(Ordering::Relaxed) {
            return false;
        }
        space.accept(half);
        true
    }
}

impl Engine {
    pub(crate) async fn look_at_space(&self) {
        let space = &self.space;
        // In this order: what is accepted or written behind meanwhile is counted twice rather than not at all.
        let accepted = space.accepted.load(Ordering::Relaxed);
        let unwritten = self.pool.unwritten();
        let Ok(found) = self.disk.space(&self.config.directory).await else { return };
        let floor = u128::from(found.total) * u128::from(self.config.free_space_floor_percent) / 100;
        let ahead = self.journal.bytes_to_make();
        let taken = u64::try_from(floor).unwrap_or(u64::MAX).saturating_add(unwritten).saturating_add(ahead);
        let room = found.free.saturating_sub(taken);
        space.free.store(found.free, Ordering::Relaxed);
        space.room.store(room, Ordering::Relaxed);
        space.accepted.fetch_sub(accepted, Ordering::Relaxed);
        let full_at = space.full_at_ms.load(Ordering::Relaxed);
        let held = full_at != u64::MAX && self.now_ms().saturating_sub(full_at) < millis(FULL_HOLD);
        let ok = room > 0 && !held;
        if space.ok.swap(ok, Ordering::Relaxed) != ok
            && let Some(suppressed) = space.lines.pass("floor")
        {
            tracing::warn!(
                free_bytes = found.free,
                total_bytes = found.total,
                unwritten_bytes = unwritten,
                ok,
                suppressed,
                "free space crossed its floor"
            );
        }
        self.pool.room.notify_waiters();
    }

    /// A work found the disk full: producers are refused, those too that wait for room, and nothing else stops.
    pub(crate) fn note_full(&self) {
        self.space.full_at_ms.store(self.now_ms(), Ordering::Relaxed);
        self.space.ok.store(false, Ordering::Relaxed);
        self.pool.room.notify_waiters();
    }

    /// [`Engine::note_full`], and the answer to who asked for the work.
    pub(crate) fn full_disk(
        &self,
        partition: &Partition,
        operation: &'static str,
        source: io::Error,
    ) -> LogFailure {
        self.note_full();
        if let Some(suppressed) = self.space.lines.pass(operation) {
            tracing::error!(place = %partition.place, operation, error = %source, suppressed, "the disk is full");
        }
        LogFailure::Partition { place: partition.place, operation, source: std::sync::Arc::new(source) }
    }

    fn now_ms(&self) -> u64 {
        millis(self.clock.monotonic())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
