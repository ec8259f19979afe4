//! A broker of one node to ask: Tidelog as it is built, or the real Apache Kafka, on empty folders and a free port.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    bench::kafka,
    local,
    process::{self, Background},
    stores::{self, StoreKind},
};

/// What Kafka needs beside: on a busy machine its controller would else lose sight of the broker, which then answers of a
/// second leader epoch, or as no coordinator.
const KAFKA_SETTINGS: [(&str, &str); 1] = [("broker.session.timeout.ms", "300000")];

/// A running broker that ends with this.
#[derive(Debug)]
pub struct Broker {
    /// Its Kafka listener.
    pub address: String,
    _program: Background,
    _store: Option<stores::RunningStore>,
}

/// Starts an Apache Kafka of one node with these settings on empty folders and waits until it serves.
///
/// # Errors
/// When it cannot be installed or does not start.
pub fn start_kafka(folder: &Path, settings: &[(&str, &str)]) -> Result<Broker> {
    let jars = kafka::install()?;
    let settings: Vec<_> = settings.iter().chain(&KAFKA_SETTINGS).copied().collect();
    let plan = kafka::plan_with(&jars, folder, &settings)?;
    let mut command = Command::new(&plan.program);
    // Its tiered storage makes a folder where it is started.
    command.args(&plan.arguments).current_dir(folder);
    let (address, program) = start("Apache Kafka", &command, &plan.address, &folder.join("kafka.log"))?;
    Ok(Broker { address, _program: program, _store: None })
}

/// The program to start: the one that is named, or the repository's, built.
///
/// # Errors
/// When it is not there or cannot be built.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(program) = named {
        return fs::canonicalize(program).with_context(|| format!("find {}", program.display()));
    }
    process::run(process::cargo().args(["build", "--release", "--quiet", "--package", "tidelog"]))?;
    Ok(process::tidelog_binary())
}

/// Starts a Tidelog node with these settings on empty folders and a store of this kind, and waits until it serves.
///
/// # Errors
/// When the store or the node does not start.
pub fn start_tidelog(
    program: &Path,
    folder: &Path,
    kind: StoreKind,
    settings: &[(&str, &str)],
) -> Result<Broker> {
    fs::create_dir_all(folder)?;
    let store = stores::start(kind, folder, "bucket")?;
    let mut init = Command::new(program);
    init.args(["bucket", "init"]);
    local::with_store(&mut init, &store);
    process::output(&mut init).context("make the bucket")?;
    let address = format!("127.0.0.1:{}", process::free_port()?);
    let admin = format!("127.0.0.1:{}", process::free_port()?);
    let mut command = Command::new(program);
    command.arg("serve").arg("--data-dir").arg(folder.join("data"));
    command.args(["--listen", &address, "--admin-listen", &admin]);
    local::with_store(&mut command, &store);
    for (key, value) in settings {
        command.args(["--set", &format!("{key}={value}")]);
    }
    let (address, program) = start("tidelog", &command, &address, &folder.join("tidelog.log"))?;
    Ok(Broker { address, _program: program, _store: Some(store) })
}

fn start(name: &str, command: &Command, address: &str, log: &Path) -> Result<(String, Background)> {
    let mut program = Background::start(name, command, log)?;
    for _ in 0..600 {
        let told = || fs::read_to_string(log).unwrap_or_default();
        program.check_alive().with_context(told)?;
        if TcpStream::connect(address).is_ok() {
            return Ok((address.to_owned(), program));
        }
        process::pause(100);
    }
    bail!("{name} does not listen on {address} after 60 s; its log is {}", log.display())
}

/// Removes a folder that a broker which is just ending may still write to.
///
/// # Errors
/// When it cannot be removed.
pub fn remove(folder: &Path) -> Result<()> {
    let is_removed = (0..50).any(|_| {
        let is_removed = fs::remove_dir_all(folder).is_ok();
        if !is_removed {
            process::pause(100);
        }
        is_removed
    });
    if is_removed { Ok(()) } else { bail!("{} cannot be removed", folder.display()) }
}
