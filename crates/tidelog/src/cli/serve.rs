//! `tidelog serve`.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use tidelog_runtime::{Runtimes, RuntimesConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::NodeFlags;
use crate::{config::NodeConfig, node::Node, telemetry};

/// What `tidelog serve` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    node: NodeFlags,
    /// One JSON document on standard output once the node serves: its ids and addresses.
    #[arg(long)]
    pub(super) json: bool,
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
    let mut signals = Signals::listen()?;
    if as_json {
        match super::print_json(&node.report()) {
            // Whoever started the node and does not read on is no reason to end it.
            Err(error) if error.is::<super::output::OutputClosed>() => {}
            printed => printed?,
        }
    }
    let failure = tokio::select! {
        biased;
        signal = signals.next() => {
            tracing::info!(why = signal, "stopping");
            None
        }
        failure = node.failed() => Some(failure),
    };
    if let Some(failure) = failure {
        // The document was printed when the node began to serve: there is no second one.
        tracing::error!(why = format!("{failure:#}"), "the node must not go on");
        telemetry::complain(&failure);
        return Ok(ExitCode::FAILURE);
    }
    stop(&node, &mut signals).await
}

/// Stops a node; another signal ends it at once.
pub(crate) async fn stop(node: &Node, signals: &mut Signals) -> Result<ExitCode> {
    tokio::select! {
        biased;
        _ = signals.next() => {
            tracing::warn!("a second signal ends the node at once");
            Ok(ExitCode::FAILURE)
        }
        outcome = node.stop(STOP_DEADLINE) => {
            outcome?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// SIGTERM and SIGINT, none of them missed from here on.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
        })
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
