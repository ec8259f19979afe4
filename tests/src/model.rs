//! The crash model of a whole node: log, controller, partitions and tiering on a simulated disk and a simulated bucket.
//!
//! ```text
//!  life: start ─ recover ─ [look] ─ actors: append, retry, roll, read, DeleteRecords, delete a topic and make it again ─ [stop]
//!          └─ ended at an operation of the disk or of the bucket, by a power cut or a kill; or by a clean stop
//!  ... then a last life that nothing disturbs: everything is looked at, heals, and leaves nothing behind
//! ```
//!
//! **Owns** the lives, what goes wrong in them, and what must hold: every acknowledged record is there once, in order, at its
//! offset, with its bytes (I1, I2, I4 to I6); no gap between local log and manifest (I3); local bytes go after their entry (I8);
//! nothing is deleted while it is named, or before its grace or age (I9); nothing stays that nobody names (I10); pages and
//! newest entries are the whole list (I11). Everything is the product's, the controller's Raft included; only disk, bucket, clock
//! and chance are not.
//!
//! **Does not own** several nodes, sockets, or how long anything takes on a real machine.
//!
//! A seed decides everything: the same seed gives the same trace, byte for byte, in every process. What could decide beside it is
//! kept out: one thread, virtual time, no hash map's order, no `select!` that draws, Raft's chance from the seed, and watched
//! values whose waiters wake in their order (`tidelog_runtime::watch`; tokio's own draws).
//!
//! Start reading at [`run`], then `lives`, `workload` and `auditor`.

#![allow(clippy::unwrap_used, reason = "a part of the tests, which clippy does not recognise as such")]

mod auditor;
mod cache;
mod commands;
mod ledger;
mod lives;
pub mod mistakes;
mod node;
mod reading;
mod workload;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Once,
};

pub use mistakes::Mistake;

/// What a run is made of, beside its seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Lives that may be cut short, one after another; a last one follows.
    pub lives: u64,
    /// Steps of each actor in a life.
    pub steps: u64,
    /// A deliberate mistake of the node, its disk or its bucket.
    pub mistake: Option<Mistake>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { lives: 10, steps: 28, mistake: None }
    }
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What must not be.
    pub finding: Option<String>,
    /// How often everything happened.
    pub counts: Counts,
    /// Everything that happened, in its order: operations of the disk and of the bucket, lives and their ends, what clients
    /// do and are promised, proposals and images, the product's sleeps, and every step of the clock.
    pub trace: Vec<String>,
    /// A hash of it.
    pub trace_hash: u64,
}

impl Outcome {
    /// Where another run of the same seed goes another way, with the lines before; `None` where it does not.
    #[must_use]
    pub fn parts_from(&self, other: &Self) -> Option<String> {
        if self == other {
            return None;
        }
        let same = self.trace.iter().zip(&other.trace).take_while(|(one, another)| one == another).count();
        let before = self.trace[same.saturating_sub(LINES_BEFORE)..same].join("\n");
        let line = |trace: &[String]| trace.get(same).map_or("the end", String::as_str).to_owned();
        let (one, another) = (line(&self.trace), line(&other.trace));
        Some(format!("{before}\nline {same} is `{one}`, and in another run `{another}`"))
    }
}

/// Lines of a trace before the first one that differs.
const LINES_BEFORE: usize = 12;

/// How often things happened, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    pub(crate) fn add(&mut self, name: &str, count: u64) {
        *self.0.entry(name.to_owned()).or_default() += count;
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }

    /// Takes in those of another run.
    pub fn merge(&mut self, other: &Self) {
        for (name, count) in other.iter() {
            self.add(name, count);
        }
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, plan: &Plan) -> Outcome {
    listen_for_panics();
    PANICS.with_borrow_mut(Vec::clear);
    QUIET.set(plan.mistake.is_some());
    tidelog_sim::run(seed, |context| lives::run(context, plan.clone()))
}

thread_local! {
    /// Panics of tasks on this thread, which the supervisor keeps from everybody else.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// Whether panics are what this thread is there to see.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The first panic of this thread since the run began.
fn first_panic() -> Option<String> {
    PANICS.with_borrow(|panics| panics.first().cloned())
}

fn listen_for_panics() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_simulated = tokio::runtime::Handle::try_current().is_ok();
            if !(is_simulated && QUIET.get()) {
                before(panic);
            }
            let text = panic.to_string();
            PANICS.with_borrow_mut(|panics| panics.push(text));
        }));
    });
}
