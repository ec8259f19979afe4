//! `cargo xtask faults groups`: eight groups of three real clients on the shipped program, which is killed in the middle of their
//! rebalances and commits.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{clients, process};

/// What `faults groups` takes.
#[derive(Debug, Clone, Args)]
pub struct Groups {
    /// How many kills.
    #[arg(long, default_value_t = 50)]
    kills: u32,
    /// What decides who joins and leaves, and where the kills are aimed; what they hit it does not.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// What limits of time are multiplied by, on a machine that has other work.
    #[arg(long, default_value_t = 1.0)]
    patience: f32,
    /// Where the node's files and the members' ledgers go; kept where something was found.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// The short run of `cargo xtask verify`. Its limits of time are wide: what it looks for is offsets that go back and
/// partitions with two owners, and a busy machine is no fault.
pub(super) fn verify() -> Result<()> {
    run(&Groups { kills: 8, seed: 1, patience: 4.0, folder: None })
}

/// Builds what is needed and runs the campaign.
///
/// # Errors
/// When something was found.
pub(super) fn run(options: &Groups) -> Result<()> {
    let (node, placed) = (["--package", "tidelog"], ["--package", "tidelog-tests", "--bin", "fault-node"]);
    for package in [&node[..], &placed[..]] {
        process::run(process::cargo().args(["build", "--release", "--quiet"]).args(package))?;
    }
    let folder = options.folder.clone().unwrap_or_else(|| super::scratch("groups"));
    let mut campaign = Command::new(clients::python()?);
    campaign.env("PYTHONDONTWRITEBYTECODE", "1").arg("tests/faults/groups.py");
    campaign.arg("--binary").arg(process::tidelog_binary());
    campaign.arg("--fault-node").arg(process::target().join("release/fault-node"));
    campaign.arg("--folder").arg(&folder);
    campaign.args(["--kills", &options.kills.to_string(), "--seed", &options.seed.to_string()]);
    campaign.args(["--patience", &options.patience.to_string()]);
    process::run(&mut campaign).with_context(|| format!("the node's files are in {}", folder.display()))
}
