//! Real clients against a real node on real stores: pytest over `tests/clients`, once for each store.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    local, process,
    stores::{self, RunningStore, StoreKind},
};

/// What the client tests install: exact versions, so that a run tomorrow tests what today's did.
const REQUIREMENTS: [&str; 7] = [
    "confluent-kafka==2.16.1",
    "kafka-python==3.0.12",
    "aiokafka==0.14.0",
    "lz4",
    "zstandard",
    "python-snappy",
    "pytest==9.0.2",
];

/// Another generation of the same clients, as far back as this Python can run them.
fn older_requirements(python_minor: u32) -> [&'static str; 6] {
    let [confluent, kafka_python, aiokafka] = if python_minor <= 11 {
        ["confluent-kafka==2.3.0", "kafka-python==2.0.2", "aiokafka==0.8.1"]
    } else {
        ["confluent-kafka==2.6.1", "kafka-python==2.0.6", "aiokafka==0.12.0"]
    };
    [confluent, kafka_python, aiokafka, "lz4", "zstandard", "python-snappy"]
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
    stores::python_environment("clients", &REQUIREMENTS, None)
}

/// Runs the client tests on each of `kinds`, or on all that this machine can run.
///
/// # Errors
/// When a store does not start or a test fails; the other stores are tried all the same.
pub fn run(kinds: &[StoreKind], filter: Option<&str>) -> Result<()> {
    process::run(process::cargo().args(["build", "--release", "--package", "tidelog"]))?;
    let kinds = if kinds.is_empty() { StoreKind::available() } else { kinds.to_vec() };
    let python = python()?;
    let older = older_requirements(stores::python_minor()?);
    let older_python = stores::python_environment("older-clients", &older, None)?;
    let scratch = std::env::temp_dir().join(format!("tidelog-e2e-{}", std::process::id()));
    let mut failed = Vec::new();
    for kind in kinds {
        let folder = scratch.join(kind.name());
        let store = stores::start(kind, &folder, "tidelog-e2e")?;
        local::init_bucket(&store)?;
        let mut tests = Command::new(&python);
        tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "tests/clients"]);
        if let Some(filter) = filter {
            tests.args(["-k", filter]);
        }
        tests
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TIDELOG_BIN", process::tidelog_binary())
            .env("TIDELOG_TEST_OLDER_PYTHON", &older_python)
            .env("TIDELOG_TEST_STORE_KIND", kind.name())
            .env("TIDELOG_TEST_STORE", &store.url)
            .env("TIDELOG_TEST_ENDPOINT", store.endpoint.as_deref().unwrap_or(""))
            .env("TIDELOG_TEST_SCRATCH", &folder)
            .envs(store.environment.iter().map(|(name, value)| (name, value)));
        println!("clients on {}", kind.name());
        if let Err(error) = object_client(&store) {
            eprintln!("{error:#}");
            failed.push(kind.name());
        }
        if let Err(error) = process::run(&mut tests) {
            eprintln!("{error:#}");
            failed.push(kind.name());
        }
    }
    if !failed.is_empty() {
        bail!("client tests failed on {}; files are in {}", failed.join(", "), scratch.display());
    }
    fs::remove_dir_all(&scratch).with_context(|| format!("remove {}", scratch.display()))
}
