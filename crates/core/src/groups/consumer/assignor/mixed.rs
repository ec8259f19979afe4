//! The uniform assignor for members that subscribe to different topics.
//!
//! What members had stays, what is free goes to the subscribers with the least, of these to those near it first, and then
//! partitions move from the subscriber with the most to the one with the least until no topic's subscribers differ by more than one, as far as its
//! partitions reach. Every move lowers the sum of the squares of all sizes, so this ends; a bound on the rounds keeps the
//! time of a contrived group within reason.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use tidelog_types::TopicId;

use super::{GroupSpec, Partitions, racks::Racks, uniform::collect};

/// How often all topics are gone through to balance them.
const ROUNDS_MAX: usize = 64;

/// One topic while its partitions are given out.
struct Topic {
    id: TopicId,
    subscribers: Vec<usize>,
    owners: Vec<Option<usize>>,
}

pub(super) fn assign(group: &GroupSpec<'_>) -> Vec<Partitions> {
    let mut sizes = vec![0_usize; group.members.len()];
    let mut topics = topics_in_order(group);
    let place: BTreeMap<TopicId, usize> =
        topics.iter().enumerate().map(|(index, topic)| (topic.id, index)).collect();
    for (member, kept) in group.kept().into_iter().enumerate() {
        sizes[member] = kept.len();
        for (topic, partition) in kept {
            if let Ok(partition) = usize::try_from(partition) {
                topics[place[&topic]].owners[partition] = Some(member);
            }
        }
    }
    let racks = Racks::of(group);
    for topic in &mut topics {
        fill(topic, &mut sizes, racks.as_ref());
    }
    for _ in 0..ROUNDS_MAX {
        let mut moved = false;
        for topic in &mut topics {
            moved |= balance(topic, &mut sizes, racks.as_ref());
        }
        if !moved {
            break;
        }
    }
    let mut assigned = vec![Vec::new(); group.members.len()];
    for topic in &topics {
        for (partition, owner) in (0_i32..).zip(&topic.owners) {
            if let Some(owner) = owner {
                assigned[*owner].push((topic.id, partition));
            }
        }
    }
    assigned.into_iter().map(collect).collect()
}

/// The topics with the most partitions for each subscriber first; then those with the fewest subscribers, which leave the
/// least choice.
fn topics_in_order(group: &GroupSpec<'_>) -> Vec<Topic> {
    let mut subscribers: BTreeMap<TopicId, Vec<usize>> = BTreeMap::new();
    for (index, member) in group.members.iter().enumerate() {
        for topic in &member.topics {
            subscribers.entry(*topic).or_default().push(index);
        }
    }
    let mut topics: Vec<Topic> = subscribers
        .into_iter()
        .filter_map(|(id, subscribers)| {
            let count = usize::try_from(group.topics.get(&id)?.partition_count).ok()?;
            Some(Topic { id, subscribers, owners: vec![None; count] })
        })
        .collect();
    // Hundredths are fine enough: the order only has to be the same every time.
    topics.sort_by_key(|topic| {
        let share = topic.owners.len().saturating_mul(100) / topic.subscribers.len();
        (Reverse(share), topic.subscribers.len(), topic.id)
    });
    topics
}

/// Gives the free partitions of a topic to its subscribers with the least: how many each gets comes from its size alone,
/// which ones from the racks.
fn fill(topic: &mut Topic, sizes: &mut [usize], racks: Option<&Racks<'_>>) {
    let free = topic.owners.iter().filter(|owner| owner.is_none()).count();
    if free == 0 {
        return;
    }
    let mut order: BTreeSet<(usize, usize)> =
        topic.subscribers.iter().map(|member| (sizes[*member], *member)).collect();
    // The members' turns, so that without racks the partitions are dealt out one by one.
    let mut turns = Vec::with_capacity(free);
    for _ in 0..free {
        let Some((size, member)) = order.pop_first() else { return };
        turns.push(member);
        sizes[member] = size + 1;
        order.insert((size + 1, member));
    }
    if let Some(racks) = racks {
        for (partition, owner) in topic.owners.iter_mut().enumerate().filter(|(_, owner)| owner.is_none()) {
            if let Some(turn) = turns.iter().position(|member| racks.near(*member, topic.id, partition)) {
                *owner = Some(turns.remove(turn));
            }
        }
    }
    let rest = topic.owners.iter_mut().filter(|owner| owner.is_none());
    for (owner, member) in rest.zip(turns) {
        *owner = Some(member);
    }
}

/// Moves partitions of a topic from its subscribers with the most to those with the least, first such as come near. Says
/// whether any moved.
fn balance(topic: &mut Topic, sizes: &mut [usize], racks: Option<&Racks<'_>>) -> bool {
    let loads = || topic.subscribers.iter().map(|member| sizes[*member]);
    if loads().max().unwrap_or(0) <= loads().min().unwrap_or(0) + 1 {
        return false;
    }
    let mut order: BTreeSet<(usize, usize)> =
        topic.subscribers.iter().map(|member| (sizes[*member], *member)).collect();
    let mut holdings: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (partition, owner) in topic.owners.iter().enumerate() {
        if let Some(owner) = owner {
            holdings.entry(*owner).or_default().push(partition);
        }
    }
    let mut holders: BTreeSet<(usize, usize)> =
        holdings.keys().map(|member| (sizes[*member], *member)).collect();
    let mut moved = false;
    while let (Some(&(most, from)), Some(&(least, to))) = (holders.last(), order.first()) {
        if most <= least + 1 {
            break;
        }
        let Some(partition) = holdings.get_mut(&from).and_then(|held| {
            let comes_near =
                |racks: &Racks<'_>| held.iter().rposition(|held| racks.near(to, topic.id, *held));
            let place = racks.and_then(comes_near).or_else(|| held.len().checked_sub(1))?;
            Some(held.remove(place))
        }) else {
            break;
        };
        topic.owners[partition] = Some(to);
        for (member, old, new) in [(from, most, most - 1), (to, least, least + 1)] {
            sizes[member] = new;
            order.remove(&(old, member));
            order.insert((new, member));
            holders.remove(&(old, member));
        }
        if holdings.get(&from).is_some_and(|partitions| !partitions.is_empty()) {
            holders.insert((most - 1, from));
        }
        holdings.entry(to).or_default().push(partition);
        holders.insert((least + 1, to));
        moved = true;
    }
    moved
}
