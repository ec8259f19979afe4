//! What members of the classic protocol say to each other through the coordinator: subscriptions and assignments of the
//! "consumer" protocol, version 1, and a cooperative assignor for one topic.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// The version that has what a member owns.
const VERSION: i16 = 1;

fn put_text(bytes: &mut BytesMut, text: &str) {
    bytes.put_i16(i16::try_from(text.len()).unwrap_or(i16::MAX));
    bytes.put_slice(text.as_bytes());
}

fn put_partitions(bytes: &mut BytesMut, topic: &str, partitions: &BTreeSet<i32>) {
    bytes.put_i32(1);
    put_text(bytes, topic);
    bytes.put_i32(i32::try_from(partitions.len()).unwrap_or(i32::MAX));
    partitions.iter().for_each(|partition| bytes.put_i32(*partition));
}

/// A member subscribes to one topic and says what it owns.
pub(super) fn subscription(topic: &str, owned: &BTreeSet<i32>) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(VERSION);
    bytes.put_i32(1);
    put_text(&mut bytes, topic);
    bytes.put_i32(-1);
    put_partitions(&mut bytes, topic, owned);
    bytes.freeze()
}

/// What a subscription of this bench says that its member owns.
pub(super) fn owned(mut subscription: Bytes) -> Result<BTreeSet<i32>> {
    subscription.try_get_i16()?;
    for _ in 0..subscription.try_get_i32()? {
        skip_text(&mut subscription)?;
    }
    subscription.try_get_i32()?;
    partitions(subscription)
}

/// An assignment, for SyncGroup.
pub(super) fn assignment(topic: &str, partitions: &BTreeSet<i32>) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(VERSION);
    put_partitions(&mut bytes, topic, partitions);
    bytes.put_i32(-1);
    bytes.freeze()
}

/// What an assignment gives; nothing when it is empty.
pub(super) fn assigned(mut assignment: Bytes) -> Result<BTreeSet<i32>> {
    if assignment.is_empty() {
        return Ok(BTreeSet::new());
    }
    assignment.try_get_i16()?;
    partitions(assignment)
}

fn skip_text(bytes: &mut Bytes) -> Result<()> {
    let length = usize::try_from(bytes.try_get_i16()?)?;
    ensure!(length <= bytes.remaining(), "a text longer than what holds it");
    bytes.advance(length);
    Ok(())
}

fn partitions(mut bytes: Bytes) -> Result<BTreeSet<i32>> {
    let mut found = BTreeSet::new();
    for _ in 0..bytes.try_get_i32()? {
        skip_text(&mut bytes)?;
        for _ in 0..bytes.try_get_i32()? {
            found.insert(bytes.try_get_i32()?);
        }
    }
    Ok(found)
}

/// The next assignment of a cooperative rebalance: everyone keeps what it has up to its share, what nobody has goes to
/// those with less than theirs, and what one has to give up is given to nobody yet.
pub(super) fn cooperative(
    owned: &BTreeMap<String, BTreeSet<i32>>,
    partition_count: i32,
) -> Result<BTreeMap<String, BTreeSet<i32>>> {
    let members = owned.len();
    let total = usize::try_from(partition_count)?;
    let least = total.checked_div(members).context("a group has members")?;
    let mut with_one_more = total % members;
    let mut free: BTreeSet<i32> = (0..partition_count).collect();
    let mut next = BTreeMap::new();
    // Those with most first: they may keep one more.
    let mut order: Vec<(&String, &BTreeSet<i32>)> = owned.iter().collect();
    order.sort_by_key(|(id, owned)| (std::cmp::Reverse(owned.len()), *id));
    for (id, owned) in &order {
        let share = if with_one_more > 0 && owned.len() > least { least + 1 } else { least };
        with_one_more -= usize::from(share > least);
        let kept: BTreeSet<i32> = owned.iter().copied().take(share).collect();
        free.retain(|partition| !owned.contains(partition));
        next.insert((*id).clone(), kept);
    }
    for (id, _) in order.iter().rev() {
        let partitions = next.get_mut(*id).context("a member of the order")?;
        let share = if with_one_more > 0 && partitions.len() <= least { least + 1 } else { least };
        while partitions.len() < share
            && let Some(partition) = free.pop_first()
        {
            partitions.insert(partition);
        }
        with_one_more -= usize::from(partitions.len() > least && share > least);
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let partitions = BTreeSet::from([3, 5]);
        assert_eq!(owned(subscription("t", &partitions)).unwrap(), partitions);
        assert_eq!(assigned(assignment("t", &partitions)).unwrap(), partitions);
        assert_eq!(assigned(Bytes::new()).unwrap(), BTreeSet::new());
    }

    #[test]
    fn what_one_gives_up_is_given_in_the_next_round() {
        let owned = BTreeMap::from([("a".to_owned(), (0..5).collect()), ("b".to_owned(), BTreeSet::new())]);
        let first = cooperative(&owned, 5).unwrap();
        assert_eq!(first["a"], BTreeSet::from([0, 1, 2]));
        assert_eq!(first["b"], BTreeSet::new());
        let second = cooperative(&first, 5).unwrap();
        assert_eq!(second["a"], BTreeSet::from([0, 1, 2]));
        assert_eq!(second["b"], BTreeSet::from([3, 4]));
        // Nothing moves any more, and what a dead member had is shared out at once.
        assert_eq!(cooperative(&second, 5).unwrap(), second);
        let three = BTreeMap::from([
            ("a".to_owned(), BTreeSet::from([0, 1])),
            ("b".to_owned(), BTreeSet::from([2, 3])),
        ]);
        let shared = cooperative(&three, 6).unwrap();
        assert_eq!(shared.values().map(BTreeSet::len).collect::<Vec<_>>(), [3, 3]);
    }
}
