//! The lives of one seed, and how each ends.

use std::{sync::Arc, time::Duration};

use tidelog_runtime::{Clock as _, Rng, SeededRng, Supervisor};
use tidelog_sim::{Context, Halt, SimDisk};
use tidelog_testkit::{BucketManners, TrapMoment};

use super::{
    Outcome, Plan,
    auditor::Auditor,
    node::{GRACE, Machine, Node, ORPHAN_AGE},
    workload::{self, Actor, KINDS, Known, World, lock},
};

/// Operations of the disk, and of the bucket, among which a life's end is drawn: about what a life has.
const DISK_SPAN: u64 = 1_400;
const BUCKET_SPAN: u64 = 60;

/// How long the last life may take to bring everything into the bucket.
const CATCH_UP: Duration = Duration::from_secs(120);

struct Model {
    context: Context,
    plan: Plan,
    machine: Machine,
    world: World,
    auditor: Auditor,
}

/// Runs all lives.
pub(super) async fn run(context: Context, plan: Plan) -> Outcome {
    // Every step of the clock, and every sleep of the product, is part of the trace.
    let trace = context.trace.clone();
    trace.follow_clock();
    let context = Context { clock: context.clock.traced(trace.clone()), ..context };
    let machine = Machine::new(&context, plan.mistake);
    let auditor = Auditor::new(context.clock.clone(), machine.bucket.clone(), trace.clone());
    let world = Known::new(trace.clone());
    let model = Model { context, plan, machine, world, auditor };
    let mut disk = model.context.disk.clone();
    if let Some(mistake) = model.plan.mistake {
        mistake.spoil(&disk);
    }
    let finding = model.all(&mut disk).await.err();
    let mut counts = lock(&model.world).counts.clone();
    counts.add("disk operations", disk.operations());
    counts.add("bucket operations", model.machine.bucket.operations());
    let (images, deletions) = model.auditor.counts();
    counts.add("images compared", images);
    counts.add("deletions judged", deletions);
    for (fault, count) in model.machine.bucket.faults() {
        counts.add(&format!("bucket {fault}"), count);
    }
    // They hold one another.
    model.machine.bucket.observe(None);
    Outcome { finding, counts, trace: trace.lines(), trace_hash: trace.hash() }
}

impl Model {
    async fn all(&self, disk: &mut SimDisk) -> Result<(), String> {
        for _ in 0..self.plan.lives {
            let rng = self.context.rng.fork();
            let halt = if rng.chance(1, 2) { Halt::PowerCut } else { Halt::Kill };
            let planned = self.plan_end(&rng, disk, halt);
            self.context.trace.note(format_args!("a life that {planned}"));
            let ended = self.context.life(disk, |supervisor| self.life(rng, disk, supervisor)).await;
            self.machine.bucket.clear_trap();
            self.auditor.unfollow();
            let how = match (&ended, halt) {
                (Some(Ok(true)), _) => "lives that stopped",
                (Some(_), _) => "lives cut at their end",
                (None, Halt::PowerCut) => "lives ended by a power cut",
                (None, Halt::Kill) => "lives ended by a kill",
            };
            self.context.trace.note(how);
            lock(&self.world).counts.add(how, 1);
            if ended.is_none() {
                lock(&self.world).counts.add(planned, 1);
            }
            self.verdict(ended.unwrap_or(Ok(true)).map(drop))?;
            disk.halt(halt);
            *disk = disk.reopen();
        }
        self.machine.bucket.behave(BucketManners::CALM);
        let ended = self.context.life(disk, |supervisor| self.last_life(disk, supervisor)).await;
        self.verdict(ended.unwrap_or_else(|| Err("the last life was ended".to_owned())))
    }

    /// A finding of anybody: what the auditor saw first, then a panic, which both explain what a client sees.
    fn verdict(&self, ended: Result<(), String>) -> Result<(), String> {
        let seen = self.auditor.finding().or_else(super::first_panic);
        seen.map_or(ended, Err)
    }

