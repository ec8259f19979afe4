//! The proof: the file is read again, and every record that comes over the Kafka protocol is compared with it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use tidelog_types::TopicName;

use super::{
    flights::{Flight, Flights},
    load::{AIRCRAFT_TOPIC, FLIGHTS_TOPIC, PARTITIONS},
    progress::{Bar, Progress},
};
use crate::client::{
    self, ClientError, Connection, PartitionReader, ReadRecord, StartAt, TopicMetadata, partition_of,
};

/// What a replay found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Replayed {
    /// Records of topic `flights` that came back.
    pub(super) flights: u64,
    /// Records of topic `aircraft` that came back.
    pub(super) aircraft: u64,
    /// Records that differ, are missing or are too many, in both.
    pub(super) mismatched: u64,
}

/// Reads both topics from offset 0 and compares.
pub(super) async fn replay(address: &str, progress: &Progress, expected: (u64, u64)) -> Result<Replayed> {
    let source = Flights::read()?;
    let bar = progress.step("replay flights", expected.0);
    let (flights, flights_wrong) = replay_topic(address, &source, FLIGHTS_TOPIC, &bar).await?;
    let bar = progress.step("replay aircraft", expected.1);
    let (aircraft, aircraft_wrong) = replay_topic(address, &source, AIRCRAFT_TOPIC, &bar).await?;
    Ok(Replayed { flights, aircraft, mismatched: flights_wrong + aircraft_wrong })
}

/// The key of a departure in a topic; none where the topic does not hold it.
fn key_in(topic: &str, flight: &Flight<'_>) -> Option<String> {
    if topic == FLIGHTS_TOPIC { Some(flight.key()) } else { flight.aircraft().map(str::to_owned) }
}

/// Replays one topic, its partitions side by side: records that came, and records that are wrong.
async fn replay_topic(address: &str, source: &Flights, topic: &str, bar: &Bar) -> Result<(u64, u64)> {
    let mut connection = Connection::open(address).await?;
    let metadata = client::topic_metadata(&mut connection, &TopicName::new(topic)?).await?;
    let partitions =
        (0..metadata.leaders.len()).map(|partition| replay_partition(source, &metadata, partition, bar));
    let found = try_join_all(partitions).await?;
    bar.done();
    Ok(found.iter().fold((0, 0), |(records, wrong), part| (records + part.0, wrong + part.1)))
}

async fn replay_partition(
    source: &Flights,
    metadata: &TopicMetadata,
    partition: usize,
    bar: &Bar,
) -> Result<(u64, u64)> {
    let topic = metadata.name.as_str();
    let mine = u32::try_from(partition)?;
    let mut expected = source.iter().filter_map(|flight| match flight {
        Ok(flight) => {
            let key = key_in(topic, &flight)?;
            (partition_of(key.as_bytes(), PARTITIONS) == mine).then_some(Ok((key, flight)))
        }
        Err(error) => Some(Err(error)),
    });
    let mut reader = PartitionReader::open(metadata, partition, StartAt::Offset(0)).await?;
    let end = reader.end().await?;
    let (mut replayed, mut mismatched) = (0_u64, 0_u64);
    let mut json = String::new();
    while reader.position() < end {
        for record in fetch(&mut reader).await? {
            let offset_is_next = u64::try_from(record.offset) == Ok(replayed);
            replayed += 1;
            bar.add(1);
            let same = match expected.next().transpose()? {
                Some((key, flight)) => {
                    flight.write_json(&mut json);
                    offset_is_next && is_same(&record, &key, &json, &flight)
                }
                None => false,
            };
            mismatched += u64::from(!same);
        }
        // The other partitions share this thread.
        tokio::task::yield_now().await;
    }
    for missing in expected {
        missing?;
        mismatched += 1;
    }
    Ok((replayed, mismatched))
}

fn is_same(record: &ReadRecord, key: &str, json: &str, flight: &Flight<'_>) -> bool {
    record.key.as_deref() == Some(key.as_bytes())
        && record.value.as_deref() == Some(json.as_bytes())
        && record.timestamp == flight.time().to_wire()
        && record.headers.is_empty()
}

/// Fetches, and again where the broker says that it may pass.
async fn fetch(reader: &mut PartitionReader) -> Result<Vec<ReadRecord>> {
    const TRIES: u64 = 20;
    for tried in 1..=TRIES {
        match reader.fetch(Duration::from_secs(5)).await {
            Ok(records) => return Ok(records),
            Err(error) if tried < TRIES && may_pass(&error) => {
                tokio::time::sleep(Duration::from_millis(50 * tried)).await
            }
            Err(error) => return Err(error).context("replay"),
        }
    }
    unreachable!("the last try returns")
}

fn may_pass(error: &ClientError) -> bool {
    error.code().is_some_and(tidelog_wire::ErrorCode::is_retriable)
}
