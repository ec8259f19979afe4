//! `tidelog produce`.

use std::{io::BufRead as _, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tidelog_types::{Timestamp, TopicName};

use super::{Bootstrap, Table, print_json, topic::topic_name};
use crate::client::{Compression, NewRecord, Producer, ProducerOptions};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The topic.
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// What parts a line into key and value; without it a line is a value.
    #[arg(long)]
    key_separator: Option<String>,
    /// How batches are compressed.
    #[arg(long, value_enum, default_value = "none")]
    compression: Compression,
    #[command(flatten)]
    pub(super) bootstrap: Bootstrap,
}

/// The longest line: Kafka's default limit of a batch.
const LINE_BYTES_MAX: usize = 1024 * 1024;

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let producer_options = ProducerOptions { compression: options.compression, ..ProducerOptions::default() };
    let mut producer =
        Producer::connect(&options.bootstrap.bootstrap, &options.topic, producer_options).await?;
    // Read without a runtime: between two lines there is nothing else to do.
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    let mut line_number = 0_u64;
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).context("read standard input")? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        line_number += 1;
        if line.len() > LINE_BYTES_MAX {
            // The lines before it are records all the same, and it is said how far they go.
            producer.flush().await?;
            anyhow::bail!(
                "line {line_number} has {} bytes, at most {LINE_BYTES_MAX} are allowed: the {} before it were written",
                line.len(),
                producer.acknowledged()
            );
        }
        let (key, value) = split(&line, options.key_separator.as_deref());
        producer.send(&NewRecord { key, value: Some(value), timestamp: wall_clock() }).await?;
    }
    producer.flush().await?;
    if options.bootstrap.json {
        print_json(&json!({ "topic": options.topic, "records": producer.acknowledged() }))?;
    } else {
        let mut table = Table::new(&["TOPIC", "RECORDS"]);
        table.row([options.topic.to_string(), producer.acknowledged().to_string()]);
        table.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The wall clock: a client's records carry the time of their making.
fn wall_clock() -> Timestamp {
    use tidelog_runtime::Clock as _;
    tidelog_runtime::SystemClock::new().wall()
}

fn split<'a>(line: &'a [u8], separator: Option<&str>) -> (Option<&'a [u8]>, &'a [u8]) {
    let separator = separator.map(str::as_bytes).filter(|separator| !separator.is_empty());
    let found = separator.and_then(|separator| {
        line.windows(separator.len())
            .position(|window| window == separator)
            .map(|at| (at, at + separator.len()))
    });
    match found {
        Some((key_end, value_start)) => (Some(&line[..key_end]), &line[value_start..]),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parted_at_the_first_separator() {
        assert_eq!(split(b"a::b::c", Some("::")), (Some(&b"a"[..]), &b"b::c"[..]));
        assert_eq!(split(b"abc", Some("::")), (None, &b"abc"[..]));
        assert_eq!(split(b"a:b", None), (None, &b"a:b"[..]));
    }
}
