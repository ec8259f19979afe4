//! Moving partitions from member to member.

use super::*;

#[test]
fn a_target_that_could_not_be_stored_waits_and_members_go_on_with_what_they_have() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    // The first change with a target finds no room.
    let (none, request) = (Resolutions::default(), joining("m2", &["a"]));
    let refused =
        bench.group.heartbeat(bench.now, &bench.rules, &bench.topics, &none, &request).unwrap().changes;
    assert!(refused.has_target());
    bench.group.undo(&refused, bench.now, &bench.rules);
    assert!(bench.group.member("m2").is_none());
    // Without one the same request does.
    let (epoch, nothing) = bench.join("m2", &["a"]);
    assert_eq!((epoch, nothing), (1, Partitions::new()));
    assert_eq!((bench.group.epoch(), bench.group.target_epoch()), (2, 1));
    bench.pass(Duration::from_millis(9_999));
    assert_eq!(bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])]))), (1, None));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.beat("m1", 1, None).1, Some(partitions(&[(1, &[0])])), "it is tried again");
    assert_eq!(bench.group.target_epoch(), 2);
}

#[test]
fn a_partition_moves_only_after_its_owner_has_given_it_up() {
    let mut bench = Bench::new([("a", 3)]);
    assert_eq!(bench.join("m1", &["a"]), (1, partitions(&[(1, &[0, 1, 2])])));
    // The new member waits at the new epoch, without partitions.
    assert_eq!(bench.join("m2", &["a"]), (2, Partitions::new()));
    assert_eq!(bench.current("m2").state, MemberState::UnreleasedPartitions);
    // The old one is asked to give up, and keeps its epoch.
    assert_eq!(bench.beat("m1", 1, None), (1, Some(partitions(&[(1, &[0, 1])]))));
    assert_eq!(bench.current("m1").state, MemberState::UnrevokedPartitions);
    assert_eq!(bench.beat("m2", 2, None), (2, None));
    // It goes on owning it for a while, and says so.
    assert_eq!(bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1, 2])]))), (1, None));
    assert_eq!(bench.beat("m2", 2, None), (2, None));
    // It has given it up.
    assert_eq!(bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])]))), (2, None));
    assert_eq!(bench.beat("m2", 2, None), (2, Some(partitions(&[(1, &[2])]))));
    assert_eq!(bench.group.state(), ConsumerGroupState::Stable);
    let kept = BTreeMap::from([(0, 1), (1, 1)]);
    assert_eq!(bench.current("m1").assigned, EpochPartitions::from([(topic_id(1), kept)]));
    assert_eq!(
        bench.current("m2").assigned,
        EpochPartitions::from([(topic_id(1), BTreeMap::from([(2, 2)]))])
    );
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_member_that_waits_writes_nothing_at_every_heartbeat() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    let written = bench.log.len();
    bench.beat("m2", 2, None);
    bench.beat("m2", 2, Some(Partitions::new()));
    assert_eq!(bench.log.len(), written);
}

// B53
#[test]
fn a_partition_given_back_to_its_owner_before_it_was_given_up_has_one_owner() {
    let mut bench = Bench::new([("a", 3)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    let all = partitions(&[(1, &[0, 1, 2])]);
    // m1 is to give up 2 and is slow.
    assert_eq!(bench.beat("m1", 1, Some(all.clone())), (1, Some(partitions(&[(1, &[0, 1])]))));
    // m2 leaves, so that 2 is m1's again, while m1 is giving it up.
    bench.send(&heartbeat("m2", LEAVE_FOR_GOOD)).unwrap();
    assert_eq!(bench.beat("m1", 1, Some(all.clone())), (1, None));
    assert_eq!(bench.group.target_epoch(), 3);
    // m3 comes: 2 is to be its own.
    assert_eq!(bench.join("m3", &["a"]), (4, Partitions::new()));
    assert_eq!(bench.beat("m3", 4, None), (4, None));
    bench.send(&heartbeat("m3", LEAVE_FOR_GOOD)).unwrap();
    // m1 has given up 2 at last, and gets it back in the same moment.
    assert_eq!(bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])]))), (5, Some(all.clone())));
    assert_eq!(
        bench.current("m1").assigned,
        EpochPartitions::from([(topic_id(1), BTreeMap::from([(0, 1), (1, 1), (2, 5)]))])
    );
    // m4 gets nothing of what m1 has, neither to keep nor to give up.
    assert_eq!(bench.join("m4", &["a"]), (6, Partitions::new()));
    assert_eq!(bench.beat("m1", 5, Some(all)), (5, Some(partitions(&[(1, &[0, 1])]))));
    assert_eq!(bench.beat("m4", 6, None), (6, None));
    // Old epochs are fenced, and so are the commits of what was given later.
    assert_eq!(bench.send(&heartbeat("m1", 1)), Err(GroupError::FencedMemberEpoch));
    let permit = bench.group.check_commit("m1", None, 1, false, false).unwrap();
    assert_eq!(bench.group.check_commit_of(&permit, topic_id(1), 2), Err(GroupError::StaleMemberEpoch));
    assert_eq!(bench.group.check_commit_of(&permit, topic_id(1), 0), Ok(()));
    assert_eq!(bench.group.check_commit("m1", None, 6, false, false), Err(GroupError::StaleMemberEpoch));
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_member_that_does_not_give_up_in_time_is_removed() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    bench.beat("m1", 1, None);
    let until = bench.now.monotonic + Duration::from_secs(60);
    for _ in 0..2 {
        bench.pass(Duration::from_millis(29_999));
        assert_eq!(bench.tick(), []);
        bench.beat("m2", 2, None);
        bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])])));
    }
    assert_eq!(bench.group.next_deadline(), Some(until));
    bench.pass(Duration::from_millis(2));
    bench.tick();
    assert!(bench.group.member("m1").is_none());
    assert_eq!(bench.gone, [("m1".into(), GoneWhy::Revocation)]);
    assert_eq!(bench.beat("m2", 2, None), (3, Some(partitions(&[(1, &[0, 1])]))));
}

