//! Joining, being checked, leaving, and running out of time.

use super::*;

#[test]
fn epochs_begin_as_kafkas_do() {
    let mut bench = Bench { group: ConsumerGroup::new(), ..Bench::new([("a", 2)]) };
    assert_eq!((bench.group.epoch(), bench.group.target_epoch()), (1, 1));
    // Who subscribes to nothing moves nothing.
    assert_eq!(bench.join("m1", &[]), (1, Partitions::new()));
    assert_eq!((bench.group.epoch(), bench.group.target_epoch()), (1, 1));
    assert_eq!(bench.join("m2", &["a"]), (2, partitions(&[(1, &[0, 1])])));
    assert_eq!((bench.group.epoch(), bench.group.target_epoch()), (2, 2));
}

#[test]
fn the_first_member_gets_everything_and_every_record_is_written() {
    let mut bench = Bench::new([("a", 2)]);
    let none = Resolutions::default();
    let request = joining("m1", &["a"]);
    let Heartbeated { changes, answer } =
        bench.group.heartbeat(bench.now, &bench.rules, &bench.topics, &none, &request).unwrap();
    let hash = topics_hash([&Arc::from("a")], &bench.topics);
    assert_ne!(hash, 0);
    let assigned = EpochPartitions::from([(topic_id(1), BTreeMap::from([(0, 1), (1, 1)]))]);
    assert_eq!(
        changes.records(),
        [
            ConsumerRecord::MemberMetadata {
                member_id: "m1".into(),
                value: Some(MemberMetadata {
                    client_id: "client".into(),
                    client_host: "/127.0.0.1".into(),
                    subscribed_topics: Arc::new(names(&["a"])),
                    rebalance_timeout: Duration::from_secs(60),
                    ..MemberMetadata::default()
                }),
            },
            ConsumerRecord::GroupMetadata(Some(GroupMetadata { epoch: 1, metadata_hash: hash })),
            ConsumerRecord::TargetAssignmentMember {
                member_id: "m1".into(),
                value: Some(Arc::new(partitions(&[(1, &[0, 1])]))),
            },
            ConsumerRecord::TargetAssignmentMetadata(Some(TargetAssignmentMetadata {
                assignment_epoch: 1,
                timestamp: Some(bench.now.wall),
            })),
            ConsumerRecord::CurrentMemberAssignment {
                member_id: "m1".into(),
                value: Some(CurrentAssignment {
                    epoch: 1,
                    previous_epoch: 0,
                    state: MemberState::Stable,
                    assigned,
                    pending_revocation: EpochPartitions::new(),
                }),
            },
        ]
    );
    assert_eq!(
        answer,
        HeartbeatAnswer {
            member_id: "m1".into(),
            epoch: 1,
            heartbeat_interval: Duration::from_secs(5),
            assignment: Some(partitions(&[(1, &[0, 1])])),
        }
    );
    assert_eq!(bench.group.state(), ConsumerGroupState::Stable);
}

#[test]
fn a_heartbeat_with_nothing_new_writes_nothing_and_tells_nothing() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    let written = bench.log.len();
    assert_eq!(bench.beat("m1", 1, None), (1, None));
    assert_eq!(bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])]))), (1, None));
    assert_eq!(bench.log.len(), written);
}

#[test]
fn a_full_heartbeat_is_told_its_assignment_again() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    let mut full = Heartbeat { epoch: 1, ..joining("m1", &["a"]) };
    full.owned = Some(partitions(&[(1, &[0, 1])]));
    assert_eq!(bench.send(&full).unwrap().assignment, Some(partitions(&[(1, &[0, 1])])));
}

#[test]
fn version_zero_draws_the_member_id() {
    let mut bench = Bench::new([("a", 1)]);
    let request = Heartbeat { drawn_member_id: Some("drawn".into()), ..joining("", &["a"]) };
    assert_eq!(&*bench.send(&request).unwrap().member_id, "drawn");
    assert!(bench.group.member("drawn").is_some());
}

#[test]
fn malformed_requests_are_refused() {
    let mut bench = Bench::new([("a", 1)]);
    let good = joining("m1", &["a"]);
    let bad = [
        Heartbeat { member_id: " ".into(), ..good.clone() },
        Heartbeat { instance_id: Some("".into()), ..good.clone() },
        Heartbeat { rack_id: Some("".into()), ..good.clone() },
        Heartbeat { rebalance_timeout: None, ..good.clone() },
        Heartbeat { owned: None, ..good.clone() },
        Heartbeat { owned: Some(partitions(&[(1, &[0])])), ..good.clone() },
        Heartbeat { subscribed_topics: None, ..good.clone() },
        heartbeat("m1", LEAVE_FOR_A_WHILE),
        heartbeat("m1", -3),
    ];
    for request in bad {
        assert_eq!(bench.send(&request), Err(GroupError::InvalidRequest), "{request:?}");
    }
    let request = Heartbeat { server_assignor: Some("magic".into()), ..good };
    assert_eq!(bench.send(&request), Err(GroupError::UnsupportedAssignor));
    assert!(bench.group.is_empty() && bench.log.is_empty());
}

