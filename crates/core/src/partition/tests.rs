//! Each rule of an append and each move of an offset, and the order of all offsets under chance.

use proptest::prelude::*;
use tidelog_format::batch::TimestampSpan;
use tidelog_types::{ProducerEpoch, ProducerId};

use super::*;
use crate::producers::{ProducerBatch, ProducerError};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(raw).unwrap()
}

fn rules() -> AppendRules {
    AppendRules {
        batch_bytes_max: 1_000,
        log_append_time: false,
        timestamp_bounds: TimestampBounds::default(),
        in_sync_min: None,
        internal: false,
    }
}

fn span(least_ms: i64, largest_ms: i64) -> Option<TimestampSpan> {
    Some(TimestampSpan { least_ms, largest_ms })
}

fn facts(records: u32) -> BatchFacts {
    BatchFacts {
        bytes: 100,
        last_offset_delta: records - 1,
        timestamps: span(NOW.to_wire(), NOW.to_wire()),
        max_timestamp: Some(NOW),
        producer: None,
        transactional: false,
        control: false,
    }
}

fn leader(flush: FlushPolicy) -> PartitionState {
    let mut state = PartitionState::new(RecoveredLog::default(), Producers::default(), flush);
    state.follow_image(true, epoch(0), 1, false);
    state
}

fn append(state: &mut PartitionState, records: u32) -> Moved {
    let facts = facts(records);
    match state.decide(&rules(), &facts, NOW).unwrap() {
        AppendDecision::Append { base, .. } => state.appended(&facts, base, NOW).0,
        AppendDecision::Duplicate(original) => panic!("{original:?}"),
    }
}

#[test]
fn the_high_watermark_waits_for_the_sync() {
    let mut state = leader(FlushPolicy::default());
    assert_eq!(append(&mut state, 10), Moved { epoch: true, ..Moved::default() }, "its first epoch begins");
    assert_eq!(state.written(offset(10)), Moved { written: true, ..Moved::default() });
    assert_eq!(state.high_watermark(), Offset::ZERO);
    assert_eq!(
        state.synced(offset(10)),
        Moved { high_watermark: true, last_stable_offset: true, ..Moved::default() }
    );
    assert_eq!(state.high_watermark(), offset(10));
}

#[test]
fn the_first_append_in_an_epoch_says_so() {
    let mut state = leader(FlushPolicy::default());
    assert!(append(&mut state, 1).epoch);
    assert!(!append(&mut state, 1).epoch);
    state.follow_image(true, epoch(1), 1, false);
    assert!(append(&mut state, 1).epoch);
}

#[test]
fn a_relaxed_topic_shows_what_is_written_and_asks_for_a_sync_in_time() {
    let policy = FlushPolicy::resolve(Some(15), None, false, false);
    assert_eq!(policy, FlushPolicy { visibility: Visibility::Written, messages: Some(15) });
    let mut state = leader(policy);
    assert!(!append(&mut state, 10).sync_due);
    assert_eq!(
        state.written(offset(10)),
        Moved { written: true, high_watermark: true, last_stable_offset: true, ..Moved::default() }
    );
    assert!(append(&mut state, 10).sync_due);
}

#[test]
fn flush_settings_relax_only_when_they_say_so() {
    let strict = FlushPolicy { visibility: Visibility::Synced, messages: None };
    assert_eq!(FlushPolicy::resolve(None, None, false, false), strict);
    assert_eq!(
        FlushPolicy::resolve(Some(1), None, true, false),
        strict,
        "flush.messages=1 is a sync each time"
    );
    assert_eq!(FlushPolicy::resolve(None, Some(0), true, false), strict);
    assert_eq!(FlushPolicy::resolve(Some(100), None, true, true), strict, "internal topics always sync");
    let relaxed = FlushPolicy { visibility: Visibility::Written, messages: None };
    assert_eq!(FlushPolicy::resolve(None, None, true, false), relaxed);
    assert_eq!(FlushPolicy::resolve(None, Some(1_000), false, false), relaxed);
}

#[test]
fn a_node_that_does_not_lead_appends_nothing() {
    let mut state = leader(FlushPolicy::default());
    state.follow_image(false, epoch(3), 1, false);
    assert_eq!(state.decide(&rules(), &facts(1), NOW), Err(AppendRefusal::NotLeader { epoch: epoch(3) }));
    state.follow_image(true, epoch(2), 1, false);
    assert_eq!(state.leading(), None, "an older image does not bring leadership back");
}

