//! The client over the faulty store, which the simulator uses: the same manners without a network, on virtual time.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_object::{Expected, GetError, ObjectClient, PutError, StoreOptions};
use tidelog_runtime::{Clock, Registry, SeededRng};
use tidelog_testkit::{FaultyStore, StoreFault, StoreOperation, VirtualClock};

use crate::{
    contract::keeps_the_contract,
    support::{pattern, payload},
};

fn on_virtual_time<F: Future<Output = ()>>(test: impl FnOnce(VirtualClock) -> F) {
    let clock = VirtualClock::new();
    clock.run(test(clock.clone()));
}

fn rig(clock: &VirtualClock) -> (FaultyStore, ObjectClient) {
    let clock = Arc::new(clock.clone());
    let store = FaultyStore::memory(clock.clone());
    let rng = Arc::new(SeededRng::new(9));
    let options = StoreOptions::default();
    let client = ObjectClient::with_store(Arc::new(store.clone()), options, clock, rng, &Registry::new());
    (store, client)
}

#[test]
fn without_faults_it_keeps_the_contract() {
    on_virtual_time(|clock| async move {
        keeps_the_contract(&rig(&clock).1).await;
    });
}

#[test]
fn lost_answers_and_failures_are_settled() {
    on_virtual_time(|clock| async move {
        let (store, client) = rig(&clock);
        store.plan(StoreOperation::Put, "a", 0, 1, StoreFault::FailAfter);
        client.put_new("a", payload("x")).await.unwrap();
        assert_eq!((store.count(StoreOperation::Put, "a"), store.count(StoreOperation::Head, "a")), (2, 1));
        store.plan(StoreOperation::Put, "b", 0, 2, StoreFault::FailBefore);
        client.put_new("b", payload("x")).await.unwrap();
        assert_eq!(store.count(StoreOperation::Put, "b"), 3);
        store.plan(StoreOperation::Delete, "a", 0, 1, StoreFault::FailAfter);
        client.delete("a").await.unwrap();
        assert!(matches!(client.head("a").await, Err(GetError::NotFound { .. })));
    });
}

#[test]
fn a_hang_costs_the_limit_on_silence_and_no_more() {
    on_virtual_time(|clock| async move {
        let (store, client) = rig(&clock);
        store.plan(StoreOperation::Put, "a", 0, 1, StoreFault::Hang);
        let begun = clock.monotonic();
        client.put_new("a", payload("x")).await.unwrap();
        let took = clock.monotonic() - begun;
        assert!(took >= Duration::from_secs(20) && took < Duration::from_secs(26), "{took:?}");
        // Hangs for ever: at the deadline the put is unknown, and no permit is kept.
        store.plan(StoreOperation::Put, "b", 0, u32::MAX, StoreFault::Hang);
        let error = client.put_new("b", payload("x")).await.unwrap_err();
        assert!(matches!(error, PutError::Unknown(_)), "{error:?}");
        assert_eq!(client.free_requests(), 64);
    });
}

#[test]
fn short_bodies_are_resumed() {
    on_virtual_time(|clock| async move {
        let (store, client) = rig(&clock);
        let bytes = pattern(100_000);
        client.put_new("a", vec![Bytes::from(bytes.clone())]).await.unwrap();
        store.plan(StoreOperation::Get, "a", 0, 3, StoreFault::ShortBody(10_000));
        let expect = Expected { object_bytes: 100_000, etag: None };
        let fetched = client.get_range("a", 1..90_001, expect).await.unwrap();
        assert!(fetched.chunks.concat() == bytes[1..90_001]);
        assert_eq!(store.count(StoreOperation::Get, "a"), 4);
        // Bodies that never hold a byte end the read.
        store.plan(StoreOperation::Get, "a", 0, u32::MAX, StoreFault::ShortBody(0));
        let expect = Expected { object_bytes: 100_000, etag: None };
        assert!(matches!(client.get_range("a", 1..9, expect).await, Err(GetError::Retriable(_))));
    });
}

#[test]
fn equal_seeds_ask_the_store_alike_at_equal_times() {
    let run = || {
        let clock = VirtualClock::new();
        let (store, client) = rig(&clock);
        store.plan(StoreOperation::Put, "", 1, 5, StoreFault::FailBefore);
        store.plan(StoreOperation::Get, "", 0, 2, StoreFault::Hang);
        clock.run(async {
            for key in ["a", "b", "c"] {
                client.put_new(key, payload(key)).await.unwrap();
                client.get(key, 10).await.unwrap();
            }
        });
        (store.log(), clock.monotonic())
    };
    assert_eq!(run(), run());
}

#[test]
fn ages_follow_the_clock_that_is_given() {
    on_virtual_time(|clock| async move {
        let (_, client) = rig(&clock);
        client.put_new("a", payload("x")).await.unwrap();
        clock.advance(Duration::from_secs(3600));
        let page = client.list("", None, 10).await.unwrap();
        assert_eq!(page.store_time.millis_since(page.objects[0].modified), 3_600_000);
    });
}
