//! The whole story in one command: real flights go in through the Kafka protocol, sealed segments move to the bucket, local
//! disk shrinks, and a replay from offset 0 gives every record back byte for byte.
//!
//! **Owns** the data, the proof and the report. **Does not own** any part of the node: the demo starts one as `serve` does,
//! with small segments and short waits, and talks to it as a client.

mod flights;
mod load;
mod measure;
mod picture;
mod progress;
mod replay;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;
use tidelog_runtime::{Clock as _, Runtimes, RuntimesConfig, SystemClock};
use tidelog_types::ByteSize;
use tokio::runtime::Handle;

use crate::{
    cli::{self, STOP_DEADLINE, Signals, print_json},
    config::{NodeConfig, Overrides},
    node::Node,
    telemetry,
};

use self::{load::Loaded, measure::Waited, picture::Places, progress::Progress, replay::Replayed};

/// What `tidelog demo` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where the demo keeps its node; only an empty folder, or one that a demo made.
    #[arg(long, default_value = "./tidelog-demo")]
    data_dir: PathBuf,
    /// The Kafka listener [default: 127.0.0.1:9092, or any free port with --exit].
    #[arg(long)]
    listen: Option<String>,
    /// The admin HTTP listener [default: 127.0.0.1:9644, or any free port with --exit].
    #[arg(long)]
    admin_listen: Option<String>,
    /// End after the report instead of serving until Ctrl-C.
    #[arg(long)]
    exit: bool,
    /// One JSON document on standard output.
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Whether one JSON document is asked for.
    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }
}

/// Marks a folder as a demo's own: a later run may delete the demo's topics in it.
const MARKER: &str = "demo.json";

/// Settings that show in a minute what a real node does in hours.
const SETTINGS: [(&str, &str); 7] = [
    ("log.journal.file.bytes", "4194304"),
    ("log.journal.bytes.max", "33554432"),
    ("log.tail.bytes", "67108864"),
    ("tier.check.interval.ms", "200"),
    ("tier.upload.max.lag.ms", "1000"),
    ("tier.delete.grace.ms", "1000"),
    ("tier.cache.bytes", "268435456"),
];

/// What the demo reports. `records_*` are those of topic `flights`.
#[derive(Debug, Clone, Serialize)]
struct Report {
    records_produced: u64,
    records_replayed: u64,
    records_mismatched: u64,
    flights_produced: u64,
    flights_replayed: u64,
    aircraft_produced: u64,
    aircraft_replayed: u64,
    local_bytes: u64,
    cache_bytes: u64,
    bucket_bytes: u64,
    bucket_objects: u64,
    /// Body bytes of GETs in the replay.
    cold_read_bytes: u64,
    /// Bytes of batches below the local log starts when the replay began.
    cold_bytes: u64,
    produce_records_per_s: f64,
    replay_records_per_s: f64,
    tier_wait_s: f64,
    wall_s: f64,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let default = |fixed: &str| if options.exit { "127.0.0.1:0".to_owned() } else { fixed.to_owned() };
    let overrides = Overrides {
        data_dir: Some(options.data_dir.clone()),
        listen: Some(options.listen.clone().unwrap_or_else(|| default(crate::config::LISTEN_DEFAULT))),
        admin_listen: Some(
            options.admin_listen.clone().unwrap_or_else(|| default(crate::config::ADMIN_LISTEN_DEFAULT)),
        ),
        settings: SETTINGS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..Overrides::default()
    };
    let config = NodeConfig::load(None, std::iter::empty(), overrides)?;
    take_folder(&options.data_dir)?;
    telemetry::start_quiet();
    let runtimes = Runtimes::start(RuntimesConfig::default()).context("start threads")?;
    let back = runtimes.back().clone();
    let outcome = runtimes.front().block_on(tell(options, config, &back));
    runtimes.shutdown(Duration::from_secs(1));
    outcome
}

/// Takes an empty folder, or one of an earlier demo; never a node's that holds something else.
fn take_folder(folder: &Path) -> Result<()> {
    let marker = folder.join(MARKER);
    if marker.is_file() {
        return Ok(());
    }
    let is_used = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if is_used {
        bail!(
            "{} holds files that no demo made: give the demo a folder of its own with --data-dir",
            folder.display()
        );
    }
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    fs::write(&marker, "{\"made_by\": \"tidelog demo\"}\n")
        .with_context(|| format!("write {}", marker.display()))
}

