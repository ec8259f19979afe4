//! `cargo xtask faults model`: many seeds of the crash model of a whole node (`tests/src/model.rs`).

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::process;

/// What `faults model` takes.
#[derive(Debug, Clone, Args)]
pub struct Model {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// One seed alone, with its trace where it finds something.
    #[arg(long)]
    seed: Option<u64>,
    /// Runs each seed twice: the traces must be equal.
    #[arg(long)]
    twice: bool,
    /// Prints the hash of each seed's trace.
    #[arg(long)]
    hashes: bool,
    /// Every deliberate mistake instead: each must be found within 100 seeds.
    #[arg(long)]
    mistakes: bool,
    /// One deliberate mistake, by its name.
    #[arg(long)]
    mistake: Option<String>,
}

/// Builds the model and runs it.
pub(super) fn run(options: &Model) -> Result<()> {
    let build = ["build", "--release", "--quiet", "--package", "tidelog-tests", "--bin", "model"];
    process::run(process::cargo().args(build))?;
    let mut command = Command::new(process::target().join("release/model"));
    command.args(["--seeds", &options.seeds.to_string(), "--from", &options.from.to_string()]);
    if let Some(seed) = options.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    for (asked, name) in
        [(options.mistakes, "--mistakes"), (options.twice, "--twice"), (options.hashes, "--hashes")]
    {
        if asked {
            command.arg(name);
        }
    }
    if let Some(mistake) = &options.mistake {
        command.args(["--mistake", mistake]);
    }
    process::run(&mut command)
}
