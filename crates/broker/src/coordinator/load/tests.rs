use std::collections::BTreeSet;

use proptest::prelude::*;
use tidelog_core::groups::{
    classic::StoredMember,
    consumer::{
        CurrentAssignment, EpochPartitions, GroupMetadata, MemberMetadata, MemberState, ResolvedPattern,
        TargetAssignmentMetadata,
    },
    offsets::CommittedOffset,
};
use tidelog_format::batch::{BatchBuilder, NewRecord};
use tidelog_types::{Timestamp, TopicId};

use super::*;
use crate::coordinator::{offsets_topic, write::Entry};

const GROUPS: [&str; 3] = ["g", "h", "i"];
const MEMBERS: [&str; 3] = ["a", "b", "c"];
const TOPIC: TopicId = TopicId::from_bytes([3; 16]);

/// What a group is in the log, as far as it decides what may come next.
#[derive(Debug, Default, Clone, PartialEq)]
enum Kind {
    #[default]
    None,
    Classic,
    Consumer(BTreeSet<usize>),
}

/// The log of some groups as the coordinator writes it: each change is a batch.
#[derive(Debug, Default)]
struct History {
    kinds: [Kind; GROUPS.len()],
    batches: Vec<Vec<Entry>>,
}

/// One step: the group, what happens to it, and a number that makes the step's values its own.
type Step = (usize, u8, i32);

impl History {
    fn of(steps: &[Step]) -> Self {
        let mut history = Self::default();
        for (at, (group, what, member)) in steps.iter().enumerate() {
            history.take(*group, *what, (usize::try_from(*member).unwrap(), i32::try_from(at).unwrap() + 2));
        }
        history
    }

    fn take(&mut self, at: usize, what: u8, (member, epoch): (usize, i32)) {
        let group = GROUPS[at];
        let place = (Arc::from("t"), i32::try_from(member).unwrap());
        let kind = std::mem::take(&mut self.kinds[at]);
        let (batch, kind) = match (what, kind) {
            (0, kind) => (records::offsets(group, &[(place, committed(epoch))]).unwrap(), kind),
            (1, kind) => (vec![records::offset_tombstone(group, &place).unwrap()], kind),
            (2, Kind::Classic) => (vec![records::group_tombstone(group).unwrap()], Kind::None),
            (_, Kind::None | Kind::Classic) if what < 5 => (vec![stored(group, epoch)], Kind::Classic),
            // A member of the consumer protocol comes, and what there was ends in the same batch.
            (_, kind @ (Kind::None | Kind::Classic)) => {
                let end = (kind == Kind::Classic).then(|| records::group_tombstone(group).unwrap());
                let joined = joined(group, member, epoch);
                (end.into_iter().chain(joined).collect(), Kind::Consumer(BTreeSet::from([member])))
            }
            // The group goes, with whoever is in it, and at times to the classic protocol.
            (2 | 3, Kind::Consumer(members)) => {
                let mut batch: Vec<Entry> = members.iter().flat_map(|member| left(group, *member)).collect();
                batch.extend(ended(group));
                batch.extend((what == 3).then(|| stored(group, epoch)));
                (batch, if what == 3 { Kind::Classic } else { Kind::None })
            }
            (4, Kind::Consumer(mut members)) => {
                let gone = members.remove(&member);
                let mut batch = vec![metadata(group, epoch)];
                batch.extend(gone.then(|| left(group, member)).into_iter().flatten());
                (batch, Kind::Consumer(members))
            }
            (5, Kind::Consumer(members)) => {
                let moved = members.contains(&member).then(|| current(group, member, epoch));
                (moved.into_iter().collect(), Kind::Consumer(members))
            }
            (_, Kind::Consumer(mut members)) => {
                members.insert(member);
                (joined(group, member, epoch), Kind::Consumer(members))
            }
        };
        self.kinds[at] = kind;
        self.batches.push(batch);
    }
}

fn committed(offset: i32) -> CommittedOffset {
    CommittedOffset {
        offset: offset.into(),
        leader_epoch: 1,
        metadata: "m".into(),
        commit_time: Timestamp::from_millis(5),
        expire_time: None,
        topic_id: Some(TOPIC),
    }
}

