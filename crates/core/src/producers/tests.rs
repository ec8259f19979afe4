//! The rules one by one, and all together against a model that keeps every batch for ever.

use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn batch(id: i64, epoch: i16, base_sequence: i32, records: i32) -> ProducerBatch {
    ProducerBatch {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence,
        last_offset_delta: records - 1,
        max_timestamp: None,
        transactional: false,
        control: false,
    }
}

fn transactional(id: i64, base_sequence: i32, records: i32) -> ProducerBatch {
    ProducerBatch { transactional: true, ..batch(id, 0, base_sequence, records) }
}

fn marker(id: i64, epoch: i16) -> ProducerBatch {
    ProducerBatch { transactional: true, control: true, ..batch(id, epoch, -1, 1) }
}

/// Checks, and records at the end where it is new, as an append does.
fn append(producers: &mut Producers, end: &mut u64, batch: &ProducerBatch) -> Result<u64, ProducerError> {
    match producers.check(batch)? {
        Verdict::Duplicate(original) => Ok(original.base_offset.get()),
        Verdict::New => {
            let base = *end;
            producers.record(batch, offset(base), NOW);
            *end += u64::try_from(batch.last_offset_delta).unwrap() + 1;
            Ok(base)
        }
    }
}

#[test]
fn a_repeated_batch_answers_the_original_base_offset() {
    // B23
    let (mut producers, mut end) = (Producers::default(), 100);
    for index in 0..5 {
        assert_eq!(
            append(&mut producers, &mut end, &batch(7, 0, index * 10, 10)),
            Ok(100 + u64::try_from(index).unwrap() * 10)
        );
    }
    for index in 0..5 {
        assert_eq!(
            append(&mut producers, &mut end, &batch(7, 0, index * 10, 10)),
            Ok(100 + u64::try_from(index).unwrap() * 10)
        );
    }
    assert_eq!(end, 150);
}

#[test]
fn a_sixth_batch_pushes_the_first_out_of_memory() {
    let (mut producers, mut end) = (Producers::default(), 0);
    for index in 0..6 {
        append(&mut producers, &mut end, &batch(7, 0, index, 1)).unwrap();
    }
    assert_eq!(
        append(&mut producers, &mut end, &batch(7, 0, 0, 1)),
        Err(ProducerError::OutOfOrder { producer_id: ProducerId(7), last: Some(5), given: 0 })
    );
    assert_eq!(append(&mut producers, &mut end, &batch(7, 0, 1, 1)), Ok(1));
}

#[test]
fn a_batch_with_the_same_base_and_another_end_is_no_duplicate() {
    let (mut producers, mut end) = (Producers::default(), 0);
    append(&mut producers, &mut end, &batch(7, 0, 0, 3)).unwrap();
    assert_eq!(
        append(&mut producers, &mut end, &batch(7, 0, 0, 2)),
        Err(ProducerError::OutOfOrder { producer_id: ProducerId(7), last: Some(2), given: 0 })
    );
}

#[test]
fn a_gap_is_out_of_order() {
    let (mut producers, mut end) = (Producers::default(), 0);
    append(&mut producers, &mut end, &batch(7, 0, 0, 3)).unwrap();
    assert_eq!(
        append(&mut producers, &mut end, &batch(7, 0, 4, 1)),
        Err(ProducerError::OutOfOrder { producer_id: ProducerId(7), last: Some(2), given: 4 })
    );
    assert_eq!(append(&mut producers, &mut end, &batch(7, 0, 3, 1)), Ok(3));
}

#[test]
fn sequences_wrap_to_zero_after_the_largest() {
    assert_eq!(sequence_after(i32::MAX, 1), 0);
    assert_eq!(sequence_after(i32::MAX - 2, 5), 2);
    let (mut producers, mut end) = (Producers::default(), 0);
    append(&mut producers, &mut end, &batch(7, 0, i32::MAX - 1, 2)).unwrap();
    assert_eq!(append(&mut producers, &mut end, &batch(7, 0, 0, 1)), Ok(2));

    // A batch that wraps inside.
    let (mut producers, mut end) = (Producers::default(), 0);
    append(&mut producers, &mut end, &batch(7, 0, i32::MAX - 1, 4)).unwrap();
    assert_eq!(producers.get(ProducerId(7)).unwrap().batches.last().unwrap().last_sequence, 1);
    assert_eq!(append(&mut producers, &mut end, &batch(7, 0, i32::MAX - 1, 4)), Ok(0));
    assert_eq!(append(&mut producers, &mut end, &batch(7, 0, 2, 1)), Ok(4));
}

#[test]
fn an_unknown_producer_starts_at_any_sequence() {
    // B25
    let (mut producers, mut end) = (Producers::default(), 0);
    assert_eq!(append(&mut producers, &mut end, &batch(7, 3, 77, 1)), Ok(0));
    assert_eq!(append(&mut producers, &mut end, &batch(7, 3, 78, 1)), Ok(1));
}

