//! Tidelog beside Apache Kafka: the same client, topics, durability and disk, in turns.
//!
//! For a row both servers run; the one whose turn it is not is idle, so that the peer's compiled code stays warm. Every turn has a
//! topic of its own, which is deleted afterwards. The CPU count of a produce ends when everything sealed is in the remote
//! store. Turns alternate A B A B, with the driver's own ceiling after each pair.

mod latency;
mod rows;
mod work;

use std::{cell::RefCell, collections::BTreeMap, path::Path};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::{
    Common,
    driver::Driver,
    kafka,
    measures::{Sample, Series, figure},
    report::{Report, Table},
    server::{Durability, Kind},
};
use rows::Row;

/// What `bench duel` takes.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) common: Common,
    /// Only the rows whose names begin so, for example `produce-acks1,cold-replay`.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Names the rows and ends.
    #[arg(long)]
    list: bool,
    /// MiB of a produce or a replay [default: 2048; quick: 192].
    #[arg(long)]
    mib: Option<u64>,
}

/// What all rows share.
struct Duel<'a> {
    common: &'a Common,
    driver: Driver,
    jars: std::path::PathBuf,
    bytes: u64,
    /// The lower of the two maxima, by durability: fixed rates are parts of it.
    maxima: RefCell<BTreeMap<Durability, f64>>,
}

/// What a row gave.
#[derive(Default)]
struct Outcome {
    kafka: Vec<Sample>,
    tidelog: Vec<Sample>,
    ceiling: Vec<Sample>,
}

impl Outcome {
    fn of(&mut self, kind: Kind) -> &mut Vec<Sample> {
        match kind {
            Kind::Kafka => &mut self.kafka,
            Kind::Tidelog => &mut self.tidelog,
        }
    }

    /// Every measure that anybody has, in order of its first appearance.
    fn measures(&self) -> Vec<&'static str> {
        let mut found = Vec::new();
        for measure in [&self.tidelog, &self.kafka].into_iter().flatten().flat_map(BTreeMap::keys) {
            if !found.contains(measure) {
                found.push(*measure);
            }
        }
        found
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let rows = rows::select(&options.rows)?;
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    let common = &options.common;
    let duel = Duel {
        common,
        driver: Driver::install()?,
        jars: kafka::install()?,
        bytes: options.mib.unwrap_or(common.pick(2048, 192)) << 20,
        maxima: RefCell::default(),
    };
    let scratch = common.scratch("duel")?;
    let mut report = Report::begin("duel", scratch.path());
    report.condition(
        "kafka",
        format!("Apache Kafka {}, KRaft, LocalTieredStorage, heap 1 GiB", kafka::VERSION),
    );
    report.condition("java", kafka::java_version());
    report.condition("driver", format!("librdkafka {} in C", duel.driver.version()?));
    report.condition("pairs", common.pairs());
    report.condition("mib_per_turn", duel.bytes >> 20);
    report.condition(
        "durability",
        "acks1: log.flush.default=replicated here, no flush setting in Kafka; acksall: a sync before every answer here, \
         flush.messages=1 in Kafka",
    );
    let mut table = Table::new(
        "Tidelog beside Kafka",
        &["row", "measure", "Kafka", "Tidelog", "Tidelog / Kafka", "limit"],
    );
    let mut failed = Vec::new();
    for row in &rows {
        println!("{}: {}", row.name, row.what());
        let outcome = duel.row(row, &scratch.path().join(&row.name)).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", row.name);
            failed.push(format!("{}: {error:#}", row.name));
            Outcome::default()
        });
        report.figures(&row.name, add(&mut table, row, &outcome));
    }
    report.table(table);
    for failure in &failed {
        report.note(format!("failed: {failure}"));
    }
    report.note("Figures are medians, with minimum and maximum; ratios are those of the pairs. CPU is the server's alone.");
    report.note(
        "Limits: MB/s is the driver's, against a broker that does nothing; CPU is that of a bare loop that reads 1 MiB from the page \
         cache and sends it.",
    );
    report.finish(&common.out())?;
    if failed.is_empty() { Ok(()) } else { bail!("{} of {} rows failed", failed.len(), rows.len()) }
}

/// Puts a row into the table and answers its figures.
fn add(table: &mut Table, row: &Row, outcome: &Outcome) -> Value {
    let mut figures = Map::new();
    let mut name = row.name.as_str();
    for measure in outcome.measures() {
        let kafka = Series::of(&outcome.kafka, measure);
        let tidelog = Series::of(&outcome.tidelog, measure);
        let ceiling = Series::of(&outcome.ceiling, measure);
        let ratio = Series::ratio(&kafka, &tidelog);
        let part = if ceiling.is_empty() {
            String::new()
        } else {
            let part = 100.0 * tidelog.median() / ceiling.median();
            format!("{} (Tidelog {}%)", ceiling.text(), figure(part))
        };
        table.row([name.to_owned(), measure.to_owned(), kafka.text(), tidelog.text(), ratio.text(), part]);
        figures.insert(
            measure.to_owned(),
            json!({ "kafka": kafka.json(), "tidelog": tidelog.json(), "ratio": ratio.json(), "ceiling": ceiling.json() }),
        );
        name = "";
    }
    Value::Object(figures)
}

impl Duel<'_> {
    fn row(&self, row: &Row, folder: &Path) -> Result<Outcome> {
        let outcome = self.turns(row, folder);
        // The next row needs the room.
        let _ = std::fs::remove_dir_all(folder);
        outcome
    }
}
