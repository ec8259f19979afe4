//! The test suites that others keep, brought in at the time and run against a node of this repository: librdkafka's own
//! tests and franz-go's of its package `kgo`.
//!
//! What is committed is `tests/suites`: for each suite the list of its tests, which of them pass, and one line why for each
//! that does not. A run fails where a listed pass does not pass, and where a list does not name each test of its suite.

mod kgo;
mod librdkafka;
mod list;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::{
    brokers::{self, Broker},
    clients::Against,
    process::{self, Background},
    stores::StoreKind,
};
use list::{List, Verdict};

/// A suite that others keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// librdkafka's own tests.
    Librdkafka,
    /// The tests of franz-go's client package.
    Kgo,
}

impl Suite {
    const fn name(self) -> &'static str {
        match self {
            Self::Librdkafka => "librdkafka",
            Self::Kgo => "kgo",
        }
    }

    fn list(self) -> PathBuf {
        process::repository().join(format!("tests/suites/{}.txt", self.name()))
    }
}

/// What `cargo xtask e2e suites` takes.
#[derive(Debug, Args)]
pub struct Options {
    /// Only these suites; all when none is named.
    #[arg(long, value_enum)]
    only: Vec<Suite>,
    /// Only the tests whose names contain this, whatever the list says of them; may be given several times.
    #[arg(long = "test")]
    tests: Vec<String>,
    /// Also the tests that the list says do not pass.
    #[arg(long)]
    all: bool,
    /// What the tests run against; what Apache Kafka does is told and not judged.
    #[arg(long, value_enum, default_value = "tidelog")]
    against: Against,
    /// The store of the Tidelog node.
    #[arg(long, value_enum, default_value = "file")]
    store: StoreKind,
    /// The program to start; the one of the repository is built where none is named.
    #[arg(long)]
    program: Option<PathBuf>,
}

/// A test of a suite, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Test {
    name: String,
    /// Tests of one unit run in one process.
    unit: String,
    /// It asks no broker: its outcome says nothing of one.
    is_local: bool,
    /// The node makes topics that are asked for.
    auto_create: bool,
}

/// What a run of a test came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// The test itself says that it has nothing to do here.
    Skipped,
}

/// A suite that is ready to run.
trait Runner {
    /// Every test that it has.
    fn tests(&self) -> Result<Vec<Test>>;

    /// Runs the tests of one unit against a broker, with what they print in files of `folder`.
    fn run(&self, unit: &[&Test], address: &str, folder: &Path) -> Result<BTreeMap<String, Outcome>>;
}

/// Settings of the broker, for both suites: what the tests expect of a cluster that was made for them.
/// librdkafka's 0052 writes records of 1970, and fails where retention comes by before they are read: within 10 seconds here, within
/// five minutes in Apache Kafka.
const SETTINGS: [(&str, &str); 2] = [("num.partitions", "4"), ("log.retention.ms", "-1")];

/// Runs the suites that are asked for.
///
/// # Errors
/// When a suite cannot be had, its list is not of its tests, or a listed pass does not pass.
pub fn run(options: &Options) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("tidelog-suites-{}", std::process::id()));
    let suites = if options.only.is_empty() { Suite::value_variants() } else { &options.only };
    let mut failed = Vec::new();
    for suite in suites {
        if let Err(error) = run_suite(*suite, options, &scratch.join(suite.name())) {
            eprintln!("{}: {error:#}", suite.name());
            failed.push(suite.name());
        }
    }
    if !failed.is_empty() {
        bail!("{} failed; what the tests said is in {}", failed.join(", "), scratch.display());
    }
    brokers::remove(&scratch)
}

/// Reads the lists, each of which states how many passes it has.
///
/// # Errors
/// When one cannot be read, has another number of passes, or has taken one back since it was first committed (as far as the
/// clone's history goes).
pub(crate) fn check_lists() -> Result<()> {
    for suite in Suite::value_variants() {
        let list = List::read(&suite.list())?;
        if process::repository().join(".git").exists() && process::find_program("git").is_some() {
            let mut git = Command::new("git");
            // The clone may be somebody else's, as in a container: its log is read, and nothing in it is run.
            git.args(["-c", "safe.directory=*"]);
            git.args(["log", "-p", "--unified=0", "--no-color", "--no-ext-diff", "--format=", "--"]);
            let history = process::output(git.arg(suite.list()))?;
            list.check_grows(&history).with_context(|| suite.list().display().to_string())?;
        }
    }
    Ok(())
}

fn run_suite(suite: Suite, options: &Options, folder: &Path) -> Result<()> {
    let runner: Box<dyn Runner> = match suite {
        Suite::Librdkafka => Box::new(librdkafka::install()?),
        Suite::Kgo => Box::new(kgo::install()?),
    };
    let tests = runner.tests()?;
    let list = List::read(&suite.list())?;
    list.check_names(tests.iter().map(|test| test.name.as_str()))?;
    list.check_local(tests.iter().filter(|test| !test.is_local).map(|test| test.name.as_str()))?;
    let chosen: Vec<&Test> = tests.iter().filter(|test| is_chosen(test, &list, options)).collect();
    println!("{}: {} of {} tests", suite.name(), chosen.len(), tests.len());
    let outcomes = on_nodes(runner.as_ref(), &chosen, &list, options, folder)?;
    let broken = report(suite, &list, &outcomes, options);
    if options.against == Against::Tidelog && !broken.is_empty() {
        bail!("listed as passing, and they do not: {}", broken.join(", "));
    }
    Ok(())
}

