//! The rounds of one fetch: look at every partition, wait, look again at what moved.
//!
//! **Owns** the order of looks, the bytes of the answer, and the wait for `min_bytes`.
//!
//! **Does not own** sessions, nor the answer's form.
//!
//! No partition waits for another: an error belongs to its partition and ends the wait; what lies in the bucket is read
//! beside, and if the time is up first, the answer goes out without it and the next fetch finds it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use tidelog_core::{
    partition::PartitionSnapshot,
    read_plan::{EpochEndPlan, Isolation, ReadPlan, plan_epoch_end, plan_read},
};
use tidelog_replica::{Fetched, PartitionHandle, ReadError, Records, Waiter};
use tidelog_runtime::{CancellationToken, Permit};
use tidelog_types::{LeaderEpoch, Offset, TopicPartition};
use tidelog_wire::ErrorCode;
use tokio::time::Instant;

use super::cold::{ColdKey, ColdSlot};
use crate::{error_code, node::Node};

/// The most that one read from the bucket brings: several fetches share what is ahead anyway.
const COLD_READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How long the bucket is tried for one read. Longer than a fetch waits: the read goes on without it.
const COLD_READ_DEADLINE: Duration = Duration::from_secs(20);

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
        cold: Option<ColdKey>,
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

/// Looks and waits until `bytes_min` are there, something must be told, the time is up, or `ended`. The permit stands for
/// the bytes that were found.
pub(crate) async fn read_all(
    node: &Arc<Node>,
    ended: &CancellationToken,
    limits: FetchLimits,
    reads: &mut [PartitionRead],
    answer_at_once: bool,
) -> Permit {
    let mut fetch = Fetch { node, limits, reads, permit: node.fetch_budget.charge(0) };
    fetch.look_at_all().await;
    if !answer_at_once && !fetch.is_satisfied() && !limits.wait_max.is_zero() {
        fetch.wait(ended).await;
    }
    fetch.take_cold();
    fetch.charge();
    fetch.permit
}

struct Fetch<'a> {
    node: &'a Arc<Node>,
    limits: FetchLimits,
    reads: &'a mut [PartitionRead],
    permit: Permit,
}

