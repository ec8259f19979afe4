use super::*;

fn one_partition() -> (Cluster, TopicPartition) {
    let mut cluster = Cluster::with_brokers(1);
    let topic = cluster.create(1, 1, 1);
    (cluster, place(topic, 0))
}

fn refused(outcome: Outcome) -> Refusal {
    outcome.into_result().unwrap_err()
}

fn removed(outcome: Outcome) -> Vec<bool> {
    match outcome {
        Outcome::DeletionsRemoved { removed } => removed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_commit_continues_the_manifest() {
    let (mut cluster, place) = one_partition();
    let first = cluster.next_commit(place, 10);
    assert_eq!(cluster.commit(first.clone()), Ok(offset(10)));
    let manifest = &cluster.partition(place).manifest;
    assert_eq!((manifest.tiered_end, manifest.version), (offset(10), 1));
    assert_eq!(manifest.entries, [first.entry]);
    assert_eq!(manifest.first_base(), Some(offset(0)));
}

/// T1, B80: a gap, an overlap and a duplicate are refused; a lost answer's repetition is not.
#[test]
fn a_commit_that_does_not_begin_at_the_tiered_end_is_refused() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 2);
    for range in [0..10, 10..30, 15..25, 21..30, 30..40] {
        let wrong = commit(place, epoch(0), BrokerIncarnation(1), 77, range);
        assert_eq!(cluster.commit(wrong), Err(CommitRefusal::NotAtTieredEnd { tiered_end: offset(20) }));
    }
    let last = cluster.next_commit(place, 10);
    assert_eq!(cluster.commit(last.clone()), Ok(offset(30)));
    cluster.register(1, 1, 1, true);
    assert_eq!(cluster.commit(last), Ok(offset(30)), "what was committed stays so in any epoch");
    assert_eq!(cluster.partition(place).manifest.entries.len(), 3);
}

/// T3, B83: a leader of the past commits, spills and trims nothing.
#[test]
fn a_stale_leader_epoch_changes_nothing() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 3);
    let (stale_commit, stale_spill) =
        (cluster.next_commit(place, 10), cluster.next_spill(place, 2, false, 1));
    cluster.register(1, 1, 1, true);
    let before = cluster.partition(place).clone();
    assert_eq!(cluster.commit(stale_commit), Err(CommitRefusal::StaleLeaderEpoch { current: epoch(1) }));
    let stale = Refusal::StaleLeaderEpoch { place, current: epoch(1) };
    assert_eq!(refused(cluster.apply(&Command::SpillManifest { spill: stale_spill })), stale);
    let advance = Command::AdvanceLogStart { place, leader_epoch: epoch(0), to: offset(10) };
    assert_eq!(refused(cluster.apply(&advance)), stale);
    let published = Command::ManifestPublished { place, leader_epoch: epoch(0), version: 1 };
    assert_eq!(refused(cluster.apply(&published)), stale);
    assert_eq!(*cluster.partition(place), before);
}

#[test]
fn an_entry_that_contradicts_itself_is_refused() {
    let (mut cluster, place) = one_partition();
    let good = cluster.next_commit(place, 10);
    let changes: [fn(&mut SegmentCommit); 5] = [
        |commit| commit.entry.range.end = commit.entry.range.base,
        |commit| commit.entry.bytes = 0,
        |commit| commit.entry.object_bytes = 99,
        |commit| commit.entry.position = u64::MAX,
        |commit| commit.entry.object.base = offset(5),
    ];
    for change in changes {
        let mut wrong = good.clone();
        change(&mut wrong);
        assert!(matches!(cluster.commit(wrong), Err(CommitRefusal::Malformed { .. })));
    }
    let mut unknown = good.clone();
    unknown.place.partition = PartitionIndex(1);
    assert_eq!(cluster.commit(unknown), Err(CommitRefusal::UnknownPartition));
    assert_eq!(cluster.commit(good), Ok(offset(10)));
}

#[test]
fn a_topic_that_is_not_tiered_takes_no_commit() {
    let (mut cluster, place) = one_partition();
    let commit = cluster.next_commit(place, 10);
    let resource = ConfigResource::Topic { topic_id: place.topic_id };
    let change =
        |value: &str| (REMOTE_STORAGE_ENABLE.to_owned(), ConfigChange::Set { value: value.to_owned() });
    cluster.apply(&Command::AlterConfigs { resource, changes: vec![change("false")] });
    assert_eq!(cluster.commit(commit.clone()), Err(CommitRefusal::NotTiered));
    cluster.apply(&Command::AlterConfigs { resource, changes: vec![change("TRUE")] });
    assert_eq!(cluster.commit(commit), Ok(offset(10)));
}

