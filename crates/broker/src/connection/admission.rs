//! Memory for frames that are read: who may hold how much, and for how long.
//!
//! **Owns** the lanes of a budget for frames, and the pace that who holds memory must keep while others wait for it.
//!
//! **Does not own** the reading itself.
//!
//! A size that is announced reserves nothing, or a few clients that announce large frames and send them a byte at a time would
//! stop all others. Memory is charged as bytes come:
//!
//! ```text
//! size <= 8 KiB   nothing: one of each connection is part of what a connection costs
//! size <= 64 KiB  tiny lane: at once
//! size <= 1 MiB   small lane: at once, or 64 KiB first where less than half of the lane is free
//! size  > 1 MiB   large lane: 1 MiB first (or 64 KiB), then as much again as came, while half of the lane stays free
//! neither         completion lane: all that the frame still needs, in the order in which they asked
//! ```
//!
//! Frames never wait for memory that half-read frames hold in their own lane: what they still need they get from the
//! completion lane in one piece, so that who holds anything there can end. Large frames cannot take the smaller ones' lanes, and
//! no more than a half of the completion lane, or one alone all of it and then another one behind those who asked meanwhile.
//! And whoever holds memory that others wait for must keep a pace ([`Pace`]), or its connection is closed. In the completion lane
//! that is looked at each second: so whoever is behind a hundred frames that were left half sent waits for a second or two, and
//! not for a hundred silences.
//!
//! A frame that must wait for its turn behind a request that runs alone keeps its memory while it waits, as long as a peer
//! takes to read the answer before. Such frames are *parked*, and take at most half of a lane; the others stay in
//! their sockets.

use std::time::Duration;

use tidelog_runtime::{Budget, Permit};
use tidelog_types::ByteSize;
use tokio::time::Instant;

use super::in_work::InWork;

/// Frames up to this size get their memory at once; larger ones begin with as much.
const STEP: usize = 1024 * 1024;

/// What a frame begins with where less than half of its lane is free. Frames up to this size have a lane of their own.
const SCARCE_STEP: usize = 64 * 1024;

/// A frame up to this size takes nothing, but where it is parked: of each connection one at most is read or runs. So who sends
/// little never waits for memory that others hold.
const FREE: usize = 8 * 1024;

/// How often the pace is looked at. A frame that comes whole within it costs nothing.
const TICK: Duration = Duration::from_secs(1);

/// The time over which a frame must keep the pace.
const PACE_WINDOW: Duration = Duration::from_secs(4);

/// Bytes a second that a frame must get, and that an answer must be rid of, while others wait for memory.
pub(super) const PACE: usize = 64 * 1024;

/// The same for one that holds a part of the completion lane: 100 MB are through in less than two minutes.
const COMPLETION_PACE: usize = 1024 * 1024;

/// A budget for frames.
#[derive(Debug)]
pub(crate) struct FrameBudget {
    tiny: Budget,
    small: Budget,
    large: Budget,
    completion: Budget,
    /// What large frames have of the completion lane, in turn.
    completion_large: Budget,
    parked: Budget,
}

/// A frame's share of a budget.
#[derive(Debug)]
pub(crate) struct FramePermit {
    /// The size of a frame that takes nothing.
    free: u64,
    lane: Permit,
    // Boxed: few frames have one, and every request carries this.
    rest: Option<Box<Completion>>,
    _parked: Option<Box<Permit>>,
}

/// A part of the completion lane.
#[derive(Debug)]
struct Completion {
    part: Permit,
    _turn: Option<Permit>,
}

impl FramePermit {
    /// Bytes of memory that the frame has.
    pub(crate) fn bytes(&self) -> u64 {
        self.free
            .saturating_add(self.lane.bytes())
            .saturating_add(self.rest.as_ref().map_or(0, |rest| rest.part.bytes()))
    }

    /// Bytes a second that its frame must get while others wait for memory.
    fn pace(&self) -> usize {
        if self.rest.is_some() { COMPLETION_PACE } else { PACE }
    }

    /// The pace of the bytes that come once there is more memory for them.
    pub(super) fn pace_of_bytes(&self) -> Pace {
        Pace { is_brisk: self.rest.is_some(), ..Pace::new() }
    }
}

impl FrameBudget {
    /// A budget of `capacity` for frames of at most `frame_bytes_max`; a frame larger than a lane is alone in it.
    pub(crate) fn new(name: &'static str, capacity: ByteSize, frame_bytes_max: usize) -> Self {
        let capacity = capacity.get();
        let completion = as_u64(frame_bytes_max).min(capacity / 4 * 3);
        let rest = capacity - completion;
        let lane = |bytes| Budget::new(name, ByteSize::bytes(bytes));
        let (tiny, small) = (rest / 4, rest / 8 * 3);
        Self {
            tiny: lane(tiny),
            small: lane(small),
            large: lane(rest - tiny - small),
            completion: lane(completion),
            completion_large: lane(completion / 2),
            parked: lane(tiny / 2),
        }
    }

    fn lane(&self, size: usize) -> &Budget {
        if size <= SCARCE_STEP {
            &self.tiny
        } else if size <= STEP {
            &self.small
        } else {
            &self.large
        }
    }

