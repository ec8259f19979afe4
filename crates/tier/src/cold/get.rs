//! GETs of cold reads: admitted by the budgets, counted, and their failures told in the reader's words.
//!
//! **Owns** admission, the memory of what the store does not have, and what an error means to a reader.
//!
//! A request waits for its permits before it is on the wire, and is dropped there once nobody wants it any more. On the
//! wire it runs to its end.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use tidelog_object::{BodySink, ETag, Expected, GetError};
use tidelog_replica::ColdError;
use tidelog_runtime::{Budget, Permit};
use tidelog_types::Offset;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use super::{Shared, flights::Claim};

/// How long a store's word that an object is missing is believed without asking again (B92: two tries of a key).
const MISSING_BELIEVED_FOR: Duration = Duration::from_secs(30);

/// Missing objects that are remembered.
const MISSING_MAX: usize = 1_024;

/// Tries of a key that the store does not have: after the first the reader looks at a newer manifest.
const MISSING_TRIES: u32 = 2;

/// The right to have requests on the wire, and memory for their answers.
pub(crate) struct Admission {
    pub permit: Permit,
    _request: Vec<OwnedSemaphorePermit>,
}

/// A key that the store does not have.
pub(crate) struct Missing {
    tries: u32,
    last: Duration,
}

/// What a range of an object was answered with.
pub(crate) struct Got {
    pub chunks: Vec<Bytes>,
    pub etag: ETag,
}

impl Shared {
    /// Waits for `requests` requests and `bytes` of memory; `None` once all claims are abandoned.
    pub(crate) async fn admit<K: Ord + Copy, V: Clone>(
        &self,
        requests: u32,
        bytes: u64,
        claims: &[&Claim<K, V>],
    ) -> Option<Admission> {
        let admission = async {
            // A closed semaphore: the node stops.
            let request = self.gets.clone().acquire_many_owned(requests).await.ok()?;
            self.make_room(bytes);
            let permit = self.memory.acquire(bytes).await;
            self.pace.turn(&*self.clock, bytes).await;
            Some(Admission { permit, _request: vec![request] })
        };
        tokio::select! {
            // What nobody waits for does not begin, even if it could.
            biased;
            () = Claim::abandoned(claims) => None,
            admission = admission => admission,
        }
    }

    /// Takes what readahead needs if it is free now: readahead never waits, and takes memory only from units that were
    /// read, or whose readers left.
    pub(crate) fn try_admit_ahead(&self, bytes: u64) -> Option<Admission> {
        let ahead = self.ahead_gets.clone().try_acquire_owned().ok()?;
        let request = self.gets.clone().try_acquire_owned().ok()?;
        let permit = self.try_memory(bytes)?;
        // Nothing is read ahead of a reader whom the pace holds back.
        if !self.pace.try_turn(self.clock.monotonic(), bytes) {
            return None;
        }
        Some(Admission { permit, _request: vec![ahead, request] })
    }

    /// Takes memory if it is free, or held by units that were read or whose readers left.
    pub(crate) fn try_memory(&self, bytes: u64) -> Option<Permit> {
        loop {
            if let Some(permit) = self.memory.try_acquire(bytes) {
                return Some(permit);
            }
            if !self.ring.let_one_unwanted_go(self.clock.monotonic()) {
                return None;
            }
        }
    }

    /// Lets units go until `bytes` are free or none is left.
    fn make_room(&self, bytes: u64) {
        while self.memory.free() < bytes && self.ring.let_one_go() {}
    }

    /// Lets units go while somebody waits for memory: those who wait were counted on what landed since.
    pub(crate) fn relieve(&self) {
        while self.memory.waiting() > 0 && self.ring.let_one_go() {}
    }

    /// Reads a range of an object; `base` is where the object's offsets begin.
    pub(crate) async fn get_range(
        &self,
        key: &str,
        base: Offset,
        range: Range<u64>,
        expect: Expected,
    ) -> Result<Got, ColdError> {
        let mut chunks = Vec::new();
        let etag = self.get_range_into(key, base, range, expect, &mut chunks).await?;
        Ok(Got { chunks, etag })
    }

