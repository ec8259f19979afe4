//! The stand-in's own ceiling: no figure of a replay can be better than what its store can do.

use anyhow::Result;
use clap::Args;

use super::{
    Common,
    measures::{Sample, Series, number},
    part::{self, BUCKET, StandIn},
    report::{Report, Table},
};

/// What `bench store` takes.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) common: Common,
    /// Milliseconds to the first byte, where the store is shaped.
    #[arg(long, default_value_t = 30)]
    first_byte_ms: u64,
}

/// The size of an object: what a node uploads.
const OBJECT_BYTES: u64 = 64 << 20;

/// What is asked of the store: a name, bytes of a range, connections.
const READS: [(&str, u64, u32); 5] = [
    ("GET 8 MiB", 8 << 20, 1),
    ("GET 8 MiB", 8 << 20, 4),
    ("GET 8 MiB", 8 << 20, 16),
    ("GET 1 MiB", 1 << 20, 4),
    ("GET 64 KiB", 64 << 10, 4),
];

/// As S3 answers.
pub(super) fn shaped(first_byte_ms: u64) -> [(&'static str, u64); 3] {
    [("first_byte_us", first_byte_ms * 1000), ("connection_rate", 90_000_000), ("total_rate", 500_000_000)]
}

/// As fast as it goes.
pub(super) const UNSHAPED: [(&str, u64); 3] =
    [("first_byte_us", 0), ("connection_rate", 0), ("total_rate", 0)];

pub(super) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    let scratch = common.scratch("store")?;
    let mut report = Report::begin("store", scratch.path());
    report.condition("pairs", common.pairs());
    let store = StandIn::start(&[])?;
    let mut table = Table::new(
        "The S3 stand-in",
        &["request", "connections", "shape", "MB/s", "first byte ms", "stand-in CPU s/GB", "client CPU s/GB"],
    );
    let bytes = common.pick(2_u64 << 30, 512 << 20);
    for connections in [1, 4] {
        let samples = repeat(common, || put(&store, connections, bytes))?;
        add(&mut table, &mut report, "PUT 64 MiB", connections, "unshaped", &samples);
    }
    put(&store, 1, OBJECT_BYTES)?;
    let shape = format!("{} ms, 90 MB/s, 500 MB/s in all", options.first_byte_ms);
    for (name, range, connections) in READS {
        let samples = repeat(common, || get(&store, range, connections, bytes))?;
        add(&mut table, &mut report, name, connections, "unshaped", &samples);
    }
    store.set(&shaped(options.first_byte_ms))?;
    for (name, range, connections) in READS.into_iter().take(3) {
        let samples = repeat(common, || get(&store, range, connections, bytes / 4))?;
        add(&mut table, &mut report, name, connections, &shape, &samples);
    }
    report.table(table);
    report.note("Client and stand-in share the machine: unshaped, their sum is what the cores can do.");
    report.finish(&common.out())
}

fn repeat(common: &Common, mut once: impl FnMut() -> Result<Sample>) -> Result<Vec<Sample>> {
    (0..common.pairs()).map(|_| once()).collect()
}

fn add(
    table: &mut Table,
    report: &mut Report,
    name: &str,
    connections: u32,
    shape: &str,
    samples: &[Sample],
) {
    let series = |measure| Series::of(samples, measure);
    let measures = ["MB/s", "first byte ms", "stand-in CPU s/GB", "client CPU s/GB"];
    let mut row = vec![name.to_owned(), connections.to_string(), shape.to_owned()];
    row.extend(measures.iter().map(|measure| series(measure).text()));
    table.row(row);
    let figures = measures.iter().map(|measure| ((*measure).to_owned(), series(measure).json())).collect();
    report.figures(&format!("{name}, {connections}, {shape}"), serde_json::Value::Object(figures));
}

fn put(store: &StandIn, connections: u32, bytes: u64) -> Result<Sample> {
    measured(
        store,
        &[
            "put",
            "--server",
            store.address(),
            "--bucket",
            BUCKET,
            "--object",
            &OBJECT_BYTES.to_string(),
            "--bytes",
            &bytes.to_string(),
            "--concurrency",
            &connections.to_string(),
        ],
    )
}

fn get(store: &StandIn, range: u64, connections: u32, bytes: u64) -> Result<Sample> {
    measured(
        store,
        &[
            "get",
            "--server",
            store.address(),
            "--path",
            &format!("{BUCKET}/object-0"),
            "--object",
            &OBJECT_BYTES.to_string(),
            "--range",
            &range.to_string(),
            "--bytes",
            &bytes.to_string(),
            "--concurrency",
            &connections.to_string(),
        ],
    )
}

fn measured(store: &StandIn, arguments: &[&str]) -> Result<Sample> {
    let cpu = store.cpu_seconds()?;
    let figures = part::run(arguments)?;
    let cpu = store.cpu_seconds()? - cpu;
    Ok(Sample::from([
        ("MB/s", number(&figures, "/mb_per_s")),
        ("first byte ms", number(&figures, "/first_byte_ms")),
        ("client CPU s/GB", number(&figures, "/cpu_s_per_gb")),
        ("stand-in CPU s/GB", cpu / (number(&figures, "/bytes") / 1e9)),
    ]))
}
