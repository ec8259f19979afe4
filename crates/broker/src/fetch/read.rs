//! The rounds of one fetch: look at every partition, wait, look again at what moved.
//!
//! **Owns** the order of looks, the bytes of the answer, and the wait for `min_bytes`.
//!
//! **Does not own** sessions, nor the answer's form.
//!
//! No partition waits for another: an error belongs to its partition and ends the wait; what lies in the bucket is read
//! beside, and if the time is up first, the answer goes out without it and the next fetch finds it. Where the bucket is
//! known to be away, the answer says so for that partition.
//!
//! A round is granted memory before it reads ([`Fetch::grant`]) and keeps what its records pin ([`Fetch::charge`]) until
//! the answer is sent. Where there is little, it returns less and does not wait; one whole batch of up to
//! [`FIRST_BATCH_FREE`] it finds in any case. For a larger one it waits its turn ([`Fetch::wait_for_memory`]), while those
//! who hold memory and do not read are closed: so what answers pin is bounded however many do not read theirs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use tidelog_core::{
    partition::PartitionSnapshot,
    read_plan::{EpochEndPlan, Isolation, ReadPlan, plan_epoch_end, plan_read},
};
use tidelog_replica::{ColdError, Fetched, PartitionHandle, ReadError, Waiter};
use tidelog_runtime::Permit;
use tidelog_types::{LeaderEpoch, Offset, TopicPartition};
use tidelog_wire::ErrorCode;
use tokio::time::Instant;

use super::cold::{ColdKey, ColdSlot, Joined, fitting};
use crate::{connection::Caller, error_code, node::Node};

/// The most that one read from the bucket brings: several fetches share what is ahead anyway.
const COLD_READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The most that a fetch takes at once of what is in memory of the bucket: to find the ends of the smallest batches in it takes
/// about 200 µs.
const AT_HAND_BYTES_MAX: usize = 1024 * 1024;

/// What a fetch that has nothing else reads of the bucket where all memory for such reads is taken.
const COLD_READ_BYTES_SCARCE: usize = 64 * 1024;

/// How long the bucket is tried for one read. Longer than a fetch waits: the read goes on without it.
const COLD_READ_DEADLINE: Duration = Duration::from_secs(20);

/// The largest first batch that is answered whatever memory there is: what a producer that does not linger writes, so that
/// who stands at the tail never waits for others' memory. With as many connections as there are descriptors for (2,048 at
/// 4,096) these are 128 MiB.
const FIRST_BATCH_FREE: usize = 64 * 1024;

/// What a fetch waits for whose first batch is larger: Kafka's default for the largest batch.
const FIRST_BATCH_TURN: usize = 1024 * 1024 + 12;

/// How long it waits at most, below the 30 s after which clients give a request up. Those who hold what it waits for are
/// through or closed well before.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(20);

/// What one fetch asks for in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchLimits {
    pub bytes_max: usize,
    pub bytes_min: usize,
    pub wait_max: Duration,
    pub isolation: Isolation,
}

/// One partition of a fetch.
#[derive(Debug)]
pub(crate) struct PartitionRead {
    pub handle: PartitionHandle,
    pub offset: Offset,
    pub bytes_max: usize,
    pub current_leader_epoch: Option<LeaderEpoch>,
    pub last_fetched_epoch: Option<LeaderEpoch>,
    pub found: Found,
}

/// What was found in a partition.
#[derive(Debug)]
pub(crate) enum Found {
    /// Not looked at, or nothing for now; the snapshot says how far the partition reaches.
    Nothing {
        snapshot: Arc<PartitionSnapshot>,
    },
    Error {
        code: ErrorCode,
        snapshot: Arc<PartitionSnapshot>,
    },
    /// The client's log has what the leader's has not: where the last common epoch ends.
    Diverging {
        epoch: LeaderEpoch,
        end: Offset,
        snapshot: Arc<PartitionSnapshot>,
    },
    Records {
        chunks: Vec<Bytes>,
        bytes: usize,
        /// The memory that the chunks keep alive.
        pinned: usize,
        cold: bool,
        snapshot: Arc<PartitionSnapshot>,
    },
    /// The bucket is being read. `parked`: it is done, and does not fit beside what the answer has already.
    Cold {
        slot: ColdSlot,
        key: ColdKey,
        parked: bool,
        snapshot: Arc<PartitionSnapshot>,
    },
}

