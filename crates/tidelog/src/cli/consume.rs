//! `tidelog consume`.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, bail};
use clap::Args;
use futures::{StreamExt as _, stream::FuturesUnordered};
use serde_json::{Map, Value, json};
use tidelog_types::{Timestamp, TopicName};

use super::{
    Bootstrap, Signals,
    output::{OutputClosed, error_fields, written},
    topic::topic_name,
};
use crate::{
    client::{self, Connection, LeaderReader, ReadRecord, StartAt},
    telemetry,
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The topic.
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Only this partition.
    #[arg(long, value_parser = parse_partition, allow_negative_numbers = true)]
    partition: Option<usize>,
    /// Where to start: beginning, end, an offset, or @ and a time in milliseconds since 1970.
    #[arg(long, default_value = "beginning", value_parser = parse_start, allow_negative_numbers = true)]
    from: StartAt,
    /// Stop after so many records.
    #[arg(long, value_parser = parse_whole, allow_negative_numbers = true)]
    count: Option<u64>,
    /// Wait for records that are yet to come, until Ctrl-C.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    pub(super) bootstrap: Bootstrap,
}

fn parse_partition(text: &str) -> Result<usize, String> {
    usize::try_from(parse_whole(text)?).map_err(|error| error.to_string())
}

fn parse_whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a whole number from 0 on is expected".to_owned())
}

fn parse_start(text: &str) -> Result<StartAt, String> {
    let number = |digits: &str| {
        digits.parse::<u64>().map_err(|_| format!("`{text}`: beginning, end, OFFSET or @TIME is expected"))
    };
    match text {
        "beginning" => Ok(StartAt::Beginning),
        "end" => Ok(StartAt::End),
        _ => match text.strip_prefix('@') {
            Some(time) => Ok(StartAt::Time(Timestamp::from_millis(number(time)?))),
            None => Ok(StartAt::Offset(i64::try_from(number(text)?).map_err(|error| error.to_string())?)),
        },
    }
}

/// How long a fetch waits where there is nothing.
const FETCH_WAIT: Duration = Duration::from_secs(5);

/// How often a refusal that may pass is followed by another try.
const TRIES_MAX: u64 = 20;