    /// As [`Shared::get_range`], into a sink that takes the bytes as they come.
    pub(crate) async fn get_range_into(
        &self,
        key: &str,
        base: Offset,
        range: Range<u64>,
        expect: Expected,
        sink: &mut dyn BodySink,
    ) -> Result<ETag, ColdError> {
        self.known_missing(key)?;
        let bytes = range.end.saturating_sub(range.start);
        self.metrics.gets.inc();
        self.metrics.gets_in_flight.add(1);
        let counted = InFlight(&self.metrics.gets_in_flight);
        let outcome = self.store.get_range_into(key, range, expect, sink).await;
        drop(counted);
        match outcome {
            Ok(etag) => {
                self.metrics.get_bytes.add(bytes);
                self.found(key);
                Ok(etag)
            }
            Err(failed) => Err(self.failed(key, base, failed)),
        }
    }

    /// Reads a whole small object.
    pub(crate) async fn get_whole(
        &self,
        key: &str,
        base: Offset,
        bytes_max: u64,
    ) -> Result<Bytes, ColdError> {
        self.known_missing(key)?;
        self.metrics.gets.inc();
        self.metrics.gets_in_flight.add(1);
        let counted = InFlight(&self.metrics.gets_in_flight);
        let outcome = self.store.get(key, bytes_max).await;
        drop(counted);
        match outcome {
            Ok(fetched) => {
                self.metrics.get_bytes.add(fetched.bytes.len() as u64);
                self.found(key);
                Ok(fetched.bytes)
            }
            Err(failed) => Err(self.failed(key, base, failed)),
        }
    }

    /// What an error of the store means to a reader.
    fn failed(&self, key: &str, base: Offset, failed: GetError) -> ColdError {
        match failed {
            GetError::NotFound { .. } => self.missing(key, base),
            GetError::Retriable(failure) => ColdError::Unavailable { why: failure.to_string().into() },
            // Keys may be changed and rights be given while this runs; the store's health says it aloud.
            GetError::Refused(refusal) => ColdError::Unavailable { why: refusal.to_string().into() },
            GetError::Corrupt { .. } => {
                self.complain("an object of the bucket cannot be used", key, &failed);
                ColdError::Damaged { why: failed.to_string().into() }
            }
        }
    }

    fn missing(&self, key: &str, base: Offset) -> ColdError {
        self.metrics.missing.inc();
        let now = self.clock.monotonic();
        let mut missing = self.lock_missing();
        if missing.len() >= MISSING_MAX
            && let Some(oldest) =
                missing.iter().min_by_key(|(_, known)| known.last).map(|(key, _)| key.clone())
        {
            missing.remove(&oldest);
        }
        let known = missing.entry(key.to_owned()).or_insert(Missing { tries: 0, last: now });
        known.tries = known.tries.saturating_add(1);
        known.last = now;
        let tries = known.tries;
        drop(missing);
        if tries < MISSING_TRIES {
            warn!(key, "the bucket does not have an object; the manifest may have moved on");
            return ColdError::NotHeld { offset: base };
        }
        self.complain(
            "the bucket does not have an object that the manifest names",
            key,
            &format_args!("asked for {tries} times"),
        );
        absent(key)
    }

    fn known_missing(&self, key: &str) -> Result<(), ColdError> {
        let now = self.clock.monotonic();
        let missing = self.lock_missing();
        match missing.get(key) {
            Some(known)
                if known.tries >= MISSING_TRIES && now.saturating_sub(known.last) < MISSING_BELIEVED_FOR =>
            {
                Err(absent(key))
            }
            _ => Ok(()),
        }
    }

    fn found(&self, key: &str) {
        self.lock_missing().remove(key);
    }
}

fn absent(key: &str) -> ColdError {
    ColdError::Damaged { why: format!("the bucket does not have `{key}`, which the manifest names").into() }
}

/// Counts a request on the wire down again, also where its future is dropped.
struct InFlight<'a>(&'a tidelog_runtime::metrics::Gauge);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

/// A lane of its own for look-ups, so that neither they nor reads wait for the other.
pub(crate) struct LookUpLane {
    requests: Semaphore,
    memory: Budget,
}

impl LookUpLane {
    pub(crate) fn new(requests_max: usize, memory: Budget) -> Self {
        Self { requests: Semaphore::new(requests_max.max(1)), memory }
    }

    /// Bytes held now.
    pub(crate) fn used(&self) -> u64 {
        self.memory.used()
    }

    /// Waits for a request and memory.
    pub(crate) async fn admit(&self, bytes: u64) -> Option<(tokio::sync::SemaphorePermit<'_>, Permit)> {
        let request = self.requests.acquire().await.ok()?;
        Some((request, self.memory.acquire(bytes).await))
    }
}
