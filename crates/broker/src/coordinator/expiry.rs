//! Offsets that end: by their age, with their topic, with their group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tidelog_core::groups::offsets::{CommittedOffset, Place};
use tidelog_runtime::CancellationToken;
use tidelog_types::{Timestamp, TopicId, shown};
use tidelog_wire::ErrorCode;

use super::{
    records,
    shard::{Shard, State, tell},
    topics::topic_id,
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
            drop_offsets_of_other_topics(&node, &shard, None);
            expire(&node, &shard);
        }
    }
}

/// Ends what has expired in one shard, and groups that nothing is left of.
pub(super) fn expire(node: &Node, shard: &Shard) {
    let Ok(mut state) = shard.serving() else { return };
    let (now, retention) = (node.clock.wall(), node.groups.settings().retention);
    let Expired { offsets, is_written } = expire_all(&mut state, now, retention);
    drop(state);
    node.groups.metrics.expired.add(offsets as u64);
    if is_written {
        shard.work.notify_one();
    }
}

/// What has expired, and is on its way to its end.
#[derive(Debug, Default, PartialEq)]
struct Expired {
    offsets: usize,
    is_written: bool,
}

/// The same of one shard's groups. What finds no room is found again by the next look, and does not count before.
fn expire_all(state: &mut State, now: Timestamp, retention: Duration) -> Expired {
    let names: Vec<Arc<str>> = state.groups.keys().cloned().collect();
    let mut all = Expired::default();
    // A commit that is on its way is newer than what was looked at.
    let coming: BTreeMap<Arc<str>, BTreeSet<Place>> = state
        .all_unapplied()
        .into_iter()
        .map(|(name, places)| (name, places.into_keys().cloned().collect()))
        .collect();
    for name in names {
        let Some(group) = state.groups.get(&name).filter(|group| !group.deleting) else { continue };
        let comes = |place: &Place| coming.get(&name).is_some_and(|places| places.contains(place));
        let expired: Vec<Place> =
            group.expired(now, retention).into_iter().filter(|place| !comes(place)).collect();
        let is_over = group.members.is_empty()
            && group.writes == 0
            && !group.members.awaits_members()
            && group.offsets.len() == expired.len();
        if is_over {
            if delete_group(state, &name, None) {
                all.offsets += expired.len();
                all.is_written = true;
            }
        } else if !expired.is_empty() {
            let ended = end_offsets(state, &name, expired);
            all.offsets += ended;
            all.is_written |= ended > 0;
        }
    }
    all
}

/// Ends offsets that were committed to a topic that is gone, or that another has the name of now: `among` these names, or all.
/// What finds no room, or is not written, is found again by the next look at all of them.
pub(super) fn drop_offsets_of_other_topics(node: &Node, shard: &Shard, among: Option<&BTreeSet<Arc<str>>>) {
    // A shard that is loading looks for itself when it is done.
    let Ok(mut state) = shard.serving() else { return };
    // Under the lock: whatever was committed here was let in by this image or one before it.
    let image = node.image();
    let stale = of_other_topics(&state, among, |topic| topic_id(&image, topic));
    let mut written = 0;
    for (name, places) in stale {
        written += end_offsets(&mut state, &name, places);
    }
    drop(state);
    node.groups.metrics.deleted.add(written as u64);
    if written > 0 {
        shard.work.notify_one();
    }
}

/// Such offsets of each group. What is on its way to the log is newer than what is kept.
fn of_other_topics(
    state: &State,
    among: Option<&BTreeSet<Arc<str>>>,
    current: impl Fn(&str) -> Option<TopicId>,
) -> Vec<(Arc<str>, BTreeSet<Place>)> {
    let coming = state.all_unapplied();
    let groups = state.groups.iter().filter(|(_, group)| !group.deleting);
    let stale = groups.map(|(name, group)| {
        let mut places = group.offsets.of_other_topics(among, &current);
        for (place, newest) in coming.get(name).into_iter().flatten() {
            if newest.is_none_or(|committed| committed.is_of(current(&place.0))) {
                places.remove(*place);
            } else if among.is_none_or(|names| names.contains(&place.0)) {
                places.insert((*place).clone());
            }
        }
        (Arc::clone(name), places)
    });
    stale.filter(|(_, places)| !places.is_empty()).collect()
}

