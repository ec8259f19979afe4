//! A cold replay of a node beside the raw GET loop.
//!
//! The node replays a topic of which nothing but the active segments is on local disk, from a stand-in that remembers every range it
//! was asked for. The loop then asks for the same ranges with as many connections as the node had requests at once on average,
//! rounded up: the most at any moment would count a single index read beside two long requests as a third. The node is started
//! anew for each turn, with its cache removed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::{Map, Value};

use super::{
    Common,
    driver::{Amount, Driver, Load},
    measures::{Sample, Series, number},
    node,
    part::{self, StandIn},
    report::{Report, Table},
    server::{Durability, Plan, TopicPlan, text},
    store::{UNSHAPED, shaped},
    usage,
};

/// What `bench replay` takes.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) common: Common,
    /// Partitions of the topic, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,6")]
    partitions: Vec<u32>,
    /// `unshaped`, or milliseconds to the first byte at 90 MB/s for a connection and 500 MB/s in all.
    #[arg(long, value_delimiter = ',', default_value = "unshaped,30")]
    shapes: Vec<String>,
    /// MiB of the topic [default: 2048; quick: 256].
    #[arg(long)]
    mib: Option<u64>,
    /// Broker settings of the node, key=value; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

const TOPIC: &str = "replayed";
const RECORD_BYTES: u32 = 1024;

/// The most of the topic that is read: what is left is about the active segments.
const REPLAYED_PERCENT: u64 = 90;

const MEASURES: [&str; 13] = [
    "node MB/s",
    "loop MB/s",
    "node / loop",
    "first record ms",
    "loop first byte ms",
    "node CPU s/GB",
    "loop CPU s/GB",
    "send CPU s/GB",
    "node CPU / (loop + send)",
    "GETs",
    "GETs at once",
    "GETs at once, most",
    "read amplification",
];

pub(super) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    let bytes = options.mib.unwrap_or(common.pick(2048, 256)) << 20;
    let scratch = common.scratch("replay")?;
    let mut report = Report::begin("replay", scratch.path());
    let driver = Driver::install()?;
    report.condition("driver", format!("librdkafka {} in C", driver.version()?));
    report.condition("pairs", common.pairs());
    report.condition("mib", bytes >> 20);
    report.condition("settings", options.settings.join(" "));
    let mut table = Table::new(
        "Cold replay beside the raw GET loop",
        &["partitions", "shape", "measure", "median (min–max)"],
    );
    for partitions in &options.partitions {
        let folder = scratch.path().join(format!("{partitions}p"));
        let replay =
            Replay::prepare(&driver, common.program(), &folder, *partitions, bytes, &options.settings)?;
        for shape in &options.shapes {
            let knobs = knobs(shape)?;
            let mut samples = Vec::new();
            for _ in 0..common.pairs() {
                let sample =
                    replay.pair(&knobs).with_context(|| format!("{partitions} partitions, {shape}"))?;
                println!("  {partitions} partitions, {shape}: node {:.0} MB/s", sample["node MB/s"]);
                samples.push(sample);
            }
            let mut figures = Map::new();
            for (at, measure) in MEASURES.iter().enumerate() {
                let series = Series::of(&samples, measure);
                let (left, middle) =
                    if at == 0 { (partitions.to_string(), shape.clone()) } else { Default::default() };
                table.row([left, middle, (*measure).to_owned(), series.text()]);
                figures.insert((*measure).to_owned(), series.json());
            }
            report.figures(&format!("{partitions} partitions, {shape}"), Value::Object(figures));
        }
    }
    report.table(table);
    report.note(
        "The loop reads the ranges that the node read in the same pair, over as many connections as the node had GETs at once on average, rounded up. \
         CPU is each process's alone; send is a thread that sends the same bytes from memory.",
    );
    report.finish(&common.out())
}

fn knobs(shape: &str) -> Result<[(&'static str, u64); 3]> {
    if shape == "unshaped" {
        return Ok(UNSHAPED);
    }
    let first_byte_ms = shape
        .parse()
        .with_context(|| format!("the shape `{shape}` is neither `unshaped` nor milliseconds"))?;
    Ok(shaped(first_byte_ms))
}

/// A topic in the stand-in, and how to start the node that serves it.
pub(super) struct Replay<'a> {
    driver: &'a Driver,
    store: StandIn,
    plan: Plan,
    partitions: u32,
    messages: u64,
    bytes: u64,
}

