//! Members with an instance id.

use super::*;

fn static_join(member_id: &str) -> Heartbeat {
    Heartbeat { instance_id: Some("i1".into()), ..joining(member_id, &["a"]) }
}

fn static_beat(member_id: &str, epoch: i32) -> Heartbeat {
    Heartbeat { instance_id: Some("i1".into()), ..heartbeat(member_id, epoch) }
}

#[test]
fn an_instance_id_in_use_is_not_given_to_another() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    assert_eq!(bench.send(&static_join("m2")), Err(GroupError::UnreleasedInstanceId));
    assert_eq!(bench.send(&static_join("m1")), Err(GroupError::UnreleasedInstanceId));
    assert_eq!(bench.send(&static_beat("m2", 1)), Err(GroupError::FencedInstanceId));
    assert_eq!(bench.send(&static_beat("m2", LEAVE_FOR_GOOD)), Err(GroupError::FencedInstanceId));
    assert_eq!(bench.send(&static_beat("m2", LEAVE_FOR_A_WHILE)), Err(GroupError::FencedInstanceId));
    let stranger = Heartbeat { instance_id: Some("i9".into()), ..heartbeat("m1", 1) };
    assert_eq!(bench.send(&stranger), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.send(&static_beat("m1", 1)).unwrap().epoch, 1);
}

#[test]
fn a_member_that_takes_another_instance_id_frees_the_one_it_had() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    bench.send(&Heartbeat { instance_id: Some("i2".into()), ..joining("m1", &["a"]) }).unwrap();
    bench.send(&static_join("m2")).unwrap();
    assert_eq!(bench.group.members().len(), 2);
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn who_comes_back_for_an_instance_id_gets_the_same_partitions_without_a_rebalance() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    let owns = |owned: &[i32]| Heartbeat { owned: Some(partitions(&[(1, owned)])), ..static_beat("m1", 1) };
    bench.send(&owns(&[0, 1])).unwrap();
    bench.join("m2", &["a"]);
    bench.send(&owns(&[0])).unwrap();
    bench.beat("m2", 2, None);
    let answer = bench.send(&static_beat("m1", LEAVE_FOR_A_WHILE)).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (-2, None));
    assert_eq!(bench.current("m1").epoch, LEFT_FOR_A_WHILE);
    assert_eq!(bench.group.state(), ConsumerGroupState::Reconciling);
    // Nobody else gets what waits for it.
    assert_eq!(bench.beat("m2", 2, None), (2, None));

    let answer = bench.send(&static_join("m3")).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (2, Some(partitions(&[(1, &[0])]))));
    assert_eq!(bench.group.epoch(), 2);
    assert!(bench.group.member("m1").is_none());
    assert_eq!(bench.send(&static_beat("m1", 1)), Err(GroupError::FencedInstanceId));
    assert_eq!(bench.beat("m2", 2, None), (2, None));
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn who_comes_back_under_the_same_member_id_is_the_same() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    bench.send(&static_beat("m1", LEAVE_FOR_A_WHILE)).unwrap();
    let answer = bench.send(&static_join("m1")).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (1, Some(partitions(&[(1, &[0, 1])]))));
    assert_eq!(bench.group.members().len(), 1);
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_static_member_that_does_not_come_back_is_removed_when_its_session_ends() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    bench.pass(Duration::from_secs(10));
    bench.send(&static_beat("m1", LEAVE_FOR_A_WHILE)).unwrap();
    bench.pass(Duration::from_secs(35));
    bench.tick();
    assert!(bench.group.is_empty());
    assert_eq!(bench.send(&static_join("m2")).unwrap().epoch, 3);
}

#[test]
fn a_process_that_left_for_a_while_is_fenced_when_it_goes_on() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    bench.topics.set("a", 3);
    bench.send(&static_beat("m1", 1)).unwrap();
    bench.send(&static_beat("m1", LEAVE_FOR_A_WHILE)).unwrap();
    for epoch in [1, 2] {
        let late = Heartbeat { owned: Some(Partitions::new()), ..static_beat("m1", epoch) };
        assert_eq!(bench.send(&late), Err(GroupError::FencedMemberEpoch));
    }
}

#[test]
fn a_static_member_that_leaves_for_good_frees_its_instance_id() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    bench.send(&static_beat("m1", LEAVE_FOR_GOOD)).unwrap();
    assert_eq!(bench.send(&static_beat("m1", 1)), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.send(&static_join("m2")).unwrap().assignment, Some(partitions(&[(1, &[0, 1])])));
}

#[test]
fn what_a_static_member_had_to_give_up_is_free_when_it_leaves_for_a_while() {
    let mut bench = Bench::new([("a", 2)]);
    bench.send(&static_join("m1")).unwrap();
    bench.join("m2", &["a"]);
    bench.send(&static_beat("m1", 1)).unwrap();
    assert_eq!(bench.current("m1").state, MemberState::UnrevokedPartitions);
    bench.send(&static_beat("m1", LEAVE_FOR_A_WHILE)).unwrap();
    assert_eq!(bench.beat("m2", 2, None), (2, Some(partitions(&[(1, &[1])]))));
    let answer = bench.send(&static_join("m3")).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (2, Some(partitions(&[(1, &[0])]))));
    assert_eq!(bench.group.state(), ConsumerGroupState::Stable);
}

#[test]
fn another_subscription_of_who_comes_back_rebalances() {
    let mut bench = Bench::new([("a", 1), ("b", 1)]);
    bench.send(&static_join("m1")).unwrap();
    bench.send(&static_beat("m1", LEAVE_FOR_A_WHILE)).unwrap();
    let other = Heartbeat { subscribed_topics: Some(names(&["b"])), ..static_join("m2") };
    let answer = bench.send(&other).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (2, Some(partitions(&[(2, &[0])]))));
}
