//! What clients do: one actor for each topic, which is its only producer, reads it, trims it and may delete it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tidelog_core::cluster::{Command, NewTopic, Outcome, Refusal};
use tidelog_replica::{
    AckFuture, Acks, AppendError, AppendRequest, DeleteRecordsError, Metadata as _, PartitionHandle,
    ProposeFailure,
};
use tidelog_runtime::{Clock as _, Rng, SeededRng};
use tidelog_sim::{Trace, digest};
use tidelog_types::{Offset, PartitionIndex, TopicId, TopicName, TopicPartition};

use super::{Counts, ledger::Ledger, node::Node, reading};

/// The topics, by what takes their records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Nothing does; its local copies go at once.
    Keep,
    /// `retention.bytes`.
    Size,
    /// `retention.ms`.
    Time,
    /// DeleteRecords.
    Trim,
    /// Its deletion: it is made again under the same name.
    Cycle,
    /// DeleteRecords, of a topic that is not tiered.
    Local,
}

pub(crate) const KINDS: [Kind; 6] =
    [Kind::Keep, Kind::Size, Kind::Time, Kind::Trim, Kind::Cycle, Kind::Local];

/// `retention.bytes` of its topic.
const RETENTION_BYTES: u64 = 9_000;

/// What retention by size may count and a power cut take back: batches in flight.
const UNSYNCED_BYTES: u64 = 8_000;

/// `retention.ms` of its topic.
const RETENTION_MS: u64 = 25_000;

/// Batches of one producer whose fate is not known, at most: a partition remembers five.
const OPEN_MAX: usize = 4;

/// How long an acknowledgement may take: the disk answers in milliseconds.
const ACK: Duration = Duration::from_secs(30);

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Size => "size",
            Self::Time => "time",
            Self::Trim => "trim",
            Self::Cycle => "cycle",
            Self::Local => "local",
        }
    }

    fn topic(self) -> TopicName {
        TopicName::new(self.name()).unwrap()
    }

    const fn number(self) -> u8 {
        match self {
            Self::Keep => 1,
            Self::Size => 2,
            Self::Time => 3,
            Self::Trim => 4,
            Self::Cycle => 5,
            Self::Local => 6,
        }
    }

    pub(crate) const fn is_tiered(self) -> bool {
        !matches!(self, Self::Local)
    }

    fn configs(self) -> BTreeMap<String, String> {
        let own: &[(&str, &str)] = match self {
            Self::Keep => &[("local.retention.ms", "1")],
            Self::Size => &[("retention.bytes", "9000"), ("local.retention.bytes", "1000")],
            Self::Time => &[("retention.ms", "25000"), ("local.retention.ms", "2000")],
            Self::Trim => &[("local.retention.ms", "1000")],
            Self::Cycle => &[("local.retention.ms", "500")],
            Self::Local => &[("remote.storage.enable", "false")],
        };
        let always =
            [("segment.bytes", "4096"), ("index.interval.bytes", "1024"), ("max.message.bytes", "100000")];
        let unlimited = [("retention.ms", "-1"), ("retention.bytes", "-1")];
        let unlimited = unlimited.iter().filter(|(key, _)| own.iter().all(|(own, _)| own != key));
        let all = always.iter().chain(unlimited).chain(own);
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }
}

/// Whether a topic is there, as far as its actor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// To be made; perhaps it is.
    Absent,
    Present,
    /// Its deletion was asked for.
    Going,
}

/// One topic in its present life.
#[derive(Debug)]
pub(crate) struct Topic {
    id: TopicId,
    life: u8,
    stage: Stage,
    ledger: Ledger,
}

impl Topic {
    fn new(kind: Kind, life: u8) -> Self {
        let mut id = [0; 16];
        (id[0], id[1], id[15]) = (0x70, kind.number(), life);
        let producer = i64::from(kind.number()) * 1_000 + i64::from(life);
        Self { id: TopicId::from_bytes(id), life, stage: Stage::Absent, ledger: Ledger::new(producer) }
    }
}

