use std::{collections::VecDeque, future::Future, pin::Pin, task::Poll};

use futures::task::noop_waker_ref;
use proptest::prelude::*;

use super::*;

type Asked<'a> = Pin<Box<dyn Future<Output = Permit> + 'a>>;

fn poll(asked: &mut Asked<'_>) -> Option<Permit> {
    match asked.as_mut().poll(&mut std::task::Context::from_waker(noop_waker_ref())) {
        Poll::Ready(permit) => Some(permit),
        Poll::Pending => None,
    }
}

fn ask(budget: &Budget, bytes: u64) -> Asked<'_> {
    Box::pin(budget.acquire(bytes))
}

#[test]
fn a_small_request_does_not_pass_a_large_one() {
    let budget = Budget::new("test", ByteSize::bytes(10));
    let held = budget.try_acquire(6).unwrap();
    let (mut large, mut small) = (ask(&budget, 5), ask(&budget, 1));
    assert!(poll(&mut large).is_none());
    assert!(poll(&mut small).is_none(), "one byte is free, but the large request came first");
    assert!(budget.try_acquire(1).is_none());
    drop(held);
    assert_eq!(budget.used(), 6);
    assert_eq!(poll(&mut large).map(|p| p.bytes()), Some(5));
    assert_eq!(poll(&mut small).map(|p| p.bytes()), Some(1));
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_request_larger_than_the_whole_is_granted_alone() {
    let budget = Budget::new("test", ByteSize::bytes(10));
    let held = budget.try_acquire(1).unwrap();
    let mut huge = ask(&budget, 1_000);
    assert!(poll(&mut huge).is_none());
    drop(held);
    let huge = poll(&mut huge).unwrap();
    assert_eq!((huge.bytes(), budget.used(), budget.free()), (1_000, 1_000, 0));
    assert!(budget.try_acquire(1).is_none());
}

#[test]
fn a_dropped_request_frees_those_behind_it() {
    let budget = Budget::new("test", ByteSize::bytes(10));
    let _held = budget.try_acquire(6).unwrap();
    let (mut large, mut small) = (ask(&budget, 5), ask(&budget, 1));
    assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
    drop(large);
    assert_eq!(poll(&mut small).map(|p| p.bytes()), Some(1));
}

#[test]
fn a_grant_that_nobody_received_is_given_back() {
    let budget = Budget::new("test", ByteSize::bytes(10));
    let held = budget.try_acquire(10).unwrap();
    let mut waiting = ask(&budget, 4);
    assert!(poll(&mut waiting).is_none());
    drop(held);
    assert_eq!(budget.used(), 4);
    drop(waiting);
    assert_eq!((budget.used(), budget.waiting()), (0, 0));
}

#[test]
fn permits_split_merge_and_shrink() {
    let budget = Budget::new("test", ByteSize::bytes(10));
    let mut whole = budget.try_acquire(8).unwrap();
    let part = whole.split(3);
    assert_eq!((whole.bytes(), part.bytes(), budget.used()), (5, 3, 8));
    whole.shrink_to(4);
    assert_eq!(budget.used(), 7);
    whole.merge(part);
    assert_eq!((whole.bytes(), budget.used()), (7, 7));
    drop(whole);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_charge_may_exceed_the_capacity() {
    let budget = Budget::new("test", ByteSize::bytes(10));
    let charge = budget.charge(25);
    assert_eq!((budget.used(), budget.free()), (25, 0));
    drop(charge);
    assert_eq!(budget.used(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Ask(u64),
    Cancel(usize),
    Release(usize),
    Split(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u64..130).prop_map(Step::Ask),
        (0usize..8).prop_map(Step::Cancel),
        (0usize..8).prop_map(Step::Release),
        (0usize..8, 0u64..50).prop_map(|(at, bytes)| Step::Split(at, bytes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// Whatever the order of requests, cancellations and releases: nothing leaks, the capacity is exceeded by a lone
    /// request only, grants come in the order of the requests, and nobody waits who would fit.
    #[test]
    fn grants_are_fair_and_nothing_leaks(steps in proptest::collection::vec(step(), 1..200)) {
        const CAPACITY: u64 = 100;
        let budget = Budget::new("test", ByteSize::bytes(CAPACITY));
        let mut waiting: VecDeque<(u64, Asked<'_>)> = VecDeque::new();
        let mut held: Vec<Permit> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(bytes) => waiting.push_back((bytes, ask(&budget, bytes))),
                Step::Cancel(at) => drop((at < waiting.len()).then(|| waiting.remove(at))),
                Step::Release(at) => drop((at < held.len()).then(|| held.swap_remove(at))),
                Step::Split(at, bytes) => {
                    if let Some(permit) = held.get_mut(at).filter(|permit| permit.bytes() >= bytes) {
                        let part = permit.split(bytes);
                        held.push(part);
                    }
                }
            }
            // Newest first, so that an unfair grant would show as a later request that is ready before an earlier one.
            let ready: Vec<Option<Permit>> = {
                let mut ready: Vec<_> = waiting.iter_mut().rev().map(|(_, asked)| poll(asked)).collect();
                ready.reverse();
                ready
            };
            let granted = ready.iter().take_while(|permit| permit.is_some()).count();
            // A new request polled first takes its place first: only one is new per step, and it is the last.
            prop_assert!(ready[granted..].iter().all(Option::is_none), "grants are a prefix of the queue");
            for (permit, (bytes, _)) in ready.into_iter().flatten().zip(waiting.drain(..granted)) {
                prop_assert_eq!(permit.bytes(), bytes);
                held.push(permit);
            }
            let sum: u64 = held.iter().map(Permit::bytes).sum();
            prop_assert_eq!(budget.used(), sum);
            if let Some((bytes, _)) = waiting.front() {
                prop_assert!(sum > 0 && sum + bytes > CAPACITY, "the first in the queue does not fit");
            }
        }
        drop(waiting);
        drop(held);
        prop_assert_eq!((budget.used(), budget.waiting()), (0, 0));
    }
}
