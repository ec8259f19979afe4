//! The end of the process at a named operation, as `kill -9` ends it: what is in the page cache stays, everything else is gone.
//!
//! **Owns** the plan of one kill ([`KillPlan`]), the count of operations by phase ([`KillSwitch`]), and the wrappers that count and
//! end: [`KillingDisk`], [`KillingStore`]. **Does not own** which operation belongs to which phase: that is `phase`'s.
//!
//! ```text
//!  start ──────────────────────────── serving() ────────────────────────────────────────> until the kill
//!  every change counts as start-up    produce, roll, checkpoint, upload, commit, eviction, retention and deletion
//! ```

mod disk;
mod phase;
mod store;

use std::{
    fmt, fs,
    io::Write as _,
    path::PathBuf,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use rustix::process::{Signal, getpid, kill_process};

pub use disk::KillingDisk;
pub use phase::Phase;
pub use store::KillingStore;

/// When of an operation the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing of it is done.
    Before,
    /// A part of it is done: half of the bytes of a write, or whatever was reached of anything else.
    During,
    /// It is done, and nobody was told.
    After,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::During => "during",
            Self::After => "after",
        })
    }
}

/// One kill: `phase:nth:moment`, such as `upload:3:after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KillPlan {
    /// In which phase.
    pub phase: Phase,
    /// At its how-manyeth operation, from 1.
    pub nth: u32,
    /// When of it.
    pub moment: Moment,
}

impl FromStr for KillPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || format!("`{text}` is no kill: write phase:nth:before, during or after");
        let mut parts = text.split(':');
        let (Some(phase), Some(nth), Some(moment), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refused());
        };
        let phase = Phase::ALL.into_iter().find(|known| known.name() == phase).ok_or_else(refused)?;
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or_else(refused)?;
        let moments = [Moment::Before, Moment::During, Moment::After];
        let moment = moments.into_iter().find(|known| known.to_string() == moment).ok_or_else(refused)?;
        Ok(Self { phase, nth, moment })
    }
}

/// Counts operations by phase, and ends the process at the planned one. Clones are the same switch.
#[derive(Clone)]
pub struct KillSwitch {
    inner: Arc<Inner>,
}

struct Inner {
    plan: Option<KillPlan>,
    serving: AtomicBool,
    counts: [AtomicU32; Phase::ALL.len()],
    /// Where what happened is told, a line of JSON each.
    report: Option<PathBuf>,
    end: fn(),
}

impl fmt::Debug for KillSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KillSwitch").field("plan", &self.inner.plan).finish_non_exhaustive()
    }
}

impl KillSwitch {
    /// A switch; without a plan it only counts.
    #[must_use]
    pub fn new(plan: Option<KillPlan>, report: Option<PathBuf>) -> Self {
        Self::ending(plan, report, end_process)
    }

    fn ending(plan: Option<KillPlan>, report: Option<PathBuf>, end: fn()) -> Self {
        let counts = std::array::from_fn(|_| AtomicU32::new(0));
        Self { inner: Arc::new(Inner { plan, serving: AtomicBool::new(false), counts, report, end }) }
    }

    /// The start is over: from here on operations count for their own phases.
    pub fn serving(&self) {
        self.inner.serving.store(true, Ordering::SeqCst);
        let operations = self.count(Phase::StartUp);
        self.tell(&serde_json::json!({ "event": "serving", "start_operations": operations }));
    }

    /// Operations of a phase so far.
    #[must_use]
    pub fn count(&self, phase: Phase) -> u32 {
        self.inner.counts[phase.index()].load(Ordering::SeqCst)
    }

    /// Counts an operation that changes something, and says whether it is the planned one.
    fn meet(&self, phase: Option<Phase>, operation: &'static str, target: &str) -> Option<Blow> {
        let phase = if self.inner.serving.load(Ordering::SeqCst) { phase? } else { Phase::StartUp };
        let nth = self.inner.counts[phase.index()].fetch_add(1, Ordering::SeqCst).saturating_add(1);
        let plan = self.inner.plan.filter(|plan| plan.phase == phase && plan.nth == nth)?;
        Some(Blow { switch: self.clone(), plan, operation, target: target.to_owned() })
    }

    pub(crate) fn tell(&self, line: &serde_json::Value) {
        let Some(path) = &self.inner.report else { return };
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        // Whoever reads the report sees that nothing came; there is nobody else to tell.
        let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
}

/// The planned kill, at its operation.
#[derive(Debug)]
struct Blow {
    switch: KillSwitch,
    plan: KillPlan,
    operation: &'static str,
    target: String,
}

impl Blow {
    /// Ends the process; what is returned only a test sees.
    fn strike(&self) -> std::io::Error {
        self.switch.tell(&serde_json::json!({
            "event": "kill",
            "phase": self.plan.phase.name(),
            "nth": self.plan.nth,
            "moment": self.plan.moment.to_string(),
            "operation": self.operation,
            "target": self.target,
        }));
        (self.switch.inner.end)();
        std::io::Error::other("the process has ended")
    }
}

fn end_process() {
    // A process may always kill itself, and does not return from it.
    let _ = kill_process(getpid(), Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_and_nonsense_is_not() {
        let plan: KillPlan = "retention-and-deletion:7:during".parse().unwrap();
        assert_eq!(plan, KillPlan { phase: Phase::RetentionAndDeletion, nth: 7, moment: Moment::During });
        for phase in Phase::ALL {
            let plan: KillPlan = format!("{}:1:after", phase.name()).parse().unwrap();
            assert_eq!((plan.phase, plan.moment), (phase, Moment::After));
        }
        for wrong in ["", "upload", "upload:0:after", "upload:1:later", "sleep:1:after", "upload:1:after:2"] {
            assert!(wrong.parse::<KillPlan>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn operations_count_as_start_up_until_the_node_serves_and_only_the_planned_one_ends_it() {
        let plan = KillPlan { phase: Phase::Upload, nth: 2, moment: Moment::Before };
        let switch = KillSwitch::ending(Some(plan), None, || ());
        for _ in 0..3 {
            assert!(switch.meet(Some(Phase::Upload), "put", "a").is_none());
        }
        switch.serving();
        assert!(switch.meet(Some(Phase::Upload), "put", "a").is_none());
        assert!(switch.meet(Some(Phase::Commit), "write", "b").is_none());
        assert!(switch.meet(None, "write", "c").is_none());
        let blow = switch.meet(Some(Phase::Upload), "put", "d").unwrap();
        assert_eq!((blow.operation, blow.target.as_str()), ("put", "d"));
        assert!(switch.meet(Some(Phase::Upload), "put", "e").is_none());
        assert_eq!(switch.count(Phase::StartUp), 3);
        assert_eq!(switch.count(Phase::Upload), 3);
        assert_eq!(switch.count(Phase::Commit), 1);
    }
}
