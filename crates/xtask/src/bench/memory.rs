//! Resident memory: idle, with many partitions, during a replay.

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};

use super::{
    Common,
    driver::Driver,
    measures::{Sample, Series},
    node,
    part::Probe,
    replay::Replay,
    report::{Report, Table},
    server::{Durability, Server, TopicPlan},
    usage,
};
use crate::process;

/// What `bench memory` takes.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) common: Common,
    /// Partitions of the node with many.
    #[arg(long, default_value_t = 1000)]
    partitions: u32,
    /// MiB that are replayed [default: 2048; quick: 256].
    #[arg(long)]
    mib: Option<u64>,
}

const MEASURES: [&str; 9] = [
    "idle MiB",
    "idle, anonymous MiB",
    "with partitions MiB",
    "with partitions, anonymous MiB",
    "KiB for each partition",
    "before the replay MiB",
    "peak of the replay MiB",
    "replay beyond before MiB",
    "page cache of the machine MiB",
];

pub(super) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    let scratch = common.scratch("memory")?;
    let mut report = Report::begin("memory", scratch.path());
    let driver = Driver::install()?;
    let mib = options.mib.unwrap_or(common.pick(2048, 256));
    report.condition("pairs", common.pairs());
    report.condition("partitions", options.partitions);
    report.condition("replayed_mib", mib);
    let replay =
        Replay::prepare(&driver, common.program(), &scratch.path().join("replay"), 6, mib << 20, &[])?;
    let mut samples = Vec::new();
    for pair in 0..common.pairs() {
        let mut sample = Sample::new();
        let folder = scratch.path().join(format!("node-{pair}"));
        let plan = node::plan(
            common.program(),
            &folder,
            &node::Store::Folder,
            &[node::durability(Durability::Written)],
        )?;
        let server = plan.start()?;
        settle(common);
        sample.insert("idle MiB", server.resident_mib()?);
        sample.insert("idle, anonymous MiB", usage::status_mib(server.id(), "RssAnon")?);
        sample.insert("page cache of the machine MiB", usage::page_cache_mib()?);
        partitions(&driver, &server, options.partitions)?;
        settle(common);
        sample.insert("with partitions MiB", server.resident_mib()?);
        sample.insert("with partitions, anonymous MiB", usage::status_mib(server.id(), "RssAnon")?);
        let grown = server.resident_mib()? - sample["idle MiB"];
        sample.insert("KiB for each partition", grown * 1024.0 / f64::from(options.partitions.max(1)));
        server.stop()?;
        let (before, peak) = replay.memory()?;
        sample.insert("before the replay MiB", before);
        sample.insert("peak of the replay MiB", peak);
        sample.insert("replay beyond before MiB", peak - before);
        samples.push(sample);
    }
    let mut table = Table::new("Resident memory of a node", &["measure", "median (min–max)"]);
    let mut figures = Map::new();
    for measure in MEASURES {
        let series = Series::of(&samples, measure);
        table.row([measure.to_owned(), series.text()]);
        figures.insert(measure.to_owned(), series.json());
    }
    report.table(table);
    report.figures("memory", Value::Object(figures));
    report.note(
        "Configured caches count to the peak of a replay: 32 MiB of chunks in memory, and what `tier.read.memory.bytes` allows.",
    );
    report.finish(&common.out())
}

fn settle(common: &Common) {
    process::pause(common.pick(10_000, 2000));
}

/// A topic whose every partition has taken a record.
fn partitions(driver: &Driver, server: &Server, count: u32) -> Result<()> {
    let topic = TopicPlan {
        partitions: count,
        segment_bytes: 32 << 20,
        durability: Durability::Written,
        evicts: false,
    };
    server.create(driver, "many", topic)?;
    Probe::begin(server.address(), "many", count, 120)?.finish().map(drop)
}
