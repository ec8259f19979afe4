//! The room that is left in the log's current file, and who was promised a part of it.
//!
//! ```text
//! |  written  |  promised to proposals  |  free  |  freeing  |  Raft's own  |
//!             ^ position                         ^           ^ floor of     ^ allocated
//!                                                |             commands that free space
//!                                                + floor of everything else
//! ```
//!
//! Room is allocated ahead. Where the disk has none left, a proposal is refused before Raft hears of it, since Raft ends
//! with the first entry that cannot be written; what frees space goes on below, and Raft's own records below that.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidelog_core::cluster::Command;
use tidelog_runtime::metrics::Gauge;
use tidelog_types::limits::{
    FREEING_CONFIG_BYTES_MAX, RAFT_LOG_AHEAD_BYTES, RAFT_LOG_FREEING_BYTES, RAFT_LOG_OWN_BYTES,
};
use tokio::sync::{Notify, futures::Notified};

/// How far down a command may use the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It makes something new: it waits until there is space again.
    Growing,
    /// It frees space, or lets a node start, stop or free space.
    Freeing,
}

impl Urgency {
    /// What a command is for.
    pub(crate) fn of(command: &Command, bytes: usize) -> Self {
        match command {
            Command::CreateTopic { .. }
            | Command::AlterGroupConfigs { .. }
            | Command::CreatePartitions { .. }
            | Command::AllocateProducerIds { .. }
            | Command::SetFeatureLevel { .. } => Self::Growing,
            // A shorter retention is how an operator frees space; a large change is not that.
            Command::AlterConfigs { .. } if bytes > FREEING_CONFIG_BYTES_MAX => Self::Growing,
            Command::AlterConfigs { .. }
            | Command::Initialize { .. }
            | Command::RegisterBroker { .. }
            | Command::Heartbeat { .. }
            | Command::EndSession { .. }
            | Command::DeleteTopic { .. }
            | Command::AdvanceLogStart { .. }
            | Command::CommitSegments { .. }
            | Command::SpillManifest { .. }
            | Command::FenceUploads { .. }
            | Command::ManifestPublished { .. }
            | Command::DeletionDone { .. }
            | Command::Tick { .. } => Self::Freeing,
        }
    }

    /// The room that it leaves, in bytes.
    const fn floor(self) -> u64 {
        match self {
            Self::Growing => RAFT_LOG_OWN_BYTES + RAFT_LOG_FREEING_BYTES,
            Self::Freeing => RAFT_LOG_OWN_BYTES,
        }
    }
}

/// The room of one log. Clones are the same.
#[derive(Clone)]
pub(super) struct Room {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    taken: Notify,
    gauge: Gauge,
}

#[derive(Default)]
struct State {
    free: u64,
    promised: u64,
    /// A round waits for space: nobody is admitted meanwhile.
    round_waits: bool,
}

impl Room {
    pub(super) fn new(free: u64, gauge: Gauge) -> Self {
        gauge.set(free);
        let state = Mutex::new(State { free, ..State::default() });
        Self { shared: Arc::new(Shared { state, taken: Notify::new(), gauge }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left in the current file, promised or not. Called after every change of it.
    pub(super) fn set(&self, free: u64) {
        self.lock().free = free;
        self.shared.gauge.set(free);
        if free < RAFT_LOG_AHEAD_BYTES {
            self.shared.taken.notify_one();
        }
    }

    pub(super) fn set_round_waits(&self, waits: bool) {
        self.lock().round_waits = waits;
    }

    /// Completes once room was taken and should be made ahead again.
    pub(super) fn taken(&self) -> Notified<'_> {
        self.shared.taken.notified()
    }

    /// Promises `bytes` where they are there.
    pub(super) fn try_admit(&self, bytes: u64, urgency: Urgency) -> Option<Admission> {
        let mut state = self.lock();
        let needed = state.promised.saturating_add(bytes).saturating_add(urgency.floor());
        if state.round_waits || needed > state.free {
            return None;
        }
        state.promised = state.promised.saturating_add(bytes);
        drop(state);
        Some(Admission { room: self.clone(), bytes })
    }

    /// How much must be free for `bytes` more to be admitted; an error while nobody is.
    pub(super) fn needed(&self, bytes: u64) -> io::Result<u64> {
        let state = self.lock();
        if state.round_waits {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(state.promised.saturating_add(bytes).saturating_add(Urgency::Growing.floor()))
    }
}

/// Room promised to one proposal, given back when its outcome is known.
#[must_use = "dropped at once it promises nothing"]
pub(crate) struct Admission {
    room: Room,
    bytes: u64,
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut state = self.room.lock();
        state.promised = state.promised.saturating_sub(self.bytes);
    }
}
