//! The uniform assignor for members that all subscribe to the same topics.
//!
//! Sizes differ by one at most. Of the members that may have one more, those that have it already are first, so that no
//! partition moves that need not. What is free goes to members near it first.

use std::collections::BTreeSet;

use tidelog_types::TopicId;

use super::{GroupSpec, Partitions, racks::Racks};

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
    if let Some(racks) = Racks::of(group) {
        fill_near(&racks, &quotas, &mut kept, &mut free);
    }
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

/// Gives free partitions to members that are near them, within their quotas.
fn fill_near(
    racks: &Racks<'_>,
    quotas: &[usize],
    kept: &mut [Vec<(TopicId, i32)>],
    free: &mut BTreeSet<(TopicId, i32)>,
) {
    free.retain(|(topic, partition)| {
        let near = |member: &usize| {
            kept[*member].len() < quotas[*member]
                && usize::try_from(*partition).is_ok_and(|partition| racks.near(*member, *topic, partition))
        };
        let Some(member) = (0..kept.len()).find(near) else { return true };
        kept[member].push((*topic, *partition));
        false
    });
}

pub(super) fn collect(partitions: impl IntoIterator<Item = (TopicId, i32)>) -> Partitions {
    let mut collected = Partitions::new();
    for (topic, partition) in partitions {
        collected.entry(topic).or_default().insert(partition);
    }
    collected
}
