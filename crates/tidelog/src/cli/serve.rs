//! `tidelog serve`.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use tidelog_runtime::{Runtimes, RuntimesConfig};
use tokio::signal::unix::{SignalKind, signal};

use super::NodeFlags;
use crate::{config::NodeConfig, node::Node, telemetry};

/// What `tidelog serve` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    node: NodeFlags,
    /// One JSON document on standard output once the node serves: its ids and addresses.
    #[arg(long)]
    json: bool,
}

/// How long a stop may take before it is cut: what is left then is recovered at the next start.
pub(crate) const STOP_DEADLINE: Duration = Duration::from_secs(25);

/// What the runtimes have left when the node is down.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let flags = options.node.overrides();
    let config = NodeConfig::load(options.node.config_file(), std::env::vars(), flags)?;
    telemetry::start(config.log_format);
    let runtimes = Runtimes::start(RuntimesConfig::default()).context("start threads")?;
    let back = runtimes.back().clone();
    let outcome = runtimes.front().block_on(serve(config, &back, options.json));
    runtimes.shutdown(RUNTIME_DEADLINE);
    outcome
}

async fn serve(config: NodeConfig, back: &tokio::runtime::Handle, as_json: bool) -> Result<ExitCode> {
    let node = Node::start(config, back).await?;
    if as_json {
        super::print_json(&node.report())?;
    }
    let why = wait_for_stop(&node).await?;
    tracing::info!(why, "stopping");
    tokio::select! {
        biased;
        _ = wait_for_signal() => {
            tracing::warn!("a second signal ends the node at once");
            Ok(ExitCode::FAILURE)
        }
        outcome = node.stop(STOP_DEADLINE) => {
            outcome?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Waits for a signal, or for a failure after which the node must not go on.
async fn wait_for_stop(node: &Node) -> Result<&'static str> {
    tokio::select! {
        biased;
        signal = wait_for_signal() => signal,
        failure = node.failed() => Err(failure),
    }
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn wait_for_signal() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    Ok(tokio::select! {
        biased;
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
