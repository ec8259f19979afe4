use super::*;

fn key(partition: i32) -> FetchKey {
    FetchKey { topic: TopicKey::Name("t".into()), partition }
}

fn wanted(partition: i32) -> Wanted {
    let asked = Asked { offset: 0, bytes_max: 1, leader_epoch: -1, last_fetched_epoch: -1 };
    Wanted { key: key(partition), asked, known_name: None }
}

fn seen(high_watermark: i64) -> Seen {
    Seen { high_watermark, last_stable_offset: high_watermark, log_start: 0, must_tell: false, error: false }
}

fn ids(id: i32, epoch: i32) -> SessionIds {
    SessionIds { id, epoch }
}

const NOW: Duration = Duration::from_secs(1_000);

/// A cache with one session of these partitions, all told at a high watermark of 5.
fn with_session(partitions: i32) -> (SessionCache, i32) {
    let mut cache = SessionCache::new(2);
    let plan = cache.begin(NOW, ids(0, 0), false, (0..partitions).map(wanted).collect(), &[]).unwrap();
    let all = vec![seen(5); plan.wanted.len()];
    let (id, told) = cache.finish(NOW, &plan, &all, || 7).unwrap();
    assert_eq!((id, told), (7, vec![true; all.len()]));
    (cache, id)
}

#[test]
fn what_moved_since_it_was_told_is_told() {
    let (mut cache, id) = with_session(3);
    let plan = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[]).unwrap();
    assert_eq!(plan.wanted.len(), 3);
    let (_, told) = cache.finish(NOW, &plan, &[seen(5), seen(6), seen(5)], || 0).unwrap();
    assert_eq!(told, [false, true, false]);
    let plan = cache.begin(NOW, ids(id, 2), false, Vec::new(), &[]).unwrap();
    let (_, told) = cache.finish(NOW, &plan, &[seen(5), seen(6), seen(5)], || 0).unwrap();
    assert_eq!(told, [false, false, false]);
}

// B13
#[test]
fn what_was_planned_and_not_sent_was_not_told() {
    let (mut cache, id) = with_session(1);
    // Planned twice, as a fetch that waits does; only the end counts.
    let first = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[]).unwrap();
    let again = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[]).unwrap();
    assert_eq!(first, again);
    let (_, told) = cache.finish(NOW, &first, &[seen(6)], || 0).unwrap();
    assert_eq!(told, [true]);
}

#[test]
fn log_start_and_stable_offset_count_as_moves() {
    let (mut cache, id) = with_session(2);
    let plan = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[]).unwrap();
    let moved = [Seen { log_start: 1, ..seen(5) }, Seen { last_stable_offset: 4, ..seen(5) }];
    let (_, told) = cache.finish(NOW, &plan, &moved, || 0).unwrap();
    assert_eq!(told, [true, true]);
}

#[test]
fn an_error_is_told_each_time_and_its_end_too() {
    let (mut cache, id) = with_session(1);
    let error = Seen { error: true, ..seen(-1) };
    for (epoch, seen, expected) in
        [(1, error, true), (2, error, true), (3, seen(5), true), (4, seen(5), false)]
    {
        let plan = cache.begin(NOW, ids(id, epoch), false, Vec::new(), &[]).unwrap();
        let (_, told) = cache.finish(NOW, &plan, &[seen], || 0).unwrap();
        assert_eq!(told, [expected], "epoch {epoch}");
    }
}

// C2
#[test]
fn a_partition_that_was_forgotten_and_added_again_is_told_even_when_it_has_nothing() {
    let (mut cache, id) = with_session(2);
    let plan = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[key(0)]).unwrap();
    assert_eq!(plan.wanted, [wanted(1)]);
    cache.finish(NOW, &plan, &[seen(5)], || 0).unwrap();
    let plan = cache.begin(NOW, ids(id, 2), false, vec![wanted(0)], &[]).unwrap();
    assert_eq!(plan.wanted, [wanted(1), wanted(0)]);
    let (_, told) = cache.finish(NOW, &plan, &[seen(5), seen(5)], || 0).unwrap();
    assert_eq!(told, [false, true]);
}

#[test]
fn who_had_records_waits_for_its_turn() {
    let (mut cache, id) = with_session(3);
    let plan = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[]).unwrap();
    let records = Seen { must_tell: true, ..seen(5) };
    cache.finish(NOW, &plan, &[records, seen(5), seen(5)], || 0).unwrap();
    let plan = cache.begin(NOW, ids(id, 2), false, Vec::new(), &[]).unwrap();
    assert_eq!(plan.wanted, [wanted(1), wanted(2), wanted(0)]);
}

