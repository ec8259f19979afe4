//! `tidelog serve` over a disk and a store that end the process at a named operation, fail a sync, or make a deliberate mistake.
//!
//! The node is the product's own, from the same crates in the same build: only the layers under it are the testkit's.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use mimalloc::MiMalloc;
use tidelog::{
    config::{NodeConfig, Overrides},
    node::{Layers, Node},
    telemetry,
};
use tidelog_runtime::{Disk, Runtimes, RuntimesConfig};
use tidelog_testkit::{
    CarelessDisk, CarelessStore, Carelessness, FailingDisk, KillPlan, KillSwitch, KillingDisk, KillingStore,
    SyncFailure,
};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How long a stop may take.
const STOP_DEADLINE: Duration = Duration::from_secs(25);

/// A node that ends where it is told to.
#[derive(Debug, Parser)]
struct Options {
    /// The node's TOML file.
    #[arg(long)]
    config: PathBuf,
    /// Where it is told what happened, a line of JSON each.
    #[arg(long)]
    report: PathBuf,
    /// phase:nth:before, during or after; the phases are produce, roll, checkpoint, upload, commit, eviction,
    /// retention-and-deletion and start-up.
    #[arg(long)]
    kill_at: Option<KillPlan>,
    /// file:nth or file:nth:full: that sync fails, and what it covered is lost. The files are journal, segment, checkpoint,
    /// controller-log and others.
    #[arg(long)]
    fail_sync: Option<SyncFailure>,
    /// A deliberate mistake: ack-before-write, commit-before-write, lose-object, rot-object or keep-deleted.
    #[arg(long)]
    mistake: Option<Carelessness>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            telemetry::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let config = NodeConfig::load(Some(&options.config), std::iter::empty(), Overrides::default())?;
    telemetry::start(config.log_format);
    let switch = KillSwitch::new(options.kill_at, Some(options.report.clone()));
    let layers = layers(&switch, options.mistake, options.fail_sync);
    let runtimes = Runtimes::start(RuntimesConfig::default()).context("start threads")?;
    let back = runtimes.back().clone();
    let outcome = runtimes.front().block_on(serve(layers, config, &back, &switch));
    runtimes.shutdown(Duration::from_secs(1));
    outcome
}

/// Mistakes lie below the kills: a kill takes what a careless disk has not written.
fn layers(switch: &KillSwitch, mistake: Option<Carelessness>, failure: Option<SyncFailure>) -> Layers {
    let (disk_switch, store_switch) = (switch.clone(), switch.clone());
    Layers {
        disk: Some(Arc::new(move |disk| {
            let disk: Arc<dyn Disk> = match mistake {
                Some(mistake) => Arc::new(CarelessDisk::over(disk, mistake)),
                None => disk,
            };
            let disk: Arc<dyn Disk> = match failure {
                Some(_) => Arc::new(FailingDisk::over(disk, failure, disk_switch.clone())),
                None => disk,
            };
            Arc::new(KillingDisk::over(disk, disk_switch.clone()))
        })),
        store: Some(Arc::new(move |store| {
            let store = match mistake {
                Some(mistake) => Arc::new(CarelessStore::over(store, mistake)),
                None => store,
            };
            Arc::new(KillingStore::over(store, store_switch.clone()))
        })),
    }
}

async fn serve(
    layers: Layers,
    config: NodeConfig,
    back: &tokio::runtime::Handle,
    switch: &KillSwitch,
) -> Result<ExitCode> {
    let node = Node::start_under(layers, config, back).await?;
    switch.serving();
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        failure = node.failed() => return Err(failure),
    }
    node.stop(STOP_DEADLINE).await?;
    Ok(ExitCode::SUCCESS)
}