#[test]
fn every_refusal_names_its_rule() {
    let state = leader(FlushPolicy::default());
    let refused = |rules: &AppendRules, facts: &BatchFacts| state.decide(rules, facts, NOW).unwrap_err();

    let all = AppendRules { in_sync_min: Some(2), ..rules() };
    assert_eq!(refused(&all, &facts(1)), AppendRefusal::TooFewInSync { in_sync: 1, min: 2 });
    let large = BatchFacts { bytes: 1_001, ..facts(1) };
    assert_eq!(refused(&rules(), &large), AppendRefusal::TooLarge { bytes: 1_001, max: 1_000 });
    let control = BatchFacts { control: true, ..facts(1) };
    assert_eq!(refused(&rules(), &control), AppendRefusal::ControlBatch);
    let transactional = BatchFacts { transactional: true, ..facts(1) };
    assert_eq!(refused(&rules(), &transactional), AppendRefusal::NoTransaction);
}

#[test]
fn every_records_timestamp_is_held_against_the_bounds() {
    let state = leader(FlushPolicy::default());
    let now = NOW.to_wire();
    let out = |timestamp_ms| Err(AppendRefusal::TimestampOutOfBounds { timestamp_ms, now: NOW });
    let decide = |rules: &AppendRules, timestamps| {
        // What the header stored says does not decide.
        let facts = BatchFacts { timestamps, max_timestamp: Some(NOW), ..facts(2) };
        state.decide(rules, &facts, NOW).map(drop)
    };
    assert_eq!(decide(&rules(), span(now, now + 3_600_001)), out(now + 3_600_001));
    assert_eq!(decide(&rules(), span(now, now + 3_600_000)), Ok(()));
    assert_eq!(decide(&rules(), span(now, i64::MAX)), out(i64::MAX));
    assert_eq!(decide(&rules(), None), Ok(()), "no record has a timestamp");
    // Kafka takes a negative one where the past is not bounded, and nothing that wrapped around.
    assert_eq!(decide(&rules(), span(-100, now)), Ok(()));
    assert_eq!(decide(&rules(), span(i64::MIN, now)), out(i64::MIN));
    assert_eq!(decide(&rules(), span(i64::MIN + now - 1, now)), out(i64::MIN + now - 1));
    let bounded =
        AppendRules { timestamp_bounds: TimestampBounds { before_ms: 10, after_ms: 10 }, ..rules() };
    assert_eq!(decide(&bounded, span(now - 11, now)), out(now - 11));
    assert_eq!(decide(&bounded, span(now - 10, now + 10)), Ok(()));
    assert_eq!(decide(&bounded, span(-100, now)), out(-100));
    assert_eq!(decide(&bounded, None), Ok(()));
    let stamped = AppendRules { log_append_time: true, ..bounded };
    assert_eq!(decide(&stamped, span(-100, i64::MAX)), Ok(()), "the broker's clock is the record's");
}

#[test]
fn log_append_time_ignores_the_producers_clock() {
    let state = leader(FlushPolicy::default());
    let rules = AppendRules { log_append_time: true, ..rules() };
    let facts = BatchFacts { max_timestamp: Some(Timestamp::from_millis(u64::MAX)), ..facts(3) };
    assert_eq!(
        state.decide(&rules, &facts, NOW),
        Ok(AppendDecision::Append {
            base: Offset::ZERO,
            last: offset(2),
            leader_epoch: epoch(0),
            log_append_time: Some(NOW)
        })
    );
}

#[test]
fn a_duplicate_is_the_original_and_changes_nothing() {
    // B23
    let mut state = leader(FlushPolicy::default());
    let _ = append(&mut state, 5);
    let producer = ProducerBatch {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(0),
        base_sequence: 0,
        last_offset_delta: 1,
        max_timestamp: None,
        transactional: false,
        control: false,
    };
    let sent = BatchFacts { producer: Some(producer), ..facts(2) };
    let _ = state.appended(&sent, offset(5), NOW);
    let before = state.snapshot();
    let Ok(AppendDecision::Duplicate(original)) = state.decide(&rules(), &sent, NOW) else {
        panic!("not a duplicate")
    };
    assert_eq!((original.base_offset, original.last_offset), (offset(5), offset(6)));
    assert_eq!(state.snapshot(), before);
    let gap = BatchFacts { producer: Some(ProducerBatch { base_sequence: 3, ..producer }), ..facts(2) };
    assert_eq!(
        state.decide(&rules(), &gap, NOW),
        Err(AppendRefusal::Producer(ProducerError::OutOfOrder {
            producer_id: ProducerId(9),
            last: Some(1),
            given: 3
        }))
    );
}

#[test]
fn the_last_stable_offset_stays_at_an_open_transaction() {
    let mut state = leader(FlushPolicy::default());
    let _ = append(&mut state, 4);
    let producer = ProducerBatch {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(0),
        base_sequence: 0,
        last_offset_delta: 0,
        max_timestamp: None,
        transactional: true,
        control: false,
    };
    let _ = state.appended(&BatchFacts { producer: Some(producer), ..facts(1) }, offset(4), NOW);
    let _ = append(&mut state, 5);
    assert_eq!(
        state.synced(offset(10)),
        Moved { high_watermark: true, last_stable_offset: true, written: true, ..Moved::default() }
    );
    assert_eq!((state.last_stable_offset(), state.high_watermark()), (offset(4), offset(10)));
    let marker = ProducerBatch { control: true, base_sequence: -1, ..producer };
    let (_, completed) =
        state.appended(&BatchFacts { producer: Some(marker), control: true, ..facts(1) }, offset(10), NOW);
    assert_eq!(completed.unwrap().first, offset(4));
    assert!(state.synced(offset(11)).last_stable_offset);
    assert_eq!(state.last_stable_offset(), offset(11));
}

