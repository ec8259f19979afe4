//! Many members, slow ones and dead ones, and topics that change: what holds at any time, and what comes of quiet.

use proptest::prelude::*;

use super::{
    migration::{classic_joining, syncing},
    *,
};
use crate::groups::{
    classic::{JoinRequest, LeavingMember},
    embedded::{Assignment, tests::subscription},
};

const CLIENTS: usize = 8;
const TOPICS: [&str; 4] = ["t1", "t2", "t3", "x1"];

/// What happens to a group.
#[derive(Debug, Clone)]
enum Event {
    /// A heartbeat, or a join of a client that is not a member. The answer is lost when `lost`.
    Beat {
        client: usize,
        lost: bool,
    },
    /// A client finishes giving up what it was asked to.
    Revoke {
        client: usize,
    },
    Leave {
        client: usize,
    },
    LeaveForAWhile {
        client: usize,
    },
    /// The process ends without a word.
    Die {
        client: usize,
    },
    Subscribe {
        client: usize,
        mask: u8,
    },
    Pass {
        seconds: u64,
    },
    Topic {
        topic: usize,
        partitions: i32,
    },
    Remove {
        topic: usize,
    },
    /// The coordinator moves: the group is loaded from its log.
    Load,
}

/// A client as it sees itself.
#[derive(Debug, Clone)]
struct Client {
    number: usize,
    /// How many processes it has been: each has another member id.
    life: usize,
    is_running: bool,
    /// 0 until it has joined.
    epoch: i32,
    mask: u8,
    /// What it reads from at this moment.
    owned: Partitions,
    /// What it was told to have.
    told: Partitions,
    /// It has to say all again: it joined, or an answer was lost.
    full: bool,
    /// It has finished giving up and says so.
    acknowledges: bool,
    /// What a classic client does next.
    next: Step,
}

/// What a client of the classic protocol does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Join,
    Sync,
    Beat,
}

impl Client {
    fn new(number: usize) -> Self {
        Self {
            number,
            life: 0,
            is_running: true,
            epoch: 0,
            mask: 0b111,
            owned: Partitions::new(),
            told: Partitions::new(),
            full: true,
            acknowledges: false,
            next: Step::Join,
        }
    }

    /// Every fourth client speaks the classic protocol.
    const fn is_classic(&self) -> bool {
        self.number % 4 == 1
    }

    /// What a classic client joins with.
    fn join_request(&self, topics: &Topics) -> JoinRequest {
        let names = TOPICS.iter().enumerate().filter(|(bit, _)| self.mask & (1 << bit) != 0);
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        let owned: Vec<(Arc<str>, Vec<i32>)> = self
            .owned
            .iter()
            .filter_map(|(id, partitions)| Some((topics.name(*id)?, partitions.iter().copied().collect())))
            .collect();
        let owned: Vec<(&str, &[i32])> =
            owned.iter().map(|(name, partitions)| (&**name, &partitions[..])).collect();
        JoinRequest {
            session_timeout: Duration::from_secs(45),
            protocols: vec![("cooperative-sticky".into(), subscription(1, &names, &owned))],
            ..classic_joining(&self.member_id(), &[], &[])
        }
    }

    /// Every third client is static.
    fn instance_id(&self) -> Option<Arc<str>> {
        self.number.is_multiple_of(3).then(|| format!("i{}", self.number).into())
    }

    fn member_id(&self) -> Arc<str> {
        format!("m{}-{}", self.number, self.life).into()
    }

    fn request(&self) -> Heartbeat {
        let names = TOPICS.iter().enumerate().filter(|(bit, _)| self.mask & (1 << bit) != 0);
        let pattern = if self.mask & 0x80 == 0 { "" } else { "t.*" };
        let says_all = self.full || self.epoch == 0;
        Heartbeat {
            instance_id: self.instance_id(),
            rebalance_timeout: says_all.then_some(Duration::from_secs(60)),
            subscribed_topics: says_all.then(|| names.map(|(_, name)| Arc::from(*name)).collect()),
            subscribed_pattern: says_all.then(|| pattern.into()),
            owned: (says_all || self.acknowledges).then(|| self.owned.clone()),
            ..heartbeat(&self.member_id(), self.epoch)
        }
    }

    /// True while it owns what it was not told to have.
    fn has_to_revoke(&self) -> bool {
        self.owned.iter().any(|(topic, owned)| {
            owned.iter().any(|partition| !self.told.get(topic).is_some_and(|told| told.contains(partition)))
        })
    }

    /// It has given up what it had to, and begins to read what is new.
    fn finish(&mut self) {
        if self.owned != self.told {
            self.owned = self.told.clone();
            self.acknowledges = true;
        }
    }

