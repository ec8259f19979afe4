use std::sync::Arc;

use proptest::prelude::*;
use tidelog_format::manifest::{ManifestEntry, PageLine, Section};
use tidelog_types::{
    BootId, BrokerId, ClusterId, DirectoryId, LeaderEpoch, Offset, OffsetRange, PartitionIndex, ProducerId,
    TopicId, TopicName,
};

use super::*;
use crate::cluster::{
    BrokerRegistration, ClusterState, Command, LogIndex, NewTopic, Outcome, SegmentCommit, Spill,
};

/// A cluster of one broker and one tiered topic of one partition.
struct Cluster {
    state: ClusterState,
    index: u64,
    incarnation: BrokerIncarnation,
}

const PLACE: TopicPartition =
    TopicPartition { topic_id: TopicId::from_bytes([3; 16]), partition: PartitionIndex(0) };

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

impl Cluster {
    fn new() -> Self {
        let mut cluster = Self { state: ClusterState::new(), index: 0, incarnation: BrokerIncarnation(0) };
        cluster.apply(Command::Initialize {
            cluster_id: ClusterId::from_bytes([1; 16]),
            feature_level: 1,
            restore_number: 0,
            producer_ids_from: ProducerId(0),
        });
        cluster.register();
        let topic = NewTopic {
            topic_id: PLACE.topic_id,
            name: TopicName::new("t").unwrap(),
            partition_count: 1,
            replication_factor: 1,
            assignments: Vec::new(),
            configs: BTreeMap::new(),
        };
        cluster.apply(Command::CreateTopic { topic });
        cluster
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.index += 1;
        self.state.apply(LogIndex(self.index), &command).into_result().unwrap()
    }

    fn register(&mut self) {
        let registration = BrokerRegistration {
            broker: BrokerId(1),
            directory: DirectoryId::from_bytes([1; 16]),
            boot: BootId::from_bytes([1; 16]),
            clean: true,
            listeners: Vec::new(),
            rack: None,
            feature_level_max: 1,
        };
        let Outcome::Registered { incarnation, .. } = self.apply(Command::RegisterBroker { registration })
        else {
            panic!("it registers")
        };
        self.incarnation = incarnation;
    }

    fn image(&self) -> &MetadataImage {
        self.state.image()
    }

    fn leader_epoch(&self) -> LeaderEpoch {
        self.image().partition(&PLACE).unwrap().leader_epoch
    }

    fn upload(&self, sequence: u64) -> UploadId {
        UploadId { incarnation: self.incarnation, sequence: UploadSequence(sequence) }
    }

    fn entry(&self, base: u64, sequence: u64) -> ManifestEntry {
        let leader_epoch = self.leader_epoch();
        ManifestEntry {
            range: OffsetRange { base: offset(base), end: offset(base + 10) },
            object: SegmentObjectId { base: offset(base), leader_epoch, upload: self.upload(sequence) },
            position: 0,
            bytes: 10,
            object_bytes: 20,
            max_timestamp: None,
            index: Section::default(),
            leader_epoch,
        }
    }

    fn commit(&mut self, entry: ManifestEntry) -> bool {
        let commit = SegmentCommit { place: PLACE, leader_epoch: self.leader_epoch(), entry };
        let Outcome::Committed { results } = self.apply(Command::CommitSegments { commits: vec![commit] })
        else {
            panic!("it is answered")
        };
        results[0].is_ok()
    }

    fn fence_all(&mut self, suspects: &[Suspect]) {
        for (incarnation, sequence) in fences(suspects, &self.image().clone()) {
            self.apply(Command::FenceUploads { incarnation, sequence });
        }
    }

    fn coverage(&self, suspect: &Suspect) -> Coverage {
        coverage(suspect, self.image(), &PageEntries::new())
    }
}

fn suspect(object: ObjectName) -> Suspect {
    Suspect { place: PLACE, object, modified: Timestamp::from_millis(5) }
}

