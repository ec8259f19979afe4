//! What a request for units brings: each unit lands as soon as its last byte is here.
//!
//! **Owns** the way from a body to units: they are checked while they are fresh in the processor's caches, and who waits for the
//! first of sixteen does not wait for the last.

use std::{ops::Range, sync::Arc, vec};

use bytes::Bytes;
use tidelog_object::{BodyPlan, BodySink};
use tidelog_runtime::Buffer;
use tidelog_types::TopicPartition;

use super::{
    Shared,
    fetch::ClaimedUnit,
    flights::Claim,
    get::Admission,
    object::{OpenObject, Unit},
};

type UnitClaim = Claim<tidelog_object::ChunkKey, super::charged::Charged>;

/// See the module.
pub(crate) struct Intake<'a> {
    shared: &'a Shared,
    place: TopicPartition,
    object: &'a OpenObject,
    admission: &'a mut Admission,
    ahead: bool,
    /// Adjacent units, each with its claim until it lands.
    units: Vec<(usize, Option<UnitClaim>)>,
    /// Where the first unit begins in the object.
    start: u64,
    /// Where the next byte lies in the object.
    at: u64,
    /// The unit that it belongs to.
    current: usize,
    /// What is here of that unit; none of one whose beginning was taken back.
    buffer: Option<Buffer>,
}

impl<'a> Intake<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        place: TopicPartition,
        object: &'a OpenObject,
        run: Vec<ClaimedUnit>,
        admission: &'a mut Admission,
        ahead: bool,
    ) -> Self {
        let units: Vec<_> = run.into_iter().map(|(at, claim)| (at, Some(claim))).collect();
        let start = units.first().map_or(0, |(at, _)| object.units[*at].position.start);
        Self { shared, place, object, admission, ahead, units, start, at: start, current: 0, buffer: None }
    }

    /// The units that did not land: they did not come, or are damaged.
    pub(crate) fn left(self) -> vec::IntoIter<ClaimedUnit> {
        let left: Vec<_> = self.units.into_iter().filter_map(|(at, claim)| Some((at, claim?))).collect();
        left.into_iter()
    }

    fn unit(&self) -> Option<&'a Unit> {
        self.units.get(self.current).map(|(at, _)| &self.object.units[*at])
    }

    /// Adds a part of the current unit, whose end it does not pass.
    fn gather(&mut self, part: &Bytes, unit: &Unit) {
        let length = usize::try_from(unit.bytes()).unwrap_or(usize::MAX);
        if self.at == unit.position.start {
            self.buffer = Some(self.shared.buffers.take(length));
        }
        if let Some(buffer) = &mut self.buffer {
            buffer.add(part);
        }
    }

    fn complete(&mut self, unit: &Unit, bytes: Bytes) {
        if !self.shared.is_whole(self.object, unit, &bytes) {
            return;
        }
        let Some(claim) = self.units.get_mut(self.current).and_then(|(_, claim)| claim.take()) else {
            return;
        };
        self.shared.land_unit(self.place, self.object, unit, claim, bytes, self.admission, self.ahead);
    }
}

impl BodySink for Intake<'_> {
    fn take(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let Some(unit) = self.unit() else { return };
            let is_wanted = self.units[self.current].1.is_some();
            let left = usize::try_from(unit.position.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
            // A piece that is a unit is taken as it is.
            let is_unit = self.at == unit.position.start && bytes.len() == left;
            let part = bytes.split_to(left.min(bytes.len()));
            if is_wanted && !is_unit {
                self.gather(&part, unit);
            }
            self.at = self.at.saturating_add(part.len() as u64);
            if self.at < unit.position.end {
                return;
            }
            let whole = match self.buffer.take() {
                Some(buffer) => Some(buffer.freeze()),
                None => is_unit.then_some(part),
            };
            if let Some(bytes) = whole.filter(|_| is_wanted) {
                self.complete(unit, bytes);
            }
            self.current += 1;
        }
    }

    fn cut(&mut self, bytes: u64) {
        let to = self.start.saturating_add(bytes);
        let ends = |(at, _): &(usize, Option<UnitClaim>)| self.object.units[*at].position.end <= to;
        let current = self.units.partition_point(ends);
        let within = to.saturating_sub(
            self.units.get(current).map_or(to, |(at, _)| self.object.units[*at].position.start),
        );
        match &mut self.buffer {
            Some(buffer) if current == self.current => {
                buffer.truncate(usize::try_from(within).unwrap_or(usize::MAX))
            }
            // The beginning of that unit is not here any more: it is asked for again on its own, unless it landed.
            buffer => *buffer = None,
        }
        (self.at, self.current) = (to, current);
    }

    fn plan(&self, range: &Range<u64>) -> Option<BodyPlan> {
        let mut from = range.start;
        let ends = self.units.iter().map(|(at, _)| self.object.units[*at].position.end);
        let ends = ends.filter(|end| (range.start + 1..=range.end).contains(end));
        let pieces = ends.map(|end| end - std::mem::replace(&mut from, end)).collect();
        Some(BodyPlan { pieces, buffers: Arc::clone(&self.shared.buffers) })
    }
}
