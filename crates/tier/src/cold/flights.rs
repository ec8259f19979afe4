//! One flight for each thing that is fetched, however many want it.
//!
//! **Owns** who fetches what now. A key is claimed by whoever asks first; others join. A claim that ends without an
//! outcome tells those who wait. **Does not own** the fetching.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidelog_replica::ColdError;
use tidelog_runtime::watch;

type Outcome<V> = Option<Result<V, ColdError>>;

/// Where the outcome of a flight arrives.
#[derive(Debug)]
pub(crate) struct Landing<V>(watch::Receiver<Outcome<V>>);

impl<V: Clone> Landing<V> {
    /// Waits for the outcome. Dropping it gives up interest.
    pub(crate) async fn landed(mut self) -> Result<V, ColdError> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.as_ref().map_or_else(|| Err(ended()), Clone::clone),
            Err(_) => Err(ended()),
        }
    }
}

/// A flight that ended without an outcome: the node stops.
fn ended() -> ColdError {
    ColdError::Unavailable { why: "cold reads are stopping".into() }
}

/// The flights under way.
pub(crate) struct Flights<K, V> {
    under_way: Mutex<BTreeMap<K, Arc<watch::Sender<Outcome<V>>>>>,
}

/// What [`Flights::join`] found.
pub(crate) enum Joined<K: Ord, V> {
    /// Another fetches it.
    UnderWay(Landing<V>),
    /// The caller is to fetch it.
    Claimed(Landing<V>, Claim<K, V>),
}

impl<K: Ord + Copy, V: Clone> Flights<K, V> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { under_way: Mutex::default() })
    }

    /// Joins the flight of `key`, or claims it.
    pub(crate) fn join(self: &Arc<Self>, key: K) -> Joined<K, V> {
        let mut under_way = self.lock();
        if let Some(sender) = under_way.get(&key) {
            return Joined::UnderWay(Landing(sender.subscribe()));
        }
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        under_way.insert(key, Arc::clone(&sender));
        Joined::Claimed(Landing(receiver), Claim { flights: Arc::clone(self), key, sender })
    }

    /// Joins the flight of `key` if there is one.
    pub(crate) fn look(&self, key: &K) -> Option<Landing<V>> {
        self.lock().get(key).map(|sender| Landing(sender.subscribe()))
    }

    /// How many are under way.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }
}

impl<K: Ord, V> Flights<K, V> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Arc<watch::Sender<Outcome<V>>>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The duty to fetch one thing. Ends on drop.
pub(crate) struct Claim<K: Ord, V> {
    flights: Arc<Flights<K, V>>,
    key: K,
    sender: Arc<watch::Sender<Outcome<V>>>,
}

impl<K: Ord + Copy, V: Clone> Claim<K, V> {
    pub(crate) fn key(&self) -> K {
        self.key
    }

    /// Tells the outcome to all who wait.
    pub(crate) fn land(self, outcome: Result<V, ColdError>) {
        self.sender.send_replace(Some(outcome));
    }

    /// Waits until nobody waits for any of the claims any more; from then on nobody can join them.
    pub(crate) async fn abandoned(claims: &[&Self]) {
        loop {
            for claim in claims {
                claim.sender.closed().await;
            }
            let Some(first) = claims.first() else { return };
            // Joining takes the lock too: who joined in between keeps the flight alive.
            let mut under_way = first.flights.lock();
            if claims.iter().all(|claim| claim.sender.receiver_count() == 0) {
                for claim in claims {
                    under_way.remove(&claim.key);
                }
                return;
            }
        }
    }
}

impl<K: Ord, V> Drop for Claim<K, V> {
    fn drop(&mut self) {
        let mut under_way = self.flights.lock();
        // After being abandoned the key may be another's.
        if under_way.get(&self.key).is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
            under_way.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(flights: &Arc<Flights<u8, u32>>, key: u8) -> (Landing<u32>, Claim<u8, u32>) {
        match flights.join(key) {
            Joined::Claimed(landing, claim) => (landing, claim),
            Joined::UnderWay(_) => panic!("{key} is under way"),
        }
    }

    #[tokio::test]
    async fn all_who_joined_get_the_outcome_of_one_flight() {
        let flights = Flights::new();
        let (first, claim) = claimed(&flights, 1);
        let Joined::UnderWay(second) = flights.join(1) else { panic!("claimed twice") };
        claim.land(Ok(7));
        assert_eq!((first.landed().await, second.landed().await), (Ok(7), Ok(7)));
        assert_eq!(flights.count(), 0);
        let _again = claimed(&flights, 1);
    }

    #[tokio::test]
    async fn a_claim_that_is_dropped_tells_those_who_wait() {
        let flights = Flights::new();
        let (landing, claim) = claimed(&flights, 1);
        drop(claim);
        assert!(matches!(landing.landed().await, Err(ColdError::Unavailable { .. })));
    }

    #[tokio::test]
    async fn a_flight_is_abandoned_once_nobody_waits_and_its_key_is_free_at_once() {
        let flights = Flights::new();
        let (first, claim_1) = claimed(&flights, 1);
        let (second, claim_2) = claimed(&flights, 2);
        let claims = [&claim_1, &claim_2];
        let mut gone = Box::pin(Claim::abandoned(&claims));
        drop(first);
        assert!(futures::poll!(&mut gone).is_pending());
        let rejoined = flights.look(&1);
        drop(second);
        assert!(futures::poll!(&mut gone).is_pending(), "one joined again");
        drop(rejoined);
        gone.await;
        let (landing, fresh) = claimed(&flights, 1);
        drop(claim_1);
        assert_eq!(flights.count(), 1, "the old claim does not end the new flight");
        fresh.land(Ok(3));
        assert_eq!(landing.landed().await, Ok(3));
    }
}
