//! A seeded workload over several partitions, and the model that says what must be there afterwards.
//!
//! Each partition has one actor, its owner; a further one takes checkpoints. What the log told is noted by observers. After
//! a stop the log is opened again and compared with the model, which then takes what it found as the new truth.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use tidelog_format::{
    crc,
    producers::{ProducerEntry, ProducerSnapshot},
};
use tidelog_log::{AppendError, Log, LogFailure, LogObserver, PartitionLog, ReadError, RecoveredPartition};
use tidelog_runtime::{Rng, SeededRng, Supervisor};
use tidelog_sim::Context;
use tidelog_types::{Offset, ProducerEpoch, ProducerId, Timestamp, TopicPartition};

use crate::support::{batch, joined, offset, place, small_partition, split, stored, try_read_all};

/// A batch that was appended.
#[derive(Clone)]
pub(crate) struct Appended {
    base: Offset,
    /// Exclusive.
    end: Offset,
    bytes: Bytes,
}

impl std::fmt::Debug for Appended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}, {})", self.base, self.end)
    }
}

/// A change that was asked for and not answered yet.
#[derive(Debug, Clone)]
enum Asked {
    Truncate(Offset),
    Reset(Offset),
    Delete,
}

/// What is known of one partition.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    lineage: Vec<Appended>,
    start: Offset,
    epoch: u32,
    /// Acknowledged: these must survive a kill, those a power cut.
    written: Offset,
    synced: Offset,
    /// Whether the partition's own existence was ever made durable.
    durable: bool,
    log_start: Offset,
    log_start_asked: Offset,
    asked: Option<Asked>,
}

impl Known {
    fn new(start: Offset) -> Self {
        Self {
            lineage: Vec::new(),
            start,
            epoch: 0,
            written: start,
            synced: start,
            durable: false,
            log_start: start,
            log_start_asked: start,
            asked: None,
        }
    }

    fn end(&self) -> Offset {
        self.lineage.last().map_or(self.start, |last| last.end)
    }

    fn cut(&mut self, to: Offset) {
        while self.lineage.last().is_some_and(|last| last.end > to) {
            self.lineage.pop();
        }
        let end = self.end();
        self.written = self.written.min(end);
        self.synced = self.synced.min(end);
    }

    fn fingerprint(&self, below: Offset) -> Bytes {
        let mut digest = crc::Crc32c::new();
        for appended in self.lineage.iter().filter(|appended| appended.end <= below) {
            digest.update(&appended.bytes[..61]);
        }
        let state = ProducerEntry {
            producer_id: ProducerId(i64::from(digest.finish())),
            producer_epoch: ProducerEpoch(0),
            last_timestamp: Timestamp::from_millis(0),
            batches: Vec::new(),
            open_transaction: None,
        };
        ProducerSnapshot { end: below, entries: vec![state] }.encode().into()
    }
}

/// What is known of all partitions.
#[derive(Debug, Default)]
pub(crate) struct World {
    partitions: BTreeMap<TopicPartition, Known>,
    next_topic: u64,
    fill: u64,
    checks: u64,
}

pub(crate) type Shared = Arc<Mutex<World>>;

fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap()
}

struct Observer {
    world: Shared,
    place: TopicPartition,
}

impl Observer {
    fn update(&self, change: impl FnOnce(&mut Known)) {
        if let Some(known) = lock(&self.world).partitions.get_mut(&self.place) {
            change(known);
        }
    }
}

impl LogObserver for Observer {
    fn written(&self, end: Offset) {
        self.update(|known| known.written = known.written.max(end.min(known.end())));
    }

    fn synced(&self, end: Offset) {
        self.update(|known| {
            known.synced = known.synced.max(end.min(known.end()));
            known.written = known.written.max(known.synced);
            known.durable = true;
        });
    }

    fn failed(&self, _why: &LogFailure) {}

    fn producer_snapshot(&self) -> (Offset, Bytes) {
        let world = lock(&self.world);
        let known = world.partitions.get(&self.place);
        known.map_or((Offset::ZERO, Bytes::new()), |known| (known.end(), known.fingerprint(known.end())))
    }
}

/// How a life of the log ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everything that was synced must be there.
    PowerCut,
    /// Everything that was written must be there.
    Killed,
}

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) partitions: u64,
    pub(crate) steps: u64,
    /// Whether logs are cut, reset and deleted.
    pub(crate) cuts: bool,
}