#[test]
fn a_log_start_never_passes_the_high_watermark() {
    // B67
    let mut state = leader(FlushPolicy::default());
    let _ = append(&mut state, 10);
    let _ = state.synced(offset(6));
    assert_eq!(
        state.set_log_start(offset(7)),
        Err(LogStartBeyondHighWatermark { asked: offset(7), high_watermark: offset(6) })
    );
    assert!(state.set_log_start(offset(6)).is_ok());
    assert!(state.set_log_start(offset(2)).is_ok(), "a smaller one is no error");
    assert_eq!(state.log_start(), offset(6));
}

#[test]
fn a_log_start_cuts_the_epochs_as_kafka_does() {
    let mut state = leader(FlushPolicy::default());
    let _ = append(&mut state, 10);
    state.follow_image(true, epoch(2), 1, false);
    let _ = append(&mut state, 10);
    let _ = state.synced(offset(20));
    let entry = |number, start| EpochStart { epoch: epoch(number), start: offset(start) };
    assert_eq!(*state.snapshot().epochs, [entry(0, 0), entry(2, 10)]);
    let _ = state.set_log_start(offset(4)).unwrap();
    assert_eq!(*state.snapshot().epochs, [entry(0, 4), entry(2, 10)]);
    let _ = state.set_log_start(offset(15)).unwrap();
    assert_eq!(*state.snapshot().epochs, [entry(2, 15)]);
}

#[test]
fn after_a_start_everything_durable_is_visible() {
    let recovered = RecoveredLog {
        log_start: offset(5),
        local_log_start: offset(0),
        tiered_end: offset(0),
        log_end: offset(20),
        written_end: offset(20),
        synced_end: offset(12),
        epochs: vec![],
    };
    let state = PartitionState::new(recovered, Producers::default(), FlushPolicy::default());
    let snapshot = state.snapshot();
    assert_eq!(
        (snapshot.log_start, snapshot.high_watermark, snapshot.log_end),
        (offset(5), offset(12), offset(20))
    );
    assert_eq!(snapshot.tiered_end, offset(5));
}

#[derive(Debug, Clone)]
enum Event {
    Append(u32),
    Written(u64),
    Synced(u64),
    LogStart(u64),
    Tiered(u64),
    LocalStart(u64),
    Epoch(i32),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1..20_u32).prop_map(Event::Append),
        (0..300_u64).prop_map(Event::Written),
        (0..300_u64).prop_map(Event::Synced),
        (0..300_u64).prop_map(Event::LogStart),
        (0..300_u64).prop_map(Event::Tiered),
        (0..300_u64).prop_map(Event::LocalStart),
        (0..8_i32).prop_map(Event::Epoch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn offsets_keep_their_order_and_never_go_back(
        events in proptest::collection::vec(any_event(), 1..80), relaxed: bool,
    ) {
        let flush = FlushPolicy::resolve(None, None, relaxed, false);
        let mut state = leader(flush);
        for event in events {
            let before = state.snapshot();
            match event {
                Event::Append(records) if state.leading().is_some() => { let _ = append(&mut state, records); }
                Event::Append(_) => {}
                Event::Written(end) => { let _ = state.written(offset(end)); }
                Event::Synced(end) => { let _ = state.synced(offset(end)); }
                Event::LogStart(to) => { let _ = state.set_log_start(offset(to)); }
                Event::Tiered(end) => state.set_tiered_end(offset(end).min(before.last_stable_offset)),
                Event::LocalStart(to) => state.set_local_log_start(offset(to).min(before.tiered_end.max(before.log_start))),
                Event::Epoch(number) => state.follow_image(true, epoch(number), 1, false),
            }
            let after = state.snapshot();
            prop_assert!(after.log_start <= after.last_stable_offset);
            prop_assert!(after.last_stable_offset <= after.high_watermark);
            prop_assert!(after.high_watermark <= after.log_end);
            let bound = if relaxed { after.written_end } else { after.synced_end };
            prop_assert!(after.high_watermark <= bound);
            prop_assert!(after.tiered_end <= after.last_stable_offset.max(after.log_start));
            prop_assert!(after.local_log_start <= after.log_start.max(after.tiered_end));
            prop_assert!(before.high_watermark <= after.high_watermark && before.log_start <= after.log_start);
            prop_assert!(before.leader_epoch <= after.leader_epoch);
            prop_assert!(after.epochs.windows(2).all(|pair| pair[0].epoch < pair[1].epoch && pair[0].start <= pair[1].start));
        }
    }
}