#[test]
fn a_producer_that_expired_goes_on_where_it_was() {
    // B25
    let mut producers =
        Producers::new(ProducerLimits { expiration: Duration::from_secs(10), ..ProducerLimits::default() });
    let mut end = 0;
    append(&mut producers, &mut end, &batch(7, 0, 0, 2)).unwrap();
    assert_eq!(producers.expire(Timestamp::from_millis(NOW.as_millis() + 9_999)), 0);
    assert_eq!(producers.expire(Timestamp::from_millis(NOW.as_millis() + 10_000)), 1);
    assert!(producers.is_empty());
    assert_eq!(append(&mut producers, &mut end, &batch(7, 0, 2, 2)), Ok(2));
}

#[test]
fn old_record_timestamps_do_not_expire_a_producer() {
    let mut producers = Producers::default();
    producers.record(
        &ProducerBatch { max_timestamp: Some(Timestamp::from_millis(5)), ..batch(7, 0, 0, 1) },
        Offset::ZERO,
        NOW,
    );
    assert_eq!(producers.expire(NOW), 0);
}

#[test]
fn a_producer_may_raise_its_own_epoch() {
    // B26
    let (mut producers, mut end) = (Producers::default(), 0);
    append(&mut producers, &mut end, &batch(7, 0, 0, 10)).unwrap();
    assert_eq!(append(&mut producers, &mut end, &batch(7, 1, 0, 1)), Ok(10));
    assert_eq!(
        append(&mut producers, &mut end, &batch(7, 0, 10, 1)),
        Err(ProducerError::Fenced {
            producer_id: ProducerId(7),
            current: ProducerEpoch(1),
            given: ProducerEpoch(0)
        })
    );
    assert_eq!(
        append(&mut producers, &mut end, &batch(7, 2, 5, 1)),
        Err(ProducerError::OutOfOrder { producer_id: ProducerId(7), last: Some(0), given: 5 })
    );
    assert_eq!(append(&mut producers, &mut end, &batch(7, 1, 1, 1)), Ok(11));
}

#[test]
fn an_open_transaction_holds_the_last_stable_offset_until_its_marker_is_readable() {
    let mut producers = Producers::default();
    producers.record(&transactional(7, 0, 2), offset(10), NOW);
    producers.record(&transactional(8, 0, 1), offset(12), NOW);
    producers.record(&transactional(7, 2, 1), offset(13), NOW);
    assert_eq!(producers.first_unstable(), Some(offset(10)));

    let completed = producers.record(&marker(7, 0), offset(14), NOW);
    assert_eq!(
        completed,
        Some(CompletedTransaction { producer_id: ProducerId(7), first: offset(10), last: offset(14) })
    );
    assert_eq!(
        producers.first_unstable(),
        Some(offset(10)),
        "the marker is not below the high watermark yet"
    );
    producers.high_watermark_moved(offset(14));
    assert_eq!(producers.first_unstable(), Some(offset(10)), "the marker is at the high watermark");
    producers.high_watermark_moved(offset(15));
    assert_eq!(producers.first_unstable(), Some(offset(12)));
    producers.record(&marker(8, 0), offset(15), NOW);
    producers.high_watermark_moved(offset(16));
    assert_eq!(producers.first_unstable(), None);
}

#[test]
fn a_producer_with_an_open_transaction_does_not_expire() {
    let mut producers = Producers::default();
    producers.record(&transactional(7, 0, 2), offset(10), NOW);
    assert_eq!(producers.expire(Timestamp::from_millis(u64::MAX)), 0);
    assert_eq!(producers.len(), 1);
}

#[test]
fn a_marker_of_a_higher_epoch_ends_the_transaction_and_starts_sequences_anew() {
    let (mut producers, mut end) = (Producers::default(), 0);
    producers.record(&transactional(7, 0, 2), offset(0), NOW);
    end += 2;
    producers.record(&marker(7, 1), offset(2), NOW);
    end += 1;
    assert_eq!(
        append(&mut producers, &mut end, &batch(7, 1, 2, 1)),
        Err(ProducerError::OutOfOrder { producer_id: ProducerId(7), last: None, given: 2 })
    );
    assert_eq!(append(&mut producers, &mut end, &batch(7, 1, 0, 1)), Ok(3));
}

#[test]
fn the_count_is_bounded_and_the_longest_silent_go() {
    let mut producers = Producers::new(ProducerLimits { entries_max: 20, ..ProducerLimits::default() });
    producers.record(&transactional(1_000, 0, 1), Offset::ZERO, Timestamp::from_millis(0));
    for id in 0..20 {
        producers.record(
            &batch(id, 0, 0, 1),
            offset(1),
            Timestamp::from_millis(u64::try_from(id).unwrap() + 1),
        );
    }
    // One above the bound: it and a tenth of 20 went, the oldest first, never the open transaction.
    assert_eq!(producers.len(), 18);
    assert!(producers.get(ProducerId(1_000)).is_some());
    assert!((0..3).all(|id| producers.get(ProducerId(id)).is_none()));
    assert!((3..20).all(|id| producers.get(ProducerId(id)).is_some()));
}

