//! Rounds of the journal beside the bare file.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::{
    Common,
    measures::{Series, figure, number},
    part,
    report::{Report, Table},
    server::text,
};

/// What `bench journal` takes.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) common: Common,
    /// Dirty partitions of a round, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,16,256,1000")]
    partitions: Vec<u32>,
    /// Bytes of each partition's batch.
    #[arg(long, default_value_t = 4096)]
    batch: u32,
}

pub(super) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    let scratch = common.scratch("journal")?;
    let mut report = Report::begin("journal", scratch.path());
    report.condition("pairs", common.pairs());
    let partitions: Vec<String> = options.partitions.iter().map(u32::to_string).collect();
    let rounds = common.pick(100, 10).to_string();
    let figures = part::run(&[
        "journal",
        "--folder",
        &text(scratch.path())?,
        "--partitions",
        &partitions.join(","),
        "--batch",
        &options.batch.to_string(),
        "--pairs",
        &common.pairs().to_string(),
        "--rounds",
        &rounds,
    ])?;
    report.condition("rounds_per_block", rounds);
    let mut sequential = Table::new(
        "The disk: one write and one fdatasync, sequential, in a file allocated ahead",
        &["bytes", "median ms", "min ms", "p99 ms", "MB/s"],
    );
    for row in elements(&figures["sequential"]) {
        sequential.row([
            figure(number(row, "/bytes")),
            figure(number(row, "/times/median_ms")),
            figure(number(row, "/times/min_ms")),
            figure(number(row, "/times/p99_ms")),
            figure(number(row, "/times/mb_per_s")),
        ]);
    }
    report.table(sequential);
    let mut table = Table::new(
        "A round: one batch to each dirty partition, until all are durable",
        &["partitions", "bytes", "bare file ms", "p99", "journal ms", "p99", "journal / bare file"],
    );
    for row in elements(&figures["rounds"]) {
        let ratios = elements(&row["ratios"]).iter().filter_map(Value::as_f64).collect();
        table.row([
            figure(number(row, "/partitions")),
            figure(number(row, "/partitions") * number(row, "/batch_bytes")),
            figure(number(row, "/bare/median_ms")),
            figure(number(row, "/bare/p99_ms")),
            figure(number(row, "/journal/median_ms")),
            figure(number(row, "/journal/p99_ms")),
            Series(ratios).text(),
        ]);
    }
    report.table(table);
    report.note("The journal's round is the log engine's: append, one write, one sync, notice; segments are written behind meanwhile.");
    report.figures("journal", figures);
    report.finish(&common.out())
}

fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