#[test]
fn unknown_sessions_and_wrong_epochs_have_codes_of_their_own() {
    let (mut cache, id) = with_session(1);
    let mut begin = |session, by_id| cache.begin(NOW, session, by_id, Vec::new(), &[]).unwrap_err();
    assert_eq!(begin(ids(id + 1, 1), false), ErrorCode::FetchSessionIdNotFound);
    assert_eq!(begin(ids(id, 5), false), ErrorCode::InvalidFetchSessionEpoch);
    assert_eq!(begin(ids(id, 1), true), ErrorCode::FetchSessionTopicIdError);
}

#[test]
fn a_session_that_moved_on_meanwhile_is_not_answered_twice() {
    let (mut cache, id) = with_session(1);
    let one = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[]).unwrap();
    let other = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[]).unwrap();
    cache.finish(NOW, &one, &[seen(5)], || 0).unwrap();
    assert_eq!(cache.finish(NOW, &other, &[seen(5)], || 0), Err(ErrorCode::InvalidFetchSessionEpoch));
}

#[test]
fn a_full_fetch_ends_the_session_it_names() {
    let (mut cache, id) = with_session(1);
    let plan = cache.begin(NOW, ids(id, -1), false, vec![wanted(0)], &[]).unwrap();
    assert_eq!(cache.finish(NOW, &plan, &[seen(5)], || 0), Ok((0, vec![true])));
    assert_eq!(cache.len(), 0);
}

#[test]
fn an_empty_session_ends() {
    let (mut cache, id) = with_session(1);
    let plan = cache.begin(NOW, ids(id, 1), false, Vec::new(), &[key(0)]).unwrap();
    assert_eq!(cache.finish(NOW, &plan, &[], || 0), Ok((0, Vec::new())));
    assert_eq!(cache.len(), 0);
}

fn create(cache: &mut SessionCache, now: Duration, size: i32, drawn: u64) -> i32 {
    let plan = cache.begin(now, ids(0, 0), false, (0..size).map(wanted).collect(), &[]).unwrap();
    let all = vec![seen(5); plan.wanted.len()];
    cache.finish(now, &plan, &all, || drawn).unwrap().0
}

#[test]
fn sessions_give_way_by_age_and_then_by_size() {
    let mut cache = SessionCache::new(2);
    assert_eq!(create(&mut cache, NOW, 2, 11), 11);
    assert_eq!(create(&mut cache, NOW, 3, 12), 12);
    assert_eq!(create(&mut cache, NOW, 9, 13), 0, "both are young: no slot");
    let later = NOW + EVICTION_AGE + Duration::from_secs(1);
    // Both are in use, and had their time: the smaller gives way to a larger one only.
    for id in [11, 12] {
        cache.begin(later, ids(id, 1), false, Vec::new(), &[]).unwrap();
    }
    assert_eq!(create(&mut cache, later, 2, 14), 0, "none is smaller");
    assert_eq!(create(&mut cache, later, 4, 15), 15);
    assert_eq!(
        cache.begin(later, ids(11, 1), false, Vec::new(), &[]),
        Err(ErrorCode::FetchSessionIdNotFound)
    );
    // Unused for long: gives way whatever its size.
    let much_later = later + EVICTION_AGE + Duration::from_secs(1);
    cache.begin(much_later, ids(15, 1), false, Vec::new(), &[]).unwrap();
    assert_eq!(create(&mut cache, much_later, 1, 16), 16);
    assert_eq!((cache.len(), cache.take_evicted(), cache.take_evicted()), (2, 2, 0));
    assert!(cache.begin(much_later, ids(15, 1), false, Vec::new(), &[]).is_ok());
}

#[test]
fn of_a_partition_named_twice_the_last_counts() {
    let mut cache = SessionCache::new(1);
    let mut second = wanted(0);
    second.asked.offset = 9;
    let plan = cache.begin(NOW, ids(0, -1), false, vec![wanted(0), wanted(1), second.clone()], &[]).unwrap();
    assert_eq!(plan.wanted, [second, wanted(1)]);
}

#[test]
fn epochs_wrap_past_the_initial_one() {
    assert_eq!((next_epoch(0), next_epoch(5), next_epoch(i32::MAX)), (1, 6, 1));
}
