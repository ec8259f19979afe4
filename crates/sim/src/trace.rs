//! What happened in a simulated world, line by line, so that two runs can be compared.

use std::{
    fmt::{self, Display},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

/// Everything that happened, in its order, as lines of text with the virtual time of each. Clones are the same trace.
///
/// Equal seeds give equal traces, byte for byte, where nothing but the seed decides what happens.
#[derive(Clone, Default)]
pub struct Trace {
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    lines: Vec<String>,
    hash: u64,
    start: Option<Instant>,
    with_clock: bool,
    /// The last step of the clock that was noted.
    step: Option<Instant>,
}

impl Trace {
    /// Writes down that something happens now.
    pub fn note(&self, what: impl Display) {
        let mut noted = self.lock();
        let now = Instant::now();
        let elapsed_ms = now.duration_since(*noted.start.get_or_insert(now)).as_millis();
        noted.push(format!("{elapsed_ms} ms {what}"));
    }

    /// From now on every step of the runner's clock is part of it.
    pub fn follow_clock(&self) {
        self.lock().with_clock = true;
    }

    /// The runner goes on after it waited: time may have moved.
    pub(crate) fn step(&self) {
        let mut noted = self.lock();
        if !noted.with_clock {
            return;
        }
        let now = Instant::now();
        if noted.step != Some(now) {
            noted.step = Some(now);
            let elapsed_us = now.duration_since(*noted.start.get_or_insert(now)).as_micros();
            noted.push(format!("the clock goes to {elapsed_us} us"));
        }
    }

    /// All lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    /// How many lines there are so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().lines.len()
    }

    /// Whether nothing has happened yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A hash of all lines so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Noted {
    fn push(&mut self, line: String) {
        self.hash = chained(self.hash, line.as_bytes());
        self.lines.push(line);
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noted = self.lock();
        write!(f, "Trace({} lines, {:016x})", noted.lines.len(), noted.hash)
    }
}

/// A hash of bytes that a line of a [`Trace`] stands for: against chance, and not against malice.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    chained(0, bytes)
}

/// FNV-1a over words of eight bytes, going on from `seed`.
fn chained(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = seed ^ 0xcbf2_9ce4_8422_2325;
    for word in bytes.chunks(8) {
        let mut padded = [0u8; 8];
        padded[..word.len()].copy_from_slice(word);
        hash = (hash ^ u64::from_le_bytes(padded)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
    hash ^ bytes.len() as u64
}