/// Compares what was recovered with what must be there, and takes it as the truth from here on.
pub(crate) async fn check(
    world: &Shared,
    recovered: &[RecoveredPartition],
    ended: Ended,
) -> Result<(), String> {
    // A copy: a halt may end the look in the middle.
    let mut known = lock(world).partitions.clone();
    let mut next = BTreeMap::new();
    for found in recovered {
        let place = found.log.place();
        let Some(known) = known.remove(&place) else {
            return Err(format!("{place} is there, and was deleted or never created"));
        };
        next.insert(place, check_one(found, known, ended).await.map_err(|why| format!("{place}: {why}"))?);
    }
    for (place, known) in known {
        let may_be_gone = matches!(known.asked, Some(Asked::Delete)) || !known.durable;
        if !may_be_gone {
            return Err(format!("{place} is gone: {known:?}"));
        }
    }
    let mut world = lock(world);
    world.partitions = next;
    world.checks += 1;
    Ok(())
}

/// How often what was recovered was compared and taken.
pub(crate) fn checks(world: &Shared) -> u64 {
    lock(world).checks
}

/// A clean stop made everything durable.
pub(crate) fn note_closed(world: &Shared) {
    for known in lock(world).partitions.values_mut() {
        known.synced = known.end();
        known.written = known.end();
        known.durable = true;
    }
}

async fn check_one(found: &RecoveredPartition, mut known: Known, ended: Ended) -> Result<Known, String> {
    let offsets = found.log.offsets();
    if let Some(why) = found.log.fenced() {
        return Err(format!("fenced: {why}"));
    }
    if let Some(Asked::Reset(start)) = known.asked
        && offsets.log_end == start
        && offsets.log_start == start
        && (known.end() != start || known.log_start != start)
    {
        known = Known { durable: true, epoch: known.epoch, ..Known::new(start) };
    }
    if let Some(Asked::Truncate(to)) = known.asked {
        let mut cut = known.clone();
        cut.cut(to);
        if cut.end() < offsets.log_end && offsets.log_end == offsets.log_start {
            // Everything at or above the log start went: the log is empty there.
            known = Known { durable: true, epoch: known.epoch, ..Known::new(offsets.log_start) };
        }
    }
    let mut required = match ended {
        Ended::PowerCut => known.synced,
        Ended::Killed => known.written,
    };
    if let Some(Asked::Truncate(to)) = known.asked {
        let mut cut = known.clone();
        cut.cut(to);
        required = required.min(cut.end());
    }
    if offsets.log_end < required {
        return Err(format!("I1: the log ends at {} below the acknowledged {required}", offsets.log_end));
    }
    if offsets.log_end > known.end() {
        return Err(format!(
            "the log ends at {} above everything appended, {}",
            offsets.log_end,
            known.end()
        ));
    }
    if offsets.log_start < known.log_start || offsets.log_start > known.log_start_asked {
        let range = (known.log_start, known.log_start_asked);
        return Err(format!("I3: log start {} is outside of {range:?}", offsets.log_start));
    }
    let floor = offsets.log_start.max(offsets.local_log_start);
    if let Some(below) = floor.prev()
        && !matches!(found.log.read(below, 100, Offset::MAX, true).await, Err(ReadError::OutOfRange { .. }))
    {
        return Err(format!("I3: {below} is served below the start {floor}"));
    }
    known.cut(offsets.log_end);
    if known.end() != offsets.log_end {
        return Err(format!(
            "the log ends at {}, inside of a batch that was appended whole",
            offsets.log_end
        ));
    }
    compare(&found.log, &known, floor).await?;
    check_replay(found, &known, floor)?;
    known.written = offsets.log_end;
    known.synced = offsets.log_end;
    known.durable = true;
    known.log_start = offsets.log_start;
    known.log_start_asked = offsets.log_start;
    known.asked = None;
    known.epoch += 1;
    Ok(known)
}

async fn compare(log: &PartitionLog, known: &Known, floor: Offset) -> Result<(), String> {
    let expected: Vec<&Appended> = known.lineage.iter().filter(|appended| appended.end > floor).collect();
    let found = try_read_all(log, floor).await.map_err(|error| format!("I1: {error}"))?;
    for (expected, (base, _, bytes)) in expected.iter().zip(&found) {
        if expected.base != *base || expected.bytes != bytes {
            return Err(format!(
                "I2: the batch at {base} is not the one that was appended at {}",
                expected.base
            ));
        }
    }
    if expected.len() != found.len() {
        return Err(format!("I3: {} batches from {floor} on, of {}", found.len(), expected.len()));
    }
    Ok(())
}

