use proptest::{prelude::*, strategy::ValueTree};

use super::*;

/// What one of a few clients, the clock or the log does next.
#[derive(Debug, Clone)]
enum Event {
    /// Client joins, with the id it believes to have, changed metadata or not.
    Join {
        client: usize,
        variant: u8,
        forget_id: bool,
    },
    Sync {
        client: usize,
    },
    /// The first so many clients ask how they are, and join where they are told to.
    JoinAll {
        count: usize,
    },
    SyncAll,
    Heartbeat {
        client: usize,
    },
    Commit {
        client: usize,
    },
    Leave {
        client: usize,
        by_instance: bool,
    },
    Pass {
        millis: u64,
    },
    Store {
        works: bool,
    },
    Disconnect {
        which: usize,
    },
    Restore,
}

fn any_event() -> impl Strategy<Value = Event> {
    let client = 0_usize..6;
    prop_oneof![
        3 => (client.clone(), 0_u8..4, prop::bool::weighted(0.2))
            .prop_map(|(client, variant, forget_id)| Event::Join { client, variant, forget_id }),
        3 => (3_usize..6)
            .prop_map(|client| Event::Join { client, variant: 0, forget_id: true }),
        4 => client.clone().prop_map(|client| Event::Sync { client }),
        6 => prop_oneof![3 => Just(6), 1 => 1_usize..6].prop_map(|count| Event::JoinAll { count }),
        6 => Just(Event::SyncAll),
        4 => client.clone().prop_map(|client| Event::Heartbeat { client }),
        1 => client.clone().prop_map(|client| Event::Commit { client }),
        1 => (client, any::<bool>()).prop_map(|(client, by_instance)| Event::Leave { client, by_instance }),
        3 => prop_oneof![4 => 1_u64..4_000, 1 => 4_000_u64..12_000, 1 => Just(60_000)].prop_map(|millis| Event::Pass { millis }),
        6 => prop::bool::weighted(0.9).prop_map(|works| Event::Store { works }),
        1 => (0_usize..4).prop_map(|which| Event::Disconnect { which }),
        1 => Just(Event::Restore),
    ]
}

/// What a client believes, as real ones do: from the replies it got.
#[derive(Debug, Clone, Default)]
struct Client {
    member_id: String,
    generation: i32,
    members: Vec<Arc<str>>,
}

struct World {
    group: ClassicGroup,
    rules: GroupRules,
    clock: Duration,
    clients: Vec<Client>,
    /// Requests that are not answered, with the client's number.
    waiting: BTreeMap<Token, usize>,
    stores: Vec<(StoreTicket, Stored)>,
    logged: Option<Stored>,
    tokens: u64,
}

impl World {
    fn new(initial_delay: Duration) -> Self {
        let start = Now { monotonic: Duration::ZERO, wall: Timestamp::from_millis(WALL) };
        Self {
            group: ClassicGroup::new(start),
            rules: GroupRules {
                size_max: if initial_delay.is_zero() { 4 } else { 6 },
                initial_rebalance_delay: initial_delay,
                ..rules()
            },
            clock: Duration::ZERO,
            clients: vec![Client::default(); 6],
            waiting: BTreeMap::new(),
            stores: Vec::new(),
            logged: None,
            tokens: 0,
        }
    }

    fn now(&self) -> Now {
        let millis = u64::try_from(self.clock.as_millis()).unwrap();
        Now { monotonic: self.clock, wall: Timestamp::from_millis(WALL + millis) }
    }

    /// Clients from 3 on are static.
    fn instance_id(client: usize) -> Option<Arc<str>> {
        (client >= 3).then(|| text(&format!("i{client}")))
    }

    fn token(&mut self, client: usize) -> Token {
        self.tokens += 1;
        self.waiting.insert(Token(self.tokens), client);
        Token(self.tokens)
    }

    fn take_in(&mut self, effects: Effects) {
        self.stores.extend(effects.store);
        for (token, reply) in effects.replies {
            let client = self
                .waiting
                .remove(&token)
                .expect("a request is answered once, and not after it was forgotten");
            let client = &mut self.clients[client];
            match reply {
                Reply::Join(Ok(joined)) => {
                    client.member_id = joined.member_id.to_string();
                    client.generation = joined.generation;
                    client.members = joined.members.into_iter().map(|member| member.member_id).collect();
                    let is_leader = joined.leader == joined.member_id;
                    assert_eq!(is_leader, !client.members.is_empty(), "the leader alone is told the members");
                }
                Reply::Join(Err(refused)) => client.member_id = refused.member_id.to_string(),
                Reply::Sync(Ok(synced)) => {
                    // The assignment that a client is told is of the generation that it asked for.
                    assert_eq!(synced.assignment, bytes(&format!("generation {}", client.generation)));
                }
                Reply::Sync(Err(_)) => {}
            }
        }
    }