/// Every batch that was ever accepted, in order, and Kafka's rules read from that list.
#[derive(Default)]
struct Model {
    accepted: Vec<(ProducerBatch, u64)>,
    end: u64,
}

impl Model {
    fn append(&mut self, batch: &ProducerBatch) -> Result<u64, ()> {
        let mine: Vec<_> =
            self.accepted.iter().filter(|(known, _)| known.producer_id == batch.producer_id).collect();
        if let Some(epoch) = mine.iter().map(|(known, _)| known.producer_epoch).max() {
            if batch.producer_epoch < epoch {
                return Err(());
            }
            if batch.producer_epoch == epoch {
                let of_epoch: Vec<_> =
                    mine.iter().filter(|(known, _)| known.producer_epoch == epoch).collect();
                let same = |known: &ProducerBatch| {
                    known.base_sequence == batch.base_sequence
                        && known.last_offset_delta == batch.last_offset_delta
                };
                if let Some((_, base)) = of_epoch.iter().rev().take(5).find(|(known, _)| same(known)) {
                    return Ok(*base);
                }
                let (last, _) = of_epoch.last().unwrap();
                let next =
                    (i64::from(last.base_sequence) + i64::from(last.last_offset_delta) + 1) % (1 << 31);
                if i64::from(batch.base_sequence) != next {
                    return Err(());
                }
            } else if batch.base_sequence != 0 {
                return Err(());
            }
        }
        let base = self.end;
        self.accepted.push((*batch, base));
        self.end += u64::try_from(batch.last_offset_delta).unwrap() + 1;
        Ok(base)
    }
}

fn any_batch() -> impl Strategy<Value = ProducerBatch> {
    let sequence = prop_oneof![0..6_i32, (i32::MAX - 5)..=i32::MAX];
    (0..3_i64, 0..3_i16, sequence, 1..4_i32)
        .prop_map(|(id, epoch, base, records)| batch(id, epoch, base, records))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn appends_agree_with_the_model_and_a_replay_gives_the_same_state(
        batches in proptest::collection::vec((any_batch(), any::<bool>()), 1..60),
    ) {
        let (mut producers, mut end, mut model) = (Producers::default(), 0, Model::default());
        for (given, follow) in batches {
            // Half of the batches follow on what was accepted last, or nothing would ever get far.
            let previous = model.accepted.iter().rev().find(|(known, _)| known.producer_id == given.producer_id);
            let sent = match previous {
                Some((last, _)) if follow => ProducerBatch {
                    base_sequence: sequence_after(last.last_sequence(), 1),
                    producer_epoch: last.producer_epoch,
                    ..given
                },
                _ => given,
            };
            let expected = model.append(&sent);
            prop_assert_eq!(append(&mut producers, &mut end, &sent).map_err(|_| ()), expected);
            prop_assert_eq!(end, model.end);
        }
        let mut replayed = Producers::default();
        for (batch, base) in &model.accepted {
            replayed.replay(batch, offset(*base), NOW);
        }
        prop_assert_eq!(replayed, producers);
    }

    #[test]
    fn the_first_unstable_offset_is_that_of_the_oldest_undecided_transaction(
        steps in proptest::collection::vec((0..4_i64, any::<bool>(), 0..30_u64), 1..40),
    ) {
        let mut producers = Producers::default();
        let mut model: Vec<(i64, u64, Option<u64>)> = Vec::new();
        let (mut end, mut high_watermark) = (0_u64, 0_u64);
        let mut sequences = [0_i32; 4];
        for (id, ends, advance) in steps {
            let slot = usize::try_from(id).unwrap();
            let open = model.iter_mut().find(|(known, _, marker)| *known == id && marker.is_none());
            match open {
                Some(open) if ends => {
                    open.2 = Some(end);
                    producers.record(&marker(id, 0), offset(end), NOW);
                }
                found => {
                    if found.is_none() {
                        model.push((id, end, None));
                    }
                    producers.record(&transactional(id, sequences[slot], 1), offset(end), NOW);
                    sequences[slot] += 1;
                }
            }
            end += 1;
            high_watermark = (high_watermark + advance).min(end);
            producers.high_watermark_moved(offset(high_watermark));
            model.retain(|(_, _, marker)| marker.is_none_or(|marker| marker >= high_watermark));
            prop_assert_eq!(
                producers.first_unstable().map(Offset::get),
                model.iter().map(|(_, first, _)| *first).min()
            );
        }
    }
}