#[test]
fn a_full_manifest_waits_for_a_spill() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 32);
    let next = cluster.next_commit(place, 10);
    assert_eq!(cluster.commit(next.clone()), Err(CommitRefusal::ManifestFull));
    let spill = cluster.next_spill(place, 16, false, 1);
    assert_eq!(cluster.apply(&Command::SpillManifest { spill }), Outcome::Spilled { version: 33 });
    assert_eq!(cluster.commit(next), Ok(offset(330)));
    let manifest = &cluster.partition(place).manifest;
    assert_eq!((manifest.lines.len(), manifest.entries.len()), (1, 17));
    assert_eq!(manifest.lines[0].range, OffsetRange { base: offset(0), end: offset(160) });
}

/// T7, C8: from the fence on nothing of that incarnation at or below that sequence enters a manifest.
#[test]
fn a_fenced_upload_is_refused_and_a_later_one_is_not() {
    let (mut cluster, place) = one_partition();
    let fence =
        |incarnation, sequence| Command::FenceUploads { incarnation, sequence: UploadSequence(sequence) };
    let incarnation = BrokerIncarnation(1);
    let upload = |sequence| commit(place, epoch(0), incarnation, sequence, 0..10);
    assert_eq!(cluster.apply(&fence(incarnation, 5)), Outcome::Done);
    assert_eq!(cluster.apply(&fence(incarnation, 3)), Outcome::Done, "a fence never goes back");
    assert_eq!(cluster.commit(upload(4)), Err(CommitRefusal::UploadFenced));
    assert_eq!(cluster.commit(upload(5)), Err(CommitRefusal::UploadFenced));
    assert_eq!(cluster.commit(upload(6)), Ok(offset(10)));
    let mut spill = cluster.next_spill(place, 1, false, 5);
    assert_eq!(
        refused(cluster.apply(&Command::SpillManifest { spill: spill.clone() })),
        Refusal::UploadFenced
    );
    spill.line.page.upload.sequence = UploadSequence(7);
    assert_eq!(cluster.apply(&Command::SpillManifest { spill }), Outcome::Spilled { version: 2 });
    let unknown = BrokerIncarnation(9);
    assert_eq!(
        refused(cluster.apply(&fence(unknown, 1))),
        Refusal::UnknownIncarnation { incarnation: unknown }
    );
}

#[test]
fn an_upload_of_a_former_incarnation_is_refused() {
    let (mut cluster, place) = one_partition();
    cluster.register(1, 1, 1, true);
    let old = commit(place, epoch(1), BrokerIncarnation(1), 900, 0..10);
    assert_eq!(cluster.commit(old), Err(CommitRefusal::UploadFenced));
    let fence = Command::FenceUploads { incarnation: BrokerIncarnation(1), sequence: UploadSequence(1) };
    assert_eq!(cluster.apply(&fence), Outcome::Done, "it needs no record: it is nobody's newest");
    assert_eq!(cluster.state.image().broker(BrokerId(1)).unwrap().fenced_uploads, None);
    let new = commit(place, epoch(1), BrokerIncarnation(2), 1, 0..10);
    assert_eq!(cluster.commit(new), Ok(offset(10)));
}

/// T3: the last page as it was read, and exactly the oldest entries.
#[test]
fn a_spill_that_read_another_manifest_is_refused() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 8);
    let first = cluster.next_spill(place, 4, false, 1);
    cluster.apply(&Command::SpillManifest { spill: first.clone() });
    assert_eq!(
        cluster.apply(&Command::SpillManifest { spill: first.clone() }),
        Outcome::Spilled { version: 9 },
        "a lost answer's repetition"
    );
    let good = cluster.next_spill(place, 2, true, 2);
    let changes: [fn(&mut Spill); 7] = [
        |spill| spill.last_page = None,
        |spill| spill.last_page = Some(page(0, BrokerIncarnation(1), 99)),
        |spill| spill.moved.clear(),
        |spill| spill.moved.reverse(),
        |spill| spill.moved.truncate(1),
        |spill| spill.line.range.base = offset(40),
        |spill| spill.replaces_last = false,
    ];
    for change in changes {
        let mut wrong = good.clone();
        change(&mut wrong);
        assert!(matches!(
            refused(cluster.apply(&Command::SpillManifest { spill: wrong })),
            Refusal::SpillMismatch { .. }
        ));
    }
    assert_eq!(cluster.apply(&Command::SpillManifest { spill: good }), Outcome::Spilled { version: 10 });
    let manifest = &cluster.partition(place).manifest;
    assert_eq!(manifest.lines.iter().map(|line| line.range.end.get()).collect::<Vec<_>>(), [60]);
    assert_eq!(manifest.entries.len(), 2);
}