    fn join(&mut self, client: usize, variant: u8, forget_id: bool) {
        let token = self.token(client);
        let topic = if variant == 3 { "other" } else { "t" };
        let mut speaks = vec![(text("range"), subscription(&[topic]))];
        if variant == 2 {
            speaks.insert(0, (text("sticky"), subscription(&[topic])));
        }
        let known = if forget_id { "" } else { &self.clients[client].member_id };
        let request = JoinRequest {
            instance_id: Self::instance_id(client),
            protocols: speaks,
            require_known_member_id: variant != 1,
            supports_skip_assignment: true,
            new_member_id: text(&format!("m{client}-{}", self.tokens)),
            ..member(known)
        };
        let mut effects = Effects::default();
        let now = self.now();
        self.group.join(now, &self.rules, request, token, &mut effects);
        self.take_in(effects);
    }

    fn join_all(&mut self, count: usize) {
        for client in 0..count {
            let Client { member_id, generation, .. } = &self.clients[client];
            let (now, instance_id) = (self.now(), Self::instance_id(client));
            if self.group.heartbeat(now, member_id, instance_id.as_deref(), *generation).is_ok() {
                continue;
            }
            self.join(client, 0, false);
            // Again with the id that it was given.
            if !self.waiting.values().any(|waiting| *waiting == client) {
                self.join(client, 0, false);
            }
        }
    }

    fn sync(&mut self, client: usize) {
        let token = self.token(client);
        let Client { member_id, generation, members } = self.clients[client].clone();
        let content = bytes(&format!("generation {generation}"));
        let request = SyncRequest {
            instance_id: Self::instance_id(client),
            protocol_type: None,
            protocol_name: None,
            assignments: members.into_iter().map(|id| (id, content.clone())).collect(),
            ..sync_of(&member_id, generation)
        };
        let mut effects = Effects::default();
        let now = self.now();
        self.group.sync(now, request, token, &mut effects);
        self.take_in(effects);
    }

    fn step(&mut self, event: Event) {
        let now = self.now();
        let mut effects = Effects::default();
        match event {
            Event::Join { client, variant, forget_id } => self.join(client, variant, forget_id),
            Event::Sync { client } => self.sync(client),
            Event::JoinAll { count } => self.join_all(count),
            Event::SyncAll => (0..self.clients.len()).for_each(|client| self.sync(client)),
            Event::Heartbeat { client } => {
                let Client { member_id, generation, .. } = &self.clients[client];
                let _ =
                    self.group.heartbeat(now, member_id, Self::instance_id(client).as_deref(), *generation);
            }
            Event::Commit { client } => {
                let Client { member_id, generation, .. } = &self.clients[client];
                let _ = self.group.check_commit(
                    now,
                    member_id,
                    Self::instance_id(client).as_deref(),
                    *generation,
                );
            }
            Event::Leave { client, by_instance } => {
                let instance_id = Self::instance_id(client);
                let member_id = if by_instance { "" } else { &*self.clients[client].member_id };
                let _ = self.group.leave(now, member_id, instance_id.as_deref(), &mut effects);
                self.take_in(effects);
            }
            Event::Pass { millis } => {
                self.clock += ms(millis);
                let now = self.now();
                self.group.tick(now, &self.rules, &mut effects);
                self.take_in(effects);
                assert!(self.group.next_deadline().is_none_or(|at| at > self.clock));
            }
            Event::Store { works } => self.store(works),
            Event::Disconnect { which } => {
                if let Some(token) = self.waiting.keys().nth(which).copied() {
                    self.waiting.remove(&token);
                    self.group.forget(token);
                }
            }
            Event::Restore => self.restore(),
        }
    }

    fn store(&mut self, works: bool) {
        if self.stores.is_empty() {
            return;
        }
        let (ticket, stored) = self.stores.remove(0);
        let now = self.now();
        if works {
            let restored = ClassicGroup::restore(stored.clone(), now);
            assert_eq!(restored.stored_form(None), stored, "a restored group is what was stored");
            self.logged = Some(stored);
        }
        let mut effects = Effects::default();
        let result = if works { Ok(()) } else { Err(GroupError::CoordinatorNotAvailable) };
        self.group.stored(now, ticket, result, &mut effects);
        self.take_in(effects);
    }

    /// Another broker takes over, with what is in the log.
    fn restore(&mut self) {
        let Some(logged) = self.logged.clone() else { return };
        if logged.generation != self.group.generation() {
            return;
        }
        self.shut();
        self.stores.clear();
        let now = self.now();
        self.group = ClassicGroup::restore(logged, now);
        let mut effects = Effects::default();
        self.group.loaded(now, &self.rules, &mut effects);
        self.take_in(effects);
    }