    /// Decides where a life ends.
    fn plan_end(&self, rng: &SeededRng, disk: &SimDisk, halt: Halt) -> &'static str {
        match rng.below(100) {
            0..55 => {
                // The first operations are those of a start.
                let span = if rng.chance(1, 4) { 120 } else { DISK_SPAN };
                disk.halt_at(disk.operations() + 1 + rng.below(span), halt);
                "ends at an operation of the disk"
            }
            55..85 => {
                let number = self.machine.bucket.operations() + 1 + rng.below(BUCKET_SPAN);
                let moment = if rng.chance(1, 2) { TrapMoment::Before } else { TrapMoment::After };
                let doomed = disk.clone();
                self.machine.bucket.set_trap(number, moment, Arc::new(move || doomed.halt(halt)));
                "ends at an operation of the bucket"
            }
            _ => "ends of their own",
        }
    }

    /// One life; whether it stopped cleanly.
    async fn life(&self, rng: SeededRng, disk: &SimDisk, supervisor: Supervisor) -> Result<bool, String> {
        let bucket = &self.machine.bucket;
        bucket.behave(if rng.chance(1, 3) { BucketManners::CALM } else { BucketManners::ROUGH });
        let node = Arc::new(Node::start(&self.machine, disk, &supervisor).await?);
        supervisor.spawn("auditor", self.auditor.clone().follow(node.controller.clone())).detach();
        if rng.chance(1, 2) {
            bucket.behave(BucketManners::CALM);
            workload::look_at_all(&node, &self.world, &self.context.clock).await?;
        }
        let weather = supervisor.spawn("weather", weather(self.machine.clone(), rng.fork()));
        let mut actors = Vec::new();
        for kind in KINDS {
            let (node, world, clock) =
                (Arc::clone(&node), Arc::clone(&self.world), self.context.clock.clone());
            let actor = Actor::new(kind, node, world, rng.fork(), clock);
            actors.push(supervisor.spawn("actor", actor.run(self.plan.steps)));
        }
        for actor in actors {
            actor.await.map_err(|failure| failure.to_string())??;
        }
        weather.abort();
        if let Some(failure) = node.failure().or_else(|| self.auditor.finding()) {
            return Err(failure);
        }
        if rng.chance(1, 3) {
            bucket.behave(BucketManners::CALM);
            workload::look_at_all(&node, &self.world, &self.context.clock).await?;
        }
        let stops = rng.chance(1, 2);
        if stops && let Ok(node) = Arc::try_unwrap(node) {
            node.stop().await?;
        }
        Ok(stops)
    }

    /// The life in which nothing goes wrong.
    async fn last_life(&self, disk: &SimDisk, supervisor: Supervisor) -> Result<(), String> {
        let clock = &self.context.clock;
        let node = Arc::new(Node::start(&self.machine, disk, &supervisor).await?);
        supervisor.spawn("auditor", self.auditor.clone().follow(node.controller.clone())).detach();
        workload::look_at_all(&node, &self.world, clock).await?;
        for kind in KINDS {
            let (node, world) = (Arc::clone(&node), Arc::clone(&self.world));
            Actor::new(kind, node, world, self.context.rng.fork(), clock.clone()).finish().await?;
        }
        let until = clock.monotonic() + CATCH_UP;
        loop {
            let behind = workload::not_tiered(&node, &self.world).await?;
            if behind.is_empty() {
                break;
            }
            self.verdict(Ok(()))?;
            if clock.monotonic() > until {
                return Err(format!("I16: not in the bucket after {CATCH_UP:?}: {behind:?}"));
            }
            clock.sleep(Duration::from_secs(1)).await;
        }
        // Everything from the bucket, as far as it is there alone.
        node.cold.clear().await;
        workload::look_at_all(&node, &self.world, clock).await?;
        self.nothing_left(&node).await?;
        workload::look_at_all(&node, &self.world, clock).await?;
        if let Some(failure) = node.failure() {
            return Err(failure);
        }
        match Arc::try_unwrap(node) {
            Ok(node) => node.stop().await,
            Err(_) => Err("the last life still has actors".to_owned()),
        }
    }

    /// Waits until the bucket holds what is named and nothing else.
    async fn nothing_left(&self, node: &Node) -> Result<(), String> {
        let clock = &self.context.clock;
        // What came late is found by a sweep; a deleted topic's folder must be found empty twice.
        let until = clock.monotonic() + GRACE + ORPHAN_AGE * 4 + Duration::from_secs(60);
        loop {
            let (unnamed, waiting) = (self.auditor.unnamed(), node.controller.image().deletions().len());
            if unnamed.is_empty() && waiting == 0 {
                return Ok(());
            }
            self.verdict(Ok(()))?;
            if clock.monotonic() > until {
                return Err(format!("I10: {waiting} deletions wait, and nobody names {unnamed:?}"));
            }
            clock.sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Changes how the bucket behaves, now and then.
async fn weather(machine: Machine, rng: SeededRng) {
    loop {
        let (manners, most_ms) = match rng.below(10) {
            0..3 => (BucketManners::CALM, 12_000),
            3..9 => (BucketManners::ROUGH, 20_000),
            _ => (BucketManners::AWAY, 9_000),
        };
        machine.context.trace.note(format_args!("weather: {manners:?}"));
        machine.bucket.behave(manners);
        machine.context.clock.sleep(Duration::from_millis(1_000 + rng.below(most_ms))).await;
    }
}