#[test]
fn an_assignor_that_the_broker_has_switched_off_is_unsupported() {
    let mut bench = Bench::new([("a", 1)]);
    bench.rules.assignors = vec![Assignor::Range];
    let request = Heartbeat { server_assignor: Some("uniform".into()), ..joining("m1", &["a"]) };
    assert_eq!(bench.send(&request), Err(GroupError::UnsupportedAssignor));
    bench.join("m1", &["a"]);
    assert_eq!(bench.group.describe(&bench.rules, &bench.topics).assignor, Assignor::Range);
}

#[test]
fn unknown_members_and_foreign_epochs_are_refused() {
    let mut bench = Bench::new([("a", 1)]);
    bench.join("m1", &["a"]);
    assert_eq!(bench.send(&heartbeat("m2", 1)), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.send(&heartbeat("m2", LEAVE_FOR_GOOD)), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.send(&heartbeat("m1", 2)), Err(GroupError::FencedMemberEpoch));
}

#[test]
fn the_epoch_before_is_taken_only_from_who_owns_nothing_new() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.topics.set("a", 3);
    // The answer with epoch 2 is lost.
    let (epoch, assignment) = bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])])));
    assert_eq!((epoch, assignment), (2, Some(partitions(&[(1, &[0, 1, 2])]))));
    assert_eq!(bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])]))).0, 2);
    assert_eq!(bench.send(&heartbeat("m1", 1)), Err(GroupError::FencedMemberEpoch));
    let foreign = Heartbeat { owned: Some(partitions(&[(1, &[7])])), ..heartbeat("m1", 1) };
    assert_eq!(bench.send(&foreign), Err(GroupError::FencedMemberEpoch));
    // Two epochs ago is too long.
    bench.topics.set("a", 4);
    let owned = partitions(&[(1, &[0, 1, 2])]);
    assert_eq!(bench.beat("m1", 2, Some(owned.clone())).0, 3);
    let older = Heartbeat { owned: Some(owned.clone()), ..heartbeat("m1", 1) };
    assert_eq!(bench.send(&older), Err(GroupError::FencedMemberEpoch));
    assert_eq!(bench.beat("m1", 2, Some(owned)).0, 3);
}

#[test]
fn a_member_joins_again_under_its_id_and_keeps_its_place() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    assert_eq!(bench.join("m1", &["a"]), (1, partitions(&[(1, &[0, 1])])));
    assert_eq!(bench.group.epoch(), 1);
}

#[test]
fn a_full_group_takes_no_more_members() {
    let mut bench = Bench::new([("a", 2)]);
    bench.rules.size_max = 1;
    bench.join("m1", &["a"]);
    assert_eq!(bench.send(&joining("m2", &["a"])), Err(GroupError::GroupMaxSizeReached));
    assert_eq!(bench.join("m1", &["a"]).0, 1);
}

#[test]
fn a_member_that_leaves_frees_its_partitions() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    let answer = bench.send(&heartbeat("m1", LEAVE_FOR_GOOD)).unwrap();
    assert_eq!((answer.epoch, answer.heartbeat_interval, answer.assignment), (-1, Duration::ZERO, None));
    assert_eq!(bench.group.members().len(), 1);
    assert_eq!(bench.group.state(), ConsumerGroupState::Assigning);
    assert_eq!(bench.beat("m2", 2, None), (3, Some(partitions(&[(1, &[0, 1])]))));
    bench.send(&heartbeat("m2", LEAVE_FOR_GOOD)).unwrap();
    assert_eq!(bench.group.state(), ConsumerGroupState::Empty);
    assert_eq!(bench.group.next_deadline(), None);
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_member_without_heartbeats_is_removed_when_its_session_ends() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.pass(Duration::from_secs(20));
    bench.beat("m1", 1, None);
    let ends = bench.now.monotonic + Duration::from_secs(45);
    assert_eq!(bench.group.next_deadline(), Some(ends));
    bench.pass(Duration::from_millis(44_999));
    assert_eq!(bench.tick(), []);
    bench.pass(Duration::from_millis(1));
    let id = || Arc::<str>::from("m1");
    assert_eq!(
        bench.tick(),
        [
            ConsumerRecord::CurrentMemberAssignment { member_id: id(), value: None },
            ConsumerRecord::TargetAssignmentMember { member_id: id(), value: None },
            ConsumerRecord::MemberMetadata { member_id: id(), value: None },
            ConsumerRecord::GroupMetadata(Some(GroupMetadata { epoch: 2, metadata_hash: 0 })),
        ]
    );
    assert_eq!(bench.gone, [("m1".into(), GoneWhy::Heartbeat)]);
    assert_eq!(bench.send(&heartbeat("m1", 1)), Err(GroupError::UnknownMemberId));
}

