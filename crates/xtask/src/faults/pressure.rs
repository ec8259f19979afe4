//! `cargo xtask faults pressure`: the shipped program at `ulimit -n 4096`, with 10,000 partitions, under all that clients can do.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{clients, process};

/// What `faults pressure` takes.
#[derive(Debug, Clone, Args)]
pub struct Pressure {
    /// How long each pressure is measured.
    #[arg(long, default_value_t = 15)]
    seconds: u32,
    /// All pressures together alone, for a moment, on 2,000 partitions, and no comparison of times.
    #[arg(long)]
    quick: bool,
    /// Only pressures whose names hold this.
    #[arg(long)]
    only: Option<String>,
    /// Goes on after a finding.
    #[arg(long)]
    go_on: bool,
    /// Where the node's and the bucket's files go; kept where something was found.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// The stage of `cargo xtask verify`: everything together, without a comparison of times.
///
/// # Errors
/// When something was found.
pub(super) fn verify() -> Result<()> {
    run(&Pressure { seconds: 0, quick: true, only: None, go_on: false, folder: None })
}

/// Builds what is needed and runs the campaign.
///
/// # Errors
/// When something was found.
pub(super) fn run(options: &Pressure) -> Result<()> {
    let (node, client) =
        (["--package", "tidelog"], ["--package", "tidelog-tests", "--bin", "ordinary-client"]);
    for package in [&node[..], &client[..]] {
        process::run(process::cargo().args(["build", "--release", "--quiet"]).args(package))?;
    }
    let folder = options.folder.clone().unwrap_or_else(|| super::scratch("pressure"));
    let mut campaign = Command::new(clients::python()?);
    campaign.env("PYTHONDONTWRITEBYTECODE", "1").arg("tests/faults/pressure.py");
    campaign.arg("--binary").arg(process::tidelog_binary());
    campaign.arg("--client").arg(process::target().join("release/ordinary-client"));
    campaign.arg("--folder").arg(&folder);
    campaign.args(["--seconds", &options.seconds.to_string()]);
    if options.quick {
        campaign.arg("--quick");
    }
    if options.go_on {
        campaign.arg("--go-on");
    }
    if let Some(only) = &options.only {
        campaign.args(["--only", only]);
    }
    process::run(&mut campaign).with_context(|| format!("the node's files are in {}", folder.display()))
}