async fn tell(options: &Options, config: NodeConfig, back: &Handle) -> Result<ExitCode> {
    let progress = Progress::new();
    let node = Node::start(config, back).await?;
    let report = story(&node, &options.data_dir, progress).await;
    let outcome = match report {
        Ok(report) => show(&report, options),
        Err(error) => {
            let stopped = node.stop(STOP_DEADLINE).await;
            return Err(stopped
                .err()
                .map_or(error, |also| also.context("and the node did not stop cleanly")));
        }
    };
    let mut signals = Signals::listen()?;
    if matches!(outcome, Ok(ExitCode::SUCCESS)) && !options.exit {
        progress.say(&format!("serving on {} until Ctrl-C", node.address()));
        signals.next().await;
    }
    let stopped = cli::stop(&node, &mut signals).await?;
    outcome.map(|shown| if shown == ExitCode::SUCCESS { stopped } else { shown })
}

async fn story(node: &Node, data_dir: &Path, progress: Progress) -> Result<Report> {
    let clock = SystemClock::new();
    let begun = clock.monotonic();
    let address = node.address().to_string();
    load::create_topics(&address).await?;
    let produce_begun = clock.monotonic();
    let loaded = load::load(&address, &progress).await?;
    let produce_s = (clock.monotonic() - produce_begun).as_secs_f64();
    let Waited { cold_bytes, seconds: tier_wait_s } =
        measure::wait_until_tiered(node, &progress, &clock).await?;
    let local_bytes = measure::local_bytes(data_dir)?;
    let (bucket_bytes, bucket_objects) = measure::bucket(data_dir)?;
    node.store().clear_cache().await;
    let read_before = node.store().cold_read_bytes();
    let replay_begun = clock.monotonic();
    let replayed = replay::replay(&address, &progress, (loaded.flights, loaded.aircraft)).await?;
    let replay_s = (clock.monotonic() - replay_begun).as_secs_f64();
    let read = node.store().cold_read_bytes() - read_before;
    let cache_bytes = measure::allocated(&data_dir.join("cache"))?;
    let Loaded { flights, aircraft } = loaded;
    let Replayed { flights: flights_replayed, aircraft: aircraft_replayed, mismatched } = replayed;
    Ok(Report {
        records_produced: flights,
        records_replayed: flights_replayed,
        records_mismatched: mismatched,
        flights_produced: flights,
        flights_replayed,
        aircraft_produced: aircraft,
        aircraft_replayed,
        local_bytes,
        cache_bytes,
        bucket_bytes,
        bucket_objects,
        cold_read_bytes: read,
        cold_bytes,
        produce_records_per_s: per_second(flights + aircraft, produce_s),
        replay_records_per_s: per_second(flights_replayed + aircraft_replayed, replay_s),
        tier_wait_s: rounded(tier_wait_s),
        wall_s: rounded((clock.monotonic() - begun).as_secs_f64()),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, seconds: f64) -> f64 {
    rounded(count as f64 / seconds.max(0.001))
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Prints the report. Records that differ, or are missing, are a failure.
fn show(report: &Report, options: &Options) -> Result<ExitCode> {
    if options.json {
        print_json(report)?;
    } else {
        let places =
            Places { local: report.local_bytes, cache: report.cache_bytes, bucket: report.bucket_bytes };
        cli::print(&format!(
            "{} flights produced, {} replayed\n{} aircraft records produced, {} replayed\n{} records differ from their \
             source\n{:.0} records/s in, {:.0} records/s out, {} read from the bucket, {:.1} s in all\n\n{}",
            report.flights_produced,
            report.flights_replayed,
            report.aircraft_produced,
            report.aircraft_replayed,
            report.records_mismatched,
            report.produce_records_per_s,
            report.replay_records_per_s,
            ByteSize::bytes(report.cold_read_bytes),
            report.wall_s,
            picture::draw(places)
        ))?;
    }
    let is_whole = report.records_mismatched == 0
        && report.flights_produced == flights::FLIGHT_COUNT
        && report.flights_replayed == report.flights_produced
        && report.aircraft_replayed == report.aircraft_produced;
    if is_whole {
        return Ok(ExitCode::SUCCESS);
    }
    // The report is the one document; what is wrong with it is said beside it.
    telemetry::complain(&anyhow!("the replay did not give back what was produced"));
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_folder_or_an_earlier_demos_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = folder.path().join("fresh");
        take_folder(&fresh).unwrap();
        fs::write(fresh.join("meta.properties"), "x").unwrap();
        take_folder(&fresh).unwrap();
        let foreign = folder.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("meta.properties"), "x").unwrap();
        let refused = take_folder(&foreign).unwrap_err().to_string();
        assert!(refused.contains("no demo made"), "{refused}");
        assert!(!foreign.join(MARKER).exists());
    }
}