#[test]
fn sessions_begin_anew_after_a_load() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    let mut restored = bench.restored();
    assert_eq!(restored.next_deadline(), None);
    bench.pass(Duration::from_secs(100));
    restored.loaded(bench.now, &bench.rules);
    assert_eq!(restored.next_deadline(), Some(bench.now.monotonic + Duration::from_secs(45)));
}

#[test]
fn members_whose_time_is_up_go_as_many_at_a_time_as_there_is_room_for() {
    let mut bench = Bench::new([("a", 3)]);
    for member_id in ["m1", "m2", "m3"] {
        bench.join(member_id, &["a"]);
    }
    bench.pass(Duration::from_secs(45));
    let mut room = 2;
    let mut has_room = |_: &str, _: &str| {
        room -= 1;
        room >= 0
    };
    let gone = bench.group.tick(bench.now, &bench.topics, &mut has_room);
    bench.log.extend(gone.into_records());
    assert_eq!(bench.group.members().map(|(id, _)| id.to_string()).collect::<Vec<_>>(), ["m3"]);
    assert_eq!(bench.group.next_deadline(), Some(bench.now.monotonic), "the rest is due still");
    // One goes whatever room there is.
    let gone = bench.group.tick(bench.now, &bench.topics, |_, _| false);
    bench.log.extend(gone.into_records());
    assert!(bench.group.is_empty());
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn only_an_empty_group_is_deleted_and_leaves_nothing() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    assert_eq!(bench.group.delete(), Err(GroupError::NonEmptyGroup));
    bench.send(&heartbeat("m1", LEAVE_FOR_GOOD)).unwrap();
    let records = bench.group.delete().unwrap();
    assert_eq!(
        records,
        [ConsumerRecord::TargetAssignmentMetadata(None), ConsumerRecord::GroupMetadata(None)]
    );
    bench.log.extend(records);
    assert!(bench.restored().has_same_state(&ConsumerGroup::new()));
}

#[test]
fn a_group_tells_all_of_itself() {
    let mut bench = Bench::new([("b", 1), ("a", 2)]);
    bench.join("m1", &["a", "b"]);
    bench.join("m2", &["a", "b"]);
    let told = bench.group.describe(&bench.rules, &bench.topics);
    assert_eq!((told.state, told.epoch, told.target_epoch), (ConsumerGroupState::Reconciling, 2, 2));
    assert_eq!(told.assignor.name(), "uniform");
    let topic = |id, name: &str, partitions: &[i32]| DescribedTopic {
        id: topic_id(id),
        name: name.into(),
        partitions: partitions.iter().copied().collect(),
    };
    assert_eq!(told.members[0].assigned, [topic(2, "a", &[0, 1]), topic(1, "b", &[0])]);
    assert_eq!(told.members[0].target, [topic(2, "a", &[0]), topic(1, "b", &[0])]);
    assert_eq!(told.members[1].assigned, []);
    assert_eq!(told.members[1].target, [topic(2, "a", &[1])]);
    bench.topics.remove("b");
    assert_eq!(
        bench.group.describe(&bench.rules, &bench.topics).members[0].assigned,
        [topic(2, "a", &[0, 1])]
    );
    assert_eq!(bench.group.subscribed_topics(), BTreeSet::from([&"a".into(), &"b".into()]));
}

#[test]
fn settings_of_a_group_stay_within_the_brokers_bounds() {
    let rules = ConsumerRules {
        session_timeout: Duration::from_secs(1),
        heartbeat_interval: Duration::from_secs(99),
        assignment_interval: Duration::from_secs(99),
        ..ConsumerRules::default()
    }
    .within(&ConsumerBounds::default());
    assert_eq!(rules.session_timeout, Duration::from_secs(45));
    assert_eq!(rules.heartbeat_interval, Duration::from_secs(15));
    assert_eq!(rules.assignment_interval, Duration::from_secs(15));
}
