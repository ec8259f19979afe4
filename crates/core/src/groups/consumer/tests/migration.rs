//! Classic members in a consumer group, and the ways from one kind of group to the other.

use bytes::Bytes;

use super::*;
use crate::groups::{
    GroupRules, Token,
    classic::{
        ClassicGroup, ClassicState, Effects, JoinRefused, JoinRequest, LeavingMember, Reply, SyncRequest,
    },
    embedded::{Assignment, tests::subscription},
};

pub(super) const CLASSIC_RULES: GroupRules = GroupRules {
    session_timeout_min: Duration::from_secs(6),
    session_timeout_max: Duration::from_secs(1_800),
    size_max: 100,
    initial_rebalance_delay: Duration::ZERO,
};

pub(super) fn classic_joining(member_id: &str, topics: &[&str], owned: &[(&str, &[i32])]) -> JoinRequest {
    JoinRequest {
        member_id: member_id.into(),
        instance_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout: Duration::from_secs(10),
        rebalance_timeout: Duration::from_secs(60),
        protocol_type: "consumer".into(),
        protocols: vec![("cooperative-sticky".into(), subscription(1, topics, owned))],
        require_known_member_id: false,
        supports_skip_assignment: true,
        new_member_id: "drawn".into(),
        reason: None,
    }
}

pub(super) fn syncing(member_id: &str, generation: i32) -> SyncRequest {
    SyncRequest {
        member_id: member_id.into(),
        instance_id: None,
        generation,
        protocol_type: Some("consumer".into()),
        protocol_name: Some("cooperative-sticky".into()),
        assignments: Vec::new(),
    }
}

/// What a SyncGroup told.
fn told(assignment: &Bytes) -> Vec<(String, Vec<i32>)> {
    let read = Assignment::read(assignment).unwrap();
    read.partitions.into_iter().map(|(topic, partitions)| (topic.to_string(), partitions)).collect()
}

fn written(partitions: &[(&str, &[i32])]) -> Bytes {
    let partitions: Vec<_> = partitions
        .iter()
        .map(|(topic, partitions)| (Arc::from(*topic), partitions.iter().copied().collect()))
        .collect();
    Assignment::write(1, &partitions)
}

impl Bench {
    pub(super) fn classic_join(&mut self, request: &JoinRequest) -> Result<i32, JoinRefused> {
        let policy = MigrationPolicy::Bidirectional;
        let before = self.group.clone();
        let joined =
            self.group.classic_join(self.now, &self.rules, &CLASSIC_RULES, policy, &self.topics, request);
        match joined {
            Ok(ClassicJoined { changes, joined, .. }) => {
                self.stored(&before, changes);
                assert_eq!(joined.protocol_name.as_deref(), Some("cooperative-sticky"));
                assert!(joined.leader.is_empty() && joined.members.is_empty());
                Ok(joined.generation)
            }
            Err(refused) => {
                assert!(self.group.has_same_state(&before));
                Err(refused)
            }
        }
    }

    fn classic_sync(
        &mut self,
        member_id: &str,
        generation: i32,
    ) -> Result<Vec<(String, Vec<i32>)>, GroupError> {
        self.group
            .classic_sync(self.now, &self.topics, &syncing(member_id, generation))
            .map(|synced| told(&synced.assignment))
    }

    pub(super) fn classic_beat(&mut self, member_id: &str, generation: i32) -> Result<(), GroupError> {
        self.group.classic_heartbeat(self.now, &self.rules, member_id, None, generation)
    }
}

/// A classic group of two members, "c1" and "c2", stable at generation 2, with these assignments.
fn classic_group(bench: &Bench, assignments: [Bytes; 2]) -> ClassicGroup {
    let mut group = ClassicGroup::new(bench.now);
    let now = bench.now;
    let first = |id: &str| JoinRequest { new_member_id: id.into(), ..classic_joining("", &["a"], &[]) };
    let joins = [first("c1"), first("c2"), classic_joining("c1", &["a"], &[])];
    for (token, request) in (0_u64..).zip(joins) {
        group.join(now, &CLASSIC_RULES, request, Token(token), &mut Effects::default());
    }
    let mut effects = Effects::default();
    let assignments = ["c1", "c2"].map(Arc::from).into_iter().zip(assignments).collect();
    let generation = group.generation();
    group.sync(now, SyncRequest { assignments, ..syncing("c1", generation) }, Token(9), &mut effects);
    let (ticket, _) = effects.store.unwrap();
    group.stored(now, ticket, Ok(()), &mut Effects::default());
    assert_eq!((group.state(), group.generation()), (ClassicState::Stable, 2));
    group
}