    /// What a frame of `size` bytes begins with, once its first bytes are here. Waits while its lane is taken, and behind
    /// requests that run alone where too much waits behind such ones already.
    pub(crate) async fn begin(&self, size: usize, in_work: &InWork) -> FramePermit {
        let lane = self.lane(size);
        let parked = if in_work.any_barrier() {
            self.park(size, in_work).await
        } else if size <= FREE {
            return FramePermit { free: as_u64(size), lane: lane.charge(0), rest: None, _parked: None };
        } else {
            None
        };
        let plenty = lane.free() >= lane.capacity() / 2;
        let first = size.min(if plenty { STEP } else { SCARCE_STEP });
        FramePermit { free: 0, lane: lane.acquire(as_u64(first)).await, rest: None, _parked: parked }
    }

    async fn park(&self, size: usize, in_work: &InWork) -> Option<Box<Permit>> {
        let parked = if size <= STEP { self.parked.try_acquire(as_u64(size)) } else { None };
        match parked {
            Some(parked) => Some(Box::new(parked)),
            None => {
                in_work.barriers_gone().await;
                None
            }
        }
    }

    /// What the buffer of a frame may grow to that has all of `capacity`. Waits its turn where there is not enough.
    pub(crate) async fn grow(&self, permit: &mut FramePermit, capacity: usize, size: usize) -> usize {
        let wanted = if size <= STEP { size } else { capacity.saturating_mul(2).min(size) };
        let lacking = as_u64(wanted).saturating_sub(permit.bytes());
        if lacking > 0 {
            let lane = self.lane(size);
            let plenty = lane.free() >= lacking.saturating_add(lane.capacity() / 2);
            match if plenty { lane.try_acquire(lacking) } else { None } {
                Some(more) => permit.lane.merge(more),
                None => {
                    let all = as_u64(size).saturating_sub(permit.bytes());
                    let turn =
                        if size > STEP { Some(self.completion_large.acquire(all).await) } else { None };
                    let part = self.completion.acquire(all).await;
                    permit.rest = Some(Box::new(Completion { part, _turn: turn }));
                }
            }
        }
        wanted
    }

    /// What a frame of `size` bytes must get a second; `None` where nobody waits for memory that it may hold.
    pub(crate) fn pace(&self, permit: &FramePermit, size: usize) -> Option<usize> {
        self.is_short(size).then(|| permit.pace())
    }

    /// Whether others wait for memory that a frame of `size` bytes may hold.
    fn is_short(&self, size: usize) -> bool {
        let completing = [&self.completion, &self.completion_large];
        self.lane(size).waiting() > 0 || completing.iter().any(|lane| lane.waiting() > 0)
    }

    /// Bytes that are held, in all lanes.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.tiny.used() + self.small.used() + self.large.used() + self.completion.used()
    }
}

/// How fast a frame comes, or an answer goes.
#[derive(Debug)]
pub(crate) struct Pace {
    next_look: Instant,
    last_byte: Instant,
    window_begun: Instant,
    window_bytes: usize,
    /// Bytes since the last look.
    look_bytes: usize,
    /// At each look some must have come.
    is_brisk: bool,
}

/// Why a frame or an answer is given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutOfPace {
    /// No byte for the time allowed.
    Silent,
    /// Fewer bytes a second than this while others waited.
    Slow(usize),
}

impl Pace {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            next_look: now + TICK,
            last_byte: now,
            window_begun: now,
            window_bytes: 0,
            look_bytes: 0,
            is_brisk: false,
        }
    }

    /// When to look next, whether bytes come or not.
    pub(crate) const fn next_look(&self) -> Instant {
        self.next_look
    }

    pub(crate) const fn got(&mut self, bytes: usize) {
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        self.look_bytes = self.look_bytes.saturating_add(bytes);
    }

    /// Looks, where it is time to, whether bytes came or not. `least`: how many a second must come while others wait for
    /// memory; `None` where nobody does.
    pub(crate) fn look(
        &mut self,
        least: impl FnOnce() -> Option<usize>,
        came: bool,
        silence: Duration,
    ) -> Result<(), OutOfPace> {
        let now = Instant::now();
        if came {
            self.last_byte = now;
        } else if now.saturating_duration_since(self.last_byte) >= silence {
            return Err(OutOfPace::Silent);
        }
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + TICK.min(silence);
        let look_bytes = std::mem::take(&mut self.look_bytes);
        let Some(least) = least() else {
            (self.window_begun, self.window_bytes) = (now, 0);
            return Ok(());
        };
        let window = now.saturating_duration_since(self.window_begun);
        // Not at the first look: they may have begun to wait a moment ago.
        if self.is_brisk && window > TICK && look_bytes < PACE {
            return Err(OutOfPace::Slow(PACE));
        }
        if window < PACE_WINDOW {
            return Ok(());
        }
        let seconds = usize::try_from(window.as_secs()).unwrap_or(usize::MAX);
        if self.window_bytes < least.saturating_mul(seconds) {
            return Err(OutOfPace::Slow(least));
        }
        (self.window_begun, self.window_bytes) = (now, 0);
        Ok(())
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