/// Queues tombstones of offsets, and answers of how many.
fn end_offsets(state: &mut State, name: &Arc<str>, places: impl IntoIterator<Item = Place>) -> usize {
    let mut written = 0;
    for (entries, changes) in endings(name, places, state.batch_bytes_max()) {
        let count = changes.len();
        let write = Write { group: Arc::clone(name), entries, then: Then::Offsets { changes, answer: None } };
        match state.push(write) {
            Ok(()) => written += count,
            Err((code, _)) => {
                if let Some(suppressed) = state.lines.pass("offsets not ended") {
                    tracing::warn!(suppressed, group = shown(name), %code, "offsets are not ended yet");
                }
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
    let group_writes = group.writes;
    let mut places: BTreeSet<Place> = group.offsets.places().collect();
    places.extend(state.unapplied_places(name).into_iter().cloned());
    let members = state.end_members(name);
    // What is on its way has to be there first: were it not written, the group would be found again.
    if places.is_empty() && members.is_empty() && group_writes == 0 {
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
        group.has_lasting_offsets = false;
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
    use super::{
        super::shard::tests::{now, queue_commit, state, write_one},
        *,
    };

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

    #[test]
    fn what_expires_while_the_queue_is_full_is_not_counted_and_ends_later() {
        let (mut state, retention) = (state(), Duration::from_secs(60));
        for (group, partition) in [("g", 0), ("h", 0), ("h", 1)] {
            queue_commit(&mut state, &group.into(), &("t".into(), partition), TopicId::from_bytes([1; 16]));
            write_one(&mut state, Ok(()));
        }
        // Committed at 1 ms.
        let look = |state: &mut State, at: u64| expire_all(state, Timestamp::from_millis(at), retention);
        assert_eq!(look(&mut state, 60_000), Expired::default(), "a millisecond is left");
        let other: Arc<str> = "~".into();
        state.group_or_new(&other, now()).unwrap();
        let mut waiting = 0;
        while state.has_room() {
            let then = Then::Told { answer: None };
            state.push_applied(Write { group: Arc::clone(&other), entries: Vec::new(), then });
            waiting += 1;
        }
        assert_eq!(look(&mut state, 60_001), Expired::default(), "there is no room for it");
        assert!(state.groups.values().all(|group| !group.deleting));
        for _ in 0..waiting {
            write_one(&mut state, Ok(()));
        }
        assert_eq!(look(&mut state, 60_001), Expired { offsets: 3, is_written: true });
        assert_eq!(look(&mut state, 60_001), Expired::default(), "once");
        for _ in 0..4 {
            write_one(&mut state, Ok(()));
        }
        assert!(state.groups.is_empty());
    }

    #[test]
    fn offsets_of_a_deleted_topic_end_and_those_of_its_namesake_stay() {
        let (then, now) = (TopicId::from_bytes([1; 16]), TopicId::from_bytes([2; 16]));
        let current = |topic: &str| (topic == "t").then_some(now);
        let (group, place) = (Arc::<str>::from("g"), (Arc::<str>::from("t"), 0));
        let mut state = state();
        let stale = |state: &State, among: Option<&BTreeSet<Arc<str>>>| {
            of_other_topics(state, among, current)
                .into_iter()
                .flat_map(|(_, places)| places)
                .collect::<Vec<_>>()
        };
        // A commit that came late, of the topic before: it ends as soon as it is seen, written or not.
        queue_commit(&mut state, &group, &place, then);
        assert_eq!(stale(&state, None), std::slice::from_ref(&place));
        write_one(&mut state, Ok(()));
        let named = |name: &str| BTreeSet::from([Arc::from(name)]);
        assert_eq!(stale(&state, Some(&named("t"))), std::slice::from_ref(&place));
        assert_eq!(stale(&state, Some(&named("u"))), []);
        // One of the topic that has the name now is on its way, and stays.
        queue_commit(&mut state, &group, &place, now);
        assert_eq!(stale(&state, None), []);
        write_one(&mut state, Ok(()));
        assert_eq!(stale(&state, None), []);
        assert_eq!(state.groups[&group].offsets.get("t", 0).unwrap().topic_id, Some(now));
        // What ends already is not ended again; where that is not written, it is found again.
        let other = (Arc::<str>::from("gone"), 0);
        queue_commit(&mut state, &group, &other, then);
        write_one(&mut state, Ok(()));
        let ends = stale(&state, None);
        assert_eq!(end_offsets(&mut state, &group, ends), 1);
        assert_eq!(stale(&state, None), []);
        write_one(&mut state, Err(ErrorCode::CoordinatorNotAvailable));
        assert_eq!(stale(&state, None), [other]);
    }
}
