//! Offsets that end: by their age, with their topic, with their group.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::groups::offsets::{CommittedOffset, Place};
use tidelog_runtime::CancellationToken;
use tidelog_types::TopicName;
use tidelog_wire::ErrorCode;

use super::{
    records,
    shard::{Shard, State, tell},
    write::{Answer, Entry, Then, Write},
};
use crate::node::Node;

/// Offsets of one group that one write ends, at most.
const ENDED_AT_ONCE: usize = 1_000;

/// Looks at all groups each `offsets.retention.check.interval.ms` until the broker ends.
pub(super) async fn run(node: Arc<Node>, ended: CancellationToken) {
    loop {
        let interval = node.groups.settings().check_interval;
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = node.clock.sleep(interval) => {}
        }
        for shard in node.groups.all() {
            expire(&node, &shard);
        }
    }
}

/// Ends what has expired in one shard, and groups that nothing is left of.
pub(super) fn expire(node: &Node, shard: &Shard) {
    let Ok(mut state) = shard.serving() else { return };
    let (now, retention) = (node.clock.wall(), node.groups.settings().retention);
    let names: Vec<Arc<str>> = state.groups.keys().cloned().collect();
    let mut written = false;
    // A commit that is on its way is newer than what was looked at.
    let coming = state.all_unapplied_places();
    for name in names {
        let Some(group) = state.groups.get(&name).filter(|group| !group.deleting) else { continue };
        let comes = |place: &Place| coming.get(&name).is_some_and(|places| places.contains(place));
        let expired: Vec<Place> =
            group.expired(now, retention).into_iter().filter(|place| !comes(place)).collect();
        let all = state.groups.get(&name).is_some_and(|group| {
            group.members.is_empty()
                && group.writes == 0
                && !group.members.awaits_members()
                && group.offsets.len() == expired.len()
        });
        if all {
            written |= delete_group(&mut state, &name, None);
            node.groups.metrics.expired.add(expired.len() as u64);
        } else if !expired.is_empty() {
            node.groups.metrics.expired.add(expired.len() as u64);
            written |= end_offsets(&mut state, &name, expired);
        }
    }
    drop(state);
    if written {
        shard.work.notify_one();
    }
}

/// Ends the offsets of topics that are gone, under their names.
pub(super) fn drop_topics(node: &Node, shard: &Shard, topics: &[Arc<str>]) {
    let topics: BTreeSet<&Arc<str>> = topics.iter().collect();
    let of_them = |state: &State, name: &Arc<str>, coming: Option<&BTreeSet<Place>>| -> Vec<Place> {
        let group = state.groups.get(name);
        let kept = group
            .into_iter()
            .flat_map(|group| topics.iter().flat_map(|topic| group.offsets.places_of(topic)));
        let coming = coming.into_iter().flatten().filter(|(topic, _)| topics.contains(topic));
        let places: BTreeSet<Place> = kept.chain(coming.cloned()).collect();
        places.into_iter().collect()
    };
    drop_places(node, shard, of_them);
}

/// Ends the offsets that were committed to a topic that is gone, or that another has the name of now.
pub(super) fn drop_offsets_of_other_topics(node: &Node, shard: &Shard) {
    let image = node.image();
    let current = |name: &str| {
        let name = TopicName::new(name).ok()?;
        image.topic_by_name(&name).map(|topic| topic.id)
    };
    let others = |state: &State, name: &Arc<str>, _: Option<&BTreeSet<Place>>| {
        state.groups.get(name).map(|group| group.offsets.of_other_topics(current)).unwrap_or_default()
    };
    drop_places(node, shard, others);
}

fn drop_places(
    node: &Node,
    shard: &Shard,
    which: impl Fn(&State, &Arc<str>, Option<&BTreeSet<Place>>) -> Vec<Place>,
) {
    // A shard that is loading looks for itself when it is done.
    let Ok(mut state) = shard.serving() else { return };
    let names: Vec<Arc<str>> = state.groups.keys().cloned().collect();
    let mut written = false;
    let coming = state.all_unapplied_places();
    for name in names {
        let places = which(&state, &name, coming.get(&name));
        if places.is_empty() || state.groups.get(&name).is_none_or(|group| group.deleting) {
            continue;
        }
        node.groups.metrics.deleted.add(places.len() as u64);
        written |= end_offsets(&mut state, &name, places);
    }
    drop(state);
    if written {
        shard.work.notify_one();
    }
}