fn stored(group: &str, generation: i32) -> Entry {
    let member = StoredMember {
        member_id: "m".into(),
        instance_id: None,
        client_id: "c".into(),
        client_host: "/127.0.0.1".into(),
        rebalance_timeout: Duration::from_secs(300),
        session_timeout: Duration::from_secs(45),
        subscription: Bytes::from_static(b"\0\x01"),
        assignment: Bytes::from_static(b"\0"),
    };
    let stored = Stored {
        protocol_type: Some("consumer".into()),
        generation,
        protocol: Some("range".into()),
        leader: Some("m".into()),
        state_timestamp: Some(Timestamp::from_millis(99)),
        members: vec![member],
    };
    records::group(group, &stored).unwrap()
}

fn consumer(group: &str, record: &ConsumerRecord) -> Entry {
    records::consumer(group, record).unwrap()
}

fn metadata(group: &str, epoch: i32) -> Entry {
    consumer(group, &ConsumerRecord::GroupMetadata(Some(GroupMetadata { epoch, metadata_hash: 7 })))
}

/// What a member has: each its own partition, so that none is two members'.
fn current(group: &str, member: usize, epoch: i32) -> Entry {
    let own = (i32::try_from(member).unwrap(), epoch);
    let value = CurrentAssignment {
        epoch,
        previous_epoch: epoch - 1,
        state: MemberState::Stable,
        assigned: [(TOPIC, [own].into())].into(),
        pending_revocation: EpochPartitions::new(),
    };
    let member_id = MEMBERS[member].into();
    consumer(group, &ConsumerRecord::CurrentMemberAssignment { member_id, value: Some(value) })
}

/// A member comes, or says something else of itself.
fn joined(group: &str, member: usize, epoch: i32) -> Vec<Entry> {
    let member_id = || Arc::<str>::from(MEMBERS[member]);
    let said = MemberMetadata {
        client_id: format!("client-{epoch}").into(),
        instance_id: (member == 0).then(|| "instance".into()),
        subscribed_topics: Arc::new(["t".into()].into()),
        subscribed_pattern: "t.*".into(),
        ..MemberMetadata::default()
    };
    let found = ResolvedPattern {
        topics: ["t".into()].into(),
        version: i64::from(epoch),
        timestamp: Timestamp::from_millis(9),
    };
    let target = Arc::new([(TOPIC, [i32::try_from(member).unwrap()].into())].into());
    let assigned =
        TargetAssignmentMetadata { assignment_epoch: epoch, timestamp: Some(Timestamp::from_millis(77)) };
    let all = [
        ConsumerRecord::MemberMetadata { member_id: member_id(), value: Some(said) },
        ConsumerRecord::RegularExpression { pattern: "t.*".into(), value: Some(found) },
        ConsumerRecord::GroupMetadata(Some(GroupMetadata { epoch, metadata_hash: 7 })),
        ConsumerRecord::TargetAssignmentMember { member_id: member_id(), value: Some(target) },
        ConsumerRecord::TargetAssignmentMetadata(Some(assigned)),
    ];
    let mut entries: Vec<Entry> = all.iter().map(|record| consumer(group, record)).collect();
    entries.push(current(group, member, epoch));
    entries
}

/// A member goes.
fn left(group: &str, member: usize) -> Vec<Entry> {
    let member_id = || Arc::<str>::from(MEMBERS[member]);
    let all = [
        ConsumerRecord::CurrentMemberAssignment { member_id: member_id(), value: None },
        ConsumerRecord::TargetAssignmentMember { member_id: member_id(), value: None },
        ConsumerRecord::MemberMetadata { member_id: member_id(), value: None },
    ];
    all.iter().map(|record| consumer(group, record)).collect()
}

/// What is left of a group without members goes.
fn ended(group: &str) -> Vec<Entry> {
    let all = [
        ConsumerRecord::TargetAssignmentMetadata(None),
        ConsumerRecord::RegularExpression { pattern: "t.*".into(), value: None },
        ConsumerRecord::GroupMetadata(None),
    ];
    all.iter().map(|record| consumer(group, record)).collect()
}

