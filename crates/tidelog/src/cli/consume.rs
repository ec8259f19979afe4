//! `tidelog consume`.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use tidelog_types::{Timestamp, TopicName};

use super::{Bootstrap, topic::topic_name};
use crate::client::{self, Connection, PartitionReader, ReadRecord, StartAt};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The topic.
    #[arg(value_parser = topic_name)]
    topic: TopicName,
    /// Only this partition.
    #[arg(long)]
    partition: Option<usize>,
    /// Where to start: beginning, end, an offset, or @ and a time in milliseconds since 1970.
    #[arg(long, default_value = "beginning", value_parser = parse_start)]
    from: StartAt,
    /// Stop after so many records.
    #[arg(long)]
    count: Option<u64>,
    /// Wait for records that are yet to come, until Ctrl-C.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    bootstrap: Bootstrap,
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

/// How long a fetch waits at the end of a partition that is followed.
const FOLLOW_WAIT: Duration = Duration::from_millis(500);

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let mut connection = Connection::open(&options.bootstrap.bootstrap).await?;
    let topic = client::topic_metadata(&mut connection, &options.topic).await?;
    let partitions: Vec<usize> = match options.partition {
        Some(partition) if partition >= topic.leaders.len() => {
            bail!("{} has no partition {partition}", options.topic)
        }
        Some(partition) => vec![partition],
        None => (0..topic.leaders.len()).collect(),
    };
    let mut readers = Vec::new();
    for partition in partitions {
        let mut reader = PartitionReader::open(&topic, partition, options.from).await?;
        let end = reader.end().await?;
        readers.push((partition, reader, end));
    }
    let mut printer = Printer::new(options.bootstrap.json, options.count)?;
    let reading = read_all(&mut readers, &mut printer, options.follow);
    tokio::select! {
        biased;
        outcome = reading => outcome?,
        // Ctrl-C ends following as `--count` would: what was printed is whole.
        _ = tokio::signal::ctrl_c() => {}
    }
    printer.finish()?;
    Ok(ExitCode::SUCCESS)
}

async fn read_all(
    readers: &mut [(usize, PartitionReader, i64)],
    printer: &mut Printer,
    follow: bool,
) -> Result<()> {
    loop {
        let mut open = false;
        for (partition, reader, end) in readers.iter_mut() {
            if !follow && reader.position() >= *end {
                continue;
            }
            open = true;
            let wait = if follow { FOLLOW_WAIT } else { Duration::from_secs(5) };
            for record in reader.fetch(wait).await? {
                if (!follow && record.offset >= *end) || !printer.print(*partition, &record)? {
                    return Ok(());
                }
            }
        }
        if !open {
            return Ok(());
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
        let mut output = io::BufWriter::new(io::stdout());
        if as_json {
            output.write_all(b"{\"records\": [")?;
        } else {
            writeln!(output, "{:>9}  {:>12}  {:>13}  KEY  VALUE", "PARTITION", "OFFSET", "TIMESTAMP")?;
        }
        output.flush()?;
        Ok(Self { output, as_json, printed: 0, count_max })
    }

    /// Prints one record; false when no more are wanted.
    fn print(&mut self, partition: usize, record: &ReadRecord) -> Result<bool> {
        if self.count_max.is_some_and(|count| self.printed >= count) {
            return Ok(false);
        }
        if self.as_json {
            self.output.write_all(if self.printed == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut self.output, &record_json(partition, record))?;
        } else {
            let text = |bytes: &Option<bytes::Bytes>| {
                bytes
                    .as_ref()
                    .map_or_else(|| "NULL".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
            };
            let (key, value) = (text(&record.key), text(&record.value));
            writeln!(
                self.output,
                "{partition:>9}  {:>12}  {:>13}  {key}  {value}",
                record.offset, record.timestamp
            )?;
        }
        self.output.flush()?;
        self.printed += 1;
        Ok(self.count_max.is_none_or(|count| self.printed < count))
    }

    fn finish(&mut self) -> Result<()> {
        if self.as_json {
            self.output.write_all(b"\n]}\n")?;
        }
        Ok(self.output.flush()?)
    }
}

fn record_json(partition: usize, record: &ReadRecord) -> Value {
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
