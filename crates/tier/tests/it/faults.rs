//! A store, a disk and a leadership that fail in the middle of an upload.

use std::{path::PathBuf, time::Duration};

use tidelog_core::cluster::{Command, ConfigChange, ConfigResource};
use tidelog_sim::SimDisk;
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_types::{ByteSize, TopicId};

use crate::node::{DEADLINE, Node, Setup, append, batch, now, offset, sealed, with_node};

const fn is_commit(command: &Command) -> bool {
    matches!(command, Command::CommitSegments { .. })
}

/// The segments' files of the partition of the topic with this number, oldest first.
fn segment_files(disk: &SimDisk, number: u8) -> Vec<PathBuf> {
    let folder = format!("{}-0", TopicId::from_bytes([number; 16]));
    let is_segment = |path: &PathBuf| {
        path.to_string_lossy().contains(&folder) && path.extension().is_some_and(|end| end == "log")
    };
    let mut files: Vec<PathBuf> = disk.paths().into_iter().filter(is_segment).collect();
    files.sort();
    files
}

#[test]
fn an_upload_whose_answer_was_lost_is_one_object_and_one_entry() {
    with_node(11, async |context, setup, node| {
        setup.store.plan(StoreOperation::Put, ".seg", 0, 1, StoreFault::FailAfter);
        let partition = node.create_topic("t", 1, &[]).await;
        sealed(context, &partition, 1).await;
        node.until_tiered(&partition, 1).await;
        assert_eq!(node.keys(".seg").await.len(), 1);
        assert_eq!(node.records(&partition).await.len(), 1);
    });
}

#[test]
fn an_upload_whose_commit_answer_was_lost_is_one_entry() {
    // Once, so that the proposal is made again; and as often as it is made.
    for lost in [1, 3] {
        with_node(20 + u64::from(lost), async |context, _, node| {
            node.commands.lose(is_commit, lost);
            let partition = node.create_topic("t", 1, &[]).await;
            sealed(context, &partition, 2).await;
            node.until_tiered(&partition, 2).await;
            assert_eq!(node.records(&partition).await.len(), 2);
            assert_eq!(node.keys(".seg").await.len(), 2, "nothing was uploaded twice");
            assert_eq!(node.metric("tier_upload_failures_total"), u64::from(lost / 3));
            node.pass(Duration::from_secs(60)).await;
            assert_eq!(node.metric("tier_orphans_deleted_total"), 0, "what is named is no orphan");
            assert_eq!(node.records(&partition).await.len(), 2);
        });
    }
}

#[test]
fn nothing_is_evicted_before_its_commit() {
    // T4: the object is in the bucket, and its entry is in no manifest yet.
    with_node(24, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[("local.retention.ms", "1")]).await;
        node.commands.hold(is_commit);
        sealed(context, &partition, 3).await;
        append(&partition, batch(now(context), &["hot"])).await;
        node.until("the object waits for its commit", || node.commands.waiting() == 1).await;
        node.pass(Duration::from_secs(120)).await;
        // The sweep took the object meanwhile, so that the local copy is the only one.
        assert_eq!(node.keys(".seg").await.len(), 0);
        assert_eq!(partition.snapshot().local_log_start, offset(0));
        node.commands.release();
        node.until_tiered(&partition, 3).await;
        node.until("they leave the disk", || partition.snapshot().local_log_start == offset(3)).await;
        assert_eq!(node.records(&partition).await.len(), 3);
    });
}

#[test]
fn an_object_that_arrived_short_enters_no_manifest() {
    // B86
    with_node(12, async |context, setup, node| {
        setup.store.plan(StoreOperation::Put, ".seg", 0, 1, StoreFault::ShortBody(100));
        let partition = node.create_topic("t", 1, &[]).await;
        sealed(context, &partition, 1).await;
        node.until_tiered(&partition, 1).await;
        assert_eq!(node.metric("tier_upload_failures_total"), 1);
        assert_eq!(node.records(&partition).await.len(), 1, "the entry names the whole object");
        let sizes: Vec<u64> = node.keys(".seg").await.into_values().collect();
        assert_eq!(sizes[0], 100, "the short one is left to the sweep");
        node.until("the sweep takes it", || node.metric("tier_orphans_deleted_total") == 1).await;
        assert_eq!(node.keys(".seg").await.len(), 1);
        assert_eq!(node.records(&partition).await.len(), 1);
    });
}

#[test]
fn a_hung_upload_blocks_neither_other_partitions_nor_its_own_for_long() {
    with_node(13, async |context, setup, node| {
        let (one, other) = (node.create_topic("one", 1, &[]).await, node.create_topic("other", 2, &[]).await);
        setup.store.plan(StoreOperation::Put, "topics/one-", 0, 1, StoreFault::Hang);
        sealed(context, &one, 1).await;
        node.until("it hangs", || node.metric("tier_uploads_running") == 1).await;
        sealed(context, &other, 1).await;
        node.until_tiered(&other, 1).await;
        assert_eq!(one.snapshot().tiered_end, offset(0));
        node.until_tiered(&one, 1).await;
        assert_eq!(node.records(&one).await.len(), 1);
        node.stop().await;
    });
}