fn segment(entry: &ManifestEntry) -> Suspect {
    suspect(ObjectName::Segment { object: entry.object })
}

#[test]
fn age_is_by_the_stores_clock_alone() {
    let at = Timestamp::from_millis;
    assert!(!is_old(at(100), at(199), 100));
    assert!(is_old(at(100), at(200), 100));
    assert!(!is_old(at(300), at(200), 0), "what is written after the answer is never old");
    assert!(!is_old(at(200), at(200), 0));
}

#[test]
fn what_the_manifest_names_is_covered_and_what_lost_its_commit_is_not() {
    let mut cluster = Cluster::new();
    let (won, lost) = (cluster.entry(0, 1), cluster.entry(0, 2));
    assert!(cluster.commit(won) && !cluster.commit(lost));
    assert_eq!(cluster.coverage(&segment(&won)), Coverage::Covered);
    assert_eq!(cluster.coverage(&segment(&lost)), Coverage::Uncovered);
}

#[test]
fn a_commit_after_the_fence_is_refused_and_one_before_it_is_covered() {
    // C8: the commit is held while the sweep goes by.
    let mut early = Cluster::new();
    let held = early.entry(0, 7);
    assert!(early.commit(held));
    early.fence_all(&[segment(&held)]);
    assert_eq!(early.coverage(&segment(&held)), Coverage::Covered);

    let mut late = Cluster::new();
    let held = late.entry(0, 7);
    late.fence_all(&[segment(&held)]);
    assert_eq!(late.coverage(&segment(&held)), Coverage::Uncovered, "it may be deleted");
    assert!(!late.commit(held), "so that its commit never enters");
    let anew = late.entry(0, 8);
    assert!(late.commit(anew), "its range is uploaded anew");
}

#[test]
fn one_fence_for_each_live_incarnation_and_none_twice() {
    let mut cluster = Cluster::new();
    let old = segment(&cluster.entry(0, 9));
    cluster.register();
    let (one, two) = (segment(&cluster.entry(0, 3)), segment(&cluster.entry(0, 5)));
    let manifest = suspect(ObjectName::Manifest { version: 1 });
    let suspects = [old, two, one, manifest];
    let incarnation = cluster.incarnation;
    assert_eq!(fences(&suspects, cluster.image()), [(incarnation, UploadSequence(5))]);
    cluster.fence_all(&suspects);
    assert_eq!(fences(&suspects, cluster.image()), []);
}

#[test]
fn what_a_later_incarnation_wrote_is_not_judged_by_an_older_image() {
    let mut cluster = Cluster::new();
    let old = cluster.image().clone();
    cluster.register();
    let fresh = segment(&cluster.entry(0, 0));
    assert_eq!(coverage(&fresh, &old, &PageEntries::new()), Coverage::Covered);
    assert_eq!(cluster.coverage(&fresh), Coverage::Uncovered);
}

#[test]
fn what_a_page_lists_below_the_log_start_is_covered_until_its_deletion_is_done() {
    let mut cluster = Cluster::new();
    let entries: Vec<ManifestEntry> = (0..3).map(|index| cluster.entry(index * 10, index)).collect();
    for entry in &entries {
        assert!(cluster.commit(*entry));
    }
    let page = PageId { base: offset(0), upload: cluster.upload(50) };
    let moved = &entries[..2];
    let range = OffsetRange { base: offset(0), end: offset(20) };
    let spill = Spill {
        place: PLACE,
        leader_epoch: cluster.leader_epoch(),
        last_page: None,
        replaces_last: false,
        moved: moved.iter().map(|entry| entry.object).collect(),
        line: PageLine { page, range, bytes: 20, max_timestamp: None },
    };
    cluster.apply(Command::SpillManifest { spill });
    let pages = PageEntries::from([(page, moved.into())]);
    let leader_epoch = cluster.leader_epoch();
    let covers = |cluster: &Cluster, entry| coverage(&segment(entry), cluster.image(), &pages);
    cluster.apply(Command::AdvanceLogStart { place: PLACE, leader_epoch, to: offset(12) });
    assert_eq!(covers(&cluster, &moved[0]), Coverage::Covered, "the queue has it");
    while cluster.image().ready_deletions(1).is_empty() {
        cluster.apply(Command::Tick { elapsed_ms: 1_000 });
    }
    let items = cluster.image().ready_deletions(10).into_iter().map(|(scope, item)| (scope, item.id));
    let items = items.collect();
    cluster.apply(Command::DeletionDone { items });
    // Found by the crash model of a node: a put whose answer was lost landed behind the deletion of its object.
    assert_eq!(covers(&cluster, &moved[0]), Coverage::Uncovered, "nothing will ever read it again");
    assert_eq!(covers(&cluster, &moved[1]), Coverage::Covered, "it reaches above the log start");
}

