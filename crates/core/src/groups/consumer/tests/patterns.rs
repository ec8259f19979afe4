//! Subscriptions by regular expression.

use super::*;

fn by_pattern(member_id: &str, pattern: &str) -> Heartbeat {
    Heartbeat { subscribed_topics: None, subscribed_pattern: Some(pattern.into()), ..joining(member_id, &[]) }
}

fn resolutions(bench: &Bench) -> Vec<(String, Option<Vec<String>>)> {
    let of = |record: &ConsumerRecord| match record {
        ConsumerRecord::RegularExpression { pattern, value } => {
            let topics = value.as_ref().map(|value| value.topics.iter().map(ToString::to_string).collect());
            Some((pattern.to_string(), topics))
        }
        _ => None,
    };
    bench.log.iter().filter_map(of).collect()
}

#[test]
fn a_regular_expression_is_resolved_and_stored() {
    let mut bench = Bench::new([("foo", 1), ("foobar", 1), ("bar", 1)]);
    let answer = bench.send(&by_pattern("m1", "foo.*")).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (1, Some(partitions(&[(1, &[0]), (2, &[0])]))));
    assert_eq!(resolutions(&bench), [("foo.*".into(), Some(vec!["foo".into(), "foobar".into()]))]);
    assert_eq!(bench.group.subscribed_topics(), BTreeSet::from([&"foo".into(), &"foobar".into()]));
    // The second member by the same expression finds it resolved.
    bench.send(&by_pattern("m2", "foo.*")).unwrap();
    assert_eq!((bench.group.epoch(), resolutions(&bench).len()), (2, 1));
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_bad_regular_expression_is_refused() {
    let mut bench = Bench::new([("foo", 1)]);
    let refused = bench.send(&by_pattern("m1", "[")).unwrap_err();
    assert_eq!(refused, GroupError::InvalidRegularExpression);
    bench.send(&by_pattern("m1", "foo")).unwrap();
    let change = Heartbeat { subscribed_pattern: Some("(".into()), ..heartbeat("m1", 1) };
    assert_eq!(bench.send(&change), Err(GroupError::InvalidRegularExpression));
}

#[test]
fn new_topics_are_found_after_the_refresh_interval() {
    let mut bench = Bench::new([("foo1", 1)]);
    bench.send(&by_pattern("m1", "foo.*")).unwrap();
    bench.topics.set("foo2", 1);
    bench.pass(Duration::from_millis(9_999));
    assert_eq!(bench.beat("m1", 1, None), (1, None));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.beat("m1", 1, None), (2, Some(partitions(&[(1, &[0]), (2, &[0])]))));
    assert_eq!(resolutions(&bench).len(), 2);
    // Topics that change nothing of what matches write nothing.
    bench.topics.set("bar", 1);
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.beat("m1", 2, None), (2, None));
    assert_eq!(resolutions(&bench).len(), 2);
}

#[test]
fn what_was_looked_at_behind_is_taken_over_once_and_whole() {
    let mut bench = Bench::new([("foo1", 1)]);
    bench.send(&by_pattern("m1", "foo.*")).unwrap();
    bench.send(&by_pattern("m2", "foo1")).unwrap();
    bench.topics.set("foo2", 1);
    let refresh = |bench: &mut Bench, patterns: &[&str]| {
        let resolutions = bench.resolutions(&names(patterns));
        let before = bench.group.clone();
        let changes = bench.group.refresh_patterns(bench.now, &bench.topics, &resolutions);
        bench.stored(&before, changes);
        bench.group.epoch()
    };
    let epoch = bench.group.epoch();
    assert_eq!(refresh(&mut bench, &["foo.*", "foo1"]), epoch, "it is not time yet");
    bench.pass(Duration::from_secs(10));
    assert_eq!(
        refresh(&mut bench, &["foo.*"]),
        epoch,
        "of an expression that came meanwhile nothing is known"
    );
    assert_eq!(refresh(&mut bench, &["foo.*", "foo1"]), epoch + 1);
    assert_eq!(
        resolutions(&bench).last().unwrap(),
        &("foo.*".into(), Some(vec!["foo1".into(), "foo2".into()]))
    );
    assert_eq!(refresh(&mut bench, &["foo.*", "foo1"]), epoch + 1);
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn a_group_that_was_loaded_resolves_at_once() {
    let mut bench = Bench::new([("foo1", 1)]);
    bench.send(&by_pattern("m1", "foo.*")).unwrap();
    bench.group = bench.restored();
    bench.topics.set("foo2", 1);
    assert_eq!(bench.beat("m1", 1, None), (2, Some(partitions(&[(1, &[0]), (2, &[0])]))));
}

#[test]
fn an_expression_nobody_uses_is_forgotten() {
    let mut bench = Bench::new([("foo", 1), ("bar", 1)]);
    bench.send(&by_pattern("m1", "foo")).unwrap();
    bench.send(&by_pattern("m2", "foo")).unwrap();
    let change = Heartbeat { subscribed_pattern: Some("bar".into()), ..heartbeat("m1", 1) };
    bench.send(&change).unwrap();
    assert_eq!(resolutions(&bench).last().unwrap(), &("bar".into(), Some(vec!["bar".into()])));
    bench.send(&heartbeat("m2", LEAVE_FOR_GOOD)).unwrap();
    assert_eq!(resolutions(&bench).last().unwrap(), &("foo".into(), None));
    assert!(bench.restored().has_same_state(&bench.group));
}

#[test]
fn an_emptied_expression_rebalances() {
    let mut bench = Bench::new([("foo", 1)]);
    bench.send(&by_pattern("m1", "foo")).unwrap();
    bench.beat("m1", 1, Some(partitions(&[(1, &[0])])));
    let change = Heartbeat {
        subscribed_pattern: Some("".into()),
        owned: Some(Partitions::new()),
        ..heartbeat("m1", 1)
    };
    let answer = bench.send(&change).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (2, Some(Partitions::new())));
    assert_eq!(resolutions(&bench).last().unwrap(), &("foo".into(), None));
}

#[test]
fn names_and_an_expression_add_up() {
    let mut bench = Bench::new([("foo", 1), ("bar", 1)]);
    let both = Heartbeat { subscribed_topics: Some(names(&["bar"])), ..by_pattern("m1", "foo") };
    assert_eq!(bench.send(&both).unwrap().assignment, Some(partitions(&[(1, &[0]), (2, &[0])])));
}
