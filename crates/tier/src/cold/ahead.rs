//! Readahead: carries out what the windows of sequential readers order, across the borders of objects.
//!
//! Nothing here waits for a budget: what cannot be admitted at once is not begun, and the reader's next read orders again.
//! So nothing is ever queued for a reader that went elsewhere.

use std::{ops::Range, sync::Arc};

use tidelog_replica::ColdPlace;
use tidelog_types::{
    Offset,
    limits::{COLD_UNIT_BYTES, COLD_UNITS_PER_GET_MAX},
};

use super::{
    Shared,
    fetch::runs,
    object::{OpenObject, Unit},
    read::is_small,
    streams::{Cursor, Order, ReaderId},
};

/// The largest request.
const REQUEST_BYTES: u64 = COLD_UNIT_BYTES * COLD_UNITS_PER_GET_MAX;

/// Whether one more unit brings an order nearer to its bytes: rounded to units, a large order is whole requests.
fn is_wanted(asked: u64, bytes: u64) -> bool {
    asked == 0 || asked.saturating_add(COLD_UNIT_BYTES / 2) <= bytes
}

/// How far an order got by the end of an object.
struct Progress {
    asked: u64,
    /// The next unit; `None` at the object's end.
    next: Option<usize>,
    /// No more can be admitted now.
    stopped: bool,
}

impl Shared {
    /// A read ended at `next`: what its reader will want is asked for in the background.
    pub(crate) fn go_ahead(self: &Arc<Self>, place: &ColdPlace, reader: ReaderId, next: Offset, bytes: u64) {
        let order = self.lock_streams().end(reader, next, bytes);
        if let Some(order) = order {
            let (shared, place) = (Arc::clone(self), place.clone());
            self.fly("cold readahead", async move { shared.read_ahead(&place, order).await });
        }
    }

    async fn read_ahead(self: &Arc<Self>, place: &ColdPlace, order: Order) {
        let mut cursor = order.cursor;
        let mut asked = 0_u64;
        while is_wanted(asked, order.bytes) && self.lock_streams().is_known(order.reader) {
            let (Cursor::Offset(at) | Cursor::Unit(at, _)) = cursor;
            // Errors are left to the reader, who meets them where they matter.
            let Ok(Some(entry)) = self.entry_at(place, at).await else { break };
            let Ok(object) = self.open(place, &entry, is_small(&entry)).await else { break };
            let first = match cursor {
                Cursor::Unit(_, unit) => unit,
                Cursor::Offset(at) => object.unit_of(object.index.interval_for_offset(at)),
            };
            let progress = self.ask_ahead(place, &object, first, asked, order.bytes).await;
            asked = progress.asked;
            cursor = match progress.next {
                Some(unit) => Cursor::Unit(entry.range.base, unit),
                None => Cursor::Unit(entry.range.end, 0),
            };
            // The rest of a large order begins with the next object, as a request of its own: requests stay large, and the next
            // object's index is not asked for beside them.
            let ends_here = progress.next.is_none() && asked >= REQUEST_BYTES / 2;
            if progress.stopped || ends_here {
                break;
            }
        }
        self.lock_streams().carried_out(order.reader, cursor, asked);
    }

    /// Asks for units of an object from `first` on until about `bytes` were asked for, of which `asked` were elsewhere.
    async fn ask_ahead(
        self: &Arc<Self>,
        place: &ColdPlace,
        object: &Arc<OpenObject>,
        first: usize,
        asked: u64,
        bytes: u64,
    ) -> Progress {
        let units_max = usize::try_from(COLD_UNITS_PER_GET_MAX).unwrap_or(1);
        let mut progress = Progress { asked, next: None, stopped: false };
        let mut run = first..first;
        for (at, unit) in object.units.iter().enumerate().skip(first) {
            if !is_wanted(progress.asked, bytes) {
                progress.next = Some(at);
                break;
            }
            progress.asked = progress.asked.saturating_add(unit.bytes());
            let key = self.chunk_key(place.place, &object.entry, unit.number);
            let here = self.ring.holds(&key)
                || self.unit_flights.look(&key).is_some()
                || self.look_in_cache(&key, unit).await.is_some();
            if !here {
                run.end = at + 1;
            }
            if here || run.len() >= units_max {
                if !self.launch_ahead(place, object, run, &mut progress) {
                    return progress;
                }
                run = at + 1..at + 1;
            }
        }
        self.launch_ahead(place, object, run, &mut progress);
        progress
    }

    /// Begins a request for adjacent units. Where it is not admitted, they are not asked for after all.
    fn launch_ahead(
        self: &Arc<Self>,
        place: &ColdPlace,
        object: &Arc<OpenObject>,
        run: Range<usize>,
        progress: &mut Progress,
    ) -> bool {
        if run.is_empty() {
            return true;
        }
        let bytes: u64 = object.units[run.clone()].iter().map(Unit::bytes).sum();
        // Admitted before anything is claimed: a claim that is given up would fail those who joined it.
        let Some(admission) = self.try_admit_ahead(bytes) else {
            progress.asked = progress.asked.saturating_sub(bytes);
            (progress.next, progress.stopped) = (Some(run.start), true);
            return false;
        };
        let mut claimed = Vec::with_capacity(run.len());
        for at in run {
            let key = self.chunk_key(place.place, &object.entry, object.units[at].number);
            // Nobody here waits for what comes.
            let _landing = self.claim(&key, at, &mut claimed);
        }
        let mut admission = Some(admission);
        for run in runs(claimed) {
            // Where others took units out of the middle, what is behind them is asked for only if somebody waits for it.
            self.launch(place.place, Arc::clone(object), run, admission.take());
        }
        true
    }
}
