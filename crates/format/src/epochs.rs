//! Which leader epoch wrote which offsets: the lineage of a log.
//!
//! **Owns** the chain of (epoch, start offset), the answers to OffsetForLeaderEpoch, and the comparison of two lineages.
//!
//! Invariant: epochs and start offsets ascend strictly. An epoch that wrote nothing is in no chain.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange};

use crate::{
    cursor::{Put, Reader},
    envelope::{self, Kind},
    error::DecodeError,
};

const FILE: Kind = Kind { what: "leader epoch file", magic: *b"TLEP", version: 1 };

/// Bytes of an entry where a chain is stored.
const ENTRY_BYTES: usize = 12;

/// Where an epoch's offsets begin; they end where the next one's begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Its first offset in this log.
    pub start: Offset,
}

/// Epochs or offsets that do not ascend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("leader epoch {epoch} at offset {start} does not follow epoch {latest}", epoch = next.epoch, start = next.start, latest = latest.epoch)]
pub struct EpochOrderError {
    /// The last entry before.
    pub latest: EpochStart,
    /// The entry that does not follow it.
    pub next: EpochStart,
}

/// The leader epochs of a log, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<EpochStart>", into = "Vec<EpochStart>")]
pub struct EpochChain {
    entries: Vec<EpochStart>,
}

impl TryFrom<Vec<EpochStart>> for EpochChain {
    type Error = EpochOrderError;

    fn try_from(entries: Vec<EpochStart>) -> Result<Self, Self::Error> {
        for pair in entries.windows(2) {
            if pair[0].epoch >= pair[1].epoch || pair[0].start >= pair[1].start {
                return Err(EpochOrderError { latest: pair[0], next: pair[1] });
            }
        }
        Ok(Self { entries })
    }
}

impl From<EpochChain> for Vec<EpochStart> {
    fn from(chain: EpochChain) -> Self {
        chain.entries
    }
}

impl EpochChain {
    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[EpochStart] {
        &self.entries
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The newest epoch.
    #[must_use]
    pub fn latest(&self) -> Option<LeaderEpoch> {
        self.entries.last().map(|entry| entry.epoch)
    }

    /// Notes that a batch of `epoch` begins at `start`. The latest epoch again changes nothing. A newer one takes the
    /// place of entries that begin at or above `start`: those wrote nothing that is left.
    ///
    /// # Panics
    /// For an epoch below the latest: whoever appends has checked that ([`EpochChain::try_assign`] refuses it).
    pub fn assign(&mut self, epoch: LeaderEpoch, start: Offset) {
        if let Err(error) = self.try_assign(epoch, start) {
            panic!("{error}");
        }
    }

    /// As [`EpochChain::assign`], for batches from elsewhere. Answers whether the chain changed.
    ///
    /// # Errors
    /// For an epoch below the latest.
    pub fn try_assign(&mut self, epoch: LeaderEpoch, start: Offset) -> Result<bool, EpochOrderError> {
        if let Some(latest) = self.entries.last() {
            if latest.epoch > epoch {
                return Err(EpochOrderError { latest: *latest, next: EpochStart { epoch, start } });
            }
            if latest.epoch == epoch {
                return Ok(false);
            }
        }
        self.truncate_from_end(start);
        self.entries.push(EpochStart { epoch, start });
        Ok(true)
    }

    /// The epoch that wrote `offset`; `None` below the first entry.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let above = self.entries.partition_point(|entry| entry.start <= offset);
        above.checked_sub(1).map(|index| self.entries[index].epoch)
    }

    /// Kafka's OffsetForLeaderEpoch: the largest epoch here that is not above `epoch`, and one past its last offset. An
    /// epoch before all of these ends where they begin, and is answered with itself. `None` for one above the latest.
    #[must_use]
    pub fn end_offset_for(&self, epoch: LeaderEpoch, log_end: Offset) -> Option<(LeaderEpoch, Offset)> {
        let above = self.entries.partition_point(|entry| entry.epoch <= epoch);
        let floor = above.checked_sub(1).map(|index| self.entries[index].epoch);
        match (floor, self.entries.get(above)) {
            (Some(floor), Some(next)) => Some((floor, next.start)),
            (None, Some(first)) => Some((epoch, first.start)),
            (Some(latest), None) if latest == epoch => Some((latest, log_end)),
            (_, None) => None,
        }
    }

    /// Forgets what begins at or above `end`: the log was cut there.
    pub fn truncate_from_end(&mut self, end: Offset) {
        let kept = self.entries.partition_point(|entry| entry.start < end);
        self.entries.truncate(kept);
    }

    /// Forgets epochs that end at or below `start`, where the log now begins; the one at `start` begins there.
    pub fn truncate_from_start(&mut self, start: Offset) {
        let above = self.entries.partition_point(|entry| entry.start <= start);
        if let Some(index) = above.checked_sub(1) {
            self.entries.drain(..index);
            self.entries[0].start = start;
        }
    }

    /// The chain of a part of the log, which begins at the part's base.
    #[must_use]
    pub fn slice(&self, range: OffsetRange) -> Self {
        let mut part = self.clone();
        part.truncate_from_start(range.base);
        part.truncate_from_end(range.end);
        part
    }

    /// Where two lineages part: below the answer both logs hold the same records. It is the lesser end of the newest
    /// epoch that both have, since an epoch has one leader. `None` where they share no epoch.
    #[must_use]
    pub fn common_end(&self, self_end: Offset, other: &Self, other_end: Offset) -> Option<Offset> {
        let shared = self.entries.iter().rev().map(|entry| entry.epoch).find(|epoch| other.holds(*epoch))?;
        let (_, ours) = self.end_offset_for(shared, self_end)?;
        let (_, theirs) = other.end_offset_for(shared, other_end)?;
        Some(ours.min(theirs))
    }

    fn holds(&self, epoch: LeaderEpoch) -> bool {
        self.entries.binary_search_by_key(&epoch, |entry| entry.epoch).is_ok()
    }

    /// The `leader-epoch-checkpoint` file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        self.put(&mut payload);
        envelope::seal(FILE, &payload)
    }

    /// Reads [`EpochChain::encode`]'s file.
    ///
    /// # Errors
    /// For damage, another kind of file, or a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (_, payload) = envelope::open(FILE, bytes)?;
        let mut reader = Reader::new(FILE.what, payload);
        let chain = Self::take(&mut reader)?;
        reader.finish()?;
        Ok(chain)
    }

    pub(crate) fn put(&self, output: &mut impl Put) {
        output.put_count(self.entries.len());
        for entry in &self.entries {
            output.put_i32(entry.epoch.to_wire());
            output.put_offset(entry.start);
        }
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count(ENTRY_BYTES)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(EpochStart { epoch: reader.leader_epoch()?, start: reader.offset()? });
        }
        Self::try_from(entries).map_err(|_| reader.invalid("its epochs do not ascend"))
    }
}

#[cfg(test)]
mod tests;