impl Found {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Records { bytes, .. } => *bytes,
            Self::Nothing { .. } | Self::Error { .. } | Self::Diverging { .. } | Self::Cold { .. } => 0,
        }
    }

    fn pinned(&self) -> usize {
        match self {
            Self::Records { pinned, .. } => *pinned,
            Self::Nothing { .. } | Self::Error { .. } | Self::Diverging { .. } | Self::Cold { .. } => 0,
        }
    }

    pub(crate) fn snapshot(&self) -> &Arc<PartitionSnapshot> {
        match self {
            Self::Nothing { snapshot }
            | Self::Error { snapshot, .. }
            | Self::Diverging { snapshot, .. }
            | Self::Records { snapshot, .. }
            | Self::Cold { snapshot, .. } => snapshot,
        }
    }

    /// Whether the client must hear of it at once.
    fn is_urgent(&self) -> bool {
        matches!(self, Self::Error { .. } | Self::Diverging { .. })
    }
}

impl PartitionRead {
    pub(crate) fn new(handle: PartitionHandle, offset: Offset, bytes_max: usize) -> Self {
        let snapshot = handle.snapshot();
        Self {
            handle,
            offset,
            bytes_max,
            current_leader_epoch: None,
            last_fetched_epoch: None,
            found: Found::Nothing { snapshot },
        }
    }
}

/// Looks and waits until `bytes_min` are there, something must be told, the time is up, the connection ends, or a request of
/// another kind is behind this one. The permit stands for the bytes that were found.
pub(crate) async fn read_all(
    node: &Arc<Node>,
    caller: &Caller,
    limits: FetchLimits,
    reads: &mut [PartitionRead],
    answer_at_once: bool,
) -> Permit {
    let mut fetch = Fetch {
        node,
        limits,
        reads,
        permit: node.fetch_budget.charge(0),
        cold_bytes: 0,
        bytes: 0,
        pinned: 0,
        hungry: false,
    };
    fetch.look_at_all().await;
    fetch.wait_for_memory(caller).await;
    if !answer_at_once && !fetch.is_satisfied() && !limits.wait_max.is_zero() {
        fetch.wait(caller).await;
    }
    fetch.take_cold();
    fetch.tell_outage();
    fetch.permit
}

struct Fetch<'a> {
    node: &'a Arc<Node>,
    limits: FetchLimits,
    reads: &'a mut [PartitionRead],
    permit: Permit,
    /// What the reads of the bucket that it joined or began may bring, until that is taken.
    cold_bytes: usize,
    /// The sums over what was found; kept, since a fetch of many partitions would else add them up for each.
    bytes: usize,
    pinned: usize,
    /// A first batch is there for which it had not the memory.
    hungry: bool,
}

