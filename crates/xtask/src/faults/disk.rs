//! `cargo xtask faults disk`: the data disk fills up, its syncs fail, its bits flip, and the bucket's too.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::{clients, process};

/// What `faults disk` takes.
#[derive(Debug, Clone, Args)]
pub struct Disk {
    /// How long all of it may take, roughly: each part begins nothing new after its share.
    #[arg(long, default_value_t = 300)]
    seconds: u32,
    /// What decides what happens; when it happens it does not.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Only these parts.
    #[arg(long, value_enum, num_args = 1..)]
    only: Vec<Part>,
    /// Flips bits of every kind of file and object at every place, however long it takes.
    #[arg(long)]
    everything: bool,
    /// Where the nodes' and the buckets' files go; kept where something was found.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// What the disk does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// It fills up, by records or by somebody else's file.
    Full,
    /// A sync fails, and the next one says that all is well.
    Syncs,
    /// One bit of a file or an object is another one.
    Bits,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Syncs => "syncs",
            Self::Bits => "bits",
        }
    }
}

/// Seconds in `cargo xtask verify`.
const VERIFY_SECONDS: u32 = 40;

/// The stage of `cargo xtask verify`.
///
/// # Errors
/// When something was found.
pub(super) fn verify() -> Result<()> {
    run(&Disk { seconds: VERIFY_SECONDS, seed: 1, only: Vec::new(), everything: false, folder: None })
}

/// Builds what is needed and runs the campaign.
///
/// # Errors
/// When something was found.
pub(super) fn run(options: &Disk) -> Result<()> {
    let packages =
        ["--package", "tidelog", "--package", "tidelog-tests", "--bin", "tidelog", "--bin", "fault-node"];
    process::run(process::cargo().args(["build", "--release", "--quiet"]).args(packages))?;
    let folder = options.folder.clone().unwrap_or_else(|| super::scratch("disk"));
    let mut campaign = Command::new(clients::python()?);
    campaign.env("PYTHONDONTWRITEBYTECODE", "1").arg("tests/faults/disk.py");
    campaign.arg("--binary").arg(process::tidelog_binary());
    campaign.arg("--fault-binary").arg(process::target().join("release/fault-node"));
    campaign.arg("--folder").arg(&folder);
    campaign.args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()]);
    if options.everything {
        campaign.arg("--everything");
    }
    if !options.only.is_empty() {
        campaign.arg("--only").args(options.only.iter().map(|part| part.name()));
    }
    process::run(&mut campaign).with_context(|| format!("the nodes' files are in {}", folder.display()))
}