fn check_replay(found: &RecoveredPartition, known: &Known, floor: Offset) -> Result<(), String> {
    let from = match &found.producer_snapshot {
        Some((at, bytes)) if *bytes != known.fingerprint(*at) => {
            return Err(format!("the producer snapshot at {at} is of another log"));
        }
        Some((at, _)) => (*at).max(floor),
        None => floor,
    };
    let expected: Vec<&[u8]> = known
        .lineage
        .iter()
        .filter(|appended| appended.end > from)
        .map(|appended| &appended.bytes[..61])
        .collect();
    let replay: Vec<&[u8]> = found.replay.iter().map(|header| &header[..]).collect();
    if expected != replay {
        return Err(format!("{} headers to replay from {from}, of {}", replay.len(), expected.len()));
    }
    Ok(())
}

/// Runs one life's work. Ends early where the log fails.
pub(crate) async fn run(
    context: &Context,
    supervisor: &Supervisor,
    log: &Log,
    recovered: Vec<RecoveredPartition>,
    world: &Shared,
    size: Size,
) -> Result<(), String> {
    let mut actors = Vec::new();
    let mut logs: Vec<Option<PartitionLog>> = recovered.into_iter().map(|found| Some(found.log)).collect();
    logs.resize(usize::try_from(size.partitions).unwrap().max(logs.len()), None);
    for partition in logs {
        let actor = Actor {
            log: log.clone(),
            world: Arc::clone(world),
            rng: SeededRng::new(context.rng.next_u64()),
            partition,
            size,
        };
        actors.push(supervisor.spawn("actor", actor.run()));
    }
    let (taker, rng) = (log.clone(), SeededRng::new(context.rng.next_u64()));
    let checkpoints = supervisor.spawn("checkpoints", async move {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(rng.below(250))).await;
            if taker.checkpoint().await.is_err() {
                return;
            }
        }
    });
    for actor in actors {
        actor.await.map_err(|failure| failure.to_string())??;
    }
    checkpoints.await.map_err(|failure| failure.to_string())
}

struct Actor {
    log: Log,
    world: Shared,
    rng: SeededRng,
    partition: Option<PartitionLog>,
    size: Size,
}

/// A failed log ends the actor; it is not a finding.
type Done = Result<bool, String>;

fn over(result: Result<(), LogFailure>) -> bool {
    result.is_ok()
}