/// A replaced page goes after its grace, and after a published manifest without it.
#[test]
fn a_replaced_page_waits_for_grace_and_publication() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 4);
    let first = cluster.next_spill(place, 2, false, 1);
    cluster.apply(&Command::SpillManifest { spill: first.clone() });
    let second = cluster.next_spill(place, 1, true, 2);
    cluster.apply(&Command::SpillManifest { spill: second });
    let old_page = DeletionTarget::Key { object: ObjectName::Page { page: first.line.page } };
    assert_eq!(cluster.deletions(place), [old_page]);
    let publish = |version| Command::ManifestPublished { place, leader_epoch: epoch(0), version };
    cluster.tick(59_999);
    assert_eq!(cluster.apply(&publish(5)), Outcome::Done);
    cluster.tick(1);
    assert_eq!(cluster.ready(), [], "the published manifest still names it");
    let items = vec![(DeletionScope::Partition { place }, 0)];
    assert_eq!(removed(cluster.apply(&Command::DeletionDone { items: items.clone() })), [false]);
    assert_eq!(cluster.apply(&publish(6)), Outcome::Done);
    assert_eq!(cluster.ready(), items);
    assert_eq!(removed(cluster.apply(&Command::DeletionDone { items })), [true]);
    assert_eq!(cluster.deletions(place), []);
}

/// T6: the log start grows, drops what lies wholly below, and raises the tiered end.
#[test]
fn a_log_start_drops_entries_wholly_below_it() {
    let (mut cluster, place) = one_partition();
    let first = cluster.next_commit(place, 10);
    cluster.upload(place, 3);
    assert_eq!(
        cluster.advance(place, 15),
        Outcome::LogStart { log_start: offset(15), tiered_end: offset(30) }
    );
    let partition = cluster.partition(place);
    assert_eq!(
        partition.manifest.entries.iter().map(|entry| entry.range.base.get()).collect::<Vec<_>>(),
        [10, 20]
    );
    assert_eq!(cluster.deletions(place), [segment_key(&first)]);
    for lower in [0, 14, 15] {
        let same = Outcome::LogStart { log_start: offset(15), tiered_end: offset(30) };
        assert_eq!(cluster.advance(place, lower), same);
    }
    assert_eq!(cluster.partition(place).manifest.version, 4, "what grows nothing changes nothing");
    assert_eq!(
        cluster.advance(place, 100),
        Outcome::LogStart { log_start: offset(100), tiered_end: offset(100) }
    );
    assert_eq!(cluster.partition(place).manifest.entries, []);
    assert_eq!(cluster.deletions(place).len(), 3);
    let late = commit(place, epoch(0), BrokerIncarnation(1), 5, 30..40);
    assert_eq!(cluster.commit(late), Err(CommitRefusal::NotAtTieredEnd { tiered_end: offset(100) }));
    cluster.upload(place, 1);
    assert_eq!(cluster.partition(place).manifest.tiered_end, offset(110));
}

#[test]
fn a_log_start_inside_a_page_queues_a_range_and_keeps_the_line() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 8);
    let first = cluster.next_spill(place, 3, false, 1);
    cluster.apply(&Command::SpillManifest { spill: first.clone() });
    let second = cluster.next_spill(place, 3, false, 2);
    cluster.apply(&Command::SpillManifest { spill: second.clone() });
    let range = |spill: &Spill, from, to, whole_page| DeletionTarget::Range {
        page: spill.line.page,
        from: offset(from),
        to: offset(to),
        whole_page,
    };
    cluster.advance(place, 5);
    cluster.tick(10);
    cluster.advance(place, 20);
    assert_eq!(cluster.deletions(place), [range(&first, 0, 20, false)], "adjacent ranges merge");
    assert_eq!(cluster.partition(place).manifest.lines.len(), 2);
    let merged = &cluster.state.image().deletions().partition(place)[0];
    assert_eq!(
        (merged.id, merged.due_ms, merged.queued_ms),
        (1, 60_010, 0),
        "under a new id and the later due time"
    );
    cluster.advance(place, 45);
    let expected = [range(&first, 0, 30, true), range(&second, 30, 45, false)];
    assert_eq!(cluster.deletions(place), expected);
    assert_eq!(cluster.partition(place).manifest.lines.len(), 1);
    let scope = DeletionScope::Partition { place };
    let former = Command::DeletionDone { items: vec![(scope, 1)] };
    cluster.tick(120_000);
    assert_eq!(removed(cluster.apply(&former)), [false], "it was merged since: more is to be done");
}

