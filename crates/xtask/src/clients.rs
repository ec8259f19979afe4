//! Real clients against a real node on real stores: pytest over `tests/clients`, once for each store.

mod install;

use std::{collections::BTreeMap, fs, path::Path, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

pub use install::{Client, check_kcat};

use crate::{
    local, process,
    stores::{self, RunningStore, StoreKind},
};

/// At this many a time: the machines that this is for have two processors.
const WORKERS: &str = "2";

/// The tests of the clients' scenarios, among others.
const SCENARIOS: [&str; 2] = ["tests/clients/test_scenarios.py", "tests/clients/test_java_tools.py"];

/// What the scenarios run against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// The built program.
    Tidelog,
    /// The real Apache Kafka: what the clients do there is what they must do with Tidelog.
    Kafka,
}

/// What `cargo xtask e2e clients` takes.
#[derive(Debug, Args)]
pub struct Options {
    /// Only these clients, and of the tests only their scenarios; all when none is named.
    #[arg(long, value_enum)]
    only: Vec<Client>,
    /// Only these stores; all that verify uses when none is named.
    #[arg(long, value_enum)]
    store: Vec<StoreKind>,
    /// Only the tests whose names contain this.
    #[arg(long)]
    filter: Option<String>,
    /// Runs the scenarios against this.
    #[arg(long, value_enum, default_value = "tidelog")]
    against: Against,
}

/// The bucket client's own contract against the real server. The whole workspace is named, so that nothing is built anew.
fn object_client(store: &RunningStore) -> Result<()> {
    let Some(endpoint) = &store.endpoint else { return Ok(()) };
    let mut tests = process::cargo();
    tests.args(["test", "--release", "--workspace", "--quiet", "--test", "it", "--", "real_server::"]);
    tests.env("TIDELOG_TEST_S3_ENDPOINT", endpoint);
    tests.env("TIDELOG_TEST_S3_KEYS", if store.kind.checks_keys() { "checked" } else { "any" });
    tests.envs(store.environment.iter().map(|(name, value)| (name, value)));
    process::run(&mut tests)
}

/// The Python that has the clients, installed where it is missing.
///
/// # Errors
/// When Python or a package cannot be had.
pub fn python() -> Result<PathBuf> {
    install::python()
}

/// pytest over the clients' tests, with what is the same on every store.
struct Tests<'a> {
    python: PathBuf,
    older_python: PathBuf,
    commands: String,
    options: &'a Options,
}

impl<'a> Tests<'a> {
    /// Installs what is missing: a client that cannot be installed fails the run.
    fn install(options: &'a Options) -> Result<Self> {
        let clients = if options.only.is_empty() { Client::value_variants() } else { &options.only };
        let mut commands = BTreeMap::new();
        for client in clients {
            commands.insert(client.name(), install::client(*client)?);
        }
        Ok(Self {
            python: install::python()?,
            older_python: install::older_python()?,
            commands: serde_json::to_string(&commands)?,
            options,
        })
    }

    fn run(&self, scratch: &Path, store: Option<&RunningStore>) -> Result<()> {
        let scenarios = self.options.against == Against::Kafka || !self.options.only.is_empty();
        let mut tests = Command::new(&self.python);
        tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no"]);
        tests.args(["-n", WORKERS, "--dist", "loadgroup"]);
        if scenarios {
            tests.args(SCENARIOS);
        } else {
            tests.arg("tests/clients");
        }
        if let Some(filter) = &self.options.filter {
            tests.args(["-k", filter]);
        }
        if store.is_some_and(|store| !has_scenarios(store.kind, self.options)) {
            tests.args(SCENARIOS.map(|file| format!("--ignore={file}")));
        }
        tests
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TIDELOG_BIN", process::tidelog_binary())
            .env("TIDELOG_TEST_CLIENTS", &self.commands)
            .env("TIDELOG_TEST_OLDER_PYTHON", &self.older_python)
            .env("TIDELOG_TEST_SCRATCH", scratch);
        match store {
            Some(store) => tests
                .env("TIDELOG_TEST_STORE_KIND", store.kind.name())
                .env("TIDELOG_TEST_STORE", &store.url)
                .env("TIDELOG_TEST_ENDPOINT", store.endpoint.as_deref().unwrap_or(""))
                .envs(store.environment.iter().map(|(name, value)| (name, value))),
            None => tests
                .env("TIDELOG_TEST_AGAINST", "kafka")
                .env("TIDELOG_TEST_JARS", install::jars()?)
                .env("TIDELOG_TEST_STORE", "")
                .env("TIDELOG_TEST_ENDPOINT", ""),
        };
        process::run(&mut tests)
    }
}

/// The scenarios are about the broker, so a folder and one real S3 server will do, unless others are asked for.
fn has_scenarios(kind: StoreKind, options: &Options) -> bool {
    !options.store.is_empty() || matches!(kind, StoreKind::File | StoreKind::Versitygw)
}

/// Runs the client tests on each store that is asked for, or on all that this machine can run.
///
/// # Errors
/// When a client cannot be installed, a store does not start or a test fails; the other stores are tried all the same.
pub fn run(options: &Options) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("tidelog-e2e-{}", std::process::id()));
    let tests = Tests::install(options)?;
    if options.against == Against::Kafka {
        fs::create_dir_all(&scratch)?;
        println!("clients against Apache Kafka");
        tests.run(&scratch, None).with_context(|| format!("files are in {}", scratch.display()))?;
    } else {
        process::run(process::cargo().args(["build", "--release", "--package", "tidelog"]))?;
        on_stores(&tests, &scratch)?;
    }
    fs::remove_dir_all(&scratch).with_context(|| format!("remove {}", scratch.display()))
}

/// Everything, on every store that this machine can run: a stage of verify.
///
/// # Errors
/// As [`run`].
pub fn all() -> Result<()> {
    run(&Options { only: Vec::new(), store: Vec::new(), filter: None, against: Against::Tidelog })
}

fn on_stores(tests: &Tests<'_>, scratch: &Path) -> Result<()> {
    let options = tests.options;
    let kinds = match (options.store.is_empty(), options.only.is_empty()) {
        (false, _) => options.store.clone(),
        (true, true) => StoreKind::available(),
        (true, false) => vec![StoreKind::File, StoreKind::Versitygw],
    };
    let mut failed = Vec::new();
    for kind in kinds {
        let folder = scratch.join(kind.name());
        let store = stores::start(kind, &folder, "tidelog-e2e")?;
        local::init_bucket(&store)?;
        println!("clients on {}", kind.name());
        let object = if options.only.is_empty() { object_client(&store) } else { Ok(()) };
        for error in [object, tests.run(&folder, Some(&store))].into_iter().filter_map(Result::err) {
            eprintln!("{error:#}");
            failed.push(kind.name());
        }
    }
    if !failed.is_empty() {
        bail!("client tests failed on {}; files are in {}", failed.join(", "), scratch.display());
    }
    Ok(())
}