impl Actor {
    async fn run(mut self) -> Result<(), String> {
        if let Some(log) = &self.partition {
            log.set_config(small_partition());
            self.observe(log);
        }
        for _ in 0..self.size.steps {
            if !self.step().await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(self.rng.below(12))).await;
        }
        Ok(())
    }

    fn observe(&self, log: &PartitionLog) {
        log.attach(Arc::new(Observer { world: Arc::clone(&self.world), place: log.place() }));
    }

    fn known<T>(&self, place: TopicPartition, look: impl FnOnce(&mut Known) -> T) -> T {
        look(lock(&self.world).partitions.get_mut(&place).unwrap())
    }

    async fn step(&mut self) -> Done {
        let Some(log) = self.partition.clone() else { return self.create().await };
        let kind = self.rng.below(100);
        match kind {
            0..60 => self.append(&log).await,
            60..70 => self.read(&log).await,
            70..74 => Ok(over(log.roll().await)),
            74..80 => self.move_log_start(&log).await,
            80..86 => self.evict(&log).await,
            86..94 if self.size.cuts => self.truncate(&log).await,
            94..96 if self.size.cuts => self.reset(&log).await,
            96..98 if self.size.cuts => self.delete(&log).await,
            _ => self.append(&log).await,
        }
    }

    async fn create(&mut self) -> Done {
        let start = offset(if self.rng.chance(1, 4) { self.rng.below(50) } else { 0 });
        let place = {
            let mut world = lock(&self.world);
            world.next_topic += 1;
            let place = place(world.next_topic, 0);
            world.partitions.insert(place, Known::new(start));
            place
        };
        let Ok(log) = self.log.create(place, small_partition(), start).await else { return Ok(false) };
        self.observe(&log);
        self.partition = Some(log);
        Ok(true)
    }

    async fn append(&mut self, log: &PartitionLog) -> Done {
        self.log.append_room().await;
        let place = log.place();
        {
            let mut world = lock(&self.world);
            let mut batches = Vec::new();
            let mut base = world.partitions[&place].end();
            for _ in 0..=self.rng.below(3) {
                world.fill += 1;
                let (count, bytes) = (1 + self.rng.below(4), usize::try_from(self.rng.below(700)).unwrap());
                let fill = world.fill;
                let epoch = world.partitions[&place].epoch;
                let mut batch = batch(base, epoch, 1_000_000 + fill * 10, count, bytes, fill);
                batch.frame_bytes = if self.rng.chance(1, 3) { 4000 } else { 0 };
                base = batch.last_offset.next();
                batches.push(batch);
            }
            let appended: Vec<Appended> = batches
                .iter()
                .map(|batch| Appended {
                    base: batch.base_offset,
                    end: batch.last_offset.next(),
                    bytes: stored(batch),
                })
                .collect();
            match log.append(batches) {
                Ok(end) => {
                    let known = world.partitions.get_mut(&place).unwrap();
                    known.lineage.extend(appended);
                    assert_eq!(known.end(), end);
                }
                Err(AppendError::Backpressure | AppendError::NoSpace) => return Ok(true),
                Err(AppendError::Failed(_)) => return Ok(false),
                Err(error) => return Err(format!("append: {error}")),
            }
        }
        if self.rng.chance(1, 2) {
            let end = self.known(place, |known| known.end());
            if log.wait_synced(end).await.is_err() {
                return Ok(false);
            }
            self.known(place, |known| {
                known.synced = known.synced.max(end.min(known.end()));
                known.written = known.written.max(known.synced);
                known.durable |= end > known.start;
            });
        }
        Ok(true)
    }

    async fn read(&mut self, log: &PartitionLog) -> Done {
        let place = log.place();
        let offsets = log.offsets();
        let floor = offsets.log_start.max(offsets.local_log_start);
        let from = offset(floor.get() + self.rng.below(offsets.log_end.distance_from(floor) + 1));
        let bytes_max = usize::try_from(self.rng.below(5000)).unwrap();
        let read = match log.read(from, bytes_max, offsets.log_end, true).await {
            Ok(read) => read,
            Err(error) => return Err(format!("read at {from}: {error}")),
        };
        let expected = self.known(place, |known| {
            let reaching = known.lineage.iter().filter(|appended| appended.end > from);
            reaching.map(|appended| (appended.base, appended.bytes.clone())).collect::<Vec<_>>()
        });
        if from < offsets.log_end && read.chunks.is_empty() {
            return Err(format!("nothing is read at {from} below {}", offsets.log_end));
        }
        for ((base, bytes), (found, _, stored)) in expected.iter().zip(split(&joined(&read))) {
            if *base != found || *bytes != stored {
                return Err(format!("I2: a read at {from} of {found} is not what was appended at {base}"));
            }
        }
        Ok(true)
    }

    async fn move_log_start(&mut self, log: &PartitionLog) -> Done {
        let place = log.place();
        let offsets = log.offsets();
        let to = offset(
            offsets.log_start.get()
                + self.rng.below(offsets.synced_end.distance_from(offsets.log_start) / 2 + 1),
        );
        self.known(place, |known| known.log_start_asked = known.log_start_asked.max(to));
        if log.set_log_start(to).await.is_err() {
            return Ok(false);
        }
        self.known(place, |known| {
            known.durable |= to > known.log_start;
            known.log_start = known.log_start.max(to);
        });
        Ok(true)
    }

    async fn evict(&mut self, log: &PartitionLog) -> Done {
        // Below the log start, so that nothing is missing that no bucket has.
        let to = log.offsets().log_start;
        Ok(over(log.set_local_log_start(to).await))
    }

    async fn truncate(&mut self, log: &PartitionLog) -> Done {
        let place = log.place();
        let floor = log.offsets().log_start;
        let to = self.known(place, |known| {
            let span = known.end().distance_from(floor).min(12);
            let to = offset(known.end().get() - self.rng.below(span + 1));
            known.asked = Some(Asked::Truncate(to));
            to
        });
        if log.truncate(to).await.is_err() {
            return Ok(false);
        }
        self.known(place, |known| {
            known.asked = None;
            known.cut(to);
            known.epoch += 1;
        });
        let end = log.offsets().log_end;
        let expected = self.known(place, |known| known.end());
        if end != expected.max(floor) {
            return Err(format!("a truncation to {to} left the end at {end}, not {expected}"));
        }
        self.known(place, |known| {
            if end > known.end() {
                // Everything went, down to the log start.
                known.lineage.clear();
                (known.start, known.written, known.synced) = (end, end, end);
            }
        });
        Ok(true)
    }

    async fn reset(&mut self, log: &PartitionLog) -> Done {
        let place = log.place();
        let start = offset(log.offsets().log_end.get() + self.rng.below(20));
        self.known(place, |known| known.asked = Some(Asked::Reset(start)));
        if log.reset(start).await.is_err() {
            return Ok(false);
        }
        self.known(place, |known| {
            let epoch = known.epoch + 1;
            *known = Known { epoch, durable: true, ..Known::new(start) };
        });
        Ok(true)
    }

    async fn delete(&mut self, log: &PartitionLog) -> Done {
        let place = log.place();
        self.known(place, |known| known.asked = Some(Asked::Delete));
        if self.log.delete(place).await.is_err() {
            return Ok(false);
        }
        lock(&self.world).partitions.remove(&place);
        self.partition = None;
        Ok(true)
    }
}
