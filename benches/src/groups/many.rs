//! Many groups with one member each, at the natural rate of their heartbeats.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tidelog_wire::Uuid;
use tokio::{
    sync::{Barrier, Semaphore},
    task::JoinSet,
};

use super::{
    Latency,
    consumer_member::ConsumerMember,
    coordinator,
    member::{Beat, Member, Plan},
    micros_since, topic,
};

/// Which protocol the members speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// JoinGroup and SyncGroup; a heartbeat every three seconds, which is every client's default.
    Classic,
    /// KIP-848; a heartbeat as often as the broker asks for.
    Consumer,
}

/// What to do.
#[derive(Debug, Clone, Args)]
pub struct Many {
    /// The broker.
    #[arg(long)]
    broker: SocketAddr,
    /// The topic that all groups read; it exists.
    #[arg(long)]
    topic: String,
    /// How many groups.
    #[arg(long, default_value_t = 10_000)]
    groups: usize,
    /// How long heartbeats are measured once all groups are stable.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// The protocol.
    #[arg(long, value_enum, default_value = "classic")]
    protocol: Protocol,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct ManyOutcome {
    /// From the first member's start until the last had its partitions.
    pub stable_ms: f64,
    /// Of the heartbeats.
    pub heartbeat: Latency,
    /// Heartbeats that were answered with "join again" though nothing happened.
    pub disturbed: usize,
}

/// The interval of a classic client.
const CLASSIC_INTERVAL: Duration = Duration::from_secs(3);

/// The session time-out of a classic client.
const SESSION: Duration = Duration::from_secs(45);

/// How many connect and join at the same time: all at once would measure the backlog of the listener.
const JOINING_MAX: usize = 2_000;

/// What all members share.
struct Shared {
    plan: Many,
    topic_id: Uuid,
    partitions: i32,
    joining: Semaphore,
    stable: Barrier,
}

/// Runs it.
///
/// # Errors
/// A member was refused, or the connection ended.
pub async fn run(plan: Many) -> Result<ManyOutcome> {
    coordinator(plan.broker, "g0").await?;
    let (topic_id, partitions) = topic(plan.broker, &plan.topic).await?;
    let groups = plan.groups;
    let shared = Arc::new(Shared {
        plan,
        topic_id,
        partitions,
        joining: Semaphore::new(JOINING_MAX),
        stable: Barrier::new(groups + 1),
    });
    let begun = Instant::now();
    let mut members = JoinSet::new();
    for number in 0..groups {
        members.spawn(member(Arc::clone(&shared), number));
    }
    // A member that fails never comes to the barrier; then its error is the answer.
    tokio::select! {
        _ = shared.stable.wait() => {}
        Some(Err(error) | Ok(Err(error))) = async { members.join_next().await.map(|done| done.map_err(anyhow::Error::from)) } => {
            return Err(error);
        }
    }
    let stable_ms = begun.elapsed().as_secs_f64() * 1e3;
    let (mut micros, mut disturbed) = (Vec::new(), 0);
    while let Some(done) = members.join_next().await {
        let (mut some, disturbances) = done.context("a member")??;
        micros.append(&mut some);
        disturbed += disturbances;
    }
    Ok(ManyOutcome { stable_ms, heartbeat: Latency::of(micros), disturbed })
}

/// One member; gives what its heartbeats took, and how many found the group rebalancing.
async fn member(shared: Arc<Shared>, number: usize) -> Result<(Vec<u32>, usize)> {
    let group = format!("g{number}");
    let joining = shared.joining.acquire().await?;
    let (mut micros, mut disturbed) = (Vec::new(), 0);
    match shared.plan.protocol {
        Protocol::Classic => {
            let plan = Plan {
                broker: shared.plan.broker,
                group,
                topic: shared.plan.topic.clone(),
                partitions: shared.partitions,
                session: SESSION,
            };
            let mut member = Member::connect(plan).await?;
            member.join(|_| {}).await?;
            drop(joining);
            let mut times = Times::begin(&shared, number, CLASSIC_INTERVAL).await;
            while let Some(due) = times.next().await {
                let beat = member.beat().await?;
                times.record(due, &mut micros);
                if matches!(beat, Beat::JoinAgain) {
                    disturbed += 1;
                    member.join(|_| {}).await?;
                }
            }
        }
        Protocol::Consumer => {
            let topic = (shared.plan.topic.clone(), shared.topic_id);
            let mut member = ConsumerMember::connect(shared.plan.broker, group, topic).await?;
            member.join().await?;
            drop(joining);
            let mut times = Times::begin(&shared, number, member.interval).await;
            while let Some(due) = times.next().await {
                member.beat().await?;
                times.record(due, &mut micros);
            }
        }
    }
    Ok((micros, disturbed))
}

/// When a member's heartbeats are due: from when it joined, each member at its own moment of the interval.
struct Times {
    due: Instant,
    interval: Duration,
    measured: Option<(Instant, Instant)>,
    stable: tokio::task::JoinHandle<Instant>,
    length: Duration,
}

impl Times {
    async fn begin(shared: &Arc<Shared>, number: usize, interval: Duration) -> Self {
        let waiting = Arc::clone(shared);
        let stable = tokio::spawn(async move {
            waiting.stable.wait().await;
            Instant::now()
        });
        let part = u32::try_from(number % 1000).unwrap_or(0);
        tokio::task::yield_now().await;
        Self {
            due: Instant::now() + interval * part / 1000,
            interval,
            measured: None,
            stable,
            length: Duration::from_secs(shared.plan.seconds),
        }
    }

    /// Waits until the next one is due; `None` when all is measured.
    async fn next(&mut self) -> Option<Instant> {
        if self.measured.is_none() && self.stable.is_finished() {
            let begun = (&mut self.stable).await.ok()?;
            // The first interval after the last group came is left out.
            self.measured = Some((begun + self.interval, begun + self.interval + self.length));
        }
        if self.measured.is_some_and(|(_, end)| self.due > end) {
            return None;
        }
        let due = self.due;
        tokio::time::sleep_until(due.into()).await;
        self.due += self.interval;
        Some(due)
    }

    fn record(&self, due: Instant, micros: &mut Vec<u32>) {
        if self.measured.is_some_and(|(begin, _)| due >= begin) {
            micros.push(micros_since(due));
        }
    }
}
