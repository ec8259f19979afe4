//! The timer of a shard: sessions, rebalances, delays.

use std::{sync::Arc, time::Duration};

use tidelog_core::groups::classic::Effects;

use super::{
    consumer::Change,
    group::Members,
    shard::{News, Shard},
    topics::Topics,
    writer::now,
};
use crate::node::Node;

/// Groups that are looked at under one hold of the lock.
const GROUPS_AT_ONCE: usize = 64;

/// Looks at each group when it is due, until the shard ends.
pub(super) async fn run(node: Arc<Node>, shard: Arc<Shard>) {
    loop {
        let next = shard.lock().deadlines.first().map(|(deadline, _)| *deadline);
        let due = async {
            match next {
                Some(deadline) => node.clock.sleep(deadline.saturating_sub(node.clock.monotonic())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shard.closed.cancelled() => return,
            () = shard.alarm.notified() => {}
            () = due => while look(&node, &shard) { tokio::task::yield_now().await; },
        }
    }
}

/// Looks at what is due. Answers whether there may be more.
fn look(node: &Node, shard: &Shard) -> bool {
    let now = now(node);
    let settings = node.groups.settings();
    let image = node.image();
    let mut news = News::default();
    let mut state = shard.lock();
    for _ in 0..GROUPS_AT_ONCE {
        let due = state.deadlines.first().is_some_and(|(deadline, _)| *deadline <= now.monotonic);
        let Some((_, name)) = due.then(|| state.deadlines.pop_first()).flatten() else {
            drop(state);
            shard.wake(news);
            return false;
        };
        let Some(group) = state.groups.get_mut(&name) else { continue };
        group.deadline = None;
        let generation = group.members.generation();
        match &mut group.members {
            Members::Classic(members) => {
                let mut effects = Effects::default();
                members.tick(now, &settings.rules, &mut effects);
                if members.generation() != generation {
                    node.groups.metrics.rebalances.inc();
                }
                news |= state.settle(&name, now, effects);
            }
            Members::Consumer(members) => {
                let records = members.tick(now, &Topics(&image));
                if !records.is_empty() {
                    node.groups.metrics.rebalances.inc();
                }
                let change = Change { records, lost_a_member: true, ..Change::default() };
                news |= state.changed(&name, now, &settings, &image, change);
            }
        }
    }
    drop(state);
    shard.wake(news);
    true
}

/// What a wait for a write may take: the sender's end comes first where the shard ends.
pub(super) async fn bounded<T>(node: &Node, most: Duration, wait: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = wait => Some(done),
        () = node.clock.sleep(most) => None,
    }
}
