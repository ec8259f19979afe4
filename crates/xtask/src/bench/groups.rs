//! Consumer groups: memory and heartbeats of many, a rebalance of one with many members beside Kafka's, many durable commits.

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Map, Value};

use super::{
    Common,
    driver::Driver,
    kafka,
    measures::{Sample, Series, number},
    node, part,
    report::{Report, Table},
    server::{Durability, Kind, Plan, TopicPlan},
    usage,
};

/// What `bench groups` takes.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) common: Common,
    /// Groups with one member each [default: 10000; quick: 500].
    #[arg(long)]
    groups: Option<u32>,
    /// Members of the one group [default: 500; quick: 50].
    #[arg(long)]
    members: Option<u32>,
    /// Commits per second [default: 20000; quick: 2000].
    #[arg(long)]
    rate: Option<u32>,
    /// Seconds of each measure [default: 30; quick: 5].
    #[arg(long)]
    seconds: Option<u64>,
    /// Only these parts: `many-classic`, `many-consumer`, `commits`, `one`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// The topic that all groups read.
const TOPIC: &str = "read";

/// Partitions of it where every group has one member.
const PARTITIONS: u32 = 10;

/// Partitions of it for each member of the one group.
const PARTITIONS_OF_A_MEMBER: u32 = 2;

pub(super) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    let scratch = common.scratch("groups")?;
    let mut report = Report::begin("groups", scratch.path());
    let seconds = options.seconds.unwrap_or(common.pick(30, 5));
    let groups = options.groups.unwrap_or(common.pick(10_000, 500));
    let members = options.members.unwrap_or(common.pick(500, 50));
    let rate = options.rate.unwrap_or(common.pick(20_000, 2_000));
    report.condition("pairs", common.pairs());
    report.condition("flush", "every batch of commits is synced before its answers");
    let mut bench =
        Bench { driver: Driver::install()?, report, table: Table::new("Consumer groups", &COLUMNS) };
    let is_wanted = |part: &str| options.only.is_empty() || options.only.iter().any(|only| only == part);
    let tidelog = |pair: usize, part: &str| {
        let folder = scratch.path().join(format!("{part}-{pair}"));
        node::plan(common.program(), &folder, &node::Store::Folder, &[node::durability(Durability::Synced)])
    };
    let (groups_text, seconds_text) = (groups.to_string(), seconds.to_string());
    for (part, protocol) in [("many-classic", "classic"), ("many-consumer", "consumer")] {
        if is_wanted(part) {
            let work =
                ["groups", "--groups", &groups_text, "--seconds", &seconds_text, "--protocol", protocol];
            let name = format!("{groups} groups of one {protocol} member");
            bench.row(&name, common.pairs(), (&MANY, &work), |pair| tidelog(pair, part))?;
        }
    }
    if is_wanted("commits") {
        let rate = rate.to_string();
        let work = ["commits", "--groups", "200", "--rate", &rate, "--seconds", &seconds_text];
        let name = format!("{rate} commits/s of 200 groups");
        bench.row(&name, common.pairs(), (&COMMITS, &work), |pair| tidelog(pair, "commits"))?;
    }
    if is_wanted("one") {
        let jars = kafka::install()?;
        let plan = |pair: usize, kind| match kind {
            Kind::Tidelog => tidelog(pair, "one"),
            Kind::Kafka => kafka::plan(&jars, &scratch.path().join(format!("one-kafka-{pair}"))),
        };
        bench.duel(members, common.pairs(), plan)?;
    }
    bench.report.table(bench.table);
    bench.report.note(
        "Each member has a connection of its own. A classic member sends a heartbeat every 3 s, one of the consumer protocol as \
         often as the broker asks (5 s). Latencies count from when a request was due. `beyond the session time-out` is from the \
         death of a member until the others have shared out its partitions, less its session time-out of 10 s.",
    );
    bench.report.finish(&common.out())
}

const COLUMNS: [&str; 4] =
    ["work", "measure", "Tidelog, median (min–max)", "Kafka, and the ratio of Kafka to Tidelog"];

/// A measure, where the part's answer has it, and what it is multiplied by.
type Measure = (&'static str, &'static str);