#[test]
fn what_a_page_lists_is_covered_once_the_page_is_read() {
    let mut cluster = Cluster::new();
    let entries: Vec<ManifestEntry> = (0..3).map(|index| cluster.entry(index * 10, index)).collect();
    for entry in &entries {
        assert!(cluster.commit(*entry));
    }
    let page = PageId { base: offset(0), upload: cluster.upload(50) };
    let moved = &entries[..2];
    let line = PageLine {
        page,
        range: OffsetRange { base: offset(0), end: offset(20) },
        bytes: 20,
        max_timestamp: None,
    };
    let spill = Spill {
        place: PLACE,
        leader_epoch: cluster.leader_epoch(),
        last_page: None,
        replaces_last: false,
        moved: moved.iter().map(|entry| entry.object).collect(),
        line,
    };
    cluster.apply(Command::SpillManifest { spill });
    let orphan = segment(&cluster.entry(10, 60));
    assert_eq!(cluster.coverage(&segment(&moved[1])), Coverage::LookInto(page));
    assert_eq!(cluster.coverage(&orphan), Coverage::LookInto(page));
    let pages = PageEntries::from([(page, Arc::from(moved))]);
    assert_eq!(coverage(&segment(&moved[1]), cluster.image(), &pages), Coverage::Covered);
    assert_eq!(coverage(&orphan, cluster.image(), &pages), Coverage::Uncovered);
    assert_eq!(cluster.coverage(&suspect(ObjectName::Page { page })), Coverage::Covered);
    let other = PageId { base: offset(0), upload: cluster.upload(51) };
    assert_eq!(cluster.coverage(&suspect(ObjectName::Page { page: other })), Coverage::Uncovered);

    // A log start inside the page: the queue covers what the line still lists, and the page.
    let leader_epoch = cluster.leader_epoch();
    cluster.apply(Command::AdvanceLogStart { place: PLACE, leader_epoch, to: offset(20) });
    assert_eq!(coverage(&segment(&moved[0]), cluster.image(), &pages), Coverage::Covered);
    assert_eq!(cluster.coverage(&segment(&moved[0])), Coverage::LookInto(page));
    assert_eq!(cluster.coverage(&suspect(ObjectName::Page { page })), Coverage::Covered);
}

#[test]
fn what_waits_in_the_queue_is_left_to_it() {
    let mut cluster = Cluster::new();
    let entry = cluster.entry(0, 1);
    assert!(cluster.commit(entry));
    let leader_epoch = cluster.leader_epoch();
    cluster.apply(Command::AdvanceLogStart { place: PLACE, leader_epoch, to: offset(10) });
    assert_eq!(cluster.coverage(&segment(&entry)), Coverage::Covered);
    cluster.apply(Command::DeleteTopic { topic_id: PLACE.topic_id });
    assert_eq!(cluster.coverage(&segment(&entry)), Coverage::Covered, "the topic's item takes it");
    let elsewhere = Suspect {
        place: TopicPartition { topic_id: TopicId::from_bytes([4; 16]), ..PLACE },
        ..segment(&entry)
    };
    assert_eq!(cluster.coverage(&elsewhere), Coverage::Uncovered, "nobody knows that topic");
}

