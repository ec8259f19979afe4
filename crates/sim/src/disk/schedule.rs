//! When operations take effect: in flight, performed, or cut off.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use tidelog_runtime::{Lane, Rng, SeededRng};
use tokio::time::Instant;

use super::{Fault, FaultEffect, Halt, OperationKind, SimDiskConfig, files::Files};
use crate::Trace;

/// What is done after the lock is released: an answer is delivered, or dropped.
pub(super) type Deliver = Box<dyn FnOnce() + Send>;

/// Takes effect; returns the outcome as text, and the answer.
pub(super) type Act = Box<dyn FnOnce(&mut Files) -> (String, Deliver) + Send>;

pub(super) struct State {
    pub(super) config: SimDiskConfig,
    pub(super) files: Files,
    pub(super) faults: Vec<Fault>,
    /// Operations that changed, or made durable, anything so far.
    pub(super) operations: u64,
    pub(super) halt_at: Option<(u64, Halt)>,
    pub(super) halted: bool,
    pub(super) trace: Trace,
    rng: SeededRng,
    in_flight: BTreeMap<u64, InFlight>,
    next_id: u64,
    journal_due: Option<Instant>,
    journal_sync_due: Option<Instant>,
}

/// An operation as it is submitted.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) kind: OperationKind,
    pub(super) path: PathBuf,
    pub(super) lane: Lane,
    pub(super) detail: String,
    /// Whether a crash before it differs from one after it.
    pub(super) changes: bool,
}

impl Operation {
    fn note(&self, trace: &Trace, outcome: &str) {
        let Self { kind, path, detail, .. } = self;
        trace.note(format_args!("{kind:?} {} {detail}: {outcome}", path.display()));
    }
}

struct InFlight {
    operation: Operation,
    act: Act,
}

impl InFlight {
    fn is_journal_sync(&self) -> bool {
        self.operation.lane == Lane::Journal && self.operation.kind == OperationKind::Sync
    }

    fn is_journal_other(&self) -> bool {
        self.operation.lane == Lane::Journal && self.operation.kind != OperationKind::Sync
    }
}

impl State {
    pub(super) fn new(config: SimDiskConfig, trace: Trace) -> Self {
        let rng = SeededRng::new(config.seed);
        let files = Files::new(rng.fork(), config.capacity, config.tears);
        Self::with(config, rng, files, Vec::new(), 0, trace)
    }

    fn with(
        config: SimDiskConfig,
        rng: SeededRng,
        files: Files,
        faults: Vec<Fault>,
        operations: u64,
        trace: Trace,
    ) -> Self {
        Self {
            config,
            files,
            faults,
            operations,
            halt_at: None,
            halted: false,
            trace,
            rng,
            in_flight: BTreeMap::new(),
            next_id: 0,
            journal_due: None,
            journal_sync_due: None,
        }
    }

    /// What the next life finds.
    pub(super) fn reborn(&self) -> Self {
        let trace = self.trace.clone();
        trace.note("reopened");
        let (config, faults) = (self.config.clone(), self.faults.clone());
        Self::with(config, self.rng.fork(), self.files.reborn(), faults, self.operations, trace)
    }

    /// What is to happen to an operation, by the first fault that it meets.
    pub(super) fn fault(&mut self, kind: OperationKind, path: &Path) -> Option<FaultEffect> {
        self.faults.iter_mut().find_map(|fault| fault.meets(kind, path))
    }

    /// Puts an operation in flight; returns its id, and when it is due.
    pub(super) fn submit(
        &mut self,
        operation: Operation,
        effect: Option<FaultEffect>,
        act: Act,
    ) -> (u64, Instant) {
        let now = Instant::now();
        let slowest = match operation.kind {
            OperationKind::Sync | OperationKind::SyncDir => self.config.sync_ms_max,
            _ => self.config.operation_ms_max,
        };
        // Whole milliseconds, the runtime's own resolution: two that differ keep their order.
        let mut latency = Duration::from_millis(1 + self.rng.below(slowest.max(1)));
        if let Some(FaultEffect::Slow(longer)) = effect {
            latency += longer;
        }
        let due = match (operation.lane, operation.kind) {
            (Lane::Journal, OperationKind::Sync) => {
                let due =
                    self.journal_due.max(self.journal_sync_due).map_or(now, |due| due.max(now)) + latency;
                self.journal_sync_due = Some(due);
                due
            }
            (Lane::Journal, _) => {
                let due = self.journal_due.map_or(now, |due| due.max(now)) + latency;
                self.journal_due = Some(due);
                due
            }
            (Lane::Read | Lane::Background, _) => now + latency,
        };
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight.insert(id, InFlight { operation, act });
        (id, due)
    }

    /// Performs an operation that is due, after those that must come before it. Returns what is left to deliver; halts the
    /// disk instead where that was asked for.
    pub(super) fn perform(&mut self, id: u64) -> Vec<Deliver> {
        let mut deliveries = Vec::new();
        let Some(due) = self.in_flight.get(&id) else { return deliveries };
        let (after_others, after_syncs) = match due.operation.lane {
            Lane::Journal => (true, due.is_journal_sync()),
            Lane::Read | Lane::Background => (false, false),
        };
        let earlier = self.in_flight.range(..id).filter(|(_, earlier)| {
            (after_others && earlier.is_journal_other()) || (after_syncs && earlier.is_journal_sync())
        });
        let mut turns: Vec<u64> = earlier.map(|(id, _)| *id).collect();
        turns.push(id);
        for id in turns {
            let Some(next) = self.in_flight.get(&id) else { continue };
            if next.operation.changes {
                if let Some((_, halt)) = self.halt_at.filter(|(at, _)| *at <= self.operations + 1) {
                    deliveries.extend(self.halt(halt));
                    return deliveries;
                }
                self.operations += 1;
            }
            if let Some(InFlight { operation, act }) = self.in_flight.remove(&id) {
                let (outcome, deliver) = act(&mut self.files);
                operation.note(&self.trace, &outcome);
                deliveries.push(deliver);
            }
        }
        deliveries
    }

    /// Ends the life of everything that uses the disk. Operations in flight take effect or not; none is answered. Returns
    /// what to drop after the lock.
    pub(super) fn halt(&mut self, halt: Halt) -> Vec<Deliver> {
        let mut unanswered: Vec<Deliver> = Vec::new();
        if std::mem::replace(&mut self.halted, true) {
            return unanswered;
        }
        let (mut journal_stopped, mut syncs_stopped) = (false, false);
        for (_, in_flight) in std::mem::take(&mut self.in_flight) {
            let stopped = (in_flight.operation.lane == Lane::Journal && journal_stopped)
                || (in_flight.is_journal_sync() && syncs_stopped);
            if in_flight.operation.changes && !stopped && self.rng.chance(1, 2) {
                let (outcome, deliver) = (in_flight.act)(&mut self.files);
                in_flight.operation.note(&self.trace, &format!("{outcome}, unanswered"));
                unanswered.push(deliver);
            } else {
                journal_stopped |= in_flight.is_journal_other();
                syncs_stopped |= in_flight.is_journal_sync();
                // The closure may own what locks the state when it is dropped.
                unanswered.push(Box::new(move || drop(in_flight.act)));
            }
        }
        let operations = self.operations;
        match halt {
            Halt::PowerCut => {
                self.files.power_cut();
                self.trace.note(format_args!("power cut after {operations} operations"));
            }
            Halt::Kill => self.trace.note(format_args!("killed after {operations} operations")),
        }
        unanswered
    }
}