fn upgraded(
    bench: &mut Bench,
    classic: &ClassicGroup,
    request: &Heartbeat,
) -> Result<HeartbeatAnswer, GroupError> {
    let (policy, none) = (MigrationPolicy::Bidirectional, Resolutions::default());
    let (group, heartbeated) =
        ConsumerGroup::upgrade(classic, policy, bench.now, &bench.rules, &bench.topics, &none, request)
            .map_err(|refused| refused.error)?;
    bench.group = group;
    bench.log = heartbeated.changes.into_records();
    assert!(bench.restored().has_same_state(&bench.group));
    Ok(heartbeated.answer)
}

#[test]
fn a_classic_group_is_taken_over_and_moves_member_by_member() {
    let mut bench = Bench::new([("a", 3)]);
    let classic = classic_group(&bench, [written(&[("a", &[0, 1])]), written(&[("a", &[2])])]);
    let answer = upgraded(&mut bench, &classic, &joining("m1", &["a"])).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (3, Some(Partitions::new())));
    assert_eq!(bench.group.members().len(), 3);
    assert_eq!(bench.current("c1").assigned[&topic_id(1)], BTreeMap::from([(0, 2), (1, 2)]));
    assert_eq!(bench.current("m1").state, MemberState::UnreleasedPartitions);

    // The classic members are sent back to join, and give up what has to move.
    assert_eq!(bench.classic_beat("c1", 2), Err(GroupError::RebalanceInProgress));
    assert_eq!(bench.classic_sync("c1", 2), Err(GroupError::RebalanceInProgress));
    assert_eq!(bench.classic_join(&classic_joining("c1", &["a"], &[("a", &[0, 1])])), Ok(2));
    assert_eq!(bench.classic_sync("c1", 2), Ok(vec![("a".into(), vec![0])]));
    assert_eq!(bench.beat("m1", 3, None), (3, None));
    assert_eq!(bench.classic_beat("c1", 2), Err(GroupError::RebalanceInProgress));
    assert_eq!(bench.classic_join(&classic_joining("c1", &["a"], &[("a", &[0])])), Ok(3));
    assert_eq!(bench.classic_sync("c1", 3), Ok(vec![("a".into(), vec![0])]));
    assert_eq!(bench.classic_beat("c1", 3), Ok(()));
    assert_eq!(bench.beat("m1", 3, None), (3, Some(partitions(&[(1, &[1])]))));
    assert_eq!(bench.classic_join(&classic_joining("c2", &["a"], &[("a", &[2])])), Ok(3));
    assert_eq!(bench.classic_sync("c2", 3), Ok(vec![("a".into(), vec![2])]));
    assert_eq!(bench.group.state(), ConsumerGroupState::Stable);
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_classic_member_that_waits_is_sent_to_join_when_its_partitions_are_free() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    assert_eq!(bench.classic_join(&classic_joining("c1", &["a"], &[])), Ok(2));
    assert_eq!(bench.classic_sync("c1", 2), Ok(vec![]));
    assert_eq!(bench.classic_beat("c1", 2), Ok(()));
    bench.beat("m1", 1, None);
    bench.beat("m1", 1, Some(partitions(&[(1, &[0])])));
    assert_eq!(bench.classic_beat("c1", 2), Err(GroupError::RebalanceInProgress));
    assert_eq!(bench.classic_join(&classic_joining("c1", &["a"], &[])), Ok(2));
    assert_eq!(bench.classic_sync("c1", 2), Ok(vec![("a".into(), vec![1])]));
    assert_eq!(bench.classic_beat("c1", 2), Ok(()));
}