const MANY: [Measure; 5] = [
    ("heartbeat p50 ms", "/heartbeat/p50_ms"),
    ("heartbeat p99 ms", "/heartbeat/p99_ms"),
    ("slowest heartbeat ms", "/heartbeat/max_ms"),
    ("all stable after ms", "/stable_ms"),
    ("disturbed heartbeats", "/disturbed"),
];

const COMMITS: [Measure; 4] = [
    ("commits/s", "/rate"),
    ("commit p50 ms", "/commit/p50_ms"),
    ("commit p99 ms", "/commit/p99_ms"),
    ("slowest commit ms", "/commit/max_ms"),
];

const ONE: [Measure; 4] = [
    ("beyond the session time-out ms", "/beyond_session_ms"),
    ("from the first join to the last share ms", "/rebalance_ms"),
    ("partitions taken from the living", "/moved"),
    ("all stable after ms", "/stable_ms"),
];

struct Bench {
    driver: Driver,
    report: Report,
    table: Table,
}

impl Bench {
    /// One work on Tidelog, on a fresh node for each time.
    fn row(
        &mut self,
        name: &str,
        times: usize,
        (measures, work): (&[Measure], &[&str]),
        plan: impl Fn(usize) -> Result<Plan>,
    ) -> Result<()> {
        let samples = (0..times)
            .map(|time| self.sample(&plan(time)?, PARTITIONS, measures, work))
            .collect::<Result<Vec<_>>>()
            .with_context(|| name.to_owned())?;
        self.add(name, &samples, None);
        Ok(())
    }

    /// A group of so many members on Kafka and on Tidelog in turn.
    fn duel(&mut self, members: u32, pairs: usize, plan: impl Fn(usize, Kind) -> Result<Plan>) -> Result<()> {
        let (name, count) = (format!("one group of {members} members"), members.to_string());
        let work = ["group", "--members", &count];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in 0..pairs {
            for (kind, samples) in [(Kind::Kafka, &mut theirs), (Kind::Tidelog, &mut ours)] {
                let sample = self.sample(&plan(pair, kind)?, members * PARTITIONS_OF_A_MEMBER, &ONE, &work);
                samples.push(sample.with_context(|| format!("{name}, {}", kind.name()))?);
            }
        }
        self.add(&name, &ours, Some(&theirs));
        Ok(())
    }

    fn sample(&self, plan: &Plan, partitions: u32, measures: &[Measure], work: &[&str]) -> Result<Sample> {
        let server = plan.start()?;
        let topic =
            TopicPlan { partitions, segment_bytes: 32 << 20, durability: Durability::Synced, evicts: false };
        server.create(&self.driver, TOPIC, topic)?;
        let before = server.cpu_seconds()?;
        let found = part::run(&[work, &["--broker", server.address(), "--topic", TOPIC]].concat())?;
        let mut sample: Sample = measures.iter().map(|(name, at)| (*name, number(&found, at))).collect();
        sample.insert("CPU of the server s", server.cpu_seconds()? - before);
        sample.insert("peak of resident memory MiB", usage::status_mib(server.id(), "VmHWM")?);
        server.stop()?;
        Ok(sample)
    }

    fn add(&mut self, name: &str, ours: &[Sample], theirs: Option<&[Sample]>) {
        let mut figures = Map::new();
        let mut left = name;
        for measure in ours.first().into_iter().flat_map(Sample::keys) {
            let series = Series::of(ours, measure);
            let beside = theirs.map(|theirs| Series::of(theirs, measure));
            let ratio = beside.as_ref().map(|theirs| Series::ratio(&series, theirs));
            let text = match (&beside, &ratio) {
                (Some(theirs), Some(ratio)) => format!("{}; {}", theirs.text(), ratio.text()),
                _ => "-".to_owned(),
            };
            self.table.row([left.to_owned(), (*measure).to_owned(), series.text(), text]);
            let pair = beside.map_or(Value::Null, |theirs| theirs.json());
            figures.insert(
                (*measure).to_owned(),
                serde_json::json!({ "tidelog": series.json(), "kafka": pair }),
            );
            left = "";
        }
        self.report.figures(name, Value::Object(figures));
    }
}
