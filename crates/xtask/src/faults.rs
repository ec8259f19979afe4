//! `cargo xtask faults`: what is done to a whole node to make it lose something.
//!
//! **Owns** what is built and started. **Does not own** what is done and checked: that is `tests/faults`, with librdkafka as the
//! client, and the program `fault-node`, which is the product's node over layers that end it.

mod bucket;
mod disk;
mod groups;
mod model;
mod pressure;

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

use crate::{clients, process};

/// The campaigns.
#[derive(Debug, Subcommand)]
pub enum Faults {
    /// Kills a node at named operations and at random moments while clients work, then looks for what was lost.
    Kill(Kill),
    /// Has the bucket misbehave in every way that is known while clients work, then looks for what was lost.
    Bucket(bucket::Bucket),
    /// Fills the data disk, fails its syncs, and flips bits in files and objects, then looks for what was lost.
    Disk(disk::Disk),
    /// Kills a node in the middle of rebalances and commits of eight groups of real clients.
    Groups(groups::Groups),
    /// Runs the crash model of a whole node over many seeds: a simulated disk, a simulated bucket, virtual time.
    Model(model::Model),
    /// Puts a node with 10,000 partitions under floods, slow readers and thousands of connections beside ordinary clients.
    Pressure(pressure::Pressure),
    /// Shows that the kill campaign sees deliberate mistakes: it must go red with each.
    Prove(Prove),
}

/// What `faults kill` takes.
#[derive(Debug, Clone, Args)]
pub struct Kill {
    /// How many kills.
    #[arg(long, default_value_t = VERIFY_KILLS)]
    kills: u32,
    /// What decides where they fall; the moments at which operations happen it does not.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Where the node's and the bucket's files go; kept where something was found.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// What `faults prove` takes.
#[derive(Debug, Clone, Args)]
pub struct Prove {
    /// Only these mistakes.
    mistakes: Vec<String>,
    /// What decides where the kills fall.
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

/// Kills in `cargo xtask verify`.
const VERIFY_KILLS: u32 = 50;

/// Kills within which a mistake must be seen.
const PROVE_KILLS: u32 = 24;

/// The deliberate mistakes of the testkit's careless layers, and what the campaign must say of each.
const MISTAKES: [(&str, &[&str]); 5] = [
    // Where all that a partition had is gone, its next record is acknowledged at the first offset again; a producer that met a
    // gap tells of it only once by its code.
    (
        "ack-before-write",
        &[
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            "code=_FATAL",
            "was acknowledged at",
            "ends at",
            "was read where",
            "holds",
        ],
    ),
    (
        "commit-before-write",
        &["was acknowledged at", "is there again", "was read where", UNREADABLE, "ends at"],
    ),
    ("lose-object", &[UNREADABLE, "is named, and the bucket has"]),
    ("rot-object", &[UNREADABLE]),
    ("keep-deleted", &["everything in the bucket is named"]),
];

/// What a reader says that is stuck.
const UNREADABLE: &str = "nothing is read any more";

/// Runs one.
///
/// # Errors
/// When something was found; or, of a mistake, when nothing was.
pub fn run(faults: &Faults) -> Result<()> {
    match faults {
        Faults::Kill(options) => kill(options),
        Faults::Bucket(options) => bucket::run(options),
        Faults::Disk(options) => disk::run(options),
        Faults::Groups(options) => groups::run(options),
        Faults::Model(options) => model::run(options),
        Faults::Pressure(options) => pressure::run(options),
        Faults::Prove(options) => prove(options),
    }
}

/// The stage of `cargo xtask verify`: the campaigns, and that the first sees the mistake which it is there for.
///
/// # Errors
/// As [`run`].
pub fn verify() -> Result<()> {
    prove(&Prove { mistakes: vec!["ack-before-write".to_owned()], seed: 1 })?;
    kill(&Kill { kills: VERIFY_KILLS, seed: 1, folder: None })?;
    bucket::verify()?;
    disk::verify()?;
    groups::verify()?;
    pressure::verify()
}

fn kill(options: &Kill) -> Result<()> {
    let folder = options.folder.clone().unwrap_or_else(|| scratch("kill"));
    let mut campaign = campaign(&folder, options.kills, options.seed)?;
    process::run(&mut campaign).with_context(|| format!("the node's files are in {}", folder.display()))
}

fn prove(options: &Prove) -> Result<()> {
    if let Some(unknown) =
        options.mistakes.iter().find(|asked| MISTAKES.iter().all(|(known, _)| asked != known))
    {
        bail!("`{unknown}` is none of {}", MISTAKES.map(|(known, _)| known).join(", "));
    }
    let mut unseen = Vec::new();
    for (mistake, signs) in MISTAKES {
        if !options.mistakes.is_empty() && options.mistakes.iter().all(|asked| asked != mistake) {
            continue;
        }
        let folder = scratch(mistake);
        let mut campaign = campaign(&folder, PROVE_KILLS, options.seed)?;
        campaign.args(["--mistake", mistake]).current_dir(process::repository());
        let output = campaign.output().with_context(|| format!("start {campaign:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let finding = text.lines().find(|line| line.starts_with("FINDING: "));
        let seen = finding.is_some_and(|line| signs.iter().any(|sign| line.contains(sign)));
        let short: String = finding.unwrap_or("nothing was found").chars().take(200).collect();
        println!("{mistake}: {} ({short})", if seen { "seen" } else { "NOT SEEN" });
        if !seen {
            print!("{text}");
            unseen.push(mistake);
        }
        // What is left of a mistake that was made on purpose is of no use.
        let _ = std::fs::remove_dir_all(&folder);
    }
    if unseen.is_empty() { Ok(()) } else { bail!("not seen: {}", unseen.join(", ")) }
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tidelog-faults-{name}-{}", std::process::id()))
}

/// The command of a campaign, with everything built that it needs.
fn campaign(folder: &std::path::Path, kills: u32, seed: u32) -> Result<Command> {
    process::run(process::cargo().args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "tidelog-tests",
        "--bin",
        "fault-node",
    ]))?;
    let mut command = Command::new(clients::python()?);
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg("tests/faults/kill.py");
    command.arg("--binary").arg(process::target().join("release/fault-node"));
    command.arg("--folder").arg(folder);
    command.args(["--kills", &kills.to_string(), "--seed", &seed.to_string()]);
    Ok(command)
}