/// What is known of everything, over all lives.
#[derive(Debug)]
pub(crate) struct Known {
    topics: BTreeMap<Kind, Topic>,
    pub(crate) counts: Counts,
    trace: Trace,
    now_ms: u64,
}

pub(crate) type World = Arc<Mutex<Known>>;

pub(crate) fn lock(world: &World) -> MutexGuard<'_, Known> {
    world.lock().unwrap()
}

/// Makes something a part of the trace.
pub(crate) fn note(world: &World, what: impl Display) {
    lock(world).trace.note(what);
}

impl Known {
    pub(crate) fn new(trace: Trace) -> World {
        let topics = KINDS.into_iter().map(|kind| (kind, Topic::new(kind, 0))).collect();
        Arc::new(Mutex::new(Self { topics, counts: Counts::default(), trace, now_ms: 0 }))
    }

    fn topic(&mut self, kind: Kind) -> &mut Topic {
        self.topics.get_mut(&kind).expect("all kinds are known")
    }

    /// The ledger of a topic while it is in this life.
    pub(crate) fn ledger(&mut self, kind: Kind, id: TopicId) -> Option<&mut Ledger> {
        let topic = self.topic(kind);
        (topic.id == id && topic.stage == Stage::Present).then_some(&mut topic.ledger)
    }

    /// Whether a topic's deletion was asked for.
    pub(crate) fn is_going(&self, kind: Kind) -> bool {
        self.topics.get(&kind).is_none_or(|topic| topic.stage != Stage::Present)
    }

    /// Compares what a whole partition held, from `start` on, with what was promised.
    pub(crate) fn compare(
        &mut self,
        kind: Kind,
        handle: &PartitionHandle,
        start: Offset,
        found: &BTreeSet<usize>,
        bytes: u64,
    ) -> Result<(), String> {
        let (name, now_ms) = (kind.name(), self.now_ms);
        self.counts.add("looks at a whole partition", 1);
        let Some(ledger) = self.ledger(kind, handle.place().topic_id) else { return Ok(()) };
        if start < ledger.log_start_seen {
            return Err(format!(
                "the log start of {name} went back from {} to {start}",
                ledger.log_start_seen
            ));
        }
        ledger.log_start_seen = start;
        let mut order = None;
        for index in found {
            let at = ledger.sent[*index].at;
            if at <= order {
                return Err(format!("I6: {name} holds sequences in another order"));
            }
            order = at;
        }
        for (index, sent) in ledger.sent.iter().enumerate() {
            let Some(end) = sent.end() else { continue };
            if end > start && !found.contains(&index) {
                return Err(format!("I1: {name} lost [{:?}, {end}), from {start} on", sent.at));
            }
            let is_young = kind == Kind::Time && sent.time.as_millis() + RETENTION_MS > now_ms;
            if end <= start && is_young {
                return Err(format!("I1: {name} lost [{:?}, {end}) before its time", sent.at));
            }
        }
        let (asked, moved) = (ledger.log_start_asked, start > Offset::ZERO);
        let allowed = match kind {
            Kind::Keep => !moved,
            Kind::Size => !moved || bytes + UNSYNCED_BYTES >= RETENTION_BYTES,
            Kind::Trim | Kind::Local | Kind::Cycle => start <= asked,
            Kind::Time => true,
        };
        if !allowed {
            return Err(format!(
                "I1: the log start of {name} is {start} with {bytes} bytes left, asked was {asked}"
            ));
        }
        Ok(())
    }
}

/// The client of one topic in one life of the node.
pub(crate) struct Actor {
    pub(crate) kind: Kind,
    pub(crate) node: Arc<Node>,
    pub(crate) world: World,
    pub(crate) rng: SeededRng,
    pub(crate) clock: tidelog_sim::SimClock,
    waiting: VecDeque<(usize, Offset, AckFuture)>,
}

