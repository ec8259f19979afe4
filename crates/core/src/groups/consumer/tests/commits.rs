//! Who may commit and fetch offsets.

use super::*;

#[test]
fn an_empty_group_takes_commits_of_clients_outside_of_it() {
    let mut bench = Bench::new([("a", 1)]);
    assert_eq!(bench.group.check_commit("", None, -1, false, true), Ok(CommitPermit::Any));
    bench.join("m1", &["a"]);
    assert_eq!(bench.group.check_commit("", None, -1, false, false), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_producer_outside_of_the_group_may_commit_in_its_transaction() {
    let mut bench = Bench::new([("a", 1)]);
    bench.join("m1", &["a"]);
    assert_eq!(bench.group.check_commit("", None, -1, true, false), Ok(CommitPermit::Any));
    assert_eq!(bench.group.check_commit("m2", None, -1, true, false), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_member_commits_at_its_epoch_and_before_it_what_it_had_by_then() {
    let mut bench = Bench::new([("a", 1)]);
    bench.join("m1", &["a"]);
    bench.topics.set("a", 2);
    bench.beat("m1", 1, None);
    assert_eq!(bench.group.check_commit("m1", None, 2, false, false), Ok(CommitPermit::Any));
    assert_eq!(bench.group.check_commit("m1", None, 3, false, false), Err(GroupError::StaleMemberEpoch));
    assert_eq!(bench.group.check_commit("m1", None, 2, false, true), Err(GroupError::UnsupportedVersion));
    assert_eq!(bench.group.check_commit("m9", None, 2, false, false), Err(GroupError::UnknownMemberId));
    let permit = bench.group.check_commit("m1", None, 1, false, false).unwrap();
    assert_eq!(bench.group.check_commit_of(&permit, topic_id(1), 0), Ok(()));
    for (topic, partition) in [(topic_id(1), 1), (topic_id(1), 7), (topic_id(2), 0)] {
        let refused = bench.group.check_commit_of(&permit, topic, partition);
        assert_eq!(refused, Err(GroupError::StaleMemberEpoch));
    }
}

#[test]
fn what_has_to_be_given_up_may_be_committed_until_it_is() {
    let mut bench = Bench::new([("a", 2)]);
    bench.join("m1", &["a"]);
    bench.join("m2", &["a"]);
    bench.beat("m1", 1, None);
    bench.beat("m1", 1, Some(partitions(&[(1, &[0])])));
    let permit = bench.group.check_commit("m1", None, 1, false, false).unwrap();
    assert_eq!(bench.group.check_commit_of(&permit, topic_id(1), 0), Ok(()));
    assert_eq!(bench.group.check_commit_of(&permit, topic_id(1), 1), Err(GroupError::StaleMemberEpoch));
}

#[test]
fn offsets_are_fetched_by_anyone_or_by_a_member_at_its_epoch() {
    let mut bench = Bench::new([("a", 1)]);
    bench.join("m1", &["a"]);
    assert_eq!(bench.group.check_fetch(None, -1), Ok(()));
    assert_eq!(bench.group.check_fetch(Some("m1"), 1), Ok(()));
    assert_eq!(bench.group.check_fetch(Some("m1"), 0), Err(GroupError::StaleMemberEpoch));
    assert_eq!(bench.group.check_fetch(Some("m2"), 1), Err(GroupError::UnknownMemberId));
    assert_eq!(bench.group.check_fetch(None, 1), Err(GroupError::UnknownMemberId));
}