#[test]
fn the_waiting_members_of_a_classic_group_are_told_to_come_again() {
    let mut bench = Bench::new([("a", 2)]);
    let mut classic = classic_group(&bench, [written(&[("a", &[0])]), written(&[("a", &[1])])]);
    let mut join = classic_joining("c2", &["a"], &[]);
    join.protocols[0].1 = subscription(1, &["a", "b"], &[]);
    classic.join(bench.now, &CLASSIC_RULES, join.clone(), Token(5), &mut Effects::default());
    upgraded(&mut bench, &classic, &joining("m1", &["a"])).unwrap();
    let mut effects = Effects::default();
    classic.shut(&mut effects, GroupError::RebalanceInProgress);
    assert!(matches!(
        &effects.replies[..],
        [(Token(5), Reply::Join(Err(JoinRefused { error: GroupError::RebalanceInProgress, .. })))]
    ));
    assert_eq!(bench.classic_join(&join), Ok(3));
}

#[test]
fn a_partition_that_a_client_gave_to_two_members_has_one_owner() {
    let mut bench = Bench::new([("a", 2)]);
    let classic =
        classic_group(&bench, [written(&[("a", &[0, 7])]), written(&[("a", &[0, 1]), ("gone", &[0])])]);
    upgraded(&mut bench, &classic, &joining("m1", &["a"])).unwrap();
    assert_eq!(bench.current("c1").assigned[&topic_id(1)], BTreeMap::from([(0, 2)]));
    assert_eq!(bench.current("c2").assigned[&topic_id(1)], BTreeMap::from([(1, 2)]));
}

#[test]
fn groups_that_cannot_be_taken_over_are_not_found() {
    let mut bench = Bench::new([("a", 2)]);
    let good = written(&[("a", &[0])]);
    let request = joining("m1", &["a"]);
    let custom = Bytes::from_static(b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01x");
    for bad in [Bytes::from_static(b"\x00"), custom] {
        let classic = classic_group(&bench, [good.clone(), bad]);
        assert_eq!(upgraded(&mut bench, &classic, &request), Err(GroupError::GroupIdNotFound));
    }
    let classic = classic_group(&bench, [good.clone(), good]);
    for policy in [MigrationPolicy::Disabled, MigrationPolicy::Downgrade] {
        let refused = ConsumerGroup::upgrade(
            &classic,
            policy,
            bench.now,
            &bench.rules,
            &bench.topics,
            &Resolutions::default(),
            &request,
        );
        assert_eq!(refused.unwrap_err().error, GroupError::GroupIdNotFound);
    }
    assert_eq!(upgraded(&mut bench, &classic, &heartbeat("c1", 2)), Err(GroupError::GroupIdNotFound));
    bench.rules.size_max = 1;
    assert_eq!(upgraded(&mut bench, &classic, &request), Err(GroupError::GroupIdNotFound));
    // A name that only has offsets is replaced without ado.
    let empty = ClassicGroup::new(bench.now);
    assert_eq!(upgraded(&mut bench, &empty, &request).unwrap().epoch, 2);
}

fn begin(bench: &Bench, rebalance: bool) -> ClassicBegin {
    ClassicBegin { generation: bench.group.epoch(), rebalance }
}

#[test]
fn the_last_member_of_the_consumer_protocol_leaves_a_classic_group_behind() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.classic_join(&classic_joining("c1", &["a"], &[])).unwrap();
    let (policy, mut effects) = (MigrationPolicy::Bidirectional, Effects::default());
    let now = bench.now;
    assert!(
        bench
            .group
            .downgrade(now, &CLASSIC_RULES, policy, &bench.topics, begin(&bench, true), &mut effects)
            .is_none()
    );
    bench.send(&heartbeat("m1", LEAVE_FOR_GOOD)).unwrap();
    for refused in [MigrationPolicy::Disabled, MigrationPolicy::Upgrade] {
        let none = bench.group.downgrade(
            now,
            &CLASSIC_RULES,
            refused,
            &bench.topics,
            begin(&bench, true),
            &mut effects,
        );
        assert!(none.is_none());
    }
    let (epoch, before) = (bench.group.epoch(), bench.group.clone());
    let Downgraded { tombstones, stored, group } = bench
        .group
        .downgrade(now, &CLASSIC_RULES, policy, &bench.topics, begin(&bench, true), &mut effects)
        .unwrap();
    bench.log.extend(tombstones);
    assert!(bench.restored().has_same_state(&ConsumerGroup::new()));
    assert!(bench.group.has_same_state(&before), "it is over when its caller says so");
    assert_eq!((stored.generation, stored.protocol.as_deref()), (epoch, Some("cooperative-sticky")));
    assert_eq!(stored.leader.as_deref(), Some("c1"));
    assert_eq!(told(&stored.members[0].assignment), [("a".to_owned(), vec![1])]);
    assert_eq!(group.state(), ClassicState::PreparingRebalance);
    assert!(effects.replies.is_empty() && effects.store.is_none());
}