#[test]
fn a_member_that_gave_up_in_time_stays() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    bench.beat("m1", 1, None);
    bench.pass(Duration::from_secs(40));
    bench.beat("m1", 1, Some(partitions(&[(1, &[0])])));
    bench.beat("m2", 2, None);
    bench.pass(Duration::from_secs(40));
    assert_eq!(bench.tick(), []);
}

#[test]
fn the_time_to_give_up_begins_anew_after_a_load() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    bench.beat("m1", 1, None);
    bench.group = bench.restored();
    bench.group.loaded(bench.now, &bench.rules);
    for _ in 0..3 {
        bench.pass(Duration::from_secs(20));
        bench.beat("m1", 1, Some(partitions(&[(1, &[0, 1])])));
        bench.beat("m2", 2, None);
    }
    bench.tick();
    assert!(bench.group.member("m1").is_none() && bench.group.member("m2").is_some());
}

#[test]
fn a_topic_that_grows_is_seen_at_the_next_heartbeat() {
    let mut bench = Bench::new([("a", 1)]);
    bench.join("m1", &["a", "b"]);
    bench.topics.set("a", 2);
    assert_eq!(bench.beat("m1", 1, None), (2, Some(partitions(&[(1, &[0, 1])]))));
    bench.topics.set("b", 1);
    assert_eq!(bench.beat("m1", 2, None), (3, Some(partitions(&[(1, &[0, 1]), (2, &[0])]))));
    // A topic of no concern.
    bench.topics.set("c", 1);
    assert_eq!(bench.beat("m1", 3, None), (3, None));
    // Gone and made again: the old partitions are to be given up.
    bench.topics.remove("b");
    bench.topics.set("b", 1);
    assert_eq!(bench.beat("m1", 3, None), (3, Some(partitions(&[(1, &[0, 1])]))));
    let left = partitions(&[(1, &[0, 1])]);
    assert_eq!(bench.beat("m1", 3, Some(left)), (4, Some(partitions(&[(1, &[0, 1]), (4, &[0])]))));
}

#[test]
fn the_racks_of_a_topic_count_as_its_shape() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.topics.set_racks("a", &[&["r1"], &["r2"]]);
    assert_eq!(bench.beat("m1", 1, None), (2, None));
}

#[test]
fn members_in_a_rack_get_the_partitions_of_their_rack() {
    let mut bench = Bench::new([("a", 4)]);
    bench.topics.set_racks("a", &[&["r2"], &["r1"], &["r2"], &["r1"]]);
    bench.rules.assignment_interval = Duration::from_secs(1);
    // The first member alone, then all at once, as the interval has it.
    bench.join("m0", &["none"]);
    bench.send(&Heartbeat { rack_id: Some("r1".into()), ..joining("m1", &["a"]) }).unwrap();
    bench.send(&Heartbeat { rack_id: Some("r2".into()), ..joining("m2", &["a"]) }).unwrap();
    bench.send(&heartbeat("m0", LEAVE_FOR_GOOD)).unwrap();
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.beat("m1", 1, None).1, Some(partitions(&[(1, &[1, 3])])));
    assert_eq!(bench.beat("m2", 1, None).1, Some(partitions(&[(1, &[0, 2])])));
}