    fn hear(&mut self, answer: &HeartbeatAnswer) {
        self.epoch = answer.epoch;
        self.full = false;
        self.acknowledges = false;
        if let Some(assignment) = &answer.assignment {
            self.told = assignment.clone();
            if !self.has_to_revoke() {
                self.finish();
            }
        }
    }

    /// It is out of the group: it gives up everything and joins again.
    fn start_over(&mut self) {
        self.epoch = 0;
        self.owned.clear();
        self.told.clear();
        self.full = true;
        self.next = Step::Join;
    }

    /// Its process ends; the next one is another member.
    fn end(&mut self) {
        self.start_over();
        self.is_running = false;
        self.life += 1;
    }
}

struct World {
    bench: Bench,
    clients: Vec<Client>,
}

impl World {
    fn new(interval: Duration, assignors: Vec<Assignor>) -> Self {
        let mut bench = Bench::new([("t1", 4), ("t2", 3)]);
        bench.rules.assignment_interval = interval;
        bench.rules.assignors = assignors;
        Self { bench, clients: (0..CLIENTS).map(Client::new).collect() }
    }

    /// What a classic client does when it is its turn.
    fn classic_beat(&mut self, client: usize, lost: bool) {
        let (bench, client) = (&mut self.bench, &mut self.clients[client]);
        if client.full && client.epoch > 0 {
            client.next = Step::Join;
        }
        if client.next == Step::Join {
            // It speaks of topics by name: of one that is gone it can say nothing, and reads nothing.
            for partitions in [&mut client.owned, &mut client.told] {
                partitions.retain(|id, _| bench.topics.name(*id).is_some());
            }
        }
        let id = client.member_id();
        let done = match client.next {
            Step::Join => bench
                .classic_join(&client.join_request(&bench.topics))
                .map(|generation| (client.epoch, client.full, client.next) = (generation, false, Step::Sync))
                .map_err(|refused| refused.error),
            Step::Sync => {
                let synced = bench.group.classic_sync(bench.now, &bench.topics, &syncing(&id, client.epoch));
                synced.map(|synced| {
                    let told = Assignment::read(&synced.assignment).unwrap().partitions;
                    let told = told.into_iter().filter_map(|(name, partitions)| {
                        Some((bench.topics.topic(&name)?.id, partitions.into_iter().collect()))
                    });
                    if !lost {
                        (client.told, client.next) = (told.collect(), Step::Beat);
                    }
                    if !client.has_to_revoke() {
                        client.finish();
                    }
                })
            }
            Step::Beat => bench.classic_beat(&id, client.epoch),
        };
        match done {
            // An answer that is lost is asked for again, from the start.
            Ok(()) if lost => client.next = Step::Join,
            Ok(()) => {}
            Err(GroupError::RebalanceInProgress) => client.next = Step::Join,
            Err(GroupError::UnknownMemberId | GroupError::IllegalGeneration) => client.start_over(),
            Err(other) => panic!("{other}"),
        }
    }

    fn beat(&mut self, client: usize, lost: bool) {
        self.clients[client].is_running = true;
        if self.clients[client].is_classic() {
            return self.classic_beat(client, lost);
        }
        let client = &mut self.clients[client];
        match self.bench.send(&client.request()) {
            Ok(_) if lost => client.full = true,
            Ok(answer) => client.hear(&answer),
            Err(GroupError::UnknownMemberId | GroupError::FencedMemberEpoch) => client.start_over(),
            // The process before it died and its session has not ended.
            Err(GroupError::UnreleasedInstanceId) => {}
            Err(GroupError::FencedInstanceId) => client.start_over(),
            Err(other) => panic!("{other}"),
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Beat { client, lost } => self.beat(client, lost),
            Event::Revoke { client } => self.clients[client].finish(),
            Event::Leave { client } => self.leave(client, LEAVE_FOR_GOOD),
            Event::LeaveForAWhile { client } => {
                let epoch = if self.clients[client].instance_id().is_some() {
                    LEAVE_FOR_A_WHILE
                } else {
                    LEAVE_FOR_GOOD
                };
                self.leave(client, epoch);
            }
            Event::Die { client } => self.clients[client].end(),
            Event::Subscribe { client, mask } => {
                let is_classic = self.clients[client].is_classic();
                self.clients[client].mask = mask & if is_classic { 0x0f } else { 0x8f };
                self.clients[client].full = true;
            }
            Event::Pass { seconds } => {
                self.bench.pass(Duration::from_secs(seconds));
                self.bench.tick();
            }
            Event::Topic { topic, partitions } => {
                let now = self.bench.topics.topic(TOPICS[topic]).map_or(0, |shape| shape.partition_count);
                self.bench.topics.set(TOPICS[topic], partitions.max(now));
            }
            Event::Remove { topic } => self.bench.topics.remove(TOPICS[topic]),
            Event::Load => {
                let restored = self.bench.restored();
                assert!(restored.has_same_state(&self.bench.group), "the log does not give the group");
                self.bench.group = restored;
                self.bench.group.loaded(self.bench.now, &self.bench.rules);
            }
        }
        self.check();
    }