impl Actor {
    pub(crate) fn new(
        kind: Kind,
        node: Arc<Node>,
        world: World,
        rng: SeededRng,
        clock: tidelog_sim::SimClock,
    ) -> Self {
        Self { kind, node, world, rng, clock, waiting: VecDeque::new() }
    }

    /// Sends again what is open, works, and waits for what it sent.
    pub(crate) async fn run(mut self, steps: u64) -> Result<(), String> {
        let kind = self.kind;
        let done = async {
            self.begin().await?;
            for _ in 0..steps {
                self.step().await?;
                let pause = if self.rng.chance(1, 7) { self.rng.below(7_000) } else { self.rng.below(400) };
                self.sleep(Duration::from_millis(pause)).await;
            }
            self.begin().await
        };
        let done: Result<(), String> = done.await;
        done.map_err(|why| format!("{}: {why}", kind.name()))
    }

    /// Waits until nothing of the topic is open.
    pub(crate) async fn finish(mut self) -> Result<(), String> {
        let kind = self.kind;
        self.begin().await.map_err(|why| format!("{}: {why}", kind.name()))
    }

    async fn sleep(&self, time: Duration) {
        self.clock.sleep(time).await;
        let now_ms = self.clock.wall().as_millis();
        lock(&self.world).now_ms = now_ms;
    }

    fn count(&self, name: &str) {
        lock(&self.world).counts.add(name, 1);
    }

    fn note(&self, what: impl Display) {
        note(&self.world, format_args!("{}: {what}", self.kind.name()));
    }

    fn with<T>(&self, look: impl FnOnce(&mut Topic) -> T) -> T {
        look(lock(&self.world).topic(self.kind))
    }

    fn handle(&self) -> Option<PartitionHandle> {
        let id = self.with(|topic| (topic.stage == Stage::Present).then_some(topic.id))?;
        self.node.replica.partition(&TopicPartition { topic_id: id, partition: PartitionIndex(0) })
    }