#[test]
fn a_static_member_goes_back_to_the_classic_protocol_with_what_it_had() {
    let mut bench = Bench::new([("a", 2)]);
    let consumer = Heartbeat { instance_id: Some("i1".into()), ..joining("m1", &["a"]) };
    bench.send(&consumer).unwrap();
    let classic = JoinRequest { instance_id: Some("i1".into()), ..classic_joining("", &["a"], &[]) };
    assert_eq!(bench.classic_join(&classic), Ok(1));
    assert!(bench.group.member("m1").is_none());
    let refused = JoinRequest { instance_id: Some("i1".into()), ..classic_joining("m1", &["a"], &[]) };
    assert_eq!(bench.classic_join(&refused).unwrap_err().error, GroupError::FencedInstanceId);
    let (policy, mut effects) = (MigrationPolicy::Downgrade, Effects::default());
    let downgraded = bench
        .group
        .downgrade(bench.now, &CLASSIC_RULES, policy, &bench.topics, begin(&bench, false), &mut effects)
        .unwrap();
    assert_eq!(downgraded.group.state(), ClassicState::Stable);
    assert_eq!(told(&downgraded.stored.members[0].assignment), [("a".to_owned(), vec![0, 1])]);
    // And the other way round.
    let mut bench = Bench::new([("a", 2)]);
    assert_eq!(bench.classic_join(&classic), Ok(1));
    assert_eq!(bench.send(&consumer).unwrap().assignment, Some(partitions(&[(1, &[0, 1])])));
    assert!(bench.group.member("drawn").is_none() && bench.group.member("m1").is_some());
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_classic_member_is_sent_to_join_where_nobody_else_would_make_a_target() {
    let mut bench = Bench::new([("a", 2)]);
    bench.rules.assignment_interval = Duration::from_secs(1);
    bench.join("m1", &["a"]);
    assert_eq!(bench.classic_join(&classic_joining("c1", &["a"], &[])), Ok(1));
    bench.send(&heartbeat("m1", LEAVE_FOR_GOOD)).unwrap();
    assert_eq!(bench.classic_beat("c1", 1), Ok(()));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.classic_beat("c1", 1), Err(GroupError::RebalanceInProgress));
    assert_eq!(bench.classic_join(&classic_joining("c1", &["a"], &[])), Ok(3));
    assert_eq!(bench.classic_sync("c1", 3), Ok(vec![("a".into(), vec![0, 1])]));
    assert_eq!(bench.classic_beat("c1", 3), Ok(()));
}

#[test]
fn a_classic_member_that_was_removed_gives_up_what_it_had_before_it_joins() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    let request = classic_joining("c1", &["a"], &[("a", &[1])]);
    assert_eq!(bench.classic_join(&request).unwrap_err().error, GroupError::UnknownMemberId);
    assert_eq!(bench.classic_join(&classic_joining("c1", &["a"], &[])), Ok(2));
}