    fn leave(&mut self, client: usize, epoch: i32) {
        let client = &mut self.clients[client];
        if client.is_classic() {
            let leaving = LeavingMember { member_id: &client.member_id(), instance_id: None };
            let before = self.bench.group.clone();
            let (_, changes) = self.bench.group.classic_leave(&self.bench.topics, &[leaving]);
            self.bench.stored(&before, changes);
            client.end();
        } else if client.epoch > 0 {
            let request =
                Heartbeat { instance_id: client.instance_id(), ..heartbeat(&client.member_id(), epoch) };
            // Whoever is not a member any more leaves as well.
            let _ = self.bench.send(&request);
            client.end();
        }
    }

    /// What holds at any time.
    fn check(&self) {
        let group = &self.bench.group;
        let mut owners = BTreeMap::new();
        for (member_id, member) in group.members() {
            for partition in member.current.owned() {
                if let Some(other) = owners.insert(partition, Arc::clone(member_id)) {
                    panic!("{partition:?} belongs to {other} and to {member_id}");
                }
            }
            assert!(member.current.epoch <= group.target_epoch());
        }
        assert!(group.target_epoch() <= group.epoch());
        // What a client that is a member reads from is its own in the group's eyes too; so no two read the same.
        for client in &self.clients {
            let member_id = client.member_id();
            if group.member(&member_id).is_none() {
                continue;
            }
            for (topic, partitions) in &client.owned {
                for partition in partitions {
                    assert_eq!(owners.get(&(*topic, *partition)), Some(&member_id), "{topic}-{partition}");
                }
            }
        }
    }

    /// All that run go on without trouble: within a few heartbeats each, everyone has its target. One member of the
    /// consumer protocol is there: without any the group would become a classic one.
    fn settle(&mut self) {
        self.beat(0, false);
        let running: Vec<usize> = (0..CLIENTS).filter(|client| self.clients[*client].is_running).collect();
        // The dead run out of their sessions, and what waits for the interval or for a refresh has its time.
        for _ in 0..10 {
            self.round(&running, 5);
        }
        for _ in 0..ROUNDS_TO_SETTLE {
            self.round(&running, 1);
        }
        let group = &self.bench.group;
        assert_eq!(group.members().len(), running.len());
        let told = group.describe(&self.bench.rules, &self.bench.topics);
        let stable = if running.is_empty() { ConsumerGroupState::Empty } else { ConsumerGroupState::Stable };
        assert_eq!(told.state, stable);
        for member in &told.members {
            assert_eq!(member.assigned, member.target);
        }
        for client in running.iter().map(|client| &self.clients[*client]) {
            assert_eq!(client.owned, without_epochs(&self.bench.current(&client.member_id()).assigned));
            assert_eq!(client.epoch, group.target_epoch());
        }
    }

    /// A heartbeat of everyone; for classic clients that is three requests, when they have to join.
    fn round(&mut self, running: &[usize], seconds: u64) {
        self.happen(&Event::Pass { seconds });
        for client in running {
            for _ in 0..if self.clients[*client].is_classic() { 3 } else { 1 } {
                self.happen(&Event::Beat { client: *client, lost: false });
            }
            self.happen(&Event::Revoke { client: *client });
        }
    }

    /// The members' loads, when all subscribe alike.
    fn loads_when_alike(&self) -> Option<Vec<usize>> {
        let mut running = self.clients.iter().filter(|client| client.is_running);
        let mask = running.next()?.mask;
        running.all(|client| client.mask == mask).then(|| {
            let running = self.clients.iter().filter(|client| client.is_running);
            running.map(|client| client.owned.values().map(BTreeSet::len).sum()).collect()
        })
    }
}

/// How many heartbeats of each member it takes at most when nothing happens any more: one to hear of the target, one to say
/// that partitions are given up, one to get those that others gave up.
const ROUNDS_TO_SETTLE: usize = 3;

fn event() -> impl Strategy<Value = Event> {
    let client = 0..CLIENTS;
    prop_oneof![
        12 => (client.clone(), proptest::bool::weighted(0.1)).prop_map(|(client, lost)| Event::Beat { client, lost }),
        4 => client.clone().prop_map(|client| Event::Revoke { client }),
        1 => client.clone().prop_map(|client| Event::Leave { client }),
        1 => client.clone().prop_map(|client| Event::LeaveForAWhile { client }),
        1 => client.clone().prop_map(|client| Event::Die { client }),
        1 => (client, any::<u8>()).prop_map(|(client, mask)| Event::Subscribe { client, mask }),
        2 => (1_u64..25).prop_map(|seconds| Event::Pass { seconds }),
        1 => (0..TOPICS.len(), 1_i32..9).prop_map(|(topic, partitions)| Event::Topic { topic, partitions }),
        1 => (0..TOPICS.len()).prop_map(|topic| Event::Remove { topic }),
        1 => Just(Event::Load),
    ]
}