#[test]
fn targets_are_computed_no_oftener_than_the_interval_allows() {
    let mut bench = Bench::new([("a", 2)]);
    bench.rules.assignment_interval = Duration::from_secs(1);
    bench.join("m1", &["a"]);
    bench.pass(Duration::from_millis(999));
    // The new member is let in at the epoch of the last target.
    assert_eq!(bench.join("m2", &["a"]), (1, Partitions::new()));
    assert_eq!((bench.group.epoch(), bench.group.target_epoch()), (2, 1));
    assert_eq!(bench.group.state(), ConsumerGroupState::Assigning);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.beat("m2", 1, None), (2, None));
    assert_eq!(bench.group.target_epoch(), 2);
    // A clock set back does not hold it up.
    bench.now.wall = Timestamp::from_millis(1);
    bench.topics.set("a", 3);
    bench.beat("m2", 2, None);
    assert_eq!(bench.group.target_epoch(), 3);
}

#[test]
fn what_is_no_longer_subscribed_to_is_given_up_before_there_is_a_target_without_it() {
    let mut bench = Bench::new([("a", 1), ("b", 1)]);
    bench.rules.assignment_interval = Duration::from_secs(1);
    bench.join("m1", &["a", "b"]);
    let both = partitions(&[(1, &[0]), (2, &[0])]);
    let changed =
        Heartbeat { subscribed_topics: Some(names(&["a"])), owned: Some(both.clone()), ..heartbeat("m1", 1) };
    let answer = bench.send(&changed).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (1, Some(partitions(&[(1, &[0])]))));
    assert_eq!(bench.current("m1").state, MemberState::UnrevokedPartitions);
    assert_eq!(bench.group.target_epoch(), 1);
    // When it is given up at once there is nothing to wait for.
    let mut bench = Bench::new([("a", 1), ("b", 1)]);
    bench.rules.assignment_interval = Duration::from_secs(1);
    bench.join("m1", &["a", "b"]);
    bench.beat("m1", 1, Some(both));
    let changed = Heartbeat { owned: Some(partitions(&[(1, &[0])])), ..changed };
    assert_eq!(bench.send(&changed).unwrap().assignment, Some(partitions(&[(1, &[0])])));
    assert_eq!(bench.current("m1").state, MemberState::Stable);
}

#[test]
fn the_assignor_that_most_members_wish_for_is_taken() {
    let mut bench = Bench::new([("a", 4), ("b", 4)]);
    let wish =
        |id: &str, name: &str| Heartbeat { server_assignor: Some(name.into()), ..joining(id, &["a", "b"]) };
    bench.send(&wish("m1", "range")).unwrap();
    bench.send(&wish("m2", "uniform")).unwrap();
    assert_eq!(bench.group.describe(&bench.rules, &bench.topics).assignor, Assignor::Uniform);
    let epoch = bench.group.epoch();
    let change = Heartbeat { server_assignor: Some("range".into()), ..heartbeat("m2", 2) };
    bench.send(&change).unwrap();
    let told = bench.group.describe(&bench.rules, &bench.topics);
    assert_eq!((told.assignor, told.epoch), (Assignor::Range, epoch + 1));
    let shown: Vec<_> = told.members[0].target.iter().map(|topic| topic.partitions.clone()).collect();
    assert_eq!(shown, [BTreeSet::from([0, 1]), BTreeSet::from([0, 1])]);
}

#[test]
fn a_member_in_a_state_of_a_later_version_must_join_again() {
    let mut bench = Bench::new([("a", 1)]);
    bench.join("m1", &["a"]);
    let mut current = bench.current("m1").clone();
    current.state = MemberState::from_wire(55);
    let record = ConsumerRecord::CurrentMemberAssignment { member_id: "m1".into(), value: Some(current) };
    bench.group.apply(&record);
    bench.log.push(record);
    assert_eq!(bench.send(&heartbeat("m1", 1)), Err(GroupError::FencedMemberEpoch));
    assert_eq!(bench.join("m1", &["a"]), (1, partitions(&[(1, &[0])])));
    assert_eq!(bench.current("m1").state, MemberState::Stable);
}

/// A request of a member that says all again, as after an answer that was lost.
fn full(member_id: &str, epoch: i32, owned: Partitions) -> Heartbeat {
    Heartbeat { epoch, owned: Some(owned), ..joining(member_id, &["a"]) }
}