#[test]
fn a_log_start_that_moves_all_the_time_does_not_put_deletion_off_for_ever() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 20);
    let spill = cluster.next_spill(place, 16, false, 1);
    cluster.apply(&Command::SpillManifest { spill });
    for to in 1..=150 {
        cluster.advance(place, to);
        cluster.tick(5_000);
        // One item for each grace period of twelve steps, and the one before.
        let items = cluster.state.image().deletions().partition(place).len();
        assert!(items <= usize::try_from(to / 12).unwrap() + 1, "{items} items after {to} steps");
    }
    assert!(cluster.ready().len() > 5, "what was queued first came due while the log start moved");
}

/// Items of a partition are done in order, and none before it is due (T4).
#[test]
fn deletions_are_done_in_order_and_not_before_they_are_due() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 3);
    cluster.advance(place, 10);
    cluster.tick(100);
    cluster.advance(place, 20);
    let scope = DeletionScope::Partition { place };
    assert_eq!(removed(cluster.apply(&Command::DeletionDone { items: vec![(scope, 0)] })), [false]);
    cluster.tick(59_900);
    assert_eq!(cluster.ready(), [(scope, 0)]);
    let both = vec![(scope, 1), (scope, 0), (scope, 1)];
    assert_eq!(removed(cluster.apply(&Command::DeletionDone { items: both })), [false, true, false]);
    cluster.tick(100);
    assert_eq!(cluster.ready(), [(scope, 1)]);
    assert_eq!(removed(cluster.apply(&Command::DeletionDone { items: vec![(scope, 1)] })), [true]);
    assert!(cluster.state.image().deletions().is_empty());
}

#[test]
fn the_grace_is_a_cluster_wide_setting() {
    let (mut cluster, place) = one_partition();
    let changes = vec![(TIER_DELETION_GRACE_MS.to_owned(), ConfigChange::Set { value: "500".to_owned() })];
    cluster.apply(&Command::AlterConfigs { resource: ConfigResource::ClusterDefault {}, changes });
    cluster.upload(place, 1);
    cluster.advance(place, 10);
    cluster.tick(499);
    assert_eq!(cluster.ready(), []);
    cluster.tick(1);
    assert_eq!(cluster.ready().len(), 1);
}

/// B82: published versions ascend, and only the newest three copies are kept.
#[test]
fn published_manifests_ascend_and_old_copies_are_queued() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 6);
    let publish = |version| Command::ManifestPublished { place, leader_epoch: epoch(0), version };
    for version in 1..=4 {
        assert_eq!(cluster.apply(&publish(version)), Outcome::Done);
    }
    assert_eq!(cluster.apply(&publish(4)), Outcome::Done, "a lost answer's repetition");
    for asked in [3, 7] {
        let refusal = Refusal::PublishedVersion { asked, current: 6, published: 4 };
        assert_eq!(refused(cluster.apply(&publish(asked))), refusal);
    }
    let manifest = &cluster.partition(place).manifest;
    assert_eq!((manifest.published.as_slice(), manifest.version), (&[2, 3, 4][..], 6));
    assert_eq!(
        cluster.deletions(place),
        [DeletionTarget::Key { object: ObjectName::Manifest { version: 1 } }]
    );
}

/// The manifest's invariants are predicates that fail when they are broken.
#[test]
fn broken_manifests_are_recognised() {
    let (mut cluster, place) = one_partition();
    cluster.upload(place, 4);
    cluster.advance(place, 15);
    let breaks: [fn(&mut PartitionImage); 6] = [
        |partition| std::sync::Arc::make_mut(&mut partition.manifest).entries.swap(0, 1),
        |partition| std::sync::Arc::make_mut(&mut partition.manifest).entries.rotate_left(1),
        |partition| std::sync::Arc::make_mut(&mut partition.manifest).tiered_end = offset(41),
        |partition| partition.log_start = offset(20),
        |partition| std::sync::Arc::make_mut(&mut partition.manifest).published = vec![9],
        |partition| std::sync::Arc::make_mut(&mut partition.manifest).entries[1].range.base = offset(19),
    ];
    for (number, break_it) in breaks.into_iter().enumerate() {
        let mut broken = cluster.state.clone();
        break_it(broken.partition_mut(place));
        assert!(broken.check().is_err(), "break {number}");
        assert!(ClusterState::decode_snapshot(&broken.encode_snapshot()).is_err(), "break {number}");
    }
}
