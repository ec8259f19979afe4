//! What goes into the log, and what follows from it once it is there.

use std::sync::Arc;

use bytes::Bytes;
use tidelog_core::groups::{
    classic::StoreTicket,
    offsets::{CommittedOffset, Place},
};
use tidelog_wire::ErrorCode;
use tokio::sync::oneshot;

/// One record; without a value it is a tombstone.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: Bytes,
    pub(super) value: Option<Bytes>,
}

impl Entry {
    /// About how many bytes it takes in a batch.
    pub(super) fn bytes(&self) -> usize {
        const FRAMING: usize = 24;
        FRAMING + self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// Who waits for a write.
pub(super) type Answer = oneshot::Sender<Result<(), ErrorCode>>;

/// What is done once the records are durable.
#[derive(Debug)]
pub(super) enum Then {
    /// The machine of a classic group goes on.
    Stored(StoreTicket),
    /// The machine of a group of the consumer protocol is there already: whoever is told of it waited for this.
    Told { answer: Option<Answer> },
    /// Offsets get these values; without one they end.
    Offsets { changes: Vec<(Place, Option<CommittedOffset>)>, answer: Option<Answer> },
    /// The group ends, and its offsets with it.
    Deleted { answer: Option<Answer> },
}

/// Records of one group that are written together, or not at all.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) group: Arc<str>,
    pub(super) entries: Vec<Entry>,
    pub(super) then: Then,
}

impl Write {
    pub(super) fn bytes(&self) -> usize {
        self.entries.iter().map(Entry::bytes).sum()
    }

    /// The offsets that it changes, and what they become.
    pub(super) fn changes(&self) -> impl Iterator<Item = (&Place, Option<&CommittedOffset>)> {
        let changes = match &self.then {
            Then::Offsets { changes, .. } => changes.as_slice(),
            Then::Stored(_) | Then::Told { .. } | Then::Deleted { .. } => &[],
        };
        changes.iter().map(|(place, change)| (place, change.as_ref()))
    }
}