/// Queues tombstones of offsets. What finds no room is found again at the next look. Answers whether any was queued.
fn end_offsets(state: &mut State, name: &Arc<str>, places: Vec<Place>) -> bool {
    let mut written = false;
    for (entries, changes) in endings(name, places, state.batch_bytes_max()) {
        let write = Write { group: Arc::clone(name), entries, then: Then::Offsets { changes, answer: None } };
        match state.push(write) {
            Ok(()) => written = true,
            Err((code, _)) => {
                tracing::warn!(group = %name, %code, "offsets are not ended yet");
                break;
            }
        }
    }
    written
}

/// Queues the end of a group: tombstones of every offset, those on their way included, and then of its members' records, so
/// that what a start finds of it in the middle is a group that can be deleted again. Answers whether anything was queued; where
/// not, whoever waits is told.
pub(super) fn delete_group(state: &mut State, name: &Arc<str>, answer: Option<Answer>) -> bool {
    let Some(group) = state.groups.get(name) else { return false };
    if !state.has_room() {
        tell(answer, Err(ErrorCode::CoordinatorNotAvailable));
        return false;
    }
    let mut places: BTreeSet<Place> = group.offsets.places().collect();
    places.extend(state.unapplied_places(name).into_iter().cloned());
    let members = state.end_members(name);
    if places.is_empty() && members.is_empty() {
        // Nobody will find it after a start either.
        state.remove(name);
        tell(answer, Ok(()));
        return false;
    }
    for (entries, changes) in endings(name, places, state.batch_bytes_max()) {
        let then = Then::Offsets { changes, answer: None };
        state.push_applied(Write { group: Arc::clone(name), entries, then });
    }
    let then = Then::Deleted { answer };
    state.push_applied(Write { group: Arc::clone(name), entries: members, then });
    if let Some(group) = state.groups.get_mut(name) {
        group.deleting = true;
    }
    true
}

/// Tombstones of offsets, and what they change.
type Ending = (Vec<Entry>, Vec<(Place, Option<CommittedOffset>)>);

/// The ends of offsets, as many together as one batch takes: names may be long.
fn endings(name: &str, places: impl IntoIterator<Item = Place>, bytes_max: usize) -> Vec<Ending> {
    let mut all: Vec<Ending> = Vec::new();
    let mut bytes = 0_usize;
    for place in places {
        // What has a record has a tombstone.
        let Ok(entry) = records::offset_tombstone(name, &place) else { continue };
        bytes = bytes.saturating_add(entry.bytes());
        let is_full = all.last().is_none_or(|(entries, _)| entries.len() >= ENDED_AT_ONCE);
        if is_full || bytes > bytes_max {
            bytes = entry.bytes();
            all.push(Ending::default());
        }
        if let Some((entries, changes)) = all.last_mut() {
            entries.push(entry);
            changes.push((place, None));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_end_by_as_many_batches_as_their_names_need() {
        let places = |count: i32, topic: &str| {
            (0..count).map(|partition| (Arc::from(topic), partition)).collect::<Vec<_>>()
        };
        let split = |name: &str, places: Vec<Place>| {
            let all = endings(name, places.clone(), 100_000);
            let changed: Vec<Place> =
                all.iter().flat_map(|(_, changes)| changes).map(|(place, _)| place.clone()).collect();
            assert_eq!(changed, places, "each once, in order");
            let most = all.iter().map(|(entries, _)| entries.iter().map(Entry::bytes).sum::<usize>()).max();
            assert!(most.unwrap_or(0) <= 100_000, "{most:?}");
            all.iter().map(|(entries, _)| entries.len()).collect::<Vec<_>>()
        };
        assert_eq!(split("g", places(2_500, "t")), [1_000, 1_000, 500]);
        assert_eq!(split(&"g".repeat(30_000), places(7, "t")), [3, 3, 1]);
        assert_eq!(split("g", Vec::new()), [0_usize; 0]);
    }
}
