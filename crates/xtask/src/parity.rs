//! The same scripted exchanges with Apache Kafka and with Tidelog (`tests/parity`): starts the brokers and runs `parity` on them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::{brokers, process, stores::StoreKind};

/// Whom the exchanges are with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// Apache Kafka: its answers must be the recorded ones.
    Kafka,
    /// Tidelog: its answers are compared with the recorded ones.
    Tidelog,
    /// Both, at the same time: nothing recorded is used.
    Both,
}

/// What `cargo xtask e2e parity` takes.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Whom the exchanges are with.
    #[arg(long, value_enum, default_value = "tidelog")]
    against: Against,
    /// Asks Apache Kafka and writes its answers to `tests/parity/recorded`.
    #[arg(long)]
    record: bool,
    /// A running Tidelog node, in place of one that is started; what was done to it stays.
    #[arg(long)]
    bootstrap: Option<String>,
    /// The program to start; the one of the repository is built where none is named.
    #[arg(long)]
    program: Option<PathBuf>,
    /// Only files of this name and scenarios whose `file: name` contains this.
    #[arg(long)]
    only: Vec<String>,
    /// Prints differences without a row in `differences.md` as rows for it.
    #[arg(long)]
    rows: bool,
}

impl Options {
    /// What the gate runs: the recorded answers against a node of the built program.
    fn of_gate() -> Self {
        let (bootstrap, program) = (None, None);
        Self { against: Against::Tidelog, record: false, bootstrap, program, only: Vec::new(), rows: false }
    }
}

/// What both are started with beside their addresses and folders: what makes a run short, and alike.
const SETTINGS: [(&str, &str); 2] =
    [("group.initial.rebalance.delay.ms", "0"), ("offsets.topic.num.partitions", "1")];

/// The stage of the gate.
///
/// # Errors
/// When an answer differs and is not listed, or a listed one does not.
pub fn verify() -> Result<()> {
    run(&Options::of_gate())
}

/// Starts what is asked and compares.
///
/// # Errors
/// When a broker does not start, or an answer differs and is not listed, or a listed one does not.
pub fn run(options: &Options) -> Result<()> {
    process::run(process::cargo().args(["build", "--release", "--quiet", "--package", "tidelog-parity"]))?;
    let scratch = std::env::temp_dir().join(format!("tidelog-parity-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let recorded = process::repository().join("tests/parity/recorded");
    let fresh = scratch.join("recorded");
    let is_kafka_asked = options.record || options.against != Against::Tidelog;
    if is_kafka_asked {
        let kafka = brokers::start_kafka(&scratch.join("kafka"), &SETTINGS)?;
        let into = if options.record { &recorded } else { &fresh };
        match options.against {
            Against::Kafka if !options.record => {
                compare(options, &kafka.address, &recorded, &["--same"])?;
            }
            _ => process::run(parity(into).args(["record", "--bootstrap", &kafka.address]))?,
        }
    }
    // Kafka has ended: both at once would only be in each other's way.
    if options.against != Against::Kafka {
        let answers = if options.against == Against::Both && !options.record { &fresh } else { &recorded };
        let arguments: &[&str] = if options.rows { &["--rows"] } else { &[] };
        match &options.bootstrap {
            Some(address) => compare(options, address, answers, arguments)?,
            None => {
                let program = brokers::program(options.program.as_deref())?;
                let folder = scratch.join("tidelog");
                let tidelog = brokers::start_tidelog(&program, &folder, StoreKind::File, &SETTINGS)?;
                compare(options, &tidelog.address, answers, arguments)?;
            }
        }
    }
    brokers::remove(&scratch)
}

fn parity(recorded: &Path) -> Command {
    let mut command = Command::new(process::target().join("release/parity"));
    command.arg("--recorded").arg(recorded);
    command
}

fn compare(options: &Options, address: &str, recorded: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = parity(recorded);
    command.args(["compare", "--bootstrap", address]).args(arguments);
    for only in &options.only {
        command.args(["--only", only]);
    }
    process::run(&mut command)
}
