//! The same scripted exchanges with Apache Kafka and with Tidelog (`tests/parity`): starts the brokers and runs `parity` on them.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::{
    bench::kafka,
    process::{self, Background},
};

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
    /// Makes the generated parts of `differences.md` anew.
    #[arg(long)]
    regenerate: bool,
    /// Prints differences without a row in `differences.md` as rows for it.
    #[arg(long)]
    rows: bool,
}

impl Options {
    /// What the gate runs: the recorded answers against a node of the built program.
    fn of_gate() -> Self {
        let (bootstrap, program) = (None, None);
        Self {
            against: Against::Tidelog,
            record: false,
            bootstrap,
            program,
            only: Vec::new(),
            regenerate: false,
            rows: false,
        }
    }
}

/// What both are started with beside their addresses and folders: what makes a run short, and alike.
const SETTINGS: [(&str, &str); 2] =
    [("group.initial.rebalance.delay.ms", "0"), ("offsets.topic.num.partitions", "1")];

/// What Kafka needs beside: on a busy machine its controller would else lose sight of the broker, which then answers of a
/// second leader epoch, or as no coordinator.
const KAFKA_SETTINGS: [(&str, &str); 1] = [("broker.session.timeout.ms", "300000")];

/// A running broker that ends with this.
struct Broker {
    address: String,
    _program: Background,
}

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
        let kafka = start_kafka(&scratch.join("kafka"))?;
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
        let mut arguments = Vec::new();
        arguments.extend(options.regenerate.then_some("--regenerate"));
        arguments.extend(options.rows.then_some("--rows"));
        match &options.bootstrap {
            Some(address) => compare(options, address, answers, &arguments)?,
            None => {
                let tidelog = start_tidelog(options.program.as_deref(), &scratch.join("tidelog"))?;
                compare(options, &tidelog.address, answers, &arguments)?;
            }
        }
    }
    // A broker that is just ending may still write.
    let removed = (0..50).any(|_| {
        let is_removed = fs::remove_dir_all(&scratch).is_ok();
        if !is_removed {
            process::pause(100);
        }
        is_removed
    });
    if removed { Ok(()) } else { bail!("{} cannot be removed", scratch.display()) }
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

/// Starts an Apache Kafka of one node on empty folders and waits until it serves.
fn start_kafka(folder: &Path) -> Result<Broker> {
    let jars = kafka::install()?;
    let settings: Vec<_> = SETTINGS.iter().chain(&KAFKA_SETTINGS).copied().collect();
    let plan = kafka::plan_with(&jars, folder, &settings)?;
    let mut command = Command::new(&plan.program);
    command.args(&plan.arguments);
    start("Apache Kafka", &command, &plan.address, &folder.join("kafka.log"))
}

/// Starts a Tidelog node on empty folders and waits until it serves.
fn start_tidelog(program: Option<&Path>, folder: &Path) -> Result<Broker> {
    fs::create_dir_all(folder)?;
    let program = match program {
        Some(program) => fs::canonicalize(program).with_context(|| format!("find {}", program.display()))?,
        None => {
            process::run(process::cargo().args(["build", "--release", "--quiet", "--package", "tidelog"]))?;
            process::tidelog_binary()
        }
    };
    let store = format!("--store=file://{}", folder.join("bucket").display());
    process::output(Command::new(&program).args(["bucket", "init"]).arg(&store))
        .context("make the bucket")?;
    let address = format!("127.0.0.1:{}", process::free_port()?);
    let admin = format!("127.0.0.1:{}", process::free_port()?);
    let mut command = Command::new(&program);
    command.arg("serve").arg("--data-dir").arg(folder.join("data")).arg(&store);
    command.args(["--listen", &address, "--admin-listen", &admin]);
    for (key, value) in SETTINGS {
        command.args(["--set", &format!("{key}={value}")]);
    }
    start("tidelog", &command, &address, &folder.join("tidelog.log"))
}

fn start(name: &str, command: &Command, address: &str, log: &Path) -> Result<Broker> {
    let mut program = Background::start(name, command, log)?;
    for _ in 0..600 {
        let told = || fs::read_to_string(log).unwrap_or_default();
        program.check_alive().with_context(told)?;
        if TcpStream::connect(address).is_ok() {
            return Ok(Broker { address: address.to_owned(), _program: program });
        }
        process::pause(100);
    }
    bail!("{name} does not listen on {address} after 60 s; its log is {}", log.display())
}
