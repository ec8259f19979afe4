//! `cargo xtask bench NAME`: speed and memory, as ratios against a limit or a peer in the same run.
//!
//! **Owns** the orchestration: what is built and installed, which processes run, in which order they alternate, what is read from
//! `/proc`, and the page at the end. **Does not own** what is measured: the driver is C on librdkafka (`benches/driver`), the stand-in,
//! the loops and the probes are the program `tidelog-bench` (`benches/src`).
//!
//! Every bench prints one page: the conditions, then a table. The same goes to a JSON file with every single figure. Nothing
//! is asserted.

mod conditions;
mod driver;
mod duel;
mod groups;
mod http;
mod journal;
pub(crate) mod kafka;
mod librdkafka;
mod measures;
mod memory;
mod node;
mod part;
mod replay;
mod report;
mod server;
mod start;
mod store;
mod usage;

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use crate::process;

/// The benches.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Tidelog beside Apache Kafka 4.3.1 on the same work.
    Duel(duel::Options),
    /// Rounds of the journal beside the bare file, and the disk's own ceiling.
    Journal(journal::Options),
    /// The S3 stand-in's own ceiling.
    Store(store::Options),
    /// A cold replay of a node beside the raw GET loop with the same ranges and concurrency.
    Replay(replay::Options),
    /// How long a start takes: with many partitions, and after a kill with much that is not checkpointed.
    Start(start::Options),
    /// Resident memory: idle, with many partitions, during a replay.
    Memory(memory::Options),
    /// Consumer groups: many of them, one with many members beside Kafka's, many durable commits.
    Groups(groups::Options),
}

impl Bench {
    const fn common(&self) -> &Common {
        match self {
            Self::Duel(options) => &options.common,
            Self::Journal(options) => &options.common,
            Self::Store(options) => &options.common,
            Self::Replay(options) => &options.common,
            Self::Start(options) => &options.common,
            Self::Memory(options) => &options.common,
            Self::Groups(options) => &options.common,
        }
    }
}

/// What every bench takes.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Alternating pairs; five or more for a figure that counts.
    #[arg(long)]
    pairs: Option<usize>,
    /// One pair and little data: shows that the bench works, not how fast anything is.
    #[arg(long)]
    quick: bool,
    /// Where servers keep their files; on the disk that is meant.
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Measures this `tidelog` program instead of building one: another commit's, for a comparison.
    #[arg(long)]
    tidelog: Option<PathBuf>,
    /// Where the JSON file goes [default: bench/ in cargo's target directory].
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Common {
    fn pairs(&self) -> usize {
        self.pairs.unwrap_or(if self.quick { 1 } else { 5 }).max(1)
    }

    /// The program that is measured.
    fn program(&self) -> PathBuf {
        self.tidelog.clone().unwrap_or_else(process::tidelog_binary)
    }

    fn out(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| process::target().join("bench"))
    }

    /// One of two values.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    fn scratch(&self, bench: &str) -> Result<Scratch> {
        let base = match &self.scratch {
            Some(base) => base.clone(),
            None => process::cache()?.join("bench"),
        };
        let folder = base.join(format!("{bench}-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Scratch(folder))
    }
}

/// A folder that goes with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is seen in the cache folder; the figures stand.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds what is measured and runs one bench.
///
/// # Errors
/// With the step that failed.
pub fn run(bench: &Bench) -> Result<()> {
    let mut build = process::cargo();
    build.args(["build", "--release", "--package", "tidelog-benches"]);
    if bench.common().tidelog.is_none() {
        build.args(["--package", "tidelog"]);
    }
    process::run(&mut build)?;
    match bench {
        Bench::Duel(options) => duel::run(options),
        Bench::Journal(options) => journal::run(options),
        Bench::Store(options) => store::run(options),
        Bench::Replay(options) => replay::run(options),
        Bench::Start(options) => start::run(options),
        Bench::Memory(options) => memory::run(options),
        Bench::Groups(options) => groups::run(options),
    }
}

/// A command that ends with this process, however that ends, where the machine has util-linux's `setpriv`.
fn tied(program: &std::path::Path) -> Command {
    match process::find_program("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}