    /// Brings the topic to where its actor wanted it, and everything that was sent into it.
    async fn begin(&mut self) -> Result<(), String> {
        if self.with(|topic| topic.stage) == Stage::Going {
            self.delete_topic().await?;
        }
        if self.with(|topic| topic.stage) == Stage::Absent {
            self.create_topic().await?;
        }
        self.settle_waiting(0).await?;
        for index in self.with(|topic| topic.ledger.open()) {
            if self.send(index).await? {
                self.count("batches sent again after a restart");
            }
            self.settle_waiting(0).await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), String> {
        let Some(handle) = self.handle() else {
            return Err("I1: the topic is not hosted".to_owned());
        };
        let snapshot = handle.snapshot();
        let allowed = snapshot.log_start.max(self.committed_tiered_end(&handle));
        if snapshot.local_log_start > allowed {
            return Err(format!(
                "I8: the local log starts at {}, {allowed} was allowed",
                snapshot.local_log_start
            ));
        }
        let trims = matches!(self.kind, Kind::Trim | Kind::Local | Kind::Cycle);
        let draw = self.rng.below(100);
        self.note(format_args!("step {draw}"));
        match draw {
            0..45 => self.append().await,
            45..50 => self.append_again().await,
            50..76 => self.read(&handle).await,
            76..84 => {
                self.count("rolls");
                handle.roll().await.map_err(|failure| format!("roll: {failure}"))
            }
            84..92 if trims => self.delete_records(&handle).await,
            92..96 if self.kind == Kind::Cycle => {
                self.with(|topic| topic.stage = Stage::Going);
                self.begin().await
            }
            _ => self.append().await,
        }
    }

    /// Reads at one place, mostly an old one, twice: what is read again goes to the cache.
    async fn read(&self, handle: &PartitionHandle) -> Result<(), String> {
        let snapshot = handle.snapshot();
        let start = snapshot.log_start.get();
        let span = snapshot.high_watermark.get().saturating_sub(start) + 1;
        let part = if self.rng.chance(3, 4) { span.div_ceil(2) } else { span };
        let from = Offset::new(start + self.rng.below(part)).unwrap();
        let bytes_max = usize::try_from(self.rng.below(6_000)).unwrap();
        for _ in 0..2 {
            reading::look(&self.world, self.kind, handle, from, bytes_max).await?;
        }
        Ok(())
    }

    fn committed_tiered_end(&self, handle: &PartitionHandle) -> Offset {
        let image = self.node.controller.image();
        image.partition(&handle.place()).map_or(Offset::ZERO, |partition| partition.manifest.tiered_end)
    }

    async fn append(&mut self) -> Result<(), String> {
        for _ in 0..=self.rng.below(3) {
            self.settle_waiting(OPEN_MAX - 1).await?;
            let now = self.clock.wall();
            let index = self.with(|topic| topic.ledger.next(&self.rng, now));
            self.send(index).await?;
        }
        if self.rng.chance(2, 3) { self.settle_waiting(0).await } else { Ok(()) }
    }

    /// Its answer was lost, so a producer sends the last batch again.
    async fn append_again(&mut self) -> Result<(), String> {
        self.settle_waiting(0).await?;
        let last = self.with(|topic| topic.ledger.sent.len().checked_sub(1));
        let Some(last) = last else { return self.append().await };
        if self.send(last).await? {
            self.count("retries");
        }
        self.settle_waiting(0).await
    }

    /// Sends a batch; whether it was taken.
    async fn send(&mut self, index: usize) -> Result<bool, String> {
        let Some(handle) = self.handle() else { return Err("I1: the topic is not hosted".to_owned()) };
        let records = self.with(|topic| topic.ledger.sent[index].bytes.clone());
        let frame_bytes = if self.rng.chance(1, 3) { 4_000 } else { 0 };
        self.note(format_args!("send {index} #{:016x}", digest(&records)));
        let request = AppendRequest { records, frame_bytes, acks: Acks::All, internal: false };
        match handle.append(request).await {
            Ok(appended) => {
                self.note(format_args!("{index} is at {}", appended.base_offset));
                self.count(if appended.duplicate { "duplicates answered" } else { "batches appended" });
                self.with(|topic| topic.ledger.place(index, appended.base_offset, false))?;
                self.waiting.push_back((index, appended.base_offset, appended.ack));
                Ok(true)
            }
            Err(AppendError::NoSpace) => Ok(false),
            Err(refused) => Err(format!("I5: a batch is refused: {refused}")),
        }
    }

    /// Waits until at most `left` appends wait for their acknowledgement.
    async fn settle_waiting(&mut self, left: usize) -> Result<(), String> {
        while self.waiting.len() > left {
            let Some((index, at, ack)) = self.waiting.pop_front() else { break };
            match tokio::time::timeout(ACK, ack.wait()).await {
                Ok(Ok(())) => {
                    self.with(|topic| topic.ledger.place(index, at, true))?;
                    self.note(format_args!("{index} is acknowledged at {at}"));
                    self.count("batches acknowledged");
                }
                Ok(Err(error)) => return Err(format!("an append has no outcome: {error}")),
                Err(_) => return Err(format!("I16: an append at {at} is not acknowledged")),
            }
        }
        Ok(())
    }

    async fn delete_records(&self, handle: &PartitionHandle) -> Result<(), String> {
        let snapshot = handle.snapshot();
        let span = snapshot.high_watermark.get().saturating_sub(snapshot.log_start.get());
        let to = Offset::new(snapshot.log_start.get() + self.rng.below(span / 2 + 1)).unwrap();
        // No producer deletes what it may have to send again: a start knows nothing of batches below the log start, as Kafka's.
        let to = self.waiting.front().map_or(to, |(_, at, _)| to.min((*at).max(snapshot.log_start)));
        self.with(|topic| topic.ledger.log_start_asked = topic.ledger.log_start_asked.max(to));
        self.note(format_args!("DeleteRecords to {to}"));
        match handle.delete_records(Some(to)).await {
            Ok(at) if at >= to => {
                self.note(format_args!("the log starts at {at}"));
                self.count("DeleteRecords");
                self.with(|topic| topic.ledger.log_start_seen = topic.ledger.log_start_seen.max(at));
                Ok(())
            }
            Ok(at) => Err(format!("DeleteRecords to {to} answered {at}")),
            Err(DeleteRecordsError::Controller(_)) => Ok(()),
            Err(error) => Err(format!("DeleteRecords: {error}")),
        }
    }

    async fn create_topic(&self) -> Result<(), String> {
        let id = self.with(|topic| topic.id);
        let topic = NewTopic {
            topic_id: id,
            name: self.kind.topic(),
            partition_count: 1,
            replication_factor: 1,
            assignments: Vec::new(),
            configs: self.kind.configs(),
        };
        loop {
            match self.node.commands.propose(Command::CreateTopic { topic: topic.clone() }).await {
                Ok(Outcome::TopicCreated { .. }) => break,
                Ok(other) => return Err(format!("a creation was answered with {other:?}")),
                Err(ProposeFailure::Unavailable(_) | ProposeFailure::Unknown(_)) => {}
                Err(ProposeFailure::Refused(refused)) => {
                    return Err(format!("a creation is refused: {refused}"));
                }
            }
        }
        self.node.settled().await?;
        self.with(|topic| topic.stage = Stage::Present);
        self.note("made");
        self.count("topics made");
        Ok(())
    }

    async fn delete_topic(&mut self) -> Result<(), String> {
        // Nobody hears of them any more.
        self.waiting.clear();
        let topic_id = self.with(|topic| topic.id);
        loop {
            match self.node.commands.propose(Command::DeleteTopic { topic_id }).await {
                Ok(_) | Err(ProposeFailure::Refused(Refusal::UnknownTopic { .. })) => break,
                Err(ProposeFailure::Unavailable(_) | ProposeFailure::Unknown(_)) => {}
                Err(ProposeFailure::Refused(refused)) => {
                    return Err(format!("a deletion is refused: {refused}"));
                }
            }
        }
        self.node.settled().await?;
        let kind = self.kind;
        self.with(|topic| *topic = Topic::new(kind, topic.life + 1));
        self.note("deleted");
        self.count("topics deleted");
        Ok(())
    }
}

/// Looks at every topic that is there.
pub(crate) async fn look_at_all(
    node: &Node,
    world: &World,
    clock: &tidelog_sim::SimClock,
) -> Result<(), String> {
    for kind in KINDS {
        let now_ms = clock.wall().as_millis();
        let place = {
            let mut known = lock(world);
            known.now_ms = now_ms;
            let topic = known.topic(kind);
            (topic.stage == Stage::Present)
                .then_some(TopicPartition { topic_id: topic.id, partition: PartitionIndex(0) })
        };
        let Some(place) = place else { continue };
        let Some(handle) = node.replica.partition(&place) else {
            return Err(format!("I1: the topic {} is gone", kind.name()));
        };
        let sleep = async |time: Duration| {
            clock.sleep(time).await;
            lock(world).now_ms = clock.wall().as_millis();
        };
        reading::look_at_all(world, kind, &handle, sleep).await?;
    }
    Ok(())
}

/// The tiered partitions whose log is not in the bucket to its end yet, in words; rolls what is not sealed.
pub(crate) async fn not_tiered(node: &Node, world: &World) -> Result<Vec<String>, String> {
    let mut behind = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| kind.is_tiered()) {
        let id = lock(world).topic(kind).id;
        let Some(handle) =
            node.replica.partition(&TopicPartition { topic_id: id, partition: PartitionIndex(0) })
        else {
            continue;
        };
        let snapshot = handle.snapshot();
        if snapshot.tiered_end < snapshot.high_watermark {
            handle.roll().await.map_err(|failure| failure.to_string())?;
            behind.push(format!("{}: {} of {}", kind.name(), snapshot.tiered_end, snapshot.high_watermark));
        }
    }
    Ok(behind)
}
