//! The client over the faulty store, which the simulator uses: the same manners without a network, on virtual time.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_object::{Expected, GetError, ObjectClient, PutError, StoreOptions};
use tidelog_runtime::{Clock, Registry, SeededRng, SystemClock};
use tidelog_testkit::{FaultyStore, StoreFault, StoreOperation};
use tidelog_types::Timestamp;

use crate::{
    contract::keeps_the_contract,
    support::{pattern, payload},
};

fn rig() -> (FaultyStore, ObjectClient, Arc<SystemClock>) {
    let clock = Arc::new(SystemClock::new());
    let store = FaultyStore::memory(clock.clone());
    let rng = Arc::new(SeededRng::new(9));
    let options = StoreOptions::default();
    let client =
        ObjectClient::with_store(Arc::new(store.clone()), options, clock.clone(), rng, &Registry::new());
    (store, client, clock)
}

#[tokio::test(start_paused = true)]
async fn without_faults_it_keeps_the_contract() {
    keeps_the_contract(&rig().1).await;
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_failures_are_settled() {
    let (store, client, _) = rig();
    store.plan(StoreOperation::Put, "a", 0, 1, StoreFault::FailAfter);
    client.put_new("a", payload("x")).await.unwrap();
    assert_eq!((store.count(StoreOperation::Put, "a"), store.count(StoreOperation::Head, "a")), (2, 1));
    store.plan(StoreOperation::Put, "b", 0, 2, StoreFault::FailBefore);
    client.put_new("b", payload("x")).await.unwrap();
    assert_eq!(store.count(StoreOperation::Put, "b"), 3);
    store.plan(StoreOperation::Delete, "a", 0, 1, StoreFault::FailAfter);
    client.delete("a").await.unwrap();
    assert!(matches!(client.head("a").await, Err(GetError::NotFound { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_hang_costs_the_limit_on_silence_and_no_more() {
    let (store, client, clock) = rig();
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
}

#[tokio::test(start_paused = true)]
async fn short_bodies_are_resumed() {
    let (store, client, _) = rig();
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
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_ask_the_store_alike() {
    let run = || async {
        let (store, client, clock) = rig();
        store.plan(StoreOperation::Put, "", 1, 5, StoreFault::FailBefore);
        store.plan(StoreOperation::Get, "", 0, 2, StoreFault::Hang);
        for key in ["a", "b", "c"] {
            client.put_new(key, payload(key)).await.unwrap();
            client.get(key, 10).await.unwrap();
        }
        (store.log(), clock.monotonic())
    };
    let (first, second) = (run().await, run().await);
    assert_eq!(first.0, second.0);
}

/// A clock whose wall time follows virtual time.
struct VirtualClock(SystemClock);

impl Clock for VirtualClock {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn wall(&self) -> Timestamp {
        let since = u64::try_from(self.0.monotonic().as_millis()).unwrap();
        Timestamp::from_millis(1_700_000_000_000 + since)
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep(duration)
    }
}

#[tokio::test(start_paused = true)]
async fn ages_follow_the_clock_that_is_given() {
    let clock = Arc::new(VirtualClock(SystemClock::new()));
    let store = Arc::new(FaultyStore::memory(clock.clone()));
    let rng = Arc::new(SeededRng::new(9));
    let client = ObjectClient::with_store(store, StoreOptions::default(), clock, rng, &Registry::new());
    client.put_new("a", payload("x")).await.unwrap();
    tokio::time::advance(Duration::from_secs(3600)).await;
    let page = client.list("", None, 10).await.unwrap();
    assert_eq!(page.store_time.millis_since(page.objects[0].modified), 3_600_000);
}