impl Fetch<'_> {
    async fn look_at_all(&mut self) {
        self.grant();
        for index in 0..self.reads.len() {
            self.look(index).await;
        }
        self.charge();
    }

    fn set(&mut self, index: usize, found: Found) {
        let read = &mut self.reads[index];
        self.bytes = self.bytes - read.found.bytes() + found.bytes();
        self.pinned = self.pinned - read.found.pinned() + found.pinned();
        read.found = found;
    }

    /// Takes memory for a round before it reads: what the fetch asks for, but never more than half of what is free, so that
    /// there is some for others while the round lasts.
    fn grant(&mut self) {
        let asked = self.reads.iter().fold(0_usize, |sum, read| sum.saturating_add(read.bytes_max));
        let asked = as_u64(asked.min(self.limits.bytes_max));
        let budget = &self.node.fetch_budget;
        // What is pinned beyond the records themselves takes nothing from what may still be read.
        let beyond = as_u64(self.pinned.saturating_sub(self.bytes));
        let more = asked.saturating_add(beyond).saturating_sub(self.permit.bytes()).min(budget.free() / 2);
        if let Some(granted) = budget.try_acquire(more) {
            self.permit.merge(granted);
        }
    }

    /// Ends a round: makes the permit what the records pin. More than was granted is charged only where the one batch that
    /// a fetch gets in any case, or had its turn for, is larger.
    fn charge(&mut self) {
        let pinned = as_u64(self.pinned);
        let held = self.permit.bytes();
        if pinned < held {
            self.permit.shrink_to(pinned);
        } else if pinned > held {
            self.permit.merge(self.node.fetch_budget.charge(pinned - held));
        }
    }

    fn is_satisfied(&self) -> bool {
        self.reads.is_empty()
            || self.bytes >= self.limits.bytes_min
            || self.reads.iter().any(|read| read.found.is_urgent())
    }

    /// Where the one batch that would be its answer found no memory: waits its turn for it, and looks again.
    async fn wait_for_memory(&mut self, caller: &Caller) {
        if !self.hungry || self.bytes > 0 {
            return;
        }
        self.hungry = false;
        self.node.metrics.fetch_memory_waits.inc();
        let turn = as_u64(FIRST_BATCH_TURN);
        let granted = tokio::select! {
            biased;
            () = caller.ended.cancelled() => return,
            () = caller.in_work.hurried() => return,
            granted = self.node.fetch_budget.acquire(turn) => granted,
            () = tokio::time::sleep(MEMORY_WAIT_MAX) => return,
        };
        self.permit.merge(granted);
        self.look_at_all().await;
    }

    /// How many bytes partition `index` may give, and how large the first batch may be where that is more: some batch is
    /// welcome, or a consumer with small limits would stand before it for ever.
    fn room(&self, index: usize) -> (usize, usize) {
        let found = &self.reads[index].found;
        let (bytes, pinned) = (self.bytes - found.bytes(), self.pinned - found.pinned());
        let granted = usize::try_from(self.permit.bytes()).unwrap_or(usize::MAX).saturating_sub(pinned);
        let room = self.limits.bytes_max.saturating_sub(bytes).min(granted);
        let first_max = match granted {
            _ if bytes > 0 => 0,
            granted if granted >= FIRST_BATCH_TURN => usize::MAX,
            granted => granted.max(FIRST_BATCH_FREE),
        };
        (room.min(self.reads[index].bytes_max), first_max)
    }

    async fn look(&mut self, index: usize) {
        let (room, first_max) = self.room(index);
        let isolation = self.limits.isolation;
        let read = &self.reads[index];
        let snapshot = read.handle.snapshot();
        if let Some(diverging) = diverging(read, &snapshot) {
            self.set(index, diverging);
            return;
        }
        if room == 0 && first_max == 0 {
            // Nothing fits any more, but how far the partition reaches is told, and what is wrong with it.
            let plan = plan_read(&snapshot, read.offset, isolation, read.current_leader_epoch);
            self.set(index, without_room(plan, snapshot));
            return;
        }
        let (handle, offset) = (read.handle.clone(), read.offset);
        let (snapshot, fetched) =
            handle.read_within(offset, room, first_max, isolation, read.current_leader_epoch).await;
        let found = match fetched {
            Err(error) => Found::Error { code: error_code::read(&error), snapshot },
            Ok(Fetched::AtEnd) => Found::Nothing { snapshot },
            Ok(Fetched::Hot(records)) => {
                // From memory it is a slice of what the tail charges for; from the disk it is all of its allocation.
                let bytes = records.bytes();
                self.hungry |= bytes == 0 && first_max > 0;
                found(records.chunks, (bytes, bytes), false, snapshot)
            }
            Ok(Fetched::Cold { end }) => self.cold(index, end, snapshot),
        };
        self.set(index, found);
        // What an earlier fetch began and is done goes in by its turn: behind partitions that are on disk there might never
        // be room for it.
        self.take_cold_of(index);
    }

    /// Joins the read of the bucket that is under way for this place, or begins one. All of a fetch go on together, as
    /// many as its bytes allow; what is beyond waits for a later fetch.
    fn cold(&mut self, index: usize, end: Offset, snapshot: Arc<PartitionSnapshot>) -> Found {
        let read = &self.reads[index];
        let nothing_else = self.cold_bytes == 0 && self.bytes == 0;
        let bytes_max = read.bytes_max.min(self.limits.bytes_max).min(COLD_READ_BYTES_MAX);
        let mut key = ColdKey { place: read.handle.place(), offset: read.offset, bytes_max };
        let (reads, budget) = (&self.node.cold_reads, &self.node.cold_budget);
        let now = self.node.clock.monotonic();
        let committed = self.cold_bytes.saturating_add(self.bytes);
        let fits = committed.saturating_add(bytes_max) <= self.limits.bytes_max;
        let joined = if let Some(slot) = reads.under_way(now, &key) {
            // Its memory is taken already; what of it the answer has room for is seen when it is taken.
            Joined::UnderWay(slot)
        } else if !nothing_else && !fits {
            Joined::NoMemory
        } else {
            match reads.join(now, key, budget, false) {
                Joined::NoMemory if nothing_else => {
                    // One batch in any case.
                    key.bytes_max = bytes_max.min(COLD_READ_BYTES_SCARCE);
                    reads.join(now, key, budget, true)
                }
                joined => joined,
            }
        };
        let slot = match joined {
            Joined::NoMemory => return Found::Nothing { snapshot },
            Joined::UnderWay(slot) => slot,
            Joined::Begun(slot, sender) => {
                let (handle, offset, held) = (read.handle.clone(), read.offset, slot.clone());
                let bytes_max = key.bytes_max;
                if let Some(records) = handle.read_cold_at_hand(offset, end, bytes_max.min(AT_HAND_BYTES_MAX))
                {
                    sender.send_replace(Some(Ok(records)));
                } else {
                    let reading = async move {
                        let outcome =
                            handle.read_cold(offset, end, bytes_max, true, COLD_READ_DEADLINE).await;
                        sender.send_replace(Some(outcome));
                        drop(held);
                    };
                    self.node.supervisor.spawn_back("cold fetch", reading).detach();
                }
                slot
            }
        };
        self.cold_bytes = self.cold_bytes.saturating_add(key.bytes_max);
        Found::Cold { slot, key, parked: false, snapshot }
    }

    async fn wait(&mut self, caller: &Caller) {
        let deadline = Instant::now() + self.limits.wait_max;
        let waiter = Waiter::new();
        let _registered: Vec<_> = self.reads.iter().map(|read| read.handle.register_wake(&waiter)).collect();
        let mut places: BTreeMap<TopicPartition, Vec<usize>> = BTreeMap::new();
        for (index, read) in self.reads.iter().enumerate() {
            places.entry(read.handle.place()).or_default().push(index);
        }
        // What moved between the first look and the registration.
        self.grant();
        for index in 0..self.reads.len() {
            let read = &self.reads[index];
            if !Arc::ptr_eq(read.found.snapshot(), &read.handle.snapshot()) {
                self.look_again(index).await;
            }
        }
        self.charge();
        self.wait_for_memory(caller).await;
        while !self.is_satisfied() {
            let cold = self.any_cold();
            // Cancellation first, for a stop is not to be outrun by a busy partition; then the clock, for the same reason.
            tokio::select! {
                biased;
                () = caller.ended.cancelled() => return,
                () = caller.in_work.hurried() => return,
                () = tokio::time::sleep_until(deadline) => return,
                () = cold => self.take_cold(),
                moved = waiter.moved() => {
                    self.node.metrics.fetch_wakeups.inc();
                    self.grant();
                    for place in moved {
                        for index in places.get(&place).into_iter().flatten() {
                            self.look_again(*index).await;
                        }
                    }
                    self.charge();
                }
            }
            self.wait_for_memory(caller).await;
        }
    }

    /// Looks again at a partition that moved. A read of the bucket that is under way goes on: what it waits for does not
    /// move.
    async fn look_again(&mut self, index: usize) {
        let read = &mut self.reads[index];
        let now = read.handle.snapshot();
        match &mut read.found {
            Found::Cold { snapshot, .. } if read.offset >= now.log_start => *snapshot = now,
            // A cold answer is complete; reading it anew would only lose it.
            Found::Records { cold: true, snapshot, .. } => *snapshot = now,
            Found::Nothing { .. }
            | Found::Error { .. }
            | Found::Diverging { .. }
            | Found::Records { .. }
            | Found::Cold { .. } => self.look(index).await,
        }
    }

    /// Ends when a read of the bucket is done; never where none is under way.
    fn any_cold(&self) -> impl Future<Output = ()> + use<> {
        let under_way: Vec<ColdSlot> = self
            .reads
            .iter()
            .filter_map(|read| match &read.found {
                Found::Cold { slot, parked: false, .. } => Some(slot.clone()),
                _ => None,
            })
            .collect();
        async move {
            let mut done: FuturesUnordered<_> = under_way.iter().map(ColdSlot::done).collect();
            if done.next().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes what the bucket answered meanwhile.
    fn take_cold(&mut self) {
        self.grant();
        for index in 0..self.reads.len() {
            self.take_cold_of(index);
        }
        self.charge();
    }

    /// Takes what the bucket answered for one partition, if it did and where there is room.
    fn take_cold_of(&mut self, index: usize) {
        if !matches!(self.reads[index].found, Found::Cold { .. }) {
            return;
        }
        self.grant();
        let (room, first_max) = self.room(index);
        let read = &mut self.reads[index];
        let Found::Cold { slot, key, parked, snapshot } = &mut read.found else { return };
        let Some(outcome) = slot.outcome() else { return };
        let (key, snapshot) = (*key, Arc::clone(snapshot));
        match outcome {
            Ok(records) => {
                let (nothing, fitting) = (records.bytes() == 0, fitting(records, room, first_max));
                if fitting.bytes == 0 && !nothing {
                    *parked = true;
                    self.hungry |= first_max > 0;
                    return;
                }
                self.cold_bytes = self.cold_bytes.saturating_sub(key.bytes_max);
                self.node.cold_reads.taken(&key);
                let found = found(fitting.chunks, (fitting.bytes, fitting.pinned), true, snapshot);
                self.set(index, found);
                // It may pin more than it brings: what comes behind it in this round has its own share.
                self.grant();
            }
            Err(error) => {
                self.cold_bytes = self.cold_bytes.saturating_sub(key.bytes_max);
                self.node.cold_reads.taken(&key);
                read.found = match error {
                    // The manifest moved under the read: the next fetch plans anew.
                    ReadError::NotAvailable { .. } => Found::Nothing { snapshot: read.handle.snapshot() },
                    error => Found::Error { code: error_code::read(&error), snapshot },
                };
            }
        }
    }

    /// Where a read of the bucket is not done and the bucket is known to be away, the client is told: an empty answer would
    /// look like the end of the partition for as long as the outage lasts.
    fn tell_outage(&mut self) {
        for read in &mut *self.reads {
            if let Found::Cold { parked: false, snapshot, .. } = &read.found
                && let Some(outage) = read.handle.cold_outage()
            {
                let error = ReadError::Cold(ColdError::Unavailable { why: outage.why });
                let snapshot = Arc::clone(snapshot);
                read.found = Found::Error { code: error_code::read(&error), snapshot };
            }
        }
    }
}

fn found(
    chunks: Vec<Bytes>,
    (bytes, pinned): (usize, usize),
    cold: bool,
    snapshot: Arc<PartitionSnapshot>,
) -> Found {
    if bytes == 0 {
        Found::Nothing { snapshot }
    } else {
        Found::Records { chunks, bytes, pinned, cold, snapshot }
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn without_room(plan: ReadPlan, snapshot: Arc<PartitionSnapshot>) -> Found {
    let code = match plan {
        ReadPlan::Hot { .. } | ReadPlan::Cold { .. } | ReadPlan::AtEnd | ReadPlan::NotAvailable => {
            return Found::Nothing { snapshot };
        }
        ReadPlan::OutOfRange => ErrorCode::OffsetOutOfRange,
        ReadPlan::Refused(mismatch) => error_code::leadership(mismatch),
    };
    Found::Error { code, snapshot }
}

/// Whether the epoch of the client's last record ended here before the offset that it asks for (KIP-595).
fn diverging(read: &PartitionRead, snapshot: &Arc<PartitionSnapshot>) -> Option<Found> {
    let last = read.last_fetched_epoch?;
    match plan_epoch_end(snapshot, last, read.current_leader_epoch) {
        Ok(EpochEndPlan::Known { epoch, end }) if epoch < last || end < read.offset => {
            Some(Found::Diverging { epoch, end, snapshot: Arc::clone(snapshot) })
        }
        // Wrong leadership is found by the read. What only the bucket knows is older than anything a client could diverge
        // from: all that is there is committed.
        Ok(EpochEndPlan::Known { .. } | EpochEndPlan::Cold { .. }) | Err(_) => None,
        // A record of an epoch that is yet to come: Kafka's answer to where that could be.
        Ok(EpochEndPlan::Undefined) => {
            Some(Found::Error { code: ErrorCode::OffsetOutOfRange, snapshot: Arc::clone(snapshot) })
        }
    }
}
