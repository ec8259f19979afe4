//! `tidelog serve`.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tidelog_runtime::{Runtimes, RuntimesConfig};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};

use super::NodeFlags;
use crate::{
    config::NodeConfig,
    node::{Layers, Node},
    telemetry,
};

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
    // Before anything is touched: a start may wait long, and a signal must not end it as a crash would.
    let mut signals = Signals::listen()?;
    let Some(node) = start(config, back, &mut signals).await? else { return Ok(ExitCode::SUCCESS) };
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
    let Some(failure) = failure else { return stop(&node, &mut signals).await };
    // The document was printed when the node began to serve: there is no second one.
    tracing::error!(why = format!("{failure:#}"), "the node must not go on: stopping");
    telemetry::complain(&failure);
    // What goes on without what failed, such as uploads without the log, still ends as it should.
    if let Err(error) = stop(&node, &mut signals).await {
        tracing::warn!(error = format!("{error:#}"), "the node did not stop cleanly");
    }
    Ok(ExitCode::FAILURE)
}

/// Starts a node. A signal ends the start, whatever it waits for: then there is none.
async fn start(
    config: NodeConfig,
    back: &tokio::runtime::Handle,
    signals: &mut Signals,
) -> Result<Option<Node>> {
    let (end, ended) = tokio::sync::oneshot::channel();
    let ended = async {
        // Dropped without a word when the node serves.
        if ended.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let mut starting = std::pin::pin!(Node::start_unless(ended, Layers::default(), config, back));
    tokio::select! {
        biased;
        signal = signals.next() => {
            tracing::info!(why = signal, "stopping before the node serves");
            let _ = end.send(());
        }
        started = &mut starting => return started,
    }
    tokio::select! {
        biased;
        _ = signals.next() => bail!("a second signal ends the start at once"),
        started = &mut starting => started,
    }
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
    last: Option<(&'static str, Instant)>,
}

/// Within this time the same signal again is the same wish: `timeout` and some supervisors send one to the process and one to
/// its group.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            last: None,
        })
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            let signal = tokio::select! {
                biased;
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.interrupt.recv() => "SIGINT",
            };
            let again = self.last.is_some_and(|(last, at)| last == signal && at.elapsed() < SAME_SIGNAL);
            if !again {
                self.last = Some((signal, Instant::now()));
                return signal;
            }
        }
    }
}
