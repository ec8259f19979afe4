//! One partition on this node: its lock, its published snapshot, and who waits for it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use tidelog_core::{
    cluster::PartitionImage,
    partition::{Moved, PartitionSnapshot, PartitionState},
    producers::ProducerEntry,
    topic_config::BrokerSettings,
};
use tidelog_log::PartitionLog;
use tidelog_types::{LeaderEpoch, Offset, ProducerId, TopicName, TopicPartition};
use tokio::sync::oneshot;

use crate::{
    AckError, PartitionSettings, Waiter, WakeRegistration, cold::ColdPlace, manager::Shared,
    tiering::UploadCursor, wake::Waiters,
};

/// How an append ended.
type Ack = Result<(), AckError>;

/// Who waits for an offset, in the order of the offsets.
type Acks = VecDeque<(Offset, oneshot::Sender<Ack>)>;

/// What the partition's lock guards. Critical sections do no IO and never wait.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) state: PartitionState,
    /// Appends of acks 0 and 1: they wait for the journal's write.
    written: Acks,
    /// Appends of acks=all: they wait for the high watermark.
    committed: Acks,
    /// Why no append will ever be acknowledged again.
    pub(crate) failed: Option<Arc<str>>,
    pub(crate) deleted: bool,
}

/// What is left to do once the lock is free.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Consequences {
    answers: Vec<(oneshot::Sender<Ack>, Ack)>,
    wake: bool,
}

/// Settings, and what they were resolved from.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) settings: PartitionSettings,
    pub(crate) broker: Arc<BrokerSettings>,
    pub(crate) overrides: BTreeMap<String, String>,
}

impl Sources {
    /// Whether settings resolved from these would be the same.
    pub(crate) fn are(&self, broker: &Arc<BrokerSettings>, overrides: &BTreeMap<String, String>) -> bool {
        Arc::ptr_eq(&self.broker, broker) && self.overrides == *overrides
    }
}

/// The partition.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) place: TopicPartition,
    pub(crate) topic: TopicName,
    pub(crate) log: PartitionLog,
    pub(crate) shared: Arc<Shared>,
    locked: Mutex<Locked>,
    snapshot: ArcSwap<PartitionSnapshot>,
    sources: ArcSwap<Sources>,
    settings: ArcSwap<PartitionSettings>,
    image: ArcSwap<PartitionImage>,
    waiters: Mutex<Waiters>,
    /// Whoever moves log starts or cuts the log holds this, so that such steps follow one another.
    pub(crate) starts: tokio::sync::Mutex<()>,
    /// Producer state at the end of the last upload.
    pub(crate) upload: tokio::sync::Mutex<UploadCursor>,
}

