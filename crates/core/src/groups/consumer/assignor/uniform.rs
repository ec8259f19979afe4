//! The uniform assignor for members that all subscribe to the same topics.
//!
//! Sizes differ by one at most. Of the members that may have one more, those that have it already are first, so that no
//! partition moves that need not.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_types::TopicId;

use super::{GroupSpec, Partitions};

pub(super) fn assign(group: &GroupSpec<'_>) -> Vec<Partitions> {
    let mut kept = group.kept();
    let subscribed = group.members.first().map(|member| &member.topics).into_iter().flatten();
    let mut free: BTreeSet<(TopicId, i32)> = subscribed
        .filter_map(|topic| Some((*topic, group.topics.get(topic)?.partition_count)))
        .flat_map(|(topic, count)| (0..count).map(move |partition| (topic, partition)))
        .collect();
    let quotas = quotas(free.len(), &kept.iter().map(Vec::len).collect::<Vec<_>>());
    for (kept, quota) in kept.iter_mut().zip(&quotas) {
        kept.truncate(*quota);
        for partition in kept.iter() {
            free.remove(partition);
        }
    }
    fill_near(group, &quotas, &mut kept, &mut free);
    let mut free = free.into_iter();
    for (kept, quota) in kept.iter_mut().zip(&quotas) {
        let missing = quota - kept.len();
        kept.extend(free.by_ref().take(missing));
    }
    kept.into_iter().map(collect).collect()
}

/// How many partitions each member gets.
fn quotas(partition_count: usize, kept: &[usize]) -> Vec<usize> {
    let least = partition_count / kept.len();
    let mut extra = partition_count % kept.len();
    let mut quotas: Vec<usize> = kept
        .iter()
        .map(|kept| {
            let more = usize::from(extra > 0 && *kept > least);
            extra -= more;
            least + more
        })
        .collect();
    for quota in &mut quotas {
        if extra > 0 && *quota == least {
            *quota += 1;
            extra -= 1;
        }
    }
    quotas
}

/// Gives free partitions to members that are in a rack of theirs, where racks make a difference: with all partitions in
/// the same racks there is nothing to choose.
fn fill_near(
    group: &GroupSpec<'_>,
    quotas: &[usize],
    kept: &mut [Vec<(TopicId, i32)>],
    free: &mut BTreeSet<(TopicId, i32)>,
) {
    let mut racks = group.topics.values().flat_map(|spec| &spec.racks);
    let Some(first) = racks.next() else { return };
    if racks.all(|racks| racks == first) {
        return;
    }
    let near = |member: usize, (topic, partition): (TopicId, i32)| {
        let racks: Option<&BTreeSet<Arc<str>>> =
            usize::try_from(partition).ok().and_then(|index| group.topics.get(&topic)?.racks.get(index));
        group.members[member].rack_id.zip(racks).is_some_and(|(rack, racks)| racks.contains(rack))
    };
    let partitions: Vec<_> = free.iter().copied().collect();
    for partition in partitions {
        let missing = |member: &usize| kept[*member].len() < quotas[*member];
        if let Some(member) = (0..kept.len()).filter(missing).find(|member| near(*member, partition)) {
            kept[member].push(partition);
            free.remove(&partition);
        }
    }
}

pub(super) fn collect(partitions: impl IntoIterator<Item = (TopicId, i32)>) -> Partitions {
    let mut collected = Partitions::new();
    for (topic, partition) in partitions {
        collected.entry(topic).or_default().insert(partition);
    }
    collected
}