#[test]
fn a_leadership_that_ended_meanwhile_commits_nothing() {
    // B83, B85: the object was written, then its incarnation was replaced.
    tidelog_sim::run(14, |context| async move {
        let setup = Setup::new(&context);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                node.commands.hold(is_commit);
                sealed(&context, &partition, 2).await;
                node.until("the object waits for its commit", || node.commands.waiting() == 1).await;
                let before = node.image(partition.place());
                node.register_again().await;
                node.commands.release();
                node.pass(Duration::from_secs(10)).await;
                let after = node.image(partition.place());
                assert!(after.leader_epoch > before.leader_epoch);
                assert_eq!(after.manifest.entries, [], "a zombie changes no manifest (T3)");
                assert_eq!(node.metric("tier_uploads_abandoned_total"), 1, "a zombie tries it once");
                assert_eq!(partition.snapshot().local_log_start, offset(0));
            })
            .await
            .unwrap();
        // The next start is another incarnation: it uploads the range anew, and the manifest is whole.
        let disk = context.disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let partition = node.partition("t");
                // What the journal plays is one open segment again.
                partition.roll().await.unwrap();
                node.until_tiered(&partition, 2).await;
                assert_eq!(node.records(&partition).await.len(), 2);
                node.until("the orphans go", || node.metric("tier_orphans_deleted_total") >= 1).await;
                node.pass(Duration::from_secs(30)).await;
                let segments = node.tier.segments(partition.topic()).await.unwrap().segments;
                let named: Vec<String> = segments.into_iter().map(|segment| segment.key).collect();
                assert_eq!(named, node.keys(".seg").await.into_keys().collect::<Vec<_>>());
            })
            .await
            .unwrap();
    });
}

#[test]
fn every_upload_has_a_key_of_its_own() {
    // B79: the same range is uploaded three times, under three names.
    with_node(15, async |context, setup, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        // The object is written, but cannot be looked at.
        setup.store.plan(StoreOperation::Head, ".seg", 0, 2, StoreFault::NotFound);
        sealed(context, &partition, 1).await;
        node.until_tiered(&partition, 1).await;
        let sizes: Vec<u64> = node.keys(".seg").await.into_values().collect();
        assert_eq!(sizes.len(), 3);
        assert!(sizes.iter().all(|size| *size == sizes[0]));
        assert_eq!(node.entries(&partition).await.len(), 1);
        node.until("the orphans go", || node.metric("tier_orphans_deleted_total") == 2).await;
        assert_eq!(node.records(&partition).await.len(), 1);
    });
}

#[test]
fn a_damaged_segment_is_not_uploaded_and_keeps_no_other_from_it() {
    // B88
    tidelog_sim::run(16, |context| async move {
        let mut setup = Setup::new(&context);
        setup.store.plan(StoreOperation::Put, "", 0, u32::MAX, StoreFault::FailBefore);
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let (bad, good) =
                    (node.create_topic("bad", 1, &[]).await, node.create_topic("good", 2, &[]).await);
                for partition in [&bad, &good] {
                    append(partition, batch(now(&context), &["value"; 20])).await;
                    partition.roll().await.unwrap();
                    append(partition, batch(now(&context), &["next"])).await;
                }
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        disk.flip_bit(&segment_files(&disk, 1)[0], 100, 3).unwrap();
        setup.store.clear_plan();
        setup.tier.check_interval = Duration::from_secs(1);
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let (bad, good) = (node.partition("bad"), node.partition("good"));
                node.until_tiered(&good, 20).await;
                node.pass(Duration::from_secs(10)).await;
                assert_eq!(node.image(bad.place()).manifest.entries, []);
                assert_eq!(node.keys("topics/bad-").await.len(), 0);
                let reported =
                    node.metric("tier_damaged_uploads_total") + node.metric("tier_upload_failures_total");
                assert!(reported > 0, "it is reported");
                assert!(node.status("bad").await.lag_bytes > 0);
                assert_eq!(node.records(&good).await.len(), 20);
            })
            .await
            .unwrap();
    });
}

