//! How long a start takes, from the start of the process until every partition has taken an append.

use std::fs;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Map, Value};

use super::{
    Common,
    driver::{Amount, Driver, Load},
    measures::{Sample, Series, number},
    node,
    part::{Probe, StandIn},
    report::{Report, Table},
    server::{Durability, Plan, TopicPlan},
};

/// What `bench start` takes.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) common: Common,
    /// Partitions of the starts with many.
    #[arg(long, default_value_t = 1000)]
    partitions: u32,
    /// Manifest entries of the starts with many [default: 10000; quick: 2000].
    #[arg(long)]
    entries: Option<u32>,
    /// MiB that lie in the journal when the process is killed [default: 1024; quick: 128].
    #[arg(long)]
    mib: Option<u64>,
}

const TOPIC: &str = "many";

/// Small segments give many manifest entries with little data: one batch fills one.
const SEGMENT_BYTES: u64 = 16_384;

/// Partitions of the start with a full journal.
const JOURNAL_PARTITIONS: u32 = 16;

pub(super) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    let scratch = common.scratch("start")?;
    let mut report = Report::begin("start", scratch.path());
    let driver = Driver::install()?;
    report.condition("pairs", common.pairs());
    let entries = options.entries.unwrap_or(common.pick(10_000, 2000));
    let mib = options.mib.unwrap_or(common.pick(1024, 128));
    let mut table = Table::new("From the start of the process", &["start", "measure", "median (min–max)"]);

    let store = StandIn::start(&[])?;
    let durability = node::durability(Durability::Written);
    let plan = node::plan(
        common.program(),
        &scratch.path().join("many"),
        &node::Store::StandIn(&store),
        // As small as the segments: else several of them would share an object and an entry.
        &[durability.clone(), ("tier.object.target.bytes", SEGMENT_BYTES.to_string())],
    )?;
    let objects = many_entries(&driver, &plan, &store, options.partitions, entries)?;
    for (name, killed) in [("clean stop", false), ("kill -9", true)] {
        let mut samples = Vec::new();
        for _ in 0..common.pairs() {
            let server = plan.start()?;
            if killed {
                // Every partition has something that only the journal holds.
                driver.produce(server.address(), TOPIC, &batches_each(options.partitions, 1))?;
                server.kill()?;
            } else {
                server.stop()?;
            }
            samples.push(timed(&plan, options.partitions)?);
        }
        let name = format!("{} partitions, {objects:.0} objects, after {name}", options.partitions);
        add(&mut table, &mut report, &name, &samples);
    }

    let mut samples = Vec::new();
    for pair in 0..common.pairs() {
        let folder = scratch.path().join(format!("journal-{pair}"));
        let journal = ("log.journal.bytes.max", ((mib * 8) << 20).to_string());
        let plan =
            node::plan(common.program(), &folder, &node::Store::Folder, &[durability.clone(), journal])?;
        let (journal_mib, checkpoints) = full_journal(&driver, &plan, mib)?;
        let mut sample = timed(&plan, JOURNAL_PARTITIONS)?;
        sample.insert("journal MiB", journal_mib);
        sample.insert("checkpoints before the kill", checkpoints);
        samples.push(sample);
        fs::remove_dir_all(&folder).context("remove the node's files")?;
    }
    let name = format!("{JOURNAL_PARTITIONS} partitions, {mib} MiB not checkpointed, after kill -9");
    add(&mut table, &mut report, &name, &samples);
    report.table(table);
    report.note("The probe asks every 2 ms over Kafka's protocol, one record for each partition that has not taken one.");
    report.finish(&common.out())
}

fn add(table: &mut Table, report: &mut Report, name: &str, samples: &[Sample]) {
    let mut figures = Map::new();
    let mut left = name;
    for measure in samples.first().into_iter().flat_map(Sample::keys) {
        let series = Series::of(samples, measure);
        table.row([left.to_owned(), (*measure).to_owned(), series.text()]);
        figures.insert((*measure).to_owned(), series.json());
        left = "";
    }
    report.figures(name, Value::Object(figures));
}

/// Starts the node and waits for an append to each partition.
fn timed(plan: &Plan, partitions: u32) -> Result<Sample> {
    let probe = Probe::begin(&plan.address, TOPIC, partitions, 180)?;
    let server = plan.spawn()?;
    let figures = probe.finish()?;
    server.stop()?;
    Ok(Sample::from([
        ("listens ms", number(&figures, "/connected_ms")),
        ("first append ms", number(&figures, "/first_append_ms")),
        ("all appends ms", number(&figures, "/all_appends_ms")),
    ]))
}

/// Gives the node's partitions their segments; answers how many objects there are.
fn many_entries(driver: &Driver, plan: &Plan, store: &StandIn, partitions: u32, entries: u32) -> Result<f64> {
    let mut server = plan.start()?;
    let topic =
        TopicPlan { partitions, segment_bytes: SEGMENT_BYTES, durability: Durability::Written, evicts: true };
    server.create(driver, TOPIC, topic)?;
    // One batch more than sealed segments: the last stays active.
    let load = batches_each(partitions, u64::from(entries / partitions.max(1)) + 1);
    driver.produce(server.address(), TOPIC, &load)?;
    server.drain(TOPIC, topic, 1024)?;
    server.stop()?;
    Ok(number(&store.stats()?, "/objects"))
}

/// So many batches to each partition, each of 15 records of 1 KiB: what fits into one and into a segment.
fn batches_each(partitions: u32, times: u64) -> Load {
    Load {
        partitions,
        size: 1024,
        acks: 1,
        batch: 16_384,
        linger_ms: 20.0,
        amount: Amount::Bytes(u64::from(partitions) * times * 15 * 1024),
        rate: None,
    }
}

/// Fills the journal faster than its checkpoints come, and kills the node; answers the MiB written to it and the checkpoints
/// that came all the same.
fn full_journal(driver: &Driver, plan: &Plan, mib: u64) -> Result<(f64, f64)> {
    let server = plan.start()?;
    let topic = TopicPlan {
        partitions: JOURNAL_PARTITIONS,
        segment_bytes: 256 << 20,
        durability: Durability::Written,
        evicts: false,
    };
    server.create(driver, TOPIC, topic)?;
    let load = Load {
        partitions: JOURNAL_PARTITIONS,
        size: 1024,
        acks: 1,
        batch: 262_144,
        linger_ms: 5.0,
        amount: Amount::Bytes(mib << 20),
        rate: None,
    };
    driver.produce(server.address(), TOPIC, &load)?;
    let written = node::metric(&plan.second_address, "log_journal_written_bytes_total")?;
    let checkpoints = node::metric(&plan.second_address, "log_checkpoints_total")?;
    server.kill()?;
    Ok((written / 1024.0 / 1024.0, checkpoints))
}