impl<'a> Replay<'a> {
    pub(super) fn prepare(
        driver: &'a Driver,
        program: PathBuf,
        folder: &Path,
        partitions: u32,
        bytes: u64,
        settings: &[String],
    ) -> Result<Self> {
        let store = StandIn::start(&[])?;
        let mut pairs = vec![node::durability(Durability::Written)];
        for setting in settings {
            let (key, value) =
                setting.split_once('=').with_context(|| format!("`{setting}` is not key=value"))?;
            pairs.push((key, value.to_owned()));
        }
        let plan = node::plan(program, folder, &node::Store::StandIn(&store), &pairs)?;
        let segment_bytes = (bytes / u64::from(partitions) / 8).clamp(1 << 20, 64 << 20);
        let topic = TopicPlan { partitions, segment_bytes, durability: Durability::Written, evicts: true };
        let load = Load {
            partitions,
            size: RECORD_BYTES,
            acks: 1,
            batch: 262_144,
            linger_ms: 5.0,
            amount: Amount::Bytes(bytes),
            rate: None,
        };
        let mut server = plan.start()?;
        server.create(driver, TOPIC, topic)?;
        driver.produce(server.address(), TOPIC, &load)?;
        server.drain(TOPIC, topic, RECORD_BYTES)?;
        server.stop()?;
        let messages = load.messages().unwrap_or(0) * REPLAYED_PERCENT / 100;
        Ok(Self { driver, store, plan, partitions, messages, bytes })
    }

    /// Starts the node with nothing in its cache.
    fn fresh(&self) -> Result<super::server::Server> {
        let cache = self.plan.folder.join("data/cache");
        if cache.exists() {
            fs::remove_dir_all(&cache).context("remove the cache")?;
        }
        self.plan.start()
    }

    fn pair(&self, knobs: &[(&str, u64)]) -> Result<Sample> {
        self.store.set(&UNSHAPED)?;
        let server = self.fresh()?;
        self.store.set(knobs)?;
        self.store.reset()?;
        let cpu = server.cpu_seconds()?;
        let replayed = self.driver.consume(server.address(), TOPIC, self.partitions, self.messages)?;
        let node_cpu = server.cpu_seconds()? - cpu;
        let (ranges, stats) = (self.store.gets()?, self.store.stats()?);
        self.store.set(&UNSHAPED)?;
        server.stop()?;
        if ranges.is_empty() {
            bail!("the replay read nothing from the store");
        }
        let file = self.plan.folder.join("ranges.txt");
        fs::write(&file, &ranges)?;
        let busy_s = number(&stats, "/gets_busy_us") / 1e6;
        let at_once = (busy_s / number(&replayed, "/seconds")).ceil().max(1.0);
        self.store.set(knobs)?;
        let looped = part::run(&[
            "get",
            "--server",
            self.store.address(),
            "--ranges",
            &text(&file)?,
            "--concurrency",
            &format!("{at_once:.0}"),
        ])?;
        self.store.set(&UNSHAPED)?;
        let sent = part::run(&["send", "--bytes", &self.bytes.to_string()])?;
        let consumed = number(&replayed, "/bytes");
        let node_cpu_per_gb = node_cpu / (consumed / 1e9);
        let floor = number(&looped, "/cpu_s_per_gb") + number(&sent, "/cpu_s_per_gb");
        Ok(Sample::from([
            ("node MB/s", number(&replayed, "/mb_per_s")),
            ("loop MB/s", number(&looped, "/mb_per_s")),
            ("node / loop", number(&replayed, "/mb_per_s") / number(&looped, "/mb_per_s")),
            ("first record ms", number(&replayed, "/first_ms")),
            ("loop first byte ms", number(&looped, "/first_byte_ms")),
            ("node CPU s/GB", node_cpu_per_gb),
            ("loop CPU s/GB", number(&looped, "/cpu_s_per_gb")),
            ("send CPU s/GB", number(&sent, "/cpu_s_per_gb")),
            ("node CPU / (loop + send)", node_cpu_per_gb / floor),
            ("GETs", number(&stats, "/gets")),
            ("GETs at once", at_once),
            ("GETs at once, most", number(&stats, "/gets_at_once_max")),
            ("read amplification", number(&stats, "/bytes_out") / consumed),
        ]))
    }

    /// Resident memory before and at its peak during a replay.
    pub(super) fn memory(&self) -> Result<(f64, f64)> {
        let server = self.fresh()?;
        crate::process::pause(1000);
        let before = server.resident_mib()?;
        usage::reset_peak(server.id())?;
        self.driver.consume(server.address(), TOPIC, self.partitions, self.messages)?;
        let peak = usage::status_mib(server.id(), "VmHWM")?;
        server.stop()?;
        Ok((before, peak))
    }
}