impl Partition {
    pub(crate) fn new(
        place: TopicPartition,
        topic: TopicName,
        log: PartitionLog,
        shared: Arc<Shared>,
        state: PartitionState,
        sources: Sources,
        image: Arc<PartitionImage>,
    ) -> Self {
        let snapshot = state.snapshot();
        Self {
            place,
            topic,
            log,
            shared,
            locked: Mutex::new(Locked {
                state,
                written: VecDeque::new(),
                committed: VecDeque::new(),
                failed: None,
                deleted: false,
            }),
            snapshot: ArcSwap::from_pointee(snapshot),
            settings: ArcSwap::from_pointee(sources.settings.clone()),
            sources: ArcSwap::from_pointee(sources),
            image: ArcSwap::new(image),
            waiters: Mutex::new(Waiters::default()),
            starts: tokio::sync::Mutex::new(()),
            upload: tokio::sync::Mutex::new(UploadCursor::default()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> Arc<PartitionSnapshot> {
        self.snapshot.load_full()
    }

    pub(crate) fn settings(&self) -> Arc<PartitionSettings> {
        self.settings.load_full()
    }

    pub(crate) fn image(&self) -> Arc<PartitionImage> {
        self.image.load_full()
    }

    pub(crate) fn cold_place(&self) -> ColdPlace {
        ColdPlace { place: self.place, topic: self.topic.clone(), image: self.image() }
    }

    /// Changes the state, publishes it, and then answers and wakes who is due.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Locked) -> (T, Moved)) -> T {
        let (answer, consequences) = {
            let mut locked = self.lock();
            let (answer, moved) = change(&mut locked);
            let consequences = self.publish(&mut locked, moved);
            (answer, consequences)
        };
        self.settle(consequences);
        answer
    }

    /// Publishes the state under its lock; what it returns is to be settled after it.
    pub(crate) fn publish(&self, locked: &mut Locked, moved: Moved) -> Consequences {
        let snapshot = locked.state.snapshot();
        let (written_end, high_watermark) = (snapshot.written_end, snapshot.high_watermark);
        self.snapshot.store(Arc::new(snapshot));
        let mut consequences = Consequences { wake: moved.visible(), ..Consequences::default() };
        take_due(&mut locked.written, written_end, &mut consequences);
        take_due(&mut locked.committed, high_watermark, &mut consequences);
        consequences
    }

    pub(crate) fn settle(&self, consequences: Consequences) {
        for (sender, answer) in consequences.answers {
            // The client may be gone.
            let _ = sender.send(answer);
        }
        if consequences.wake {
            self.wake();
        }
    }

    /// Wakes every fetch that waits here: records came, or the partition changed so that it must be looked at.
    pub(crate) fn wake(&self) {
        self.waiters().wake_all(self.place);
    }

    /// Ends every wait for an ack: what was appended may or may not stay.
    pub(crate) fn fail(&self, why: &str, deleted: bool) {
        let why: Arc<str> = why.into();
        let consequences = {
            let mut locked = self.lock();
            locked.state.stop_leading();
            if deleted {
                locked.deleted = true;
            } else {
                locked.failed.get_or_insert_with(|| Arc::clone(&why));
            }
            self.snapshot.store(Arc::new(locked.state.snapshot()));
            let mut consequences = Consequences { wake: true, ..Consequences::default() };
            let waiting: Vec<_> = locked.written.drain(..).collect();
            let waiting = waiting.into_iter().chain(locked.committed.drain(..));
            consequences
                .answers
                .extend(waiting.map(|(_, sender)| (sender, Err(AckError { why: Arc::clone(&why) }))));
            consequences
        };
        self.settle(consequences);
    }

    pub(crate) fn sources(&self) -> Arc<Sources> {
        self.sources.load_full()
    }

    /// Takes new settings; the next append obeys them.
    pub(crate) fn take_settings(&self, sources: Sources) {
        let settings = sources.settings.clone();
        self.sources.store(Arc::new(sources));
        if **self.settings.load() == settings {
            return;
        }
        self.log.set_config(settings.log_config());
        let (flush, producers) = (settings.flush, settings.producers);
        self.settings.store(Arc::new(settings));
        self.change(|locked| {
            locked.state.producers_mut().set_limits(producers);
            ((), locked.state.set_flush_policy(flush))
        });
    }

    /// Takes a newer image: who leads, and what is in the bucket.
    pub(crate) fn take_image(&self, image: Arc<PartitionImage>) {
        let leads = image.leader == Some(self.shared.config.broker);
        let (epoch, in_sync, tiered) = (image.leader_epoch, image.isr.len(), image.tiered);
        let tiered_end = image.manifest.tiered_end;
        self.image.store(image);
        let leadership_changed = self.change(|locked| {
            let before = locked.state.leading();
            let leads = leads && locked.failed.is_none() && !locked.deleted;
            locked.state.follow_image(leads, epoch, in_sync, tiered);
            if tiered {
                locked.state.set_tiered_end(tiered_end);
            }
            (locked.state.leading() != before, Moved::default())
        });
        if leadership_changed {
            self.wake();
        }
    }
}

impl Locked {
    /// Adds who waits for everything below `end`. Almost always the newest: a duplicate may wait for an older end.
    pub(crate) fn wait_for(&mut self, end: Offset, all: bool) -> oneshot::Receiver<Ack> {
        let (sender, receiver) = oneshot::channel();
        let acks = if all { &mut self.committed } else { &mut self.written };
        let at = acks.iter().rposition(|(known, _)| *known <= end).map_or(0, |before| before + 1);
        acks.insert(at, (end, sender));
        receiver
    }
}

fn take_due(acks: &mut Acks, reached: Offset, consequences: &mut Consequences) {
    let due = acks.partition_point(|(end, _)| *end <= reached);
    consequences.answers.reserve_exact(due);
    consequences.answers.extend(acks.drain(..due).map(|(_, sender)| (sender, Ok(()))));
}

/// One partition of this node, for everybody else: a cheap clone.
#[derive(Debug, Clone)]
pub struct PartitionHandle {
    pub(crate) inner: Arc<Partition>,
}

impl PartitionHandle {
    /// Which partition this is.
    #[must_use]
    pub fn place(&self) -> TopicPartition {
        self.inner.place
    }

    /// Its topic's name.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.inner.topic
    }

    /// Its offsets and epochs at this moment, without the lock.
    #[must_use]
    pub fn snapshot(&self) -> Arc<PartitionSnapshot> {
        self.inner.snapshot()
    }

    /// Its settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<PartitionSettings> {
        self.inner.settings()
    }

    /// Its newest image: leader, replicas, manifest.
    #[must_use]
    pub fn image(&self) -> Arc<PartitionImage> {
        self.inner.image()
    }

    /// The epoch that this node leads it in; `None` where it does not.
    #[must_use]
    pub fn leading(&self) -> Option<LeaderEpoch> {
        let snapshot = self.inner.snapshot.load();
        snapshot.leading.then_some(snapshot.leader_epoch)
    }

    /// Whether the disk has space for appends, as of the last look.
    #[must_use]
    pub fn has_space(&self) -> bool {
        self.inner.log.has_space()
    }

    /// Why it takes no append any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<str>> {
        let failed = self.inner.lock().failed.clone();
        failed.or_else(|| self.inner.log.fenced())
    }

    /// What is known of its producers, by id.
    #[must_use]
    pub fn producers(&self) -> Vec<(ProducerId, ProducerEntry)> {
        self.inner.lock().state.producers().iter().map(|(id, entry)| (id, entry.clone())).collect()
    }

    /// How many producers it knows.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.inner.lock().state.producers().iter().count()
    }

    /// Bytes of its local log.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.inner.log.segments().iter().map(|segment| segment.bytes).sum()
    }

    /// Has `waiter` told of every move that a reader can see, until the registration is dropped. Register first, then
    /// read: what moves in between is not missed.
    pub fn register_wake(&self, waiter: &Arc<Waiter>) -> WakeRegistration {
        let id = self.inner.waiters().add(Arc::clone(waiter));
        WakeRegistration { partition: Arc::downgrade(&self.inner), id }
    }
}