fn is_chosen(test: &Test, list: &List, options: &Options) -> bool {
    if !options.tests.is_empty() {
        return options.tests.iter().any(|part| test.name.contains(part));
    }
    match list.verdict(&test.name) {
        Some(Verdict::Pass) => true,
        Some(Verdict::Local) => false,
        _ => options.all,
    }
}

/// The tests on a fresh node for each way in which one is set up.
fn on_nodes(
    runner: &dyn Runner,
    chosen: &[&Test],
    list: &List,
    options: &Options,
    folder: &Path,
) -> Result<BTreeMap<String, Outcome>> {
    let mut outcomes = BTreeMap::new();
    for auto_create in [true, false] {
        let mut units: BTreeMap<&str, Vec<&Test>> = BTreeMap::new();
        for test in chosen.iter().filter(|test| test.auto_create == auto_create) {
            units.entry(&test.unit).or_default().push(test);
        }
        if units.is_empty() {
            continue;
        }
        let folder = folder.join(if auto_create { "auto-create" } else { "no-auto-create" });
        let broker = start(options, &folder.join("node"), auto_create)?;
        for unit in units.values() {
            outcomes.extend(run_unit(runner, unit, &broker, list, &folder)?);
        }
    }
    Ok(outcomes)
}

fn start(options: &Options, folder: &Path, auto_create: bool) -> Result<Broker> {
    let auto_create = ("auto.create.topics.enable", if auto_create { "true" } else { "false" });
    let settings: Vec<_> = SETTINGS.into_iter().chain([auto_create]).collect();
    match options.against {
        Against::Kafka => brokers::start_kafka(folder, &settings),
        Against::Tidelog => {
            let program = brokers::program(options.program.as_deref())?;
            brokers::start_tidelog(&program, folder, options.store, &settings)
        }
    }
}

/// Runs a unit, and once more where a listed pass did not pass: these tests wait for seconds of a clock on a machine that may be
/// busy. A second try is told.
fn run_unit(
    runner: &dyn Runner,
    unit: &[&Test],
    broker: &Broker,
    list: &List,
    folder: &Path,
) -> Result<BTreeMap<String, Outcome>> {
    let mut last = BTreeMap::new();
    for attempt in ["first", "second"] {
        let begun = process::now();
        let logs = folder.join(attempt);
        fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        last = runner.run(unit, &broker.address, &logs)?;
        for (name, outcome) in &last {
            println!(
                "  {outcome:?} {name} {:.1} s{}",
                begun.elapsed().as_secs_f64(),
                if attempt == "second" { ", second try" } else { "" }
            );
        }
        let is_broken =
            |(name, outcome): (&String, &Outcome)| list.is_pass(name) && *outcome != Outcome::Passed;
        if !last.iter().any(is_broken) {
            break;
        }
    }
    Ok(last)
}

/// Prints the counts; gives the listed passes that did not pass.
fn report(suite: Suite, list: &List, outcomes: &BTreeMap<String, Outcome>, options: &Options) -> Vec<String> {
    let count = |wanted: Outcome| outcomes.values().filter(|outcome| **outcome == wanted).count();
    let against = match options.against {
        Against::Tidelog => "Tidelog",
        Against::Kafka => "Apache Kafka",
    };
    println!(
        "{} against {against}: {} passed, {} failed, {} skipped themselves; the list: {}",
        suite.name(),
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::Skipped),
        list.counts()
    );
    let passes = |(_, outcome): &(&String, &Outcome)| **outcome == Outcome::Passed;
    let is_news =
        |(name, _): &(&String, &Outcome)| !matches!(list.verdict(name), Some(Verdict::Pass | Verdict::Local));
    let newly: Vec<_> = outcomes.iter().filter(passes).filter(is_news).collect();
    if options.against == Against::Tidelog && !newly.is_empty() {
        let names: Vec<_> = newly.iter().map(|(name, _)| name.as_str()).collect();
        println!("pass now, and are not listed as passing: {}", names.join(", "));
    }
    let is_broken =
        |(name, outcome): &(&String, &Outcome)| list.is_pass(name) && **outcome != Outcome::Passed;
    outcomes.iter().filter(is_broken).map(|(name, _)| name.clone()).collect()
}

/// Runs a program with its output in a file, at most for some seconds; none where it had to be ended.
fn run_for(command: &Command, log: &Path, seconds: u64) -> Result<Option<ExitStatus>> {
    let mut program = Background::start("a test", command, log)?;
    let begun = process::now();
    while begun.elapsed().as_secs() < seconds {
        if let Some(status) = program.ended()? {
            return Ok(Some(status));
        }
        process::pause(50);
    }
    Ok(None)
}

/// A folder of the cache that is made once for what `wanted` says. A part of it does not pass for the whole.
fn once(name: &str, wanted: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = process::cache()?.join("suites").join(name);
    let marker = folder.join("installed");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    println!("bringing in {wanted}, into {} (minutes, once)", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    make(&folder)?;
    fs::write(&marker, wanted).context("remember what is installed")?;
    Ok(folder)
}