#[test]
fn a_manifest_that_may_still_be_announced_stays() {
    let mut cluster = Cluster::new();
    for index in 0..6 {
        assert!(cluster.commit(cluster.entry(index * 10, index)));
    }
    let leader_epoch = cluster.leader_epoch();
    for version in [2, 3, 4, 5] {
        cluster.apply(Command::ManifestPublished { place: PLACE, leader_epoch, version });
    }
    let of = |version| cluster.coverage(&suspect(ObjectName::Manifest { version }));
    assert_eq!(of(1), Coverage::Uncovered, "it was never announced, and never can be");
    assert_eq!(of(2), Coverage::Covered, "the queue has it");
    assert_eq!((of(3), of(5)), (Coverage::Covered, Coverage::Covered));
    assert_eq!(of(6), Coverage::Covered, "its announcement may be on the way");
}

#[test]
fn a_deleted_topic_is_done_after_two_empty_listings_an_orphan_age_apart() {
    let at = Timestamp::from_millis;
    let mut emptiness = TopicEmptiness::default();
    assert!(!emptiness.listed(true, at(1_000), 100));
    assert_eq!(emptiness.left_ms(at(1_000), 100), 100);
    assert!(!emptiness.listed(true, at(1_099), 100));
    assert_eq!(emptiness.left_ms(at(1_099), 100), 1);
    assert!(!emptiness.listed(false, at(1_100), 100), "something landed: it begins anew");
    assert_eq!(emptiness.left_ms(at(1_100), 100), 0);
    assert!(!emptiness.listed(true, at(1_150), 100));
    assert!(!emptiness.listed(true, at(1_249), 100));
    assert!(emptiness.listed(true, at(1_250), 100));
    let mut two = TopicEmptiness::default();
    assert!(!two.listed(true, at(5), 0) && !two.listed(true, at(5), 0), "two moments, also without an age");
    assert!(two.listed(true, at(6), 0));
}

#[test]
fn deletions_are_planned_in_the_order_of_their_scope() {
    let mut cluster = Cluster::new();
    for index in 0..3 {
        assert!(cluster.commit(cluster.entry(index * 10, index)));
    }
    let leader_epoch = cluster.leader_epoch();
    cluster.apply(Command::AdvanceLogStart { place: PLACE, leader_epoch, to: offset(10) });
    cluster.apply(Command::Tick { elapsed_ms: 1 });
    cluster.apply(Command::AdvanceLogStart { place: PLACE, leader_epoch, to: offset(30) });
    assert!(plan_deletions(cluster.image(), 10, None).is_empty(), "the grace is not over");
    cluster.apply(Command::Tick { elapsed_ms: tidelog_types::limits::DELETION_GRACE_MS - 1 });
    assert_eq!(
        plan_deletions(cluster.image(), 10, None).iter().map(|(_, items)| items.len()).sum::<usize>(),
        1
    );
    cluster.apply(Command::Tick { elapsed_ms: 1 });
    assert_eq!(planned(&cluster, 10, None), [(DeletionScope::Partition { place: PLACE }, vec![0, 1, 2])]);
    assert_eq!(planned(&cluster, 2, None), [(DeletionScope::Partition { place: PLACE }, vec![0, 1])]);
}

fn planned(cluster: &Cluster, limit: usize, after: Option<DeletionScope>) -> Vec<(DeletionScope, Vec<u64>)> {
    let plan = plan_deletions(cluster.image(), limit, after);
    plan.into_iter().map(|(scope, items)| (scope, items.iter().map(|item| item.id).collect())).collect()
}

