//! One cooperative group with many members, one of which dies.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    PATIENCE, coordinator,
    member::{Beat, Member, Plan},
    topic,
};

/// What to do.
#[derive(Debug, Clone, Args)]
pub struct One {
    /// The broker.
    #[arg(long)]
    broker: SocketAddr,
    /// The topic; it exists.
    #[arg(long)]
    topic: String,
    /// How many members.
    #[arg(long, default_value_t = 500)]
    members: usize,
    /// The session time-out, seconds.
    #[arg(long, default_value_t = 10)]
    session: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct OneOutcome {
    /// From the first member's start until each had its share.
    pub stable_ms: f64,
    /// From the death of one until the others had shared out what it had, less the session time-out.
    pub beyond_session_ms: f64,
    /// Partitions that moved though their owner lived.
    pub moved: usize,
    /// From the first JoinGroup of a survivor to the last one's share.
    pub rebalance_ms: f64,
}

/// The interval of a client by default.
const INTERVAL: Duration = Duration::from_secs(3);

/// A member as the others see it.
#[derive(Debug, Clone, Default)]
struct Seen {
    generation: i32,
    owned: BTreeSet<i32>,
    is_joining: bool,
}

struct Shared {
    plan: Plan,
    members: Mutex<Vec<Seen>>,
}

impl Shared {
    fn with<T>(&self, look: impl FnOnce(&mut Vec<Seen>) -> T) -> T {
        look(&mut self.members.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True when all but the dead are in one generation and all partitions are shared out.
    fn is_settled(&self, dead: Option<usize>) -> bool {
        self.with(|members| {
            let living = || members.iter().enumerate().filter(|(number, _)| Some(*number) != dead);
            let mut owned: BTreeSet<i32> = BTreeSet::new();
            let mut sum = 0;
            for (_, member) in living() {
                sum += member.owned.len();
                owned.extend(&member.owned);
            }
            let newest = living().map(|(_, member)| member.generation).max();
            let all = usize::try_from(self.plan.partitions).unwrap_or(usize::MAX);
            sum == all
                && owned.len() == all
                && living().all(|(_, member)| !member.is_joining && Some(member.generation) == newest)
        })
    }
}

/// Runs it.
///
/// # Errors
/// A member was refused, or it does not settle.
pub async fn run(one: One) -> Result<OneOutcome> {
    coordinator(one.broker, "one").await?;
    let (_, partitions) = topic(one.broker, &one.topic).await?;
    let session = Duration::from_secs(one.session);
    let plan =
        Plan { broker: one.broker, group: "one".to_owned(), topic: one.topic.clone(), partitions, session };
    let shared = Arc::new(Shared { plan, members: Mutex::new(vec![Seen::default(); one.members]) });
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    let mut victim = None;
    for number in 0..one.members {
        let handle = tasks.spawn(live(Arc::clone(&shared), number));
        // Neither the first, which leads most probably, nor the last.
        if number == one.members / 2 {
            victim = Some((number, handle));
        }
    }
    settled(&shared, None, &mut tasks).await?;
    let stable_ms = begun.elapsed().as_secs_f64() * 1e3;
    // Long enough for a rebalance that is still to come.
    tokio::time::sleep(2 * INTERVAL).await;
    settled(&shared, None, &mut tasks).await?;
    let before = shared.with(|members| members.clone());
    let (dead, handle) = victim.context("a group of no members")?;
    handle.abort();
    let died = Instant::now();
    while shared.with(|members| members.iter().all(|member| !member.is_joining)) {
        if died.elapsed() > PATIENCE {
            bail!("nobody noticed the death of a member");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first = died.elapsed();
    settled(&shared, Some(dead), &mut tasks).await?;
    let over = died.elapsed();
    let moved = shared.with(|members| {
        let pairs = before.iter().zip(members.iter()).enumerate().filter(|(number, _)| *number != dead);
        pairs.map(|(_, (before, after))| before.owned.difference(&after.owned).count()).sum()
    });
    tasks.abort_all();
    Ok(OneOutcome {
        stable_ms,
        beyond_session_ms: (over.as_secs_f64() - session.as_secs_f64()) * 1e3,
        moved,
        rebalance_ms: (over.saturating_sub(first)).as_secs_f64() * 1e3,
    })
}

async fn settled(shared: &Shared, dead: Option<usize>, tasks: &mut JoinSet<Result<()>>) -> Result<()> {
    let begun = Instant::now();
    while !shared.is_settled(dead) {
        if begun.elapsed() > PATIENCE {
            bail!("the group has not settled in {PATIENCE:?}");
        }
        if let Some(Ok(Err(error))) = tasks.try_join_next() {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A member's life.
async fn live(shared: Arc<Shared>, number: usize) -> Result<()> {
    let mut member = Member::connect(shared.plan.clone()).await?;
    loop {
        shared.with(|members| members[number].is_joining = true);
        let round = |member: &Member| {
            shared.with(|members| {
                members[number].generation = member.generation;
                members[number].owned.clone_from(&member.owned);
            });
        };
        member.join(round).await?;
        shared.with(|members| members[number].is_joining = false);
        let mut due = tokio::time::Instant::now();
        loop {
            due += INTERVAL;
            tokio::time::sleep_until(due).await;
            if matches!(member.beat().await?, Beat::JoinAgain) {
                break;
            }
        }
    }
}
