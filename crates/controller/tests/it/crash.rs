//! The store on a disk whose power goes at every operation of a workload: nothing acknowledged is lost or changed.

use std::{cell::RefCell, collections::BTreeMap, path::Path, sync::Arc};

use futures::FutureExt;
use openraft::{
    EntryPayload, RaftLogReader,
    alias::{EntryOf, LogIdOf, VoteOf},
    impls::leader_id_adv::LeaderId,
    storage::{IOFlushed, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine},
};
use tidelog_controller::{
    Proposal, StoreError, TypeConfig, log_store::LogStore, snapshot_store::SnapshotStore,
    state_machine::StateMachine,
};
use tidelog_core::cluster::Command;
use tidelog_runtime::{Clock, Disk, Rng, SeededRng};
use tidelog_sim::{Context, Fault, FaultEffect, Halt, OperationKind, SimDisk, seeds};
use tidelog_types::ProducerId;

use crate::support::{cluster_id, metrics, set_config};

type LogId = LogIdOf<TypeConfig>;
type Vote = VoteOf<TypeConfig>;
type Entry = EntryOf<TypeConfig>;

/// What a store must hold.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, Entry>,
    /// The last index in the newest snapshot.
    snapshot: Option<u64>,
}

/// One thing that Raft asks of its store.
#[derive(Debug, Clone)]
enum Step {
    Vote(u64),
    Append {
        count: u64,
        bytes: usize,
    },
    Truncate {
        keep: u64,
    },
    /// Applies all but the last `behind` entries, builds a snapshot, purges up to `keep` below it.
    Snapshot {
        behind: u64,
        keep: u64,
    },
}

#[derive(Default)]
struct Acknowledged {
    /// What every operation so far made.
    model: Model,
    /// What the store may also hold: states that the operation under way passes through.
    under_way: Vec<Model>,
}

fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 1 }, index }
}

impl Model {
    fn next_index(&self) -> u64 {
        let last =
            self.entries.last_key_value().map(|(index, _)| *index).or(self.purged.map(|purged| purged.index));
        last.map_or(0, |last| last + 1)
    }

    fn term(&self) -> u64 {
        self.vote.map_or(0, |vote| vote.leader_id.term)
    }

    /// The entries of an append, as the model's term and index make them.
    fn new_entries(&self, count: u64, bytes: usize) -> Vec<Entry> {
        let first = self.next_index();
        (first..first + count)
            .map(|index| {
                let command = if index == 0 { initialize() } else { set_config(index % 5, bytes) };
                let payload = EntryPayload::Normal(Proposal(Arc::new(command)));
                Entry { log_id: log_id(self.term(), index), payload }
            })
            .collect()
    }
}

fn initialize() -> Command {
    Command::Initialize {
        cluster_id: cluster_id(1),
        feature_level: 1,
        restore_number: 0,
        producer_ids_from: ProducerId(0),
    }
}

struct Store {
    log: LogStore,
    machine: StateMachine,
}

impl Store {
    async fn open(disk: &SimDisk) -> Result<Self, StoreError> {
        let directory = Path::new("/controller");
        disk.create_dir_all(directory).await.unwrap();
        disk.sync_dir(Path::new("/")).await.unwrap();
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let clock: Arc<dyn Clock> = Arc::new(tidelog_sim::SimClock::new());
        let log = LogStore::open(Arc::clone(&disk), Arc::clone(&clock), directory, metrics()).await?;
        let snapshots = SnapshotStore::new(disk, clock, directory);
        let machine = StateMachine::open(snapshots, log.purged_index(), cluster_id(1), metrics()).await?;
        Ok(Self { log, machine })
    }

    async fn observed(&mut self) -> Model {
        let entries = self.log.try_get_log_entries(0..).await.unwrap();
        Model {
            vote: self.log.read_vote().await.unwrap(),
            purged: self.log.get_log_state().await.unwrap().last_purged_log_id,
            entries: entries.into_iter().map(|entry| (entry.log_id.index, entry)).collect(),
            snapshot: self.machine.applied_state().await.unwrap().0.map(|last| last.index),
        }
    }

