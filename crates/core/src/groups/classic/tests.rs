//! Tests of classic groups, by what they are about, and what they have in common.

mod joining;
mod leaving;
mod property;
mod rebalancing;
mod restoring;
mod static_members;
mod syncing;

use tidelog_types::limits;

use super::*;

const WALL: u64 = 1_700_000_000_000;
const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(60);
const DELAY: Duration = Duration::from_secs(3);

fn rules() -> GroupRules {
    GroupRules {
        session_timeout_min: Duration::from_secs(6),
        session_timeout_max: Duration::from_secs(1800),
        size_max: 100,
        initial_rebalance_delay: DELAY,
    }
}

fn text(text: &str) -> Arc<str> {
    Arc::from(text)
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The join of a client that has `member_id`, which speaks `range` alone.
fn member(member_id: &str) -> JoinRequest {
    JoinRequest {
        member_id: text(member_id),
        instance_id: None,
        client_id: text("client"),
        client_host: text("/10.0.0.1"),
        session_timeout: SESSION,
        rebalance_timeout: REBALANCE,
        protocol_type: text("consumer"),
        protocols: protocols(&["range"]),
        require_known_member_id: false,
        supports_skip_assignment: true,
        new_member_id: text(""),
        reason: None,
    }
}

/// The join of a client without an id, which gets `new_member_id`.
fn newcomer(new_member_id: &str) -> JoinRequest {
    JoinRequest { new_member_id: text(new_member_id), ..member("") }
}

/// The join of a static member that comes without a member id.
fn static_newcomer(instance_id: &str, new_member_id: &str) -> JoinRequest {
    JoinRequest { instance_id: Some(text(instance_id)), ..newcomer(new_member_id) }
}

/// Protocols whose metadata is a subscription to the topic `t`.
fn protocols(names: &[&str]) -> Vec<(Arc<str>, Bytes)> {
    names.iter().map(|name| (text(name), subscription(&["t"]))).collect()
}

fn subscription(topics: &[&str]) -> Bytes {
    let mut raw = vec![0, 1];
    raw.extend(u32::try_from(topics.len()).unwrap().to_be_bytes());
    for topic in topics {
        raw.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
        raw.extend(topic.as_bytes());
    }
    raw.extend((-1_i32).to_be_bytes());
    Bytes::from(raw)
}

fn sync_of(member_id: &str, generation: i32) -> SyncRequest {
    SyncRequest {
        member_id: text(member_id),
        instance_id: None,
        generation,
        protocol_type: Some(text("consumer")),
        protocol_name: Some(text("range")),
        assignments: Vec::new(),
    }
}

fn refused(error: GroupError, member_id: &str) -> Reply {
    Reply::Join(Err(JoinRefused { error, member_id: text(member_id) }))
}

fn synced(assignment: &str) -> Reply {
    Reply::Sync(Ok(Synced {
        protocol_type: Some(text("consumer")),
        protocol_name: Some(text("range")),
        assignment: bytes(assignment),
    }))
}

/// What `member_id` is told in `generation`: the members only for the leader.
fn joined(generation: i32, leader: &str, member_id: &str, members: &[&str]) -> Joined {
    Joined {
        generation,
        protocol_type: Some(text("consumer")),
        protocol_name: Some(text("range")),
        leader: text(leader),
        skip_assignment: false,
        member_id: text(member_id),
        members: members.iter().map(|id| joined_member(id, None)).collect(),
    }
}

fn joined_member(member_id: &str, instance_id: Option<&str>) -> JoinedMember {
    JoinedMember {
        member_id: text(member_id),
        instance_id: instance_id.map(text),
        metadata: subscription(&["t"]),
    }
}

fn told(joined: Joined) -> Reply {
    Reply::Join(Ok(joined))
}

/// A group with its clock, and everything it answered or asked to have stored.
struct Scene {
    group: ClassicGroup,
    rules: GroupRules,
    clock: Duration,
    tokens: u64,
    replies: BTreeMap<Token, Reply>,
    stores: Vec<(StoreTicket, Stored)>,
    gone: Vec<(Arc<str>, GoneWhy)>,
}

impl Scene {
    fn new() -> Self {
        let start = Now { monotonic: Duration::ZERO, wall: Timestamp::from_millis(WALL) };
        Self {
            group: ClassicGroup::new(start),
            rules: rules(),
            clock: Duration::ZERO,
            tokens: 0,
            replies: BTreeMap::new(),
            stores: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// The topics that its members subscribe to; `None` where nobody knows.
    fn subscribed(&self) -> Option<Vec<&str>> {
        self.group.subscribed_topics().map(|topics| topics.iter().map(|topic| &**topic).collect())
    }

    /// A stable group of generation 1 whose dynamic members are `ids`, led by the first.
    fn stable(ids: &[&str]) -> Self {
        let mut scene = Self::new();
        for id in ids {
            scene.join(newcomer(id));
        }
        scene.gather();
        scene.complete(ids);
        scene
    }

    /// A stable group of generation 1 of static members `i1` as `m1`, `i2` as `m2`, `i3` as `m3`, led by `m1`.
    fn stable_static() -> Self {
        let mut scene = Self::new();
        for number in 1..=3 {
            scene.join(static_newcomer(&format!("i{number}"), &format!("m{number}")));
        }
        scene.gather();
        scene.complete(&["m1", "m2", "m3"]);
        scene
    }

    /// Lets the initial delay pass, with what those that came during it added.
    fn gather(&mut self) {
        while self.group.state() == ClassicState::PreparingRebalance {
            self.pass(DELAY);
        }
    }

    /// Takes the group from the end of the join phase to `Stable`: all sync, the leader hands `to-<id>` to each.
    fn complete(&mut self, ids: &[&str]) {
        assert_eq!(self.group.state(), ClassicState::CompletingRebalance);
        self.replies.clear();
        let generation = self.group.generation();
        let leader = self.group.leader().cloned().unwrap();
        for id in ids.iter().filter(|id| ***id != *leader) {
            self.sync(sync_of(id, generation));
        }
        self.sync_leader(ids);
        self.store_done(Ok(()));
        assert_eq!(self.group.state(), ClassicState::Stable);
        self.replies.clear();
        self.stores.clear();
    }

    fn sync_leader(&mut self, ids: &[&str]) -> Token {
        let leader = self.group.leader().cloned().unwrap();
        let assignments = ids.iter().map(|id| (text(id), bytes(&format!("to-{id}")))).collect();
        self.sync(SyncRequest { assignments, ..sync_of(&leader, self.group.generation()) })
    }

    fn now(&self) -> Now {
        let millis = u64::try_from(self.clock.as_millis()).unwrap();
        Now { monotonic: self.clock, wall: Timestamp::from_millis(WALL + millis) }
    }

    fn take_in(&mut self, effects: Effects) {
        for (token, reply) in effects.replies {
            let twice = self.replies.insert(token, reply);
            assert_eq!(twice, None, "{token:?} is answered once");
        }
        self.stores.extend(effects.store);
        self.gone.extend(effects.gone.into_iter().map(|gone| (gone.member_id, gone.why)));
        assert_eq!(self.group.members.bytes(), self.group.members.bytes_counted());
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }

    fn join(&mut self, request: JoinRequest) -> Token {
        let (token, mut effects) = (self.token(), Effects::default());
        let now = self.now();
        self.group.join(now, &self.rules, request, token, &mut effects);
        self.take_in(effects);
        token
    }

    fn sync(&mut self, request: SyncRequest) -> Token {
        let (token, mut effects) = (self.token(), Effects::default());
        let now = self.now();
        self.group.sync(now, request, token, &mut effects);
        self.take_in(effects);
        token
    }

    fn heartbeat(&mut self, member_id: &str, generation: i32) -> Result<(), GroupError> {
        let now = self.now();
        self.group.heartbeat(now, member_id, None, generation)
    }

    fn leave(&mut self, member_id: &str, instance_id: Option<&str>) -> Result<Arc<str>, GroupError> {
        let mut effects = Effects::default();
        let now = self.now();
        let left = self.group.leave(now, member_id, instance_id, &mut effects);
        self.take_in(effects);
        left
    }

    /// Lets time pass at once, then does what is due.
    fn pass(&mut self, time: Duration) {
        self.clock += time;
        let mut effects = Effects::default();
        let now = self.now();
        self.group.tick(now, &self.rules, &mut effects);
        self.take_in(effects);
        assert!(self.group.next_deadline().is_none_or(|at| at > self.clock));
    }

    /// Lets time pass in steps of a second, while these members send heartbeats.
    fn pass_with_heartbeats(&mut self, time: Duration, ids: &[&str]) {
        for _ in 0..time.as_secs() {
            for id in ids {
                let _ = self.heartbeat(id, self.group.generation());
            }
            self.pass(secs(1));
        }
    }

    /// Tells the outcome of the oldest write that is not done.
    fn store_done(&mut self, result: Result<(), GroupError>) -> Stored {
        let (ticket, stored) = self.stores.remove(0);
        let mut effects = Effects::default();
        let now = self.now();
        self.group.stored(now, ticket, result, &mut effects);
        self.take_in(effects);
        stored
    }

    fn reply(&mut self, token: Token) -> Option<Reply> {
        self.replies.remove(&token)
    }

    fn ids(&self) -> Vec<String> {
        self.group.members().map(|member| member.member_id.to_string()).collect()
    }
}
