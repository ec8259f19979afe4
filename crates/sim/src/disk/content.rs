//! One file's bytes: what the running system sees, what a power cut leaves, and what lies between.
//!
//! ```text
//! durable   content at the last honest sync
//! pending   every edit since, in order
//! live      durable with all of pending: the page cache
//! ```
//!
//! A power cut keeps of every 512-byte block any version of its history, independently of all other blocks, and may tear the
//! edit after that version inside the block. Length changes survive as a prefix of their order; one that cut the file
//! takes the bytes beyond with it.

use std::{collections::BTreeMap, io};

use bytes::Bytes;
use tidelog_runtime::{Rng, SeededRng};

/// What a device writes whole or, torn, in part.
const BLOCK_BYTES: usize = 512;

/// Larger files do not belong into memory: a write beyond is the file system's `EFBIG`.
const FILE_BYTES_MAX: usize = 1 << 30;

#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Edit>,
    allocated: usize,
}

#[derive(Debug, Clone)]
enum Edit {
    Write { position: usize, bytes: Bytes },
    Length { from: usize, to: usize },
}

/// How much of a file's pending edits a power cut keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    AllKept,
    AllLost,
    Mixed,
}

impl Content {
    pub(super) fn live(&self) -> &[u8] {
        &self.live
    }

    pub(super) fn durable(&self) -> &[u8] {
        &self.durable
    }

    pub(super) fn allocated(&self) -> usize {
        self.allocated
    }

    /// How many bytes a write of `length` at `position` would add to what is allocated.
    pub(super) fn growth(&self, position: u64, length: usize) -> io::Result<usize> {
        Ok(end_of(position, length)?.saturating_sub(self.allocated))
    }

    pub(super) fn write(&mut self, position: u64, bytes: Bytes) -> io::Result<()> {
        let end = end_of(position, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let position = end - bytes.len();
        apply(&mut self.live, &Edit::Write { position, bytes: bytes.clone() });
        self.allocated = self.allocated.max(self.live.len());
        self.pending.push(Edit::Write { position, bytes });
        Ok(())
    }

    pub(super) fn read(&self, position: u64, length: usize) -> Bytes {
        let start = usize::try_from(position).map_or(self.live.len(), |start| start.min(self.live.len()));
        let end = start.saturating_add(length).min(self.live.len());
        Bytes::copy_from_slice(&self.live[start..end])
    }

    pub(super) fn set_len(&mut self, length: u64) -> io::Result<()> {
        let to = end_of(length, 0)?;
        let edit = Edit::Length { from: self.live.len(), to };
        if self.live.len() != to {
            apply(&mut self.live, &edit);
            self.pending.push(edit);
        }
        self.allocated = to;
        Ok(())
    }

    pub(super) fn allocate(&mut self, length: u64) -> io::Result<()> {
        let allocated = self.allocated.max(end_of(length, 0)?);
        if self.live.len() < allocated {
            self.set_len(length)?;
        }
        self.allocated = allocated;
        Ok(())
    }

    /// Makes everything pending durable. What an earlier failed sync lost stays lost.
    pub(super) fn sync(&mut self) {
        for edit in self.pending.drain(..) {
            apply(&mut self.durable, &edit);
        }
    }

    /// A failed sync, as Linux does it: what was pending counts as clean from now on, whatever reached the device.
    pub(super) fn fail_sync(&mut self, rng: &SeededRng, tears: bool) {
        self.durable = self.survivors(rng, tears);
        self.pending.clear();
    }

    pub(super) fn power_cut(&mut self, rng: &SeededRng, tears: bool) {
        self.durable = self.survivors(rng, tears);
        self.pending.clear();
        self.live.clone_from(&self.durable);
        self.allocated = self.live.len();
    }

    /// Flips a bit of what is stored, in the page cache and on the device. False where the file ends before it.
    pub(super) fn flip_bit(&mut self, position: u64, bit: u32) -> bool {
        let mask = 1u8.rotate_left(bit);
        let Ok(at) = usize::try_from(position) else { return false };
        let Some(byte) = self.live.get_mut(at) else { return false };
        *byte ^= mask;
        if let Some(byte) = self.durable.get_mut(at) {
            *byte ^= mask;
        }
        // A pending write that covers the byte would bring the good one back.
        for edit in &mut self.pending {
            if let Edit::Write { position, bytes } = edit
                && let Some(byte) = at.checked_sub(*position).filter(|at| *at < bytes.len())
            {
                let mut rotten = bytes.to_vec();
                rotten[byte] ^= mask;
                *bytes = Bytes::from(rotten);
            }
        }
        true
    }

    fn survivors(&self, rng: &SeededRng, tears: bool) -> Vec<u8> {
        let fate = match rng.below(6) {
            0 => Fate::AllKept,
            1 => Fate::AllLost,
            _ => Fate::Mixed,
        };
        let (length, edits_forced) = self.surviving_length(rng, fate);
        let mut content = self.durable.clone();
        let end = self.pending.iter().map(Edit::end).max().unwrap_or(0).max(content.len());
        content.resize(end, 0);
        for (block, history) in self.block_histories(edits_forced) {
            let start = block * BLOCK_BYTES;
            let block_range = start..(start + BLOCK_BYTES).min(end);
            // What a surviving cut took is gone.
            let cut = history.iter().rposition(|index| matches!(self.pending[*index], Edit::Length { .. }));
            let forced = cut.map_or(0, |at| at + 1);
            let kept = surviving_version(rng, fate, forced, history.len());
            for index in &history[..kept] {
                self.pending[*index].apply_within(&mut content, block_range.clone());
            }
            if let Some(torn) = history.get(kept).filter(|_| tears && fate == Fate::Mixed && rng.chance(1, 8))
            {
                let within = self.pending[*torn].range_within(block_range);
                let part = usize::try_from(rng.below(within.len() as u64)).unwrap_or(0);
                self.pending[*torn].apply_within(&mut content, within.start..within.start + part);
            }
        }
        content.resize(length, 0);
        content
    }

    /// The length that survives, and how many of the pending edits happened before it did.
    fn surviving_length(&self, rng: &SeededRng, fate: Fate) -> (usize, usize) {
        // The lengths that the device may know: the durable one, and one after every edit that changed it.
        let mut lengths = vec![(self.durable.len(), 0)];
        let mut length = self.durable.len();
        for (index, edit) in self.pending.iter().enumerate() {
            let after = match edit {
                Edit::Write { .. } => length.max(edit.end()),
                Edit::Length { to, .. } => *to,
            };
            if after != length {
                length = after;
                lengths.push((length, index + 1));
            }
        }
        lengths[surviving_version(rng, fate, 0, lengths.len() - 1)]
    }

    /// The pending edits that may have changed each block, in order: writes, and of the cuts those that survive, which
    /// are among the first `edits_forced`. Lengthening changes none: its zeros are there already.
    fn block_histories(&self, edits_forced: usize) -> BTreeMap<usize, Vec<usize>> {
        let mut histories: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, edit) in self.pending.iter().enumerate() {
            if index >= edits_forced && matches!(edit, Edit::Length { .. }) {
                continue;
            }
            let touched = edit.range();
            if !touched.is_empty() {
                for block in touched.start / BLOCK_BYTES..=(touched.end - 1) / BLOCK_BYTES {
                    histories.entry(block).or_default().push(index);
                }
            }
        }
        histories
    }
}