/// What the cleaner leaves of the first batches: the last record of each key among them, at its offset. `None` is a record that
/// is not there any more.
fn cleaned(batches: &[Vec<Entry>], count: usize, keeps_tombstones: bool) -> Vec<Vec<Option<Entry>>> {
    let mut last = BTreeMap::new();
    for (at, batch) in batches[..count].iter().enumerate() {
        for (index, entry) in batch.iter().enumerate() {
            last.insert(entry.key.clone(), (at, index));
        }
    }
    let stays = |at: usize, index: usize, entry: &Entry| {
        at >= count || last[&entry.key] == (at, index) && (keeps_tombstones || entry.value.is_some())
    };
    let one = |(at, batch): (usize, &Vec<Entry>)| {
        let entries = batch.iter().enumerate();
        entries.map(|(index, entry)| stays(at, index, entry).then(|| entry.clone())).collect()
    };
    batches.iter().enumerate().map(one).collect()
}

/// What a load makes of a log: everything of every group, and how many records could not be read.
fn loaded(log: &[Vec<Option<Entry>>]) -> (String, u64) {
    let (mut loading, mut base) = (Loading::default(), Offset::ZERO);
    for batch in log.iter().filter(|batch| !batch.is_empty()) {
        let count = i32::try_from(batch.len()).unwrap();
        let mut builder = BatchBuilder::new(base).last_offset_delta(count - 1);
        for (delta, entry) in (0..).zip(batch) {
            let Some(entry) = entry else { continue };
            let (key, value) = (Some(&*entry.key), entry.value.as_deref());
            let time = Some(Timestamp::from_millis(1));
            builder = builder.record_at(delta, &NewRecord { timestamp: time, key, value, headers: &[] });
        }
        // Kafka's cleaner leaves a batch without records where its producer has no later one.
        loading.take(builder.build().unwrap().to_bytes(), base, &offsets_topic());
        base = base.checked_add(u64::try_from(count).unwrap()).unwrap();
    }
    (format!("{:#?}", loading.groups), loading.bad)
}

proptest! {
    #[test]
    fn a_log_that_was_cleaned_up_to_anywhere_says_what_the_whole_log_says(
        steps in prop::collection::vec((0..GROUPS.len(), 0_u8..8, 0_i32..3), 1..40),
        up_to in any::<prop::sample::Index>(),
    ) {
        let batches = History::of(&steps).batches;
        let (whole, bad) = loaded(&cleaned(&batches, 0, true));
        prop_assert_eq!(bad, 0);
        for count in [batches.len(), up_to.index(batches.len())] {
            for keeps_tombstones in [true, false] {
                let (left, bad) = loaded(&cleaned(&batches, count, keeps_tombstones));
                prop_assert_eq!(bad, 0);
                prop_assert_eq!(&left, &whole, "{} of {} cleaned, {}", count, batches.len(), keeps_tombstones);
            }
        }
    }
}

#[test]
fn groups_that_ended_leave_nothing_and_those_that_changed_their_protocol_are_what_they_became() {
    // Group by group: classic and deleted; consumer, back to classic; classic, over to consumer, with an offset.
    let steps = [(0, 3, 0), (0, 2, 0), (1, 7, 0), (1, 7, 1), (1, 3, 0), (2, 3, 0), (2, 0, 1), (2, 7, 2)];
    let history = History::of(&steps);
    assert_eq!(history.kinds, [Kind::None, Kind::Classic, Kind::Consumer(BTreeSet::from([2]))]);
    for keeps_tombstones in [true, false] {
        let mut loading = Loading::default();
        for batch in cleaned(&history.batches, history.batches.len(), keeps_tombstones) {
            for entry in batch.into_iter().flatten() {
                loading.apply(records::read(Some(&entry.key), entry.value.as_deref()).unwrap());
            }
        }
        let kinds: Vec<_> = loading
            .groups
            .iter()
            .map(|(name, group)| {
                (&**name, group.members.is_some(), group.consumers.is_some(), group.offsets.len())
            })
            .collect();
        assert_eq!(kinds, [("h", true, false, 0), ("i", false, true, 1)]);
    }
}