/// What the log's cleaner leaves at most: the last record of every key.
fn cleaned(log: &[ConsumerRecord], keep_tombstones: bool) -> Vec<ConsumerRecord> {
    let key = |record: &ConsumerRecord| match record {
        ConsumerRecord::GroupMetadata(_) => (3, Arc::from("")),
        ConsumerRecord::MemberMetadata { member_id, .. } => (5, Arc::clone(member_id)),
        ConsumerRecord::TargetAssignmentMetadata(_) => (6, Arc::from("")),
        ConsumerRecord::TargetAssignmentMember { member_id, .. } => (7, Arc::clone(member_id)),
        ConsumerRecord::CurrentMemberAssignment { member_id, .. } => (8, Arc::clone(member_id)),
        ConsumerRecord::RegularExpression { pattern, .. } => (16, Arc::clone(pattern)),
    };
    let is_tombstone = |record: &ConsumerRecord| {
        matches!(
            record,
            ConsumerRecord::GroupMetadata(None)
                | ConsumerRecord::TargetAssignmentMetadata(None)
                | ConsumerRecord::MemberMetadata { value: None, .. }
                | ConsumerRecord::TargetAssignmentMember { value: None, .. }
                | ConsumerRecord::CurrentMemberAssignment { value: None, .. }
                | ConsumerRecord::RegularExpression { value: None, .. }
        )
    };
    let last: BTreeMap<_, _> = log.iter().enumerate().map(|(index, record)| (key(record), index)).collect();
    let kept: BTreeSet<usize> = last.into_values().collect();
    let records = log.iter().enumerate().filter(|(index, _)| kept.contains(index)).map(|(_, record)| record);
    records.filter(|record| keep_tombstones || !is_tombstone(record)).cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::with_cases(384) })]

    // B53
    #[test]
    fn a_partition_has_one_owner_and_quiet_brings_everyone_to_its_target(
        events in proptest::collection::vec(event(), 1..160),
        interval in prop_oneof![Just(Duration::ZERO), Just(Duration::from_secs(1))],
        uniform in any::<bool>(),
    ) {
        let first = if uniform { Assignor::Uniform } else { Assignor::Range };
        let mut world = World::new(interval, vec![first]);
        for event in &events {
            world.happen(event);
        }
        world.settle();
        if let Some(loads) = world.loads_when_alike().filter(|_| uniform) {
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{loads:?}");
        }
        let group = &world.bench.group;
        prop_assert!(world.bench.restored().has_same_state(group));
        for keep_tombstones in [true, false] {
            let left = cleaned(&world.bench.log, keep_tombstones);
            prop_assert!(restore(&left).has_same_state(group), "after cleaning");
        }
    }
}

#[test]
fn forty_members_come_one_by_one_and_half_of_them_go() {
    let mut bench = Bench::new([("a", 100)]);
    let ids: Vec<String> = (0..40).map(|number| format!("m{number:02}")).collect();
    let mut epochs: BTreeMap<&str, (i32, Partitions)> = BTreeMap::new();
    for id in &ids {
        epochs.insert(id, bench.join(id, &["a"]));
        settle(&mut bench, &mut epochs);
        let loads: Vec<usize> =
            epochs.values().map(|(_, owned)| owned.values().map(BTreeSet::len).sum()).collect();
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 1, "{loads:?}");
    }
    for id in ids.iter().step_by(2) {
        let before = epochs.clone();
        bench.send(&heartbeat(id, LEAVE_FOR_GOOD)).unwrap();
        let (_, freed) = epochs.remove(id.as_str()).unwrap();
        settle(&mut bench, &mut epochs);
        // Who stays keeps all it had.
        for (id, (_, owned)) in &epochs {
            for (topic, had) in &before[id].1 {
                assert!(
                    owned[topic].is_superset(had),
                    "{id} lost partitions although only {freed:?} was freed"
                );
            }
        }
    }
}

/// Three heartbeats of everyone, who all give up at once what they have to.
fn settle(bench: &mut Bench, members: &mut BTreeMap<&str, (i32, Partitions)>) {
    for _ in 0..ROUNDS_TO_SETTLE {
        for (id, (epoch, owned)) in members.iter_mut() {
            let (now, told) = bench.beat(id, *epoch, Some(owned.clone()));
            *epoch = now;
            if let Some(told) = told {
                *owned = told;
            }
        }
    }
    assert_eq!(bench.group.state(), ConsumerGroupState::Stable);
}