impl Fetch<'_> {
    async fn look_at_all(&mut self) {
        for index in 0..self.reads.len() {
            self.look(index).await;
        }
        self.charge();
    }

    fn bytes(&self) -> usize {
        self.reads.iter().map(|read| read.found.bytes()).sum()
    }

    /// Makes the permit what the records take. More than the budget is charged only where a batch is larger.
    fn charge(&mut self) {
        let bytes = u64::try_from(self.bytes()).unwrap_or(u64::MAX);
        let held = self.permit.bytes();
        if bytes < held {
            self.permit.shrink_to(bytes);
        } else if bytes > held {
            self.permit.merge(self.node.fetch_budget.charge(bytes - held));
        }
    }

    fn is_satisfied(&self) -> bool {
        self.reads.is_empty()
            || self.bytes() >= self.limits.bytes_min
            || self.reads.iter().any(|read| read.found.is_urgent())
    }

    /// How many bytes partition `index` may give, and whether a batch larger than that is welcome: the first one is, or a
    /// consumer with small limits would stand before it for ever.
    fn room(&self, index: usize) -> (usize, bool) {
        let others: usize = self
            .reads
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, read)| read.found.bytes())
            .sum();
        let free = usize::try_from(self.node.fetch_budget.free().saturating_add(self.permit.bytes()))
            .unwrap_or(usize::MAX);
        let total = self.limits.bytes_max.min(free);
        (total.saturating_sub(others).min(self.reads[index].bytes_max), others == 0)
    }

    async fn look(&mut self, index: usize) {
        let (room, one_at_least) = self.room(index);
        let isolation = self.limits.isolation;
        let read = &self.reads[index];
        let snapshot = read.handle.snapshot();
        if let Some(diverging) = diverging(read, &snapshot) {
            self.reads[index].found = diverging;
            return;
        }
        if room == 0 && !one_at_least {
            // Nothing fits any more, but how far the partition reaches is told, and what is wrong with it.
            let plan = plan_read(&snapshot, read.offset, isolation, read.current_leader_epoch);
            self.reads[index].found = without_room(plan, snapshot);
            return;
        }
        let (handle, offset) = (read.handle.clone(), read.offset);
        let (snapshot, fetched) =
            handle.read(offset, room, isolation, one_at_least, read.current_leader_epoch).await;
        self.reads[index].found = match fetched {
            Err(error) => Found::Error { code: error_code::read(&error), snapshot },
            Ok(Fetched::AtEnd) => Found::Nothing { snapshot },
            Ok(Fetched::Hot(records)) => found(records, None, snapshot),
            Ok(Fetched::Cold { end }) => self.cold(index, end, snapshot),
        };
    }

    /// Joins the read of the bucket that is under way for this place, or begins one.
    fn cold(&self, index: usize, end: Offset, snapshot: Arc<PartitionSnapshot>) -> Found {
        let read = &self.reads[index];
        let bytes_max = read.bytes_max.min(COLD_READ_BYTES_MAX);
        let key = ColdKey { place: read.handle.place(), offset: read.offset, bytes_max };
        let (slot, sender) = self.node.cold_reads.join(self.node.clock.monotonic(), key);
        if let Some(sender) = sender {
            let (handle, offset) = (read.handle.clone(), read.offset);
            self.node
                .supervisor
                .spawn_back("cold fetch", async move {
                    let outcome = handle.read_cold(offset, end, bytes_max, true, COLD_READ_DEADLINE).await;
                    sender.send_replace(Some(outcome));
                })
                .detach();
        }
        Found::Cold { slot, key, parked: false, snapshot }
    }

    async fn wait(&mut self, ended: &CancellationToken) {
        let deadline = Instant::now() + self.limits.wait_max;
        let waiter = Waiter::new();
        let _registered: Vec<_> = self.reads.iter().map(|read| read.handle.register_wake(&waiter)).collect();
        let mut places: BTreeMap<TopicPartition, Vec<usize>> = BTreeMap::new();
        for (index, read) in self.reads.iter().enumerate() {
            places.entry(read.handle.place()).or_default().push(index);
        }
        // What moved between the first look and the registration.
        for index in 0..self.reads.len() {
            let read = &self.reads[index];
            if !Arc::ptr_eq(read.found.snapshot(), &read.handle.snapshot()) {
                self.look_again(index).await;
            }
        }
        while !self.is_satisfied() {
            let cold = self.any_cold();
            // Cancellation first, for a stop is not to be outrun by a busy partition; then the clock, for the same reason.
            tokio::select! {
                biased;
                () = ended.cancelled() => return,
                () = tokio::time::sleep_until(deadline) => return,
                () = cold => self.take_cold(),
                moved = waiter.moved() => {
                    self.node.metrics.fetch_wakeups.inc();
                    for place in moved {
                        for index in places.get(&place).into_iter().flatten() {
                            self.look_again(*index).await;
                        }
                    }
                }
            }
            self.charge();
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
            Found::Records { cold: Some(_), snapshot, .. } => *snapshot = now,
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
        for index in 0..self.reads.len() {
            let (room, one_at_least) = self.room(index);
            let read = &mut self.reads[index];
            let Found::Cold { slot, key, parked, snapshot } = &mut read.found else { continue };
            let Some(outcome) = slot.outcome() else { continue };
            let (key, snapshot) = (*key, Arc::clone(snapshot));
            match outcome {
                Ok(records) if records.bytes() > room && !one_at_least => *parked = true,
                Ok(records) => {
                    self.node.cold_reads.taken(&key);
                    read.found = found(records, Some(key), snapshot);
                }
                Err(error) => {
                    self.node.cold_reads.taken(&key);
                    read.found = match error {
                        // The manifest moved under the read: the next fetch plans anew.
                        ReadError::NotAvailable { .. } => Found::Nothing { snapshot: read.handle.snapshot() },
                        error => Found::Error { code: error_code::read(&error), snapshot },
                    };
                }
            }
        }
    }
}

fn found(records: Records, cold: Option<ColdKey>, snapshot: Arc<PartitionSnapshot>) -> Found {
    match records.bytes() {
        0 => Found::Nothing { snapshot },
        bytes => Found::Records { chunks: records.chunks, bytes, cold, snapshot },
    }
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
        Ok(EpochEndPlan::Known { .. } | EpochEndPlan::Undefined | EpochEndPlan::Cold { .. }) | Err(_) => None,
    }
}
