//! The range assignor: of every topic each subscriber gets one range of partitions, the first subscribers one more when
//! they do not come out even.
//!
//! Members are in the same order for every topic, so that with equal subscriptions and equal partition counts a member
//! gets the same numbers of every topic. Static members come first, by instance id: they keep their place when they come
//! back under another member id.

use std::collections::BTreeMap;

use tidelog_types::TopicId;

use super::{GroupSpec, Partitions};

pub(super) fn assign(group: &GroupSpec<'_>) -> Vec<Partitions> {
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
    let mut assigned = vec![Partitions::new(); group.members.len()];
    for (topic, subscribers) in subscribers {
        let count = group.topics.get(&topic).map_or(0, |spec| spec.partition_count);
        let Ok(member_count) = i32::try_from(subscribers.len()) else { continue };
        let (least, extra) = (count / member_count, count % member_count);
        let mut start = 0;
        for (place, index) in (0..).zip(subscribers) {
            let end = start + least + i32::from(place < extra);
            if start < end {
                assigned[index].insert(topic, (start..end).collect());
            }
            start = end;
        }
    }
    assigned
}