#[test]
fn a_scope_with_many_items_keeps_no_other_from_its_turn() {
    let mut cluster = Cluster::new();
    for index in 0..20 {
        assert!(cluster.commit(cluster.entry(index * 10, index)));
        // One entry at a time, so that the manifest never spills: each becomes an item of its own.
        let (leader_epoch, to) = (cluster.leader_epoch(), offset(index * 10 + 10));
        cluster.apply(Command::AdvanceLogStart { place: PLACE, leader_epoch, to });
    }
    let many = DeletionScope::Partition { place: PLACE };
    let mut topics = Vec::new();
    for number in [4, 5, 6] {
        let topic_id = TopicId::from_bytes([number; 16]);
        let topic = NewTopic {
            topic_id,
            name: TopicName::new(&format!("t{number}")).unwrap(),
            partition_count: 1,
            replication_factor: 1,
            assignments: Vec::new(),
            configs: BTreeMap::new(),
        };
        cluster.apply(Command::CreateTopic { topic });
        cluster.apply(Command::DeleteTopic { topic_id });
        topics.push(DeletionScope::Topic { topic_id });
    }
    cluster.apply(Command::Tick { elapsed_ms: tidelog_types::limits::DELETION_GRACE_MS });
    let one = |scope: DeletionScope, id: u64| (scope, vec![id]);
    // What fails stays, so the same is asked again and again: the others are in every plan.
    let all = vec![(many, vec![0, 1]), one(topics[0], 20), one(topics[1], 21), one(topics[2], 22)];
    assert_eq!(planned(&cluster, 5, None), all);
    // With room for fewer than there are scopes, plans that go on behind one another reach each.
    let first = planned(&cluster, 2, None);
    assert_eq!(first, [one(many, 0), one(topics[0], 20)]);
    let second = planned(&cluster, 2, first.last().map(|(scope, _)| *scope));
    assert_eq!(second, [one(topics[1], 21), one(topics[2], 22)]);
    let third = planned(&cluster, 2, second.last().map(|(scope, _)| *scope));
    assert_eq!(third, first, "behind the last one it begins anew");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    // C8, T7: whatever the order of uploads, commits, fences and new incarnations, nothing that was found to be an orphan
    // after its fence ever enters the manifest.
    #[test]
    fn an_orphan_stays_one(steps in prop::collection::vec((0_u8..4, 0_usize..8), 1..60)) {
        let mut cluster = Cluster::new();
        let mut written: Vec<ManifestEntry> = Vec::new();
        let mut deleted: Vec<SegmentObjectId> = Vec::new();
        let mut sequence = 0;
        for (step, pick) in steps {
            match step {
                0 => {
                    sequence += 1;
                    let base = cluster.image().partition(&PLACE).unwrap().manifest.tiered_end.get();
                    written.push(cluster.entry(base, sequence));
                }
                1 if !written.is_empty() => {
                    let held = written[pick % written.len()];
                    if cluster.image().partition(&PLACE).unwrap().manifest.entries.len() < 30 {
                        let committed = cluster.commit(ManifestEntry { leader_epoch: held.leader_epoch, ..held });
                        prop_assert!(!(committed && deleted.contains(&held.object)), "a deleted object is named");
                    }
                }
                2 => {
                    let suspects: Vec<Suspect> = written.iter().map(segment).collect();
                    let before = cluster.image().clone();
                    let suspects: Vec<Suspect> = suspects
                        .into_iter()
                        .filter(|one| coverage(one, &before, &PageEntries::new()) == Coverage::Uncovered)
                        .collect();
                    cluster.fence_all(&suspects);
                    for orphan in suspects.iter().filter(|one| cluster.coverage(one) == Coverage::Uncovered) {
                        let ObjectName::Segment { object } = orphan.object else { continue };
                        deleted.push(object);
                    }
                }
                _ => cluster.register(),
            }
        }
        let held = &cluster.image().partition(&PLACE).unwrap().manifest.entries;
        prop_assert!(held.iter().all(|entry| !deleted.contains(&entry.object)));
    }
}