// B53
#[test]
fn a_member_that_is_taking_its_first_partitions_has_not_given_them_up() {
    let mut bench = Bench::new([("a", 6)]);
    assert_eq!(bench.join("m1", &["a"]), (1, partitions(&[(1, &[0, 1, 2, 3, 4, 5])])));
    assert_eq!(bench.join("m2", &["a"]), (2, Partitions::new()));
    // m1 is about to read all six. It says all again and owns nothing yet, twice.
    let kept = partitions(&[(1, &[0, 1, 2])]);
    for _ in 0..2 {
        let answer = bench.send(&full("m1", 1, Partitions::new())).unwrap();
        assert_eq!((answer.epoch, answer.assignment), (1, Some(kept.clone())));
        assert_eq!(bench.beat("m2", 2, None), (2, None));
    }
    // It has begun to read them, and then has given up three.
    let all = partitions(&[(1, &[0, 1, 2, 3, 4, 5])]);
    assert_eq!(bench.beat("m1", 1, Some(all)), (1, None));
    assert_eq!(bench.beat("m2", 2, None), (2, None));
    assert_eq!(bench.beat("m1", 1, Some(kept)), (2, None));
    assert_eq!(bench.beat("m2", 2, None), (2, Some(partitions(&[(1, &[3, 4, 5])]))));
}

#[test]
fn a_member_that_never_takes_what_was_taken_back_gives_it_up_by_its_next_step_or_by_saying_so() {
    for says_all in [true, false] {
        let mut bench = Bench::new([("a", 2)]);
        bench.join("m1", &["a"]);
        bench.join("m2", &["a"]);
        let kept = partitions(&[(1, &[0])]);
        // It is told to give up a partition that it has not taken yet, and goes straight to what is left.
        assert_eq!(bench.beat("m1", 1, None), (1, Some(kept.clone())));
        if says_all {
            assert_eq!(bench.send(&full("m1", 1, kept)).unwrap().epoch, 2);
        } else {
            assert_eq!(bench.beat("m1", 1, Some(kept)), (2, None));
        }
        assert_eq!(bench.beat("m2", 2, None), (2, Some(partitions(&[(1, &[1])]))));
    }
}

#[test]
fn a_member_that_joins_again_owns_nothing_whatever_it_was_given() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    assert_eq!(bench.beat("m1", 1, None), (1, Some(partitions(&[(1, &[0])]))));
    assert_eq!(bench.join("m1", &["a"]), (2, partitions(&[(1, &[0])])));
    assert_eq!(bench.beat("m2", 2, None), (2, Some(partitions(&[(1, &[1])]))));
}

#[test]
fn what_is_given_again_has_to_be_taken_again() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    let all = partitions(&[(1, &[0, 1])]);
    bench.beat("m1", 1, Some(all.clone()));
    bench.join("m2", &["a"]);
    let kept = partitions(&[(1, &[0])]);
    assert_eq!(bench.beat("m1", 1, None), (1, Some(kept.clone())));
    bench.send(&heartbeat("m2", LEAVE_FOR_GOOD)).unwrap();
    // It gives 1 up and gets it back with the same answer; before it has taken it, m3 is to have it.
    assert_eq!(bench.beat("m1", 1, Some(kept.clone())), (3, Some(all)));
    assert_eq!(bench.join("m3", &["a"]), (4, Partitions::new()));
    // What it says is of the step before.
    assert_eq!(bench.beat("m1", 3, Some(kept.clone())), (3, Some(kept.clone())));
    assert_eq!(bench.beat("m3", 4, None), (4, None));
    assert_eq!(bench.beat("m1", 3, Some(kept)), (4, None));
    assert_eq!(bench.beat("m3", 4, None), (4, Some(partitions(&[(1, &[1])]))));
}

#[test]
fn after_a_load_nobody_has_been_seen_with_what_it_was_given() {
    let mut bench = Bench::new([("a", 4)]);
    bench.join("m1", &["a"]);
    // m1 is about to read all four when the coordinator moves; it says all again, and owns nothing yet.
    bench.group = bench.restored();
    bench.group.loaded(bench.now, &bench.rules);
    bench.join("m2", &["a"]);
    let kept = partitions(&[(1, &[0, 1])]);
    let answer = bench.send(&full("m1", 1, Partitions::new())).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (1, Some(kept.clone())));
    assert_eq!(bench.beat("m2", 2, None), (2, None));
    assert_eq!(bench.beat("m1", 1, Some(kept)), (2, None));
    assert_eq!(bench.beat("m2", 2, None), (2, Some(partitions(&[(1, &[2, 3])]))));
}
