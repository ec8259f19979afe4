use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn at(hours: u64) -> Timestamp {
    Timestamp::from_millis(hours * 3_600_000)
}

fn nothing(_: &str) -> bool {
    false
}

fn committed(offset: i64, hour: u64) -> CommittedOffset {
    CommittedOffset {
        offset,
        leader_epoch: -1,
        metadata: "".into(),
        commit_time: at(hour),
        expire_time: None,
        topic_id: None,
    }
}

fn table(entries: &[(&str, i32, u64)]) -> OffsetTable {
    let mut table = OffsetTable::default();
    for (topic, partition, hour) in entries {
        table.put(&Arc::from(*topic), *partition, committed(1, *hour));
    }
    table
}

fn place(topic: &str, partition: i32) -> Place {
    (Arc::from(topic), partition)
}

#[test]
fn what_a_table_takes_is_counted_with_each_change() {
    let mut table = table(&[("a", 0, 1), ("topic", 1, 1)]);
    let with_text = |text: &str| CommittedOffset { metadata: text.into(), ..committed(1, 1) };
    table.put(&Arc::from("topic"), 1, with_text("four"));
    table.put(&Arc::from("topic"), 2, with_text("sixsix"));
    assert_eq!(table.sizes(), Sizes { offsets: 3, names: 6, metadata: 10 });
    table.put(&Arc::from("topic"), 2, with_text("six"));
    assert!(table.remove("topic", 1) && !table.remove("topic", 1));
    assert_eq!(table.sizes(), Sizes { offsets: 2, names: 6, metadata: 3 });
    assert!(table.remove("topic", 2) && table.remove("a", 0));
    assert_eq!(table.sizes(), Sizes::default());
}

#[test]
fn an_offset_replaces_the_one_before_it_and_leaves_nothing_behind() {
    let mut table = table(&[("a", 0, 1), ("a", 1, 1), ("b", 0, 1)]);
    table.put(&Arc::from("a"), 0, committed(7, 2));
    assert_eq!((table.len(), table.get("a", 0).unwrap().offset), (3, 7));
    assert!(table.remove("a", 0) && table.remove("a", 1) && !table.remove("a", 1));
    assert_eq!(table.places().collect::<Vec<_>>(), [place("b", 0)]);
    assert!(table.remove("b", 0) && table.is_empty());
}

#[test]
fn offsets_of_a_consumer_without_a_group_expire_by_their_commit() {
    let table = table(&[("t", 0, 1), ("t", 1, 3)]);
    let at_hour = |hour| table.expired(at(hour), HOUR * 2, OffsetExpiry::SinceCommit, nothing);
    assert_eq!(at_hour(2), []);
    assert_eq!(at_hour(3), [place("t", 0)], "at the moment itself");
    assert_eq!(at_hour(9), [place("t", 0), place("t", 1)]);
}

#[test]
fn offsets_of_an_empty_group_count_from_when_it_became_empty() {
    let table = table(&[("t", 0, 1)]);
    let at_hour = |hour| table.expired(at(hour), HOUR * 2, OffsetExpiry::SinceEmpty(at(10)), nothing);
    assert_eq!(at_hour(11), [], "the commit is older, the group is not");
    assert_eq!(at_hour(12), [place("t", 0)]);
}

#[test]
fn what_members_read_does_not_expire() {
    let table = table(&[("read", 0, 1), ("left", 0, 1)]);
    let expired = table.expired(at(99), HOUR, OffsetExpiry::SinceCommit, |topic| topic == "read");
    assert_eq!(expired, [place("left", 0)]);
    assert_eq!(table.expired(at(99), HOUR, OffsetExpiry::Never, nothing), [], "a group that rebalances");
}

#[test]
fn a_retention_of_its_own_decides_alone() {
    let mut table = OffsetTable::default();
    let own = |hours| CommittedOffset { expire_time: Some(at(hours)), ..committed(1, 1) };
    table.put(&Arc::from("t"), 0, own(5));
    table.put(&Arc::from("t"), 1, own(50));
    let at_hour = |hour| table.expired(at(hour), HOUR, OffsetExpiry::SinceEmpty(at(1)), nothing);
    assert_eq!(at_hour(4), []);
    assert_eq!(at_hour(5), [place("t", 0)]);
}

#[test]
fn an_offset_of_a_deleted_topic_is_not_its_namesakes() {
    let (then, now) = (TopicId::from_bytes([1; 16]), TopicId::from_bytes([2; 16]));
    let mut table = OffsetTable::default();
    for (partition, topic_id) in [(0, Some(then)), (1, Some(now)), (2, None)] {
        table.put(&Arc::from("t"), partition, CommittedOffset { topic_id, ..committed(1, 1) });
    }
    table.put(&Arc::from("gone"), 0, committed(1, 1));
    let current = |name: &str| (name == "t").then_some(now);
    assert_eq!(table.of_other_topics(None, current), [place("gone", 0), place("t", 0)].into());
    let named = |name: &str| BTreeSet::from([Arc::from(name)]);
    assert_eq!(table.of_other_topics(Some(&named("t")), current), [place("t", 0)].into());
    assert_eq!(table.of_other_topics(Some(&named("none")), current), BTreeSet::new());
}