#[test]
fn what_lies_before_a_damaged_segment_is_uploaded() {
    // All of it would fit one object.
    tidelog_sim::run(25, |context| async move {
        let mut setup = Setup::new(&context);
        setup.tier.object_target = ByteSize::mib(1);
        setup.store.plan(StoreOperation::Put, "", 0, u32::MAX, StoreFault::FailBefore);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                for _ in 0..2 {
                    append(&partition, batch(now(&context), &["value"; 20])).await;
                    partition.roll().await.unwrap();
                }
                append(&partition, batch(now(&context), &["next"])).await;
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = context.disk.kill();
        disk.flip_bit(&segment_files(&disk, 1)[1], 100, 3).unwrap();
        setup.store.clear_plan();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let partition = node.partition("t");
                node.until_tiered(&partition, 20).await;
                node.until("the damage is told", || {
                    node.metric("tier_damaged_uploads_total") + node.metric("tier_upload_failures_total") > 0
                })
                .await;
                node.pass(Duration::from_secs(10)).await;
                assert_eq!(partition.snapshot().tiered_end, offset(20), "and never what is damaged");
                assert_eq!(node.records(&partition).await.len(), 20);
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_store_that_throttles_delays_a_start_and_ends_nothing() {
    // C5
    tidelog_sim::run(17, |context| async move {
        let setup = Setup::new(&context);
        for operation in
            [StoreOperation::Put, StoreOperation::Get, StoreOperation::List, StoreOperation::Delete]
        {
            setup.store.plan(operation, "", 0, u32::MAX, StoreFault::FailBefore);
        }
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                sealed(&context, &partition, 3).await;
                node.pass(Duration::from_secs(180)).await;
                assert_eq!(partition.snapshot().tiered_end, offset(0));
                append(&partition, batch(now(&context), &["hot"])).await;
                setup.store.clear_plan();
                node.until_tiered(&partition, 3).await;
                assert_eq!(node.records(&partition).await.len(), 3);
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_shutdown_waits_for_what_is_on_the_way_and_not_longer() {
    with_node(18, async |context, setup, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        setup.store.plan(StoreOperation::Put, ".seg", 0, 1, StoreFault::Delay(Duration::from_secs(3)));
        sealed(context, &partition, 2).await;
        node.until("it is on the way", || node.metric("tier_uploads_running") == 1).await;
        assert_eq!(node.tier.shutdown(DEADLINE).await, Vec::<&str>::new());
        assert_eq!(
            node.image(partition.place()).manifest.entries.len(),
            1,
            "one came through, none was begun"
        );
    });
}

#[test]
fn a_log_start_whose_commit_failed_as_the_topic_became_tiered_is_committed_before_an_upload() {
    with_node(26, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[("remote.storage.enable", "false")]).await;
        sealed(context, &partition, 4).await;
        partition.delete_records(Some(offset(2))).await.unwrap();
        node.commands.fail(|command| matches!(command, Command::AdvanceLogStart { .. }), 1);
        let change = ConfigChange::Set { value: "true".to_owned() };
        let resource = ConfigResource::Topic { topic_id: partition.place().topic_id };
        let changes = vec![("remote.storage.enable".to_owned(), change)];
        node.propose(Command::AlterConfigs { resource, changes }).await;
        node.until_tiered(&partition, 4).await;
        assert_eq!(node.commands.to_fail(), 0, "the fault was met");
        assert_eq!(node.image(partition.place()).log_start, offset(2));
        assert_eq!(node.metric("tier_uploads_abandoned_total"), 0);
        assert_eq!(node.records(&partition).await.len(), 2);
    });
}

#[test]
fn a_store_that_takes_no_writes_is_tried_by_one_partition_at_a_time() {
    tidelog_sim::run(19, |context| async move {
        let setup = Setup::new(&context);
        setup.store.plan(StoreOperation::Put, ".seg", 0, u32::MAX, StoreFault::FailBefore);
        let names = ["rotten", "one", "two", "three"];
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                for (number, name) in (1..).zip(names) {
                    let partition = node.create_topic(name, number, &[]).await;
                    append(&partition, batch(now(&context), &["value"; 20])).await;
                    partition.roll().await.unwrap();
                    append(&partition, batch(now(&context), &["next"])).await;
                    node.pass(Duration::from_secs(1)).await;
                }
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = context.disk.kill();
        // The one that waits longest never gets as far as the store.
        disk.flip_bit(&segment_files(&disk, 1)[0], 100, 3).unwrap();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                node.until("the store is away", || node.metric("object_store_up") == 0).await;
                let puts = |name: &str| setup.store.count(StoreOperation::Put, &format!("topics/{name}-"));
                node.until("those under way gave up", || node.metric("tier_uploads_running") <= 1).await;
                let before = names.map(puts);
                for _ in 0..30 {
                    node.pass(Duration::from_secs(1)).await;
                    assert!(node.metric("tier_uploads_running") <= 1);
                }
                let after = names.map(puts);
                assert_eq!(after[0], before[0]);
                assert!((1..4).all(|of| after[of] > before[of]), "each in turn: {before:?}, then {after:?}");
                setup.store.clear_plan();
                for name in &names[1..] {
                    node.until_tiered(&node.partition(name), 20).await;
                }
                assert_eq!(node.metric("object_store_up"), 1);
            })
            .await
            .unwrap();
    });
}
