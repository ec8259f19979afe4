//! Orphans, and what looks like one.

use std::time::Duration;

use tidelog_core::cluster::{Command, ObjectName};
use tidelog_format::manifest::SegmentObjectId;
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_types::{UploadId, UploadSequence};

use crate::{
    bucket::key,
    node::{Node, Setup, sealed, with_node},
};

/// Keys of one page of the sweep's listing.
const LISTED_AT_ONCE: usize = 1_000;

#[test]
fn an_upload_whose_commit_is_held_while_the_sweep_passes_is_begun_anew() {
    // C8
    with_node(61, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        for held_seconds in [0, 5, 19, 25, 40, 60] {
            node.commands.hold(|command| matches!(command, Command::CommitSegments { .. }));
            let before = partition.snapshot().tiered_end.get();
            sealed(context, &partition, 2).await;
            node.until("the object waits for its commit", || node.commands.waiting() == 1).await;
            node.pass(Duration::from_secs(held_seconds)).await;
            node.commands.release();
            node.until_tiered(&partition, before + 2).await;
            assert_eq!(node.records(&partition).await.len() as u64, before + 2, "held {held_seconds} s");
        }
        assert!(node.metric("tier_uploads_abandoned_total") > 0, "some were fenced");
        node.pass(Duration::from_secs(60)).await;
        assert_eq!(node.keys(".seg").await.len(), node.entries(&partition).await.len(), "no orphan is left");
        assert_eq!(node.records(&partition).await.len(), 12);
    });
}

#[test]
fn the_brokers_wall_clock_makes_nothing_old() {
    // C8: ages are the store's.
    tidelog_sim::run(62, |context| async move {
        let setup = Setup::new(&context);
        // The store keeps its own time.
        let clock = context.clock.other();
        let store = tidelog_testkit::FaultyStore::memory(std::sync::Arc::new(context.clock.clone()));
        let setup = Setup { store, ..setup };
        drop(clock);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                sealed(&context, &partition, 3).await;
                node.until_tiered(&partition, 3).await;
                for jump in [3_600_000, -7_200_000] {
                    context.clock.jump_ms(jump);
                    node.pass(Duration::from_secs(60)).await;
                    assert_eq!(node.records(&partition).await.len(), 3);
                }
                assert_eq!(
                    node.metric("tier_orphans_deleted_total"),
                    0,
                    "what is named stays, however old it looks"
                );
            })
            .await
            .unwrap();
    });
}

#[test]
fn orphans_go_at_their_age_and_strangers_never() {
    // B125
    with_node(63, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        sealed(context, &partition, 20).await;
        node.until_tiered(&partition, 20).await;
        let entry = node.entries(&partition).await[2];
        let upload = UploadId { sequence: UploadSequence(900_000), ..entry.object.upload };
        let object = SegmentObjectId { upload, ..entry.object };
        let orphan = key("t", partition.place(), &ObjectName::Segment { object });
        let strangers = ["topics/README.md", "topics/t-x/0/00000000000000000000-0-1-1.seg", "other/file"];
        for key in strangers.into_iter().chain([orphan.as_str()]) {
            node.client.put_new(key, vec!["x".into()]).await.unwrap();
        }
        node.pass(Duration::from_secs(15)).await;
        assert!(node.keys("").await.contains_key(&orphan), "it is younger than the orphan age");
        node.until("it goes", || node.metric("tier_orphans_deleted_total") == 1).await;
        let keys = node.keys("").await;
        assert!(!keys.contains_key(&orphan));
        assert!(strangers.iter().all(|key| keys.contains_key(*key)), "{keys:?}");
        assert_eq!(node.metric("tier_unknown_objects"), 2);
        assert_eq!(node.records(&partition).await.len(), 20);
        // Its sequence is fenced, and those of later uploads lie above it.
        sealed(context, &partition, 1).await;
        node.until_tiered(&partition, 21).await;
        assert_eq!(node.metric("tier_uploads_abandoned_total"), 0);
        assert_eq!(node.entries(&partition).await[20].object.upload.sequence, UploadSequence(900_001));
    });
}

#[test]
fn what_cannot_be_read_or_deleted_keeps_no_orphan_behind_it() {
    tidelog_sim::run(65, |context| async move {
        let setup = Setup::new(&context);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let (first, last) =
                    (node.create_topic("t", 1, &[]).await, node.create_topic("z", 2, &[]).await);
                sealed(&context, &first, 20).await;
                sealed(&context, &last, 1).await;
                node.until_tiered(&first, 20).await;
                node.until_tiered(&last, 1).await;
                node.until("entries moved", || !node.image(first.place()).manifest.lines.is_empty()).await;
                // Between them so many keys that they are of two pages of a listing.
                for number in 0..LISTED_AT_ONCE {
                    let key = format!("topics/u/{number:04}");
                    node.client.put_new(&key, vec!["x".into()]).await.unwrap();
                }
                let named = node.entries(&last).await[0].object;
                for sequence in [900_000, 900_001] {
                    let upload = UploadId { sequence: UploadSequence(sequence), ..named.upload };
                    let object = SegmentObjectId { upload, ..named };
                    let orphan = key("z", last.place(), &ObjectName::Segment { object });
                    node.client.put_new(&orphan, vec!["x".into()]).await.unwrap();
                }
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = context.disk.kill();
        setup.store.plan(StoreOperation::Get, ".page", 0, u32::MAX, StoreFault::NotFound);
        setup.store.plan(StoreOperation::Delete, "900000", 0, u32::MAX, StoreFault::FailBefore);
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                node.until("the other goes", || node.metric("tier_orphans_deleted_total") == 1).await;
                let page = node.client.list("topics/z-", None, 10).await.unwrap();
                let keys: Vec<String> = page.objects.into_iter().map(|listed| listed.key).collect();
                assert_eq!(keys.iter().filter(|key| key.contains("900000")).count(), 1, "{keys:?}");
                assert_eq!(keys.iter().filter(|key| key.contains("900001")).count(), 0, "{keys:?}");
                let named = node.client.list("topics/t-", None, 100).await.unwrap().objects;
                assert_eq!(named.iter().filter(|listed| listed.key.ends_with(".seg")).count(), 20);
                let failed = "tier_task_failures_total{task=\"tier-sweep\"}";
                node.until("it is told", || node.metric(failed) > 0).await;
                setup.store.clear_plan();
                node.until("all go", || node.metric("tier_orphans_deleted_total") == 2).await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_page_that_cannot_be_read_covers_whatever_it_may_list() {
    // T7: an error is never taken for absence.
    tidelog_sim::run(64, |context| async move {
        let setup = Setup::new(&context);
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                sealed(&context, &partition, 20).await;
                node.until_tiered(&partition, 20).await;
                node.until("entries moved", || !node.image(partition.place()).manifest.lines.is_empty())
                    .await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        for fault in [
            StoreFault::FailBefore,
            StoreFault::NotFound,
            StoreFault::WrongByte(60),
            StoreFault::ShortBody(50),
        ] {
            setup.store.plan(StoreOperation::Get, ".page", 0, u32::MAX, fault.clone());
            context
                .life(&disk, async |supervisor| {
                    let node = Node::start(&setup, &disk, supervisor).await;
                    node.pass(Duration::from_secs(120)).await;
                    assert_eq!(node.metric("tier_orphans_deleted_total"), 0, "{fault:?}");
                    assert_eq!(node.keys(".seg").await.len(), 20, "{fault:?}");
                    setup.store.clear_plan();
                    assert_eq!(node.records(&node.partition("t")).await.len(), 20);
                    node.stop().await;
                })
                .await
                .unwrap();
        }
    });
}
