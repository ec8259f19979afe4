//! Many offset commits, each durable before its answer, at a fixed rate.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use tidelog_wire::{
    Str,
    messages::{
        OffsetCommitRequest,
        offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
    },
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    Latency, coordinator,
    member::{Member, Plan},
    micros_since, topic,
};

/// What to do.
#[derive(Debug, Clone, Args)]
pub struct Commits {
    /// The broker.
    #[arg(long)]
    broker: SocketAddr,
    /// The topic; it exists.
    #[arg(long)]
    topic: String,
    /// How many groups, each with one member.
    #[arg(long, default_value_t = 200)]
    groups: u32,
    /// Commits per second, of all groups.
    #[arg(long, default_value_t = 20_000)]
    rate: u32,
    /// How long it is measured, behind two seconds of warming up.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct CommitsOutcome {
    /// Commits per second that were answered while it was measured.
    pub rate: f64,
    /// Of the commits.
    pub commit: Latency,
}

/// Commits whose answers a group may wait for; one that is due when there are as many waits, and its wait counts.
const UNANSWERED_MAX: usize = 1024;

const WARMING_UP: Duration = Duration::from_secs(2);

const VERSION: i16 = 8;

/// Runs it.
///
/// # Errors
/// A commit was refused, or the connection ended.
pub async fn run(plan: Commits) -> Result<CommitsOutcome> {
    coordinator(plan.broker, "c0").await?;
    let (_, partitions) = topic(plan.broker, &plan.topic).await?;
    let mut joins = JoinSet::new();
    for number in 0..plan.groups {
        let member = Plan {
            broker: plan.broker,
            group: format!("c{number}"),
            topic: plan.topic.clone(),
            partitions,
            // A commit is a sign of life as well.
            session: Duration::from_secs(45),
        };
        joins.spawn(async move {
            let mut member = Member::connect(member).await?;
            member.join(|_| {}).await?;
            anyhow::Ok((number, member))
        });
    }
    let mut members = Vec::new();
    while let Some(joined) = joins.join_next().await {
        members.push(joined.context("a member")??);
    }
    let begin = Instant::now() + Duration::from_millis(500);
    let mut groups = JoinSet::new();
    for (number, member) in members {
        groups.spawn(commit(plan.clone(), begin, number, member));
    }
    let mut micros = Vec::new();
    while let Some(done) = groups.join_next().await {
        micros.append(&mut done.context("a group")??);
    }
    let rate = f64::from(u32::try_from(micros.len())?) / f64::from(u32::try_from(plan.seconds)?);
    Ok(CommitsOutcome { rate, commit: Latency::of(micros) })
}

/// One group's commits; gives what those took that were due while it was measured.
async fn commit(plan: Commits, begin: Instant, number: u32, member: Member) -> Result<Vec<u32>> {
    let Member { connection, id, generation, .. } = member;
    let (mut sending, mut receiving) = (connection.sending, connection.receiving);
    let (unanswered, mut answers) = mpsc::channel::<Instant>(UNANSWERED_MAX);
    let measured = begin + WARMING_UP;
    let end = measured + Duration::from_secs(plan.seconds);
    let interval = Duration::from_secs(1) * plan.groups / plan.rate.max(1);
    let receiver = tokio::spawn(async move {
        let mut micros = Vec::new();
        while let Some(due) = answers.recv().await {
            let answer = receiving.receive::<OffsetCommitRequest>(VERSION).await?;
            let codes = answer.topics.iter().flat_map(|topic| &topic.partitions);
            if let Some(refused) = codes.map(|partition| partition.error_code).find(|code| *code != 0) {
                bail!("a commit was refused: error {refused}");
            }
            if due >= measured {
                micros.push(micros_since(due));
            }
        }
        Ok(micros)
    });
    let mut due = begin + interval * number / plan.groups.max(1);
    let mut offset = 0;
    while due < end {
        tokio::time::sleep_until(due.into()).await;
        offset += 1;
        let request = OffsetCommitRequest {
            group_id: Str::from(format!("c{number}")),
            generation_id_or_member_epoch: generation,
            member_id: id.clone(),
            topics: vec![OffsetCommitRequestTopic {
                name: Str::from(plan.topic.as_str()),
                partitions: vec![OffsetCommitRequestPartition {
                    partition_index: 0,
                    committed_offset: offset,
                    committed_metadata: Some(Str::default()),
                    ..OffsetCommitRequestPartition::default()
                }],
                ..OffsetCommitRequestTopic::default()
            }],
            ..OffsetCommitRequest::default()
        };
        sending.send(VERSION, &request).await?;
        unanswered.send(due).await.context("the receiver ended")?;
        due += interval;
    }
    drop(unanswered);
    receiver.await.context("the receiver")?
}