    /// Carries a step out, and says in `acknowledged` what is promised when.
    async fn step(&mut self, step: &Step, acknowledged: &RefCell<Acknowledged>) {
        let before = acknowledged.borrow().model.clone();
        match step {
            Step::Vote(term) => {
                let vote = Vote { leader_id: LeaderId { term: *term, node_id: 1 }, committed: term % 2 == 0 };
                promise(acknowledged, &[Model { vote: Some(vote), ..before }]);
                self.log.save_vote(&vote).await.unwrap();
            }
            Step::Append { count, bytes } => {
                let entries = before.new_entries(*count, *bytes);
                let mut passing = before;
                let states: Vec<_> = entries
                    .iter()
                    .map(|entry| {
                        passing.entries.insert(entry.log_id.index, entry.clone());
                        passing.clone()
                    })
                    .collect();
                promise(acknowledged, &states);
                self.log.append(entries, IOFlushed::noop()).await.unwrap();
            }
            Step::Truncate { keep } => {
                let applied = before.snapshot.map_or(0, |snapshot| snapshot + 1);
                let mut after = before;
                let from = after.next_index().saturating_sub(*keep).max(applied);
                after.entries.retain(|index, _| *index < from);
                let last = after.entries.last_key_value().map(|(_, entry)| entry.log_id).or(after.purged);
                promise(acknowledged, &[after]);
                self.log.truncate_after(last).await.unwrap();
            }
            Step::Snapshot { behind, keep } => self.snapshot(*behind, *keep, before, acknowledged).await,
        }
        let mut acknowledged = acknowledged.borrow_mut();
        if let Some(after) = acknowledged.under_way.pop() {
            acknowledged.model = after;
        }
        acknowledged.under_way.clear();
    }

    async fn snapshot(
        &mut self,
        behind: u64,
        keep: u64,
        before: Model,
        acknowledged: &RefCell<Acknowledged>,
    ) {
        let Some(last) = before.next_index().checked_sub(behind + 1) else { return };
        let applied = self.machine.applied_state().await.unwrap().0.map_or(0, |last| last.index + 1);
        let entries: Vec<_> =
            before.entries.range(applied..=last.max(applied)).map(|(_, entry)| entry.clone()).collect();
        if last < applied || entries.is_empty() {
            return;
        }
        let stream = futures::stream::iter(entries.into_iter().map(|entry| Ok((entry, None))));
        self.machine.apply(stream).await.unwrap();
        let taken = Model { snapshot: Some(last), ..before };
        promise(acknowledged, std::slice::from_ref(&taken));
        let mut builder = self.machine.get_snapshot_builder().await;
        builder.build_snapshot().await.unwrap();
        acknowledged.borrow_mut().model = taken.clone();
        let Some(purged) = last.checked_sub(keep) else { return };
        let Some(purged) = taken.entries.get(&purged).map(|entry| entry.log_id) else { return };
        let mut after = taken;
        after.purged = Some(purged);
        after.entries.retain(|index, _| *index > purged.index);
        promise(acknowledged, &[after]);
        self.log.purge(purged).await.unwrap();
    }
}

fn promise(acknowledged: &RefCell<Acknowledged>, states: &[Model]) {
    acknowledged.borrow_mut().under_way = states.to_vec();
}

fn workload(rng: &SeededRng) -> Vec<Step> {
    let mut term = 0;
    let mut steps = vec![Step::Vote(1), Step::Append { count: 3, bytes: 10 }];
    steps.extend((0..12).map(|_| match rng.below(8) {
        0 | 1 => {
            term += 1 + rng.below(2);
            Step::Vote(1 + term)
        }
        2..=4 => Step::Append { count: 1 + rng.below(12), bytes: if rng.chance(1, 3) { 30_000 } else { 40 } },
        5 => Step::Truncate { keep: rng.below(4) },
        _ => Step::Snapshot { behind: rng.below(3), keep: rng.below(4) },
    }));
    // Enough garbage for a new file, so that its making is crashed too.
    steps.extend([
        Step::Append { count: 40, bytes: 30_000 },
        Step::Snapshot { behind: 0, keep: 1 },
        Step::Vote(100),
    ]);
    steps
}

async fn run_life(
    context: &Context,
    disk: &SimDisk,
    steps: &[Step],
    acknowledged: &RefCell<Acknowledged>,
) -> Option<()> {
    context
        .life(disk, |_supervisor| async {
            let mut store = Store::open(disk).await.unwrap();
            for step in steps {
                store.step(step, acknowledged).await;
            }
        })
        .await
}

/// Opens what survived, checks it, and goes on with it.
async fn check_survivor(context: &Context, survived: &SimDisk, acknowledged: &RefCell<Acknowledged>) {
    let mut store = Store::open(survived).await.unwrap_or_else(|why| panic!("seed {}: {why}", context.seed));
    let observed = store.observed().await;
    {
        let Acknowledged { model, under_way } = &*acknowledged.borrow();
        let allowed = observed == *model || under_way.contains(&observed);
        assert!(allowed, "found: {observed:?}\nacknowledged: {model:?}\nunder way: {under_way:?}");
    }
    // The next life continues from what was found; it is as durable as what was acknowledged.
    *acknowledged.borrow_mut() = Acknowledged { model: observed, under_way: Vec::new() };
    for step in [Step::Vote(200), Step::Append { count: 2, bytes: 5 }] {
        store.step(&step, acknowledged).await;
    }
    let last = survived.crash();
    let mut store = Store::open(&last).await.unwrap();
    assert_eq!(store.observed().await, acknowledged.borrow().model);
}

