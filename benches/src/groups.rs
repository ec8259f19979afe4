//! Consumer groups as their clients: many groups with a member each, one group with many members, many commits.
//!
//! Every member has a connection of its own, as real clients have, and speaks Kafka's protocol itself: thousands of client
//! libraries would need more of the machine than the broker that is measured. A member does what a library does: it finds
//! the coordinator, joins, syncs, sends heartbeats at its interval, and joins again when it is told to.
//!
//! Latencies count from when a request was due, so that a stall counts for all that it delayed.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{FindCoordinatorRequest, MetadataRequest, metadata::MetadataRequestTopic},
};

mod assignment;
mod commits;
mod connection;
mod consumer_member;
mod many;
mod member;
mod one;

pub use commits::{Commits, CommitsOutcome, run as run_commits};
pub use many::{Many, ManyOutcome, Protocol, run as run_many};
pub use one::{One, OneOutcome, run as run_one};

use connection::Connection;

/// How long anything may take before a bench gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// Between two tries of what is refused for now.
const PAUSE: Duration = Duration::from_millis(50);

/// How long things took: milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    /// How many there were.
    pub count: usize,
    /// Half of them took less.
    pub p50_ms: f64,
    /// 99 of 100 took less.
    pub p99_ms: f64,
    /// 999 of 1,000 took less.
    pub p999_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

impl Latency {
    fn of(mut micros: Vec<u32>) -> Self {
        micros.sort_unstable();
        let at = |per_mille: usize| {
            let index = (micros.len() * per_mille / 1000).min(micros.len().saturating_sub(1));
            micros.get(index).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
        };
        Self { count: micros.len(), p50_ms: at(500), p99_ms: at(990), p999_ms: at(999), max_ms: at(1000) }
    }
}

/// The microseconds since `due`.
fn micros_since(due: Instant) -> u32 {
    u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX)
}

/// True for what passes by itself while a coordinator comes up.
fn is_passing(code: i16) -> bool {
    [ErrorCode::CoordinatorLoadInProgress, ErrorCode::CoordinatorNotAvailable, ErrorCode::NotCoordinator]
        .iter()
        .any(|passing| passing.code() == code)
}

/// Waits until the coordinator of the group is found, which makes the topic of groups where there is none yet.
async fn coordinator(broker: SocketAddr, group: &str) -> Result<()> {
    let mut connection = Connection::open(broker).await?;
    let request = FindCoordinatorRequest { key: Str::from(group), ..FindCoordinatorRequest::default() };
    let begun = Instant::now();
    loop {
        let answer = connection.call(3, &request).await?;
        match answer.error_code {
            0 => return Ok(()),
            code if is_passing(code) && begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
            code => bail!("the coordinator of {group} is not found: error {code}"),
        }
    }
}

/// The id and the partition count of a topic that exists.
async fn topic(broker: SocketAddr, name: &str) -> Result<(tidelog_wire::Uuid, i32)> {
    let mut connection = Connection::open(broker).await?;
    let wanted = MetadataRequestTopic { name: Some(Str::from(name)), ..MetadataRequestTopic::default() };
    let request = MetadataRequest { topics: Some(vec![wanted]), ..MetadataRequest::default() };
    let answer = connection.call(12, &request).await?;
    let found = answer.topics.first().context("the broker names no topic")?;
    if found.error_code != 0 {
        bail!("topic {name}: error {}", found.error_code);
    }
    Ok((found.topic_id, i32::try_from(found.partitions.len())?))
}