/// Draws which of the versions `first..=last` survives.
fn surviving_version(rng: &SeededRng, fate: Fate, first: usize, last: usize) -> usize {
    match fate {
        Fate::AllKept => last,
        Fate::AllLost => first,
        Fate::Mixed => match rng.below(8) {
            0..=2 => last,
            3..=5 => first,
            _ => {
                let versions = (last - first) as u64 + 1;
                first + usize::try_from(rng.below(versions)).unwrap_or(0)
            }
        },
    }
}

impl Edit {
    /// The bytes that it changes: those written, or those that a cut zeroes, should the file grow again.
    fn range(&self) -> std::ops::Range<usize> {
        match self {
            Self::Write { position, bytes } => *position..*position + bytes.len(),
            Self::Length { from, to } => *to..(*from).max(*to),
        }
    }

    fn end(&self) -> usize {
        match self {
            Self::Write { .. } => self.range().end,
            Self::Length { from, to } => (*from).max(*to),
        }
    }

    fn range_within(&self, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let own = self.range();
        let start = own.start.max(range.start);
        start..own.end.min(range.end).max(start)
    }

    /// Applies the part that falls into `range` to content that is long enough.
    fn apply_within(&self, content: &mut [u8], range: std::ops::Range<usize>) {
        let within = self.range_within(range);
        match self {
            Self::Write { position, bytes } => {
                let source = within.start - position..within.end - position;
                content[within].copy_from_slice(&bytes[source]);
            }
            Self::Length { .. } => content[within].fill(0),
        }
    }
}

fn apply(content: &mut Vec<u8>, edit: &Edit) {
    match edit {
        Edit::Write { .. } => {
            let end = edit.end();
            if content.len() < end {
                content.resize(end, 0);
            }
            edit.apply_within(content, 0..end);
        }
        Edit::Length { to, .. } => content.resize(*to, 0),
    }
}

fn end_of(position: u64, length: usize) -> io::Result<usize> {
    usize::try_from(position)
        .ok()
        .and_then(|position| position.checked_add(length))
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}
