use bytes::Bytes;
use tidelog_runtime::{Budget, Registry};
use tidelog_types::{
    BrokerIncarnation, ByteSize, ClusterId, PartitionIndex, TopicId, UploadId, UploadSequence,
};

use super::*;

fn key(unit: u64) -> ChunkKey {
    let upload = UploadId { incarnation: BrokerIncarnation(1), sequence: UploadSequence(1) };
    let topic_id = TopicId::from_bytes([2; 16]);
    ChunkKey {
        cluster_id: ClusterId::from_bytes([1; 16]),
        topic_id,
        partition: PartitionIndex(0),
        upload,
        unit,
    }
}

fn at(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

struct Rig {
    ring: Ring,
    memory: Budget,
    metrics: ColdMetrics,
}

impl Rig {
    fn new() -> Self {
        let metrics = ColdMetrics::new(&Registry::new());
        Self { ring: Ring::new(metrics.clone()), memory: Budget::new("test", ByteSize::bytes(1000)), metrics }
    }

    /// A unit of 100 bytes with the offsets from 10 times its number on.
    fn put(&self, unit: u64, ahead: bool, now: u64) {
        self.put_at(key(unit), unit, ahead, now);
    }

    fn put_at(&self, key: ChunkKey, unit: u64, ahead: bool, now: u64) {
        let permit = self.memory.try_acquire(100).unwrap();
        let bytes = Bytes::from(vec![0; 100]);
        let charged = Charged::new(bytes, permit);
        let new = NewUnit { key, unit: charged, end: at(unit * 10 + 10), ahead, cached: false };
        self.ring.insert(new, Duration::from_secs(now));
    }

    fn take(&self, unit: u64, from: u64, to: u64) -> bool {
        self.ring.taken(&key(unit), at(from), at(to), Duration::ZERO)
    }
}

#[test]
fn what_is_read_once_in_sequence_is_not_wanted_twice() {
    let rig = Rig::new();
    rig.put(1, false, 0);
    assert!(!rig.take(1, 10, 14));
    assert!(!rig.take(1, 14, 20));
    assert!(rig.take(1, 18, 20), "a second time");
    assert!(!rig.take(1, 10, 20), "it is in the cache by now");
}

#[test]
fn what_was_read_is_remembered_after_it_left() {
    let rig = Rig::new();
    rig.put(1, false, 0);
    assert!(!rig.take(1, 10, 15));
    assert!(rig.ring.let_one_go());
    rig.put(1, false, 0);
    assert!(!rig.take(1, 15, 20), "its reader goes on");
    assert!(rig.take(1, 10, 12), "another begins");
    assert!(!rig.take(7, 70, 75), "gone before it was noted");
    assert!(rig.take(7, 70, 75));
}

#[test]
fn units_that_were_read_go_first_and_give_their_memory_back() {
    let rig = Rig::new();
    for unit in 1..=3 {
        rig.put(unit, unit > 1, 0);
    }
    assert!(!rig.take(2, 20, 30));
    assert_eq!((rig.memory.used(), rig.ring.bytes()), (300, 300));
    assert!(rig.ring.let_one_unwanted_go(Duration::ZERO));
    assert!(!rig.ring.holds(&key(2)));
    assert!(!rig.ring.let_one_unwanted_go(Duration::ZERO), "the others were not read");
    assert!(rig.ring.get(&key(1), Duration::ZERO).is_some());
    assert!(rig.ring.let_one_go());
    assert!(!rig.ring.holds(&key(3)), "the one used longest ago");
    assert_eq!(rig.metrics.ahead_used_bytes.get(), 100);
    assert_eq!(rig.metrics.ahead_dropped_bytes.get(), 100);
    rig.ring.clear();
    assert_eq!((rig.memory.used(), rig.ring.bytes(), rig.ring.let_one_go()), (0, 0, false));
}

#[test]
fn what_nobody_comes_for_leaves_in_time() {
    let rig = Rig::new();
    rig.put(1, true, 0);
    rig.put(2, true, 0);
    assert!(!rig.take(1, 10, 20));
    assert!(rig.ring.expire(Duration::from_secs(5)), "the unread one stays");
    assert!(!rig.ring.holds(&key(1)));
    assert!(!rig.ring.expire(Duration::from_secs(30)));
    assert_eq!(rig.memory.used(), 0);
}

// R10: bytes on their way to a client are not free, and the ring is not emptied for them in vain.
#[test]
fn what_an_answer_holds_makes_no_room() {
    let rig = Rig::new();
    rig.put(1, false, 0);
    rig.put(2, false, 0);
    let answer = rig.ring.get(&key(1), Duration::ZERO).unwrap().slice(0..100, &rig.memory);
    assert!(rig.ring.let_one_go());
    assert!(rig.ring.holds(&key(1)) && !rig.ring.holds(&key(2)), "the one that is used longest ago is free");
    assert!(!rig.ring.let_one_go());
    rig.ring.clear();
    assert_eq!((rig.ring.bytes(), rig.memory.used()), (0, 100));
    drop(answer);
    assert_eq!(rig.memory.used(), 0);
}

// What was read ahead of a reader who left kept all others from reading ahead for half a minute.
#[test]
fn what_was_read_ahead_of_who_left_makes_room_for_others() {
    let rig = Rig::new();
    let elsewhere = |unit| ChunkKey { partition: PartitionIndex(1), ..key(unit) };
    let unwanted = |milliseconds| rig.ring.let_one_unwanted_go(Duration::from_millis(milliseconds));
    for unit in 1..=3 {
        rig.put(unit, true, 0);
        rig.put_at(elsewhere(unit), unit, true, 0);
    }
    assert!(!unwanted(1_999), "their readers may be on their way");
    // The reader of the other partition is here: what is ahead of it stays, however long ago it came.
    assert!(!rig.ring.taken(&elsewhere(1), at(10), at(15), Duration::from_secs(3)));
    assert!(unwanted(3_000) && unwanted(4_999) && unwanted(4_999) && !unwanted(4_999));
    assert!((1..=3).all(|unit| !rig.ring.holds(&key(unit)) && rig.ring.holds(&elsewhere(unit))));
    assert_eq!(rig.metrics.ahead_dropped_bytes.get(), 300);
    assert!(unwanted(5_000) && unwanted(5_000) && unwanted(5_000) && !unwanted(5_000));
    assert_eq!((rig.memory.used(), rig.ring.bytes()), (0, 0));
    assert!(rig.ring.lock().visited.is_empty());
}