#[test]
fn classic_members_that_may_not_join_are_refused() {
    let mut bench = Bench::new([("a", 2)]);
    let good = classic_joining("c1", &["a"], &[]);
    bench.classic_join(&good).unwrap();
    let error = |bench: &mut Bench, request: &JoinRequest| bench.classic_join(request).unwrap_err().error;
    let other =
        JoinRequest { protocols: vec![("range".into(), subscription(1, &["a"], &[]))], ..good.clone() };
    assert_eq!(error(&mut bench, &other), GroupError::InconsistentGroupProtocol);
    let connect = JoinRequest { protocol_type: "connect".into(), ..good.clone() };
    assert_eq!(error(&mut bench, &connect), GroupError::InconsistentGroupProtocol);
    let none = JoinRequest { protocols: Vec::new(), ..good.clone() };
    assert_eq!(error(&mut bench, &none), GroupError::InconsistentGroupProtocol);
    let mut malformed = good.clone();
    malformed.protocols[0].1 = Bytes::from_static(b"\x00");
    assert_eq!(error(&mut bench, &malformed), GroupError::InconsistentGroupProtocol);
    let hasty = JoinRequest { session_timeout: Duration::from_secs(1), ..good.clone() };
    assert_eq!(error(&mut bench, &hasty), GroupError::InvalidSessionTimeout);
    let unknown = JoinRequest { instance_id: Some("i".into()), ..good.clone() };
    assert_eq!(error(&mut bench, &unknown), GroupError::UnknownMemberId);
    let new = JoinRequest { require_known_member_id: true, member_id: "".into(), ..good.clone() };
    assert_eq!(
        bench.classic_join(&new),
        Err(JoinRefused { error: GroupError::MemberIdRequired, member_id: "drawn".into() })
    );
    bench.rules.size_max = 1;
    assert_eq!(error(&mut bench, &classic_joining("c2", &["a"], &[])), GroupError::GroupMaxSizeReached);
    let refused = bench.group.classic_join(
        bench.now,
        &bench.rules,
        &CLASSIC_RULES,
        MigrationPolicy::Disabled,
        &bench.topics,
        &good,
    );
    assert_eq!(refused.unwrap_err().error, GroupError::InconsistentGroupProtocol);
}

#[test]
fn requests_of_the_classic_protocol_are_checked() {
    let mut bench = Bench::new([("a", 2)]);
    bench.classic_join(&classic_joining("c1", &["a"], &[])).unwrap();
    bench.join("m1", &["a"]);
    assert_eq!(bench.classic_beat("m1", 2), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.classic_beat("c9", 1), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.classic_beat("c1", 2), Err(GroupError::IllegalGeneration));
    let mut other = syncing("c1", 1);
    other.protocol_name = Some("range".into());
    let refused = bench.group.classic_sync(bench.now, &bench.topics, &other);
    assert_eq!(refused, Err(GroupError::InconsistentGroupProtocol));
    assert_eq!(bench.group.check_commit("c1", None, 1, false, true), Ok(CommitPermit::Any));
    assert_eq!(bench.group.check_commit("c1", None, 2, false, true), Err(GroupError::IllegalGeneration));
    let leaving = |member_id, instance_id| LeavingMember { member_id, instance_id };
    let before = bench.group.clone();
    let (answers, changes) = bench
        .group
        .classic_leave(&bench.topics, &[leaving("c1", None), leaving("m1", None), leaving("", Some("i"))]);
    bench.stored(&before, changes);
    assert_eq!(
        answers,
        [Ok("c1".into()), Ok("m1".into()), Err(GroupError::UnknownMemberId)],
        "whichever protocol it speaks"
    );
    assert_eq!(bench.group.members().len(), 0);
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_classic_member_has_to_sync_and_to_join_in_time() {
    let mut bench = Bench::new([("a", 2)]);
    let patient =
        JoinRequest { session_timeout: Duration::from_secs(600), ..classic_joining("c1", &["a"], &[]) };
    let alive = |bench: &mut Bench| {
        bench.tick();
        bench.group.member("c1").is_some()
    };
    // It never syncs.
    bench.classic_join(&patient).unwrap();
    bench.pass(Duration::from_secs(59));
    assert!(alive(&mut bench));
    bench.pass(Duration::from_secs(1));
    assert!(!alive(&mut bench));
    // It syncs, is told to join again, and does not.
    let generation = bench.classic_join(&patient).unwrap();
    bench.classic_sync("c1", generation).unwrap();
    bench.pass(Duration::from_secs(100));
    assert!(alive(&mut bench));
    bench.join("m1", &["a"]);
    assert_eq!(bench.classic_beat("c1", generation), Err(GroupError::RebalanceInProgress));
    bench.pass(Duration::from_secs(44));
    bench.send(&heartbeat("m1", bench.group.target_epoch())).unwrap();
    assert_eq!(bench.classic_beat("c1", generation), Err(GroupError::RebalanceInProgress));
    assert!(alive(&mut bench));
    bench.pass(Duration::from_secs(16));
    assert!(!alive(&mut bench));
    assert_eq!(bench.gone, [("c1".into(), GoneWhy::Sync), ("c1".into(), GoneWhy::Join)]);
}