/// The pause before the second try; the others take longer, each by as much.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let mut connection = Connection::open(&options.bootstrap.bootstrap).await?;
    let topic = client::topic_metadata(&mut connection, &options.topic).await?;
    let partitions: Vec<usize> = match options.partition {
        Some(partition) if partition >= topic.leaders.len() => {
            bail!("{} has no partition {partition}", options.topic)
        }
        Some(partition) => vec![partition],
        None => (0..topic.leaders.len()).collect(),
    };
    let readers = LeaderReader::open(&topic, &partitions, options.from, options.follow).await?;
    let mut printer = Printer::new(options.bootstrap.json, options.count)?;
    let reading = read_all(readers, &mut printer);
    let outcome = tokio::select! {
        biased;
        outcome = reading => outcome,
        // A signal ends following as `--count` would: what was printed is whole.
        _ = signals.next() => Ok(()),
    };
    match outcome {
        Err(error) if !error.is::<OutputClosed>() => {
            printer.finish(Some(&error))?;
            telemetry::complain(&error);
            Ok(ExitCode::FAILURE)
        }
        outcome => {
            outcome?;
            printer.finish(None)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn read_all(readers: Vec<LeaderReader>, printer: &mut Printer) -> Result<()> {
    if printer.is_full() {
        return Ok(());
    }
    let mut fetches: FuturesUnordered<_> =
        readers.into_iter().filter(|reader| !reader.is_done()).map(fetch).collect();
    while let Some(fetched) = fetches.next().await {
        let (reader, records) = fetched?;
        for (partition, records) in records {
            for record in &records {
                if !printer.print(partition, record)? {
                    return Ok(());
                }
            }
        }
        printer.flush()?;
        if !reader.is_done() {
            fetches.push(fetch(reader));
        }
    }
    Ok(())
}

/// Fetches, and again where the broker refuses what may pass.
async fn fetch(mut reader: LeaderReader) -> Result<(LeaderReader, Vec<(i32, Vec<ReadRecord>)>)> {
    let mut tries = 0;
    loop {
        let fetched = reader.fetch(FETCH_WAIT).await?;
        match fetched.refused {
            Some(refused) if fetched.records.is_empty() => {
                tries += 1;
                let may_pass = refused.code().is_some_and(tidelog_wire::ErrorCode::is_retriable);
                if !may_pass || tries >= TRIES_MAX {
                    return Err(refused.into());
                }
                tokio::time::sleep(RETRY_PAUSE.saturating_mul(u32::try_from(tries)?)).await;
            }
            // What came is shown first; a refusal that stays comes alone the next time.
            _ => return Ok((reader, fetched.records)),
        }
    }
}

/// Prints records as lines, or as one JSON document that grows.
struct Printer {
    output: io::BufWriter<io::Stdout>,
    as_json: bool,
    printed: u64,
    count_max: Option<u64>,
}

impl Printer {
    fn new(as_json: bool, count_max: Option<u64>) -> Result<Self> {
        let mut printer = Self { output: io::BufWriter::new(io::stdout()), as_json, printed: 0, count_max };
        let head = if as_json {
            "{\"records\": [".to_owned()
        } else {
            format!("{:>9}  {:>12}  {:>13}  KEY  VALUE\n", "PARTITION", "OFFSET", "TIMESTAMP")
        };
        written(printer.output.write_all(head.as_bytes()))?;
        printer.flush()?;
        Ok(printer)
    }

    /// Whether no more records are wanted.
    fn is_full(&self) -> bool {
        self.count_max.is_some_and(|count| self.printed >= count)
    }

    /// Prints one record; false when no more are wanted.
    fn print(&mut self, partition: i32, record: &ReadRecord) -> Result<bool> {
        let line = if self.as_json {
            let lead = if self.printed == 0 { "\n" } else { ",\n" };
            format!("{lead}{}", record_json(partition, record))
        } else {
            let text = |bytes: &Option<bytes::Bytes>| {
                bytes
                    .as_ref()
                    .map_or_else(|| "NULL".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
            };
            let (key, value) = (text(&record.key), text(&record.value));
            format!("{partition:>9}  {:>12}  {:>13}  {key}  {value}\n", record.offset, record.timestamp)
        };
        written(self.output.write_all(line.as_bytes()))?;
        self.printed += 1;
        Ok(!self.is_full())
    }

    fn flush(&mut self) -> Result<()> {
        written(self.output.flush())
    }

    /// Closes the document, with why it is not whole.
    fn finish(&mut self, error: Option<&anyhow::Error>) -> Result<()> {
        if self.as_json {
            let tail = match error {
                Some(error) => format!("\n], {}\n", error_fields(error).trim_start_matches('{')),
                None => "\n]}\n".to_owned(),
            };
            written(self.output.write_all(tail.as_bytes()))?;
        }
        self.flush()
    }
}

fn record_json(partition: i32, record: &ReadRecord) -> Value {
    let mut object = Map::new();
    object.insert("partition".to_owned(), json!(partition));
    object.insert("offset".to_owned(), json!(record.offset));
    object.insert("timestamp".to_owned(), json!(record.timestamp));
    put_bytes(&mut object, "key", record.key.as_deref());
    put_bytes(&mut object, "value", record.value.as_deref());
    let headers: Vec<Value> = record
        .headers
        .iter()
        .map(|(name, value)| {
            let mut header = Map::new();
            header.insert("name".to_owned(), json!(name));
            put_bytes(&mut header, "value", value.as_deref());
            Value::Object(header)
        })
        .collect();
    object.insert("headers".to_owned(), Value::Array(headers));
    Value::Object(object)
}

/// Text as text; what is not UTF-8 in hexadecimal digits under a name that says so.
fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => object.insert(name.to_owned(), Value::Null),
        Some((_, Ok(text))) => object.insert(name.to_owned(), json!(text)),
        Some((bytes, Err(_))) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert(format!("{name}_hex"), json!(digits))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_refused_in_words() {
        assert_eq!(parse_partition("17"), Ok(17));
        for text in ["-1", "x", "", "1.5"] {
            let told = parse_partition(text).unwrap_err();
            assert_eq!(told, "a whole number from 0 on is expected", "{text}");
            assert_eq!(parse_whole(text), Err(told));
        }
    }

    #[test]
    fn starts_are_read() {
        assert_eq!(parse_start("beginning"), Ok(StartAt::Beginning));
        assert_eq!(parse_start("17"), Ok(StartAt::Offset(17)));
        assert_eq!(parse_start("@17"), Ok(StartAt::Time(Timestamp::from_millis(17))));
        assert!(parse_start("-1").is_err() && parse_start("@").is_err() && parse_start("earliest").is_err());
    }

    #[test]
    fn null_empty_and_bytes_are_told_apart() {
        let record = ReadRecord {
            offset: 3,
            timestamp: -1,
            key: None,
            value: Some(bytes::Bytes::from_static(&[0xff, 0])),
            headers: vec![("h".to_owned(), Some(bytes::Bytes::new()))],
        };
        let expected = json!({
            "partition": 1, "offset": 3, "timestamp": -1, "key": null, "value_hex": "ff00",
            "headers": [{ "name": "h", "value": "" }],
        });
        assert_eq!(record_json(1, &record), expected);
    }
}