fn crash_everywhere(seed: u64, halt: Halt) -> u64 {
    let steps = workload(&SeededRng::new(seed));
    let all = tidelog_sim::run(seed, |context| async {
        let context = context;
        let acknowledged = RefCell::default();
        run_life(&context, &context.disk, &steps, &acknowledged).await.unwrap();
        context.disk.operations()
    });
    for operation in 1..=all {
        tidelog_sim::run(seed, |context| async {
            let context = context;
            let acknowledged = RefCell::default();
            context.disk.halt_at(operation, halt);
            let ended = run_life(&context, &context.disk, &steps, &acknowledged).await;
            assert_eq!(ended, None, "operation {operation} of {all} is reached");
            check_survivor(&context, &context.disk.reopen(), &acknowledged).await;
        });
    }
    all
}

#[test]
fn nothing_acknowledged_is_lost_in_a_power_cut_at_any_operation() {
    let crashes: u64 = seeds(3).map(|seed| crash_everywhere(seed, Halt::PowerCut)).sum();
    assert!(crashes > 100, "{crashes} crashes");
}

#[test]
fn nothing_acknowledged_is_lost_in_a_kill_at_any_operation() {
    for seed in seeds(1) {
        crash_everywhere(seed, Halt::Kill);
    }
}

/// A power cut during recovery itself.
#[test]
fn nothing_acknowledged_is_lost_in_a_power_cut_of_the_recovery() {
    for seed in seeds(2) {
        let steps = workload(&SeededRng::new(seed));
        for operation in 1.. {
            let reached = tidelog_sim::run(seed, |context| async {
                let context = context;
                let acknowledged = RefCell::default();
                run_life(&context, &context.disk, &steps, &acknowledged).await.unwrap();
                let second = context.disk.crash();
                second.crash_at(context.disk.operations() + operation);
                let opened = context.life(&second, |_| async { Store::open(&second).await.unwrap() }).await;
                if opened.is_some() {
                    return false;
                }
                check_survivor(&context, &second.reopen(), &acknowledged).await;
                true
            });
            if !reached {
                assert!(operation > 4, "a recovery has more than {operation} operations");
                break;
            }
        }
    }
}

/// Whether a mistake of the disk shows within some seeds: something acknowledged is lost, or the start is refused.
fn is_found_out(mistake: impl Fn() -> Fault + std::panic::RefUnwindSafe) -> bool {
    seeds(40).any(|seed| {
        let steps = workload(&SeededRng::new(seed));
        let found = std::panic::catch_unwind(|| {
            tidelog_sim::run(seed, |context| async {
                let context = context;
                let acknowledged = RefCell::default();
                context.disk.inject(mistake());
                run_life(&context, &context.disk, &steps, &acknowledged).await.unwrap();
                check_survivor(&context, &context.disk.crash(), &acknowledged).await;
            });
        });
        found.is_err()
    })
}

/// The harness sees what it is there for: with syncs that are none it finds a loss.
#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    assert!(is_found_out(|| Fault::sync_lies().after(2)), "syncs of files");
    assert!(is_found_out(Fault::dir_sync_lies), "syncs of directories");
}

/// A failed sync is never retried and believed: everything after it is refused.
#[test]
fn after_a_failed_sync_the_log_is_closed() {
    tidelog_sim::run(3, |context| async move {
        let disk = &context.disk;
        let mut store = Store::open(disk).await.unwrap();
        let acknowledged = RefCell::default();
        store.step(&Step::Vote(1), &acknowledged).await;
        store.step(&Step::Append { count: 2, bytes: 9 }, &acknowledged).await;
        disk.inject(Fault::on(OperationKind::Sync, FaultEffect::EIO));
        let entries = acknowledged.borrow().model.new_entries(1, 9);
        assert!(store.log.append(entries.clone(), IOFlushed::noop()).await.is_err());
        disk.clear_faults();
        assert!(store.log.append(entries, IOFlushed::noop()).await.is_err());
        assert!(
            store
                .log
                .save_vote(&Vote { leader_id: LeaderId { term: 9, node_id: 1 }, committed: true })
                .await
                .is_err()
        );
        assert_eq!(store.observed().await, acknowledged.borrow().model, "nothing refused is shown");
    });
}

