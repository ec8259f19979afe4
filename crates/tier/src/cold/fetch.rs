//! The units of an object: from the ring, the cache, another's flight, or the bucket.
//!
//! **Owns** the requests for units: adjacent missing ones together, up to [`COLD_UNITS_PER_GET_MAX`], each checked before
//! anybody sees it. A unit that fails is asked for once more on its own, then reported.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, future::join_all};
use tidelog_object::{BodySink, ChunkKey, Expected};
use tidelog_replica::ColdError;
use tidelog_types::{TopicPartition, limits::COLD_UNITS_PER_GET_MAX};

use super::{
    Shared,
    charged::Charged,
    flights::{Claim, Joined, Landing},
    get::Admission,
    intake::Intake,
    object::{OpenObject, Unit, cut},
    ring::NewUnit,
};

/// A unit that somebody has to fetch: its place among the object's units, and the claim.
pub(crate) type ClaimedUnit = (usize, Claim<ChunkKey, Charged>);

/// Where a unit is.
pub(crate) enum Slot {
    Ready(Charged),
    Coming(Landing<Charged>),
    Missing,
    /// At hand, behind one that is not.
    Later,
}

impl Shared {
    /// The units at `wanted`, in order, up to the first that cannot be had, and why not. Where some are at hand, or `waits`
    /// forbids to wait, those alone.
    ///
    /// Nobody waits who holds a unit: two readers who each hold what the other waits for would wait for ever. So those at hand
    /// are an answer, and so are those that landed with the first.
    pub(crate) async fn units(
        self: &Arc<Self>,
        place: TopicPartition,
        object: &Arc<OpenObject>,
        wanted: Range<usize>,
        waits: bool,
    ) -> (Vec<Charged>, Option<ColdError>) {
        let keys: Vec<ChunkKey> = object.units[wanted.clone()]
            .iter()
            .map(|unit| self.chunk_key(place, &object.entry, unit.number))
            .collect();
        let slots =
            join_all(keys.iter().zip(wanted.clone()).map(|(key, at)| self.look(key, &object.units[at])));
        let mut slots = slots.await;
        let at_hand = slots.iter().take_while(|slot| matches!(slot, Slot::Ready(_))).count();
        if at_hand > 0 || !waits {
            slots.truncate(at_hand);
        }
        // What is at hand behind what is missing is looked for again when it is its turn.
        for slot in slots.iter_mut().skip(at_hand).filter(|slot| matches!(slot, Slot::Ready(_))) {
            *slot = Slot::Later;
        }
        let mut claimed = Vec::new();
        for ((slot, key), at) in slots.iter_mut().zip(&keys).zip(wanted) {
            if matches!(slot, Slot::Missing) {
                *slot = self.claim(key, at, &mut claimed);
            }
        }
        for run in runs(claimed) {
            self.launch(place, Arc::clone(object), run, None);
        }
        let mut units = Vec::with_capacity(slots.len());
        let mut failed = None;
        for slot in slots {
            let unit = match slot {
                Slot::Ready(unit) => Ok(unit),
                Slot::Coming(landing) if units.is_empty() => {
                    self.metrics.store_hits.inc();
                    landing.landed().await
                }
                Slot::Coming(landing) => match landing.landed().now_or_never() {
                    Some(unit) => {
                        self.metrics.store_hits.inc();
                        unit
                    }
                    None => break,
                },
                Slot::Later => break,
                Slot::Missing => unreachable!("missing units were claimed or joined"),
            };
            match unit {
                Ok(unit) => units.push(unit),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        (units, failed)
    }

    /// Where a unit is, without asking the bucket.
    async fn look(&self, key: &ChunkKey, unit: &Unit) -> Slot {
        let now = self.clock.monotonic();
        if let Some(unit) = self.ring.get(key, now) {
            self.metrics.ring_hits.inc();
            return Slot::Ready(unit);
        }
        if let Some(landing) = self.unit_flights.look(key) {
            self.metrics.joined.inc();
            return Slot::Coming(landing);
        }
        match self.look_in_cache(key, unit).await {
            Some(unit) => {
                self.metrics.cache_hits.inc();
                Slot::Ready(unit)
            }
            None => Slot::Missing,
        }
    }

    /// A unit from the cache, which it leaves in the ring too, where there is memory: small reads of one unit would else
    /// read it from the cache's disk again and again.
    pub(crate) async fn look_in_cache(&self, key: &ChunkKey, unit: &Unit) -> Option<Charged> {
        let bytes = self.cache.get(key).await?;
        if bytes.len() as u64 != unit.bytes() {
            return None;
        }
        let Some(permit) = self.try_memory(unit.bytes()) else {
            // It is in memory already: those who wait for theirs wait for its end too.
            return Some(Charged::new(bytes, self.memory.charge(unit.bytes())));
        };
        let (charged, end) = (Charged::new(bytes, permit), unit.end);
        let new = NewUnit { key: *key, unit: charged.clone(), end, ahead: false, cached: true };
        self.ring.insert(new, self.clock.monotonic());
        self.keep_sweeping();
        Some(charged)
    }

    /// Claims a missing unit, or joins who did meanwhile.
    pub(crate) fn claim(&self, key: &ChunkKey, at: usize, claimed: &mut Vec<ClaimedUnit>) -> Slot {
        match self.unit_flights.join(*key) {
            Joined::UnderWay(landing) => {
                self.metrics.joined.inc();
                Slot::Coming(landing)
            }
            Joined::Claimed(landing, claim) => {
                // It may have landed since it was looked for.
                if let Some(unit) = self.ring.get(key, self.clock.monotonic()) {
                    claim.land(Ok(unit.clone()));
                    return Slot::Ready(unit);
                }
                claimed.push((at, claim));
                Slot::Coming(landing)
            }
        }
    }

    /// Has adjacent units fetched by one request. Without an admission the request waits for one, as long as anybody wants
    /// one of the units.
    pub(crate) fn launch(
        self: &Arc<Self>,
        place: TopicPartition,
        object: Arc<OpenObject>,
        run: Vec<ClaimedUnit>,
        admission: Option<Admission>,
    ) {
        let shared = Arc::clone(self);
        self.fly("cold units", async move {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
            let range = object.units[first.0].position.start..object.units[last.0].position.end;
            let ahead = admission.is_some();
            let admission = match admission {
                Some(admission) => Some(admission),
                None => {
                    let claims: Vec<_> = run.iter().map(|(_, claim)| claim).collect();
                    shared.admit(1, range.end.saturating_sub(range.start), &claims).await
                }
            };
            let Some(admission) = admission else { return };
            shared.fetch_run(place, &object, range, run, admission, ahead).await;
            shared.relieve();
        });
    }

    async fn fetch_run(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        range: Range<u64>,
        run: Vec<ClaimedUnit>,
        mut admission: Admission,
        ahead: bool,
    ) {
        let mut intake = Intake::new(self, place, object, run, &mut admission, ahead);
        let outcome = self.get_batches_into(place, object, range, &mut intake).await;
        for (at, claim) in intake.left() {
            let unit = &object.units[at];
            let bytes = match &outcome {
                Ok(()) => self.fetch_again(place, object, unit).await,
                Err(failed) => Err(failed.clone()),
            };
            match bytes {
                Ok(bytes) => self.land_unit(place, object, unit, claim, bytes, &mut admission, ahead),
                Err(failed) => claim.land(Err(failed)),
            }
        }
    }

    /// Reads a range of an open object, as it came.
    pub(crate) async fn get_batches(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, ColdError> {
        let mut chunks = Vec::new();
        self.get_batches_into(place, object, range, &mut chunks).await?;
        Ok(chunks)
    }

    /// Reads a range of an open object, under the ETag that it was opened with. Where the store has it under another one, it is
    /// opened anew by the next who wants it, and its bytes are asked for once more: an object that was copied in place has
    /// another ETag and the bytes that were written, of which their checksums tell.
    async fn get_batches_into(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        range: Range<u64>,
        sink: &mut dyn BodySink,
    ) -> Result<(), ColdError> {
        let (base, object_bytes) = (object.entry.range.base, object.entry.object_bytes);
        let expect = Expected { object_bytes, etag: object.etag.clone() };
        match self.get_range_into(&object.key, base, range.clone(), expect, sink).await {
            Err(ColdError::Damaged { .. }) if object.etag.is_some() => {
                self.objects.remove(&(place, object.entry.object));
                sink.cut(0);
                let expect = Expected { object_bytes, etag: None };
                self.get_range_into(&object.key, base, range, expect, sink).await?;
            }
            got => {
                got?;
            }
        }
        Ok(())
    }

    /// Asks once more for a unit that failed its checks.
    async fn fetch_again(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        unit: &Unit,
    ) -> Result<Bytes, ColdError> {
        let chunks = self.get_batches(place, object, unit.position.clone()).await?;
        let bytes = cut(&chunks, 0..usize::try_from(unit.bytes()).unwrap_or(usize::MAX));
        bytes.filter(|bytes| self.is_whole(object, unit, bytes)).ok_or_else(|| {
            let key = &object.key;
            self.complain(
                "batches of the bucket are damaged",
                key,
                &format_args!("from offset {} on", unit.base),
            );
            ColdError::Damaged { why: format!("`{key}`: batches from offset {} on", unit.base).into() }
        })
    }

    /// Whether the bytes of a unit are what was written.
    pub(crate) fn is_whole(&self, object: &OpenObject, unit: &Unit, bytes: &[u8]) -> bool {
        let damaged = self.damaged_intervals(object, unit, bytes);
        self.metrics.corrupt_intervals.add(damaged);
        damaged == 0
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one landing")]
    pub(crate) fn land_unit(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        unit: &Unit,
        claim: Claim<ChunkKey, Charged>,
        bytes: Bytes,
        admission: &mut Admission,
        ahead: bool,
    ) {
        let key = self.chunk_key(place, &object.entry, unit.number);
        let permit = admission.permit.split(unit.bytes().min(admission.permit.bytes()));
        let charged = Charged::new(bytes, permit);
        let unit = NewUnit { key, unit: charged.clone(), end: unit.end, ahead, cached: false };
        // In the ring before the flight ends, so that whoever claims it next finds it.
        self.ring.insert(unit, self.clock.monotonic());
        self.keep_sweeping();
        claim.land(Ok(charged));
    }
}

/// Cuts claims into runs of adjacent units, each of which is one request.
pub(crate) fn runs(claimed: Vec<ClaimedUnit>) -> Vec<Vec<ClaimedUnit>> {
    let units_max = usize::try_from(COLD_UNITS_PER_GET_MAX).unwrap_or(usize::MAX);
    let mut runs: Vec<Vec<ClaimedUnit>> = Vec::new();
    for claimed in claimed {
        match runs.last_mut() {
            Some(run)
                if run.len() < units_max && run.last().is_some_and(|(last, _)| last + 1 == claimed.0) =>
            {
                run.push(claimed);
            }
            _ => runs.push(vec![claimed]),
        }
    }
    runs
}
