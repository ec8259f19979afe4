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

/// Records after which others may have the lock.
const RECORDS_AT_ONCE: usize = 1_000;

/// How long a group whose time has come waits for room in the queue of what is to be written.
const QUEUE_WAIT: Duration = Duration::from_millis(20);

/// Records that end one member, and what they take besides its id and the name of its group.
const ENDING_RECORDS: usize = 3;
const ENDING_BYTES: usize = (ENDING_RECORDS + 1) * 64;

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
    let batch_bytes_max = state.batch_bytes_max();
    let mut many = false;
    for _ in 0..GROUPS_AT_ONCE {
        if many {
            break;
        }
        let due = state.deadlines.first().is_some_and(|(deadline, _)| *deadline <= now.monotonic);
        let Some((_, name)) = due.then(|| state.deadlines.pop_first()).flatten() else {
            drop(state);
            shard.wake(news);
            return false;
        };
        let has_room = state.has_room();
        let Some(group) = state.groups.get_mut(&name) else { continue };
        group.deadline = None;
        if !has_room {
            let later = now.after(QUEUE_WAIT);
            group.deadline = Some(later);
            state.deadlines.insert((later, name));
            continue;
        }
        match &mut group.members {
            Members::Classic(members) => {
                let mut effects = Effects::default();
                members.tick(now, &settings.rules, &mut effects);
                state.recount(&name);
                news |= state.settle(&name, now, effects);
            }
            Members::Consumer(members) => {
                // Half a batch: what follows from it has to fit as well.
                let mut room = batch_bytes_max / 2;
                let changes = members.tick(now, &Topics(&image), |member_id, pattern| {
                    // Its own records, and that of its expression.
                    let ids = ENDING_RECORDS * (name.len() + member_id.len());
                    let bytes = ENDING_BYTES + ids + name.len() + pattern.len();
                    room.checked_sub(bytes).inspect(|left| room = *left).is_some()
                });
                let lost_a_member = !changes.is_empty();
                many |= changes.records().len() > RECORDS_AT_ONCE;
                let change = Change { changes, lost_a_member, ..Change::default() };
                match state.changed(&name, now, &settings, &image, change) {
                    Ok(more) => news |= more,
                    Err(code) => node.groups.taken_back(node, &name, code),
                }
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
