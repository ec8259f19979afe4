//! The range assignor: of every topic each subscriber gets one range of partitions, the first subscribers one more when
//! they do not come out even.
//!
//! Members are in the same order for every topic, so that with equal subscriptions and equal partition counts a member
//! gets the same numbers of every topic. Static members come first, by instance id: they keep their place when they come
//! back under another member id.
//!
//! Where racks make a difference, partitions go to members near them first, within the same sizes, and ranges are made of
//! the rest (KIP-881). Topics with the same subscribers and partition counts are given out as one: the same numbers stay
//! together, which is what a join needs, and a member is near a number when it is near it in all of them.

use std::collections::BTreeMap;

use tidelog_types::TopicId;

use super::{GroupSpec, Partitions, racks::Racks};

/// Topics with the same subscribers, in their order, and the same partition count.
type Alike = BTreeMap<(Vec<usize>, i32), Vec<TopicId>>;

pub(super) fn assign(group: &GroupSpec<'_>) -> Vec<Partitions> {
    let racks = Racks::of(group);
    let mut assigned = vec![Partitions::new(); group.members.len()];
    for ((subscribers, count), topics) in alike(group) {
        for (partition, owner) in (0..count).zip(owners(&subscribers, count, &topics, racks.as_ref())) {
            for topic in &topics {
                assigned[owner].entry(*topic).or_default().insert(partition);
            }
        }
    }
    assigned
}

fn alike(group: &GroupSpec<'_>) -> Alike {
    let mut order: Vec<usize> = (0..group.members.len()).collect();
    order.sort_by_key(|index| {
        let member = &group.members[*index];
        (member.instance_id.is_none(), member.instance_id, member.member_id)
    });
    let mut subscribers: BTreeMap<TopicId, Vec<usize>> = BTreeMap::new();
    for index in order {
        for topic in &group.members[index].topics {
            subscribers.entry(*topic).or_default().push(index);
        }
    }
    let mut alike = Alike::new();
    for (topic, subscribers) in subscribers {
        let count = group.topics.get(&topic).map_or(0, |spec| spec.partition_count);
        alike.entry((subscribers, count)).or_default().push(topic);
    }
    alike
}

/// The owner of each partition.
fn owners(subscribers: &[usize], count: i32, topics: &[TopicId], racks: Option<&Racks<'_>>) -> Vec<usize> {
    let count = usize::try_from(count).unwrap_or(0);
    let (least, extra) = (count / subscribers.len(), count % subscribers.len());
    let mut missing: Vec<usize> =
        (0..subscribers.len()).map(|place| least + usize::from(place < extra)).collect();
    let mut owners = vec![None; count];
    if let Some(racks) = racks {
        for (partition, owner) in owners.iter_mut().enumerate() {
            let near = |place: &usize| {
                missing[*place] > 0
                    && topics.iter().all(|topic| racks.near(subscribers[*place], *topic, partition))
            };
            if let Some(place) = (0..subscribers.len()).find(near) {
                missing[place] -= 1;
                *owner = Some(subscribers[place]);
            }
        }
    }
    let mut rest =
        missing.iter().zip(subscribers).flat_map(|(missing, member)| std::iter::repeat_n(*member, *missing));
    owners.into_iter().filter_map(|owner| owner.or_else(|| rest.next())).collect()
}