    /// Without clients, and with a log that works, the group becomes empty and nothing is left to do.
    fn run_down(&mut self) {
        for _ in 0..1_000 {
            while !self.stores.is_empty() {
                self.store(true);
            }
            let Some(at) = self.group.next_deadline() else { break };
            self.step(Event::Pass { millis: u64::try_from((at - self.clock).as_millis()).unwrap() });
            self.check();
        }
        assert_eq!((self.group.next_deadline(), self.group.state()), (None, ClassicState::Empty));
        assert_eq!((self.group.pending_member_count(), &self.waiting), (0, &BTreeMap::new()));
        let grown = self.group.bytes() - ClassicGroup::new(self.now()).bytes();
        assert_eq!(grown, 0, "an empty group holds nothing");
    }

    fn shut(&mut self) {
        let mut effects = Effects::default();
        self.group.shut(&mut effects, GroupError::NotCoordinator);
        self.take_in(effects);
        assert_eq!(self.waiting, BTreeMap::new(), "everybody is answered in the end");
        assert_eq!(self.group.next_deadline(), None);
    }

    fn check(&self) {
        let group = &self.group;
        let members: Vec<DescribedMember> = group.members().collect();
        let ids: BTreeSet<_> = members.iter().map(|member| &member.member_id).collect();
        assert_eq!(ids.len(), members.len(), "no member is in the group twice");
        let instances: Vec<_> = members.iter().filter_map(|member| member.instance_id.as_ref()).collect();
        assert_eq!(
            instances.iter().collect::<BTreeSet<_>>().len(),
            instances.len(),
            "one holder for an instance id"
        );
        assert_eq!(group.members.bytes(), group.members.bytes_counted());
        assert_eq!(group.leader().is_some(), !members.is_empty());
        assert!(group.leader().is_none_or(|leader| ids.contains(leader)), "the leader is a member");
        let awaiting = group.members.iter().filter(|member| member.awaits_join.is_some()).count();
        assert_eq!(group.awaiting_join_count(), awaiting);
        assert_eq!(group.join_deadline.is_some(), group.state() == ClassicState::PreparingRebalance);
        assert!(group.pending_syncs.iter().all(|id| ids.contains(id)));
        assert!(group.pending_joins.iter().all(|id| !ids.contains(id)));
        match group.state() {
            ClassicState::Empty => assert!(members.is_empty()),
            ClassicState::Stable => {
                let content = bytes(&format!("generation {}", group.generation()));
                for member in &members {
                    assert_eq!(member.assignment, content, "{}", member.member_id);
                }
                assert_eq!(group.awaiting_sync_count(), 0);
            }
            ClassicState::CompletingRebalance => {
                assert_eq!(awaiting, 0);
                assert_eq!(group.sync_deadline.is_some(), !group.pending_syncs.is_empty());
            }
            ClassicState::PreparingRebalance => assert_eq!(group.awaiting_sync_count(), 0),
            ClassicState::Dead => {}
        }
        // Nobody is stuck: who is in the group waits for a reply, or has a session that ends.
        for member in group.members.iter().filter(|member| !member.is_waiting()) {
            assert!(group.sessions.contains(member.id()), "{} can be given up", member.id());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn group_keeps_its_rules_whatever_clients_do(
        events in proptest::collection::vec(any_event(), 1..120), delayed: bool, abandoned: bool,
    ) {
        let mut world = World::new(if delayed { DELAY } else { Duration::ZERO });
        let mut generation = 0;
        for event in events {
            world.step(event);
            world.check();
            prop_assert!(world.group.generation() >= generation, "a generation never goes back");
            generation = world.group.generation();
        }
        if abandoned {
            world.run_down();
        }
        world.shut();
    }
}

/// The random walk above is worth something only when it gets to the states that matter.
#[test]
fn random_clients_reach_every_state() {
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut seen: BTreeMap<ClassicState, usize> = BTreeMap::new();
    let mut replaced = 0;
    for _ in 0..200 {
        let events = proptest::collection::vec(any_event(), 100).new_tree(&mut runner).unwrap().current();
        let mut world = World::new(DELAY);
        for event in events {
            let stable = world.group.state() == ClassicState::Stable;
            let tickets = world.stores.len();
            world.step(event);
            *seen.entry(world.group.state()).or_default() += 1;
            let still_stable = stable && world.group.state() == ClassicState::Stable;
            replaced += usize::from(still_stable && world.stores.len() > tickets);
        }
    }
    for state in [ClassicState::PreparingRebalance, ClassicState::CompletingRebalance, ClassicState::Stable] {
        assert!(seen.get(&state).copied().unwrap_or(0) > 1_000, "{seen:?}");
    }
    assert!(replaced > 20, "static members come back in a stable group: {replaced}");
}
