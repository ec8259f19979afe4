//! What goes wrong on purpose, by counting rather than by chance: equal runs give equal numbers of faults.

use std::sync::atomic::Ordering;

use super::{Knobs, State};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Served,
    Busy,
    Hang,
    Cut,
}

/// The fate of the next request. A request that does not read cannot be cut.
pub(super) fn next(state: &State, knobs: &Knobs, is_get: bool) -> Fate {
    let (busy, hang) = (knobs.busy_per_mille, knobs.hang_per_mille);
    let cut = if is_get { knobs.cut_per_mille } else { 0 };
    if busy == 0 && hang == 0 && cut == 0 {
        return Fate::Served;
    }
    // Multiplying by an odd number spreads the faults evenly over every thousand requests.
    let turn = state.chance.fetch_add(1, Ordering::Relaxed).wrapping_mul(617) % 1000;
    let turn = u32::try_from(turn).unwrap_or(0);
    let fate = if turn < busy {
        Fate::Busy
    } else if turn < busy + hang {
        Fate::Hang
    } else if turn < busy + hang + cut {
        Fate::Cut
    } else {
        Fate::Served
    };
    if fate != Fate::Served {
        state.counts.faults.fetch_add(1, Ordering::Relaxed);
    }
    fate
}