/// A round that finds the disk full waits, since Raft would end with it, and is written once there is space.
#[test]
fn a_round_that_finds_the_disk_full_waits_for_space() {
    for kind in [OperationKind::Allocate, OperationKind::Write] {
        tidelog_sim::run(3, |context| async move {
            let disk = &context.disk;
            let mut store = Store::open(disk).await.unwrap();
            let acknowledged = RefCell::default();
            store.step(&Step::Vote(1), &acknowledged).await;
            disk.inject(Fault::on(kind, FaultEffect::ENOSPC));
            let (mut log, entries) =
                (store.log.clone(), acknowledged.borrow().model.new_entries(170, 30_000));
            let before = acknowledged.borrow().model.clone();
            {
                let mut append = std::pin::pin!(log.append(entries.clone(), IOFlushed::noop()));
                tokio::select! {
                    biased;
                    outcome = &mut append => panic!("{kind:?}: {outcome:?}"),
                    () = context.clock.sleep(std::time::Duration::from_secs(5)) => {}
                }
                assert_eq!(store.observed().await, before, "what waits is not shown");
                disk.clear_faults();
                append.await.unwrap();
            }
            let mut after = before;
            after.entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
            let mut again = Store::open(&disk.crash()).await.unwrap();
            assert_eq!(again.observed().await, after, "{kind:?}");
        });
    }
}

fn newest(disk: &SimDisk, prefix: &str) -> std::path::PathBuf {
    let mut paths = disk.paths();
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix(prefix)?.parse::<u64>().ok();
    paths.retain(|path| number(path).is_some());
    paths.pop().unwrap()
}

/// One flipped bit in what was synced is damage and stops the start; it is never taken for a torn tail.
#[test]
fn rot_in_the_log_refuses_the_start() {
    tidelog_sim::run(5, |context| async move {
        let disk = &context.disk;
        let mut store = Store::open(disk).await.unwrap();
        let acknowledged = RefCell::default();
        for step in [Step::Vote(1), Step::Append { count: 2, bytes: 9 }, Step::Vote(2), Step::Vote(3)] {
            store.step(&step, &acknowledged).await;
        }
        let survived = disk.crash();
        let path = newest(&survived, "log-");
        // The vote's record begins the file's rounds.
        for (position, damaged) in [(0, true), (64 + 41, true), (64 + 48 + 30, true)] {
            let copy = survived.crash();
            copy.flip_bit(&path, position, 3).unwrap();
            let opened = Store::open(&copy).await;
            assert_eq!(matches!(opened, Err(StoreError::Damaged { .. })), damaged, "at {position}");
        }
    });
}

#[test]
fn a_rotten_snapshot_is_passed_over_while_the_log_allows_it() {
    tidelog_sim::run(5, |context| async move {
        let disk = &context.disk;
        let mut store = Store::open(disk).await.unwrap();
        let acknowledged = RefCell::default();
        let steps = [
            Step::Vote(1),
            Step::Append { count: 6, bytes: 9 },
            // Snapshots at 5 and 9; the log is purged up to 5.
            Step::Snapshot { behind: 0, keep: 6 },
            Step::Append { count: 4, bytes: 9 },
            Step::Snapshot { behind: 0, keep: 4 },
        ];
        for step in steps {
            store.step(&step, &acknowledged).await;
        }
        let survived = disk.crash();
        survived.flip_bit(&newest(&survived, "snapshot-"), 40, 1).unwrap();
        let mut store = Store::open(&survived).await.unwrap();
        let observed = store.observed().await;
        assert_eq!((observed.snapshot, observed.purged.unwrap().index), (Some(5), 5));
        assert_eq!(
            observed.entries.keys().copied().collect::<Vec<_>>(),
            [6, 7, 8, 9],
            "the rest is applied from the log"
        );
        store.log.purge(log_id(1, 6)).await.unwrap();
        let opened = Store::open(&survived.crash()).await;
        assert!(matches!(opened, Err(StoreError::Damaged { .. })), "nothing covers what was purged");
    });
}

/// A dropped append may have been written: the store does not go on as if it were not.
#[test]
fn a_round_dropped_half_way_closes_the_log() {
    tidelog_sim::run(5, |context| async move {
        let disk = &context.disk;
        let mut store = Store::open(disk).await.unwrap();
        let entries = Model::default().new_entries(1, 5);
        assert!(store.log.append(entries.clone(), IOFlushed::noop()).now_or_never().is_none());
        assert!(store.log.append(entries, IOFlushed::noop()).await.is_err());
    });
}
