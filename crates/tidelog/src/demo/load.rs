//! Loading the flights through the Kafka protocol.

use anyhow::{Context as _, Result};
use tidelog_types::TopicName;

use super::{
    flights::{FLIGHT_COUNT, Flights},
    progress::Progress,
};
use crate::client::{Admin, ClientError, NewRecord, NewTopic, Producer, ProducerOptions};

/// The event topic: every departure.
pub(super) const FLIGHTS_TOPIC: &str = "flights";
/// The compacted topic: the latest departure of each aircraft.
pub(super) const AIRCRAFT_TOPIC: &str = "aircraft";
/// Partitions of each topic.
pub(super) const PARTITIONS: u32 = 6;

/// Local bytes of each partition that stay hot.
const LOCAL_RETENTION_BYTES: u64 = 1024 * 1024;

/// Records that were produced.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Loaded {
    /// Into topic `flights`.
    pub(super) flights: u64,
    /// Into topic `aircraft`.
    pub(super) aircraft: u64,
}

/// Deletes both topics where an earlier run left them, and makes them anew.
pub(super) async fn create_topics(address: &str) -> Result<()> {
    let mut admin = Admin::connect(address).await?;
    for (name, policy) in [(FLIGHTS_TOPIC, "delete"), (AIRCRAFT_TOPIC, "compact")] {
        let name = TopicName::new(name)?;
        match admin.delete_topic(&name).await {
            Ok(()) => {}
            Err(error) if is_unknown_topic(&error) => {}
            Err(error) => return Err(error).context("delete the topic of an earlier run"),
        }
        let configs = [
            ("cleanup.policy", policy.to_owned()),
            ("retention.ms", "-1".to_owned()),
            ("segment.bytes", (1024 * 1024).to_string()),
            ("local.retention.bytes", LOCAL_RETENTION_BYTES.to_string()),
        ];
        let configs = configs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        admin.create_topic(&NewTopic { name, partitions: Some(PARTITIONS), configs }).await?;
    }
    Ok(())
}

fn is_unknown_topic(error: &ClientError) -> bool {
    error.code() == Some(tidelog_wire::ErrorCode::UnknownTopicOrPartition)
}

/// Produces every departure to `flights`, and to `aircraft` where the aircraft is known.
pub(super) async fn load(address: &str, progress: &Progress) -> Result<Loaded> {
    let source = Flights::read()?;
    let options = ProducerOptions::default();
    let mut flights = Producer::connect(address, &TopicName::new(FLIGHTS_TOPIC)?, options).await?;
    let mut aircraft = Producer::connect(address, &TopicName::new(AIRCRAFT_TOPIC)?, options).await?;
    let bar = progress.step("produce", FLIGHT_COUNT);
    let mut json = String::new();
    for flight in source.iter() {
        let flight = flight?;
        flight.write_json(&mut json);
        let key = flight.key();
        let value = Some(json.as_bytes());
        flights.send(&NewRecord { key: Some(key.as_bytes()), value, timestamp: flight.time() }).await?;
        if let Some(tail) = flight.aircraft() {
            aircraft.send(&NewRecord { key: Some(tail.as_bytes()), value, timestamp: flight.time() }).await?;
        }
        bar.add(1);
    }
    flights.flush().await?;
    aircraft.flush().await?;
    bar.done();
    Ok(Loaded { flights: flights.acknowledged(), aircraft: aircraft.acknowledged() })
}
