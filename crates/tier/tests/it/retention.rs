//! Log starts: by clients and by retention, in both tiers, while the store is there or not.

use std::time::Duration;

use tidelog_sim::Context;
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_types::ByteSize;

use crate::node::{Node, Setup, append, batch, now, offset, sealed, with_node};

#[test]
fn records_deleted_before_their_upload_never_come_back() {
    // B62
    tidelog_sim::run(21, |context| async move {
        let setup = Setup::new(&context);
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                setup.store.plan(StoreOperation::Put, "", 0, u32::MAX, StoreFault::FailBefore);
                for _ in 0..10 {
                    append(&partition, batch(now(&context), &["a", "b", "c", "d"])).await;
                    partition.roll().await.unwrap();
                }
                assert_eq!(partition.delete_records(Some(offset(26))).await.unwrap(), offset(26));
                node.pass(Duration::from_secs(10)).await;
                setup.store.clear_plan();
                node.until_tiered(&partition, 40).await;
                let entries = node.entries(&partition).await;
                assert_eq!(entries[0].range.base, offset(26), "the manifest begins where the log does");
                assert_eq!(node.records(&partition).await.first(), Some(&(26, "c".to_owned())));
                assert_eq!(node.status("t").await.log_start, offset(26));
            })
            .await
            .unwrap();
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let partition = node.partition("t");
                assert_eq!(partition.snapshot().log_start, offset(26));
                // Inside of an object: it stays, and readers skip what is below.
                assert_eq!(partition.delete_records(Some(offset(30))).await.unwrap(), offset(30));
                node.settled().await;
                assert_eq!(node.entries(&partition).await[0].range.base, offset(28));
                sealed(&context, &partition, 1).await;
                node.until_tiered(&partition, 41).await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn what_expired_while_the_store_was_away_goes_and_is_not_uploaded_after() {
    // B68
    with_node(22, async |context, setup, node| {
        let configs = [("retention.ms", "60000"), ("local.retention.ms", "20000")];
        let partition = node.create_topic("t", 1, &configs).await;
        setup.store.plan(StoreOperation::Put, "", 0, u32::MAX, StoreFault::FailBefore);
        for _ in 0..30 {
            sealed(context, &partition, 1).await;
            node.pass(Duration::from_secs(10)).await;
        }
        let kept = partition.snapshot();
        let held = kept.log_end.get() - kept.log_start.get();
        assert!((6..=8).contains(&held), "{held} segments of ten seconds are kept for a minute");
        assert_eq!(kept.local_log_start, kept.log_start);
        setup.store.clear_plan();
        node.until_tiered(&partition, 30).await;
        let oldest = node.entries(&partition).await[0];
        assert!(now(context).as_millis() - oldest.max_timestamp.unwrap().as_millis() <= 75_000);
        assert!(oldest.range.base >= kept.log_start);
        node.until("local retention follows", || partition.snapshot().local_log_start > kept.log_start).await;
    });
}

#[test]
fn failed_uploads_take_nothing_from_the_size_that_is_kept() {
    // B58
    with_node(23, async |context, setup, node| {
        let partition = node.create_topic("t", 1, &[("retention.ms", "-1")]).await;
        // Every upload is written and then refused.
        setup.store.plan(StoreOperation::Head, ".seg", 0, 40, StoreFault::NotFound);
        sealed(context, &partition, 5).await;
        let size = partition.local_bytes().to_string();
        let change = tidelog_core::cluster::ConfigChange::Set { value: size };
        let resource = tidelog_core::cluster::ConfigResource::Topic { topic_id: partition.place().topic_id };
        let changes = vec![("retention.bytes".to_owned(), change)];
        node.propose(tidelog_core::cluster::Command::AlterConfigs { resource, changes }).await;
        node.pass(Duration::from_secs(30)).await;
        assert!(node.keys(".seg").await.len() > 5, "there are many failed attempts");
        assert_eq!(partition.snapshot().log_start, offset(0));
        node.until_tiered(&partition, 5).await;
        node.pass(Duration::from_secs(60)).await;
        assert_eq!(partition.snapshot().log_start, offset(0), "in both tiers every byte counts once (T8)");
        assert_eq!(node.keys(".seg").await.len(), 5, "no object outside of the manifest is left");
    });
}

#[test]
fn size_takes_from_the_bucket_and_its_objects_go_after_their_grace() {
    with_node(24, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[("local.retention.ms", "1")]).await;
        sealed(context, &partition, 10).await;
        node.until_tiered(&partition, 10).await;
        let entries = node.entries(&partition).await;
        let bytes = entries[0].bytes;
        let change = tidelog_core::cluster::ConfigChange::Set { value: (bytes * 3).to_string() };
        let resource = tidelog_core::cluster::ConfigResource::Topic { topic_id: partition.place().topic_id };
        let changes = vec![("retention.bytes".to_owned(), change)];
        node.propose(tidelog_core::cluster::Command::AlterConfigs { resource, changes }).await;
        node.until("seven go", || partition.snapshot().log_start == offset(7)).await;
        assert_eq!(node.metric("tier_retention_bytes_total"), bytes * 7);
        assert_eq!(node.keys(".seg").await.len(), 10, "readers in flight finish");
        node.until("the queue is empty", || node.controller.image().deletions().is_empty()).await;
        assert_eq!(node.keys(".seg").await.len(), 3);
        assert_eq!(node.records(&partition).await.len(), 3);
    });
}

/// Topics of one page each at least.
async fn topics_with_pages(node: &Node, context: &Context, names: &[&str], retention_ms: &str) {
    for (number, name) in (1..).zip(names) {
        let configs = [("retention.ms", retention_ms), ("local.retention.ms", "1")];
        let partition = node.create_topic(name, number, &configs).await;
        sealed(context, &partition, 45).await;
        node.until_tiered(&partition, 45).await;
        node.until("there is a page", || !node.image(partition.place()).manifest.lines.is_empty()).await;
    }
}

#[test]
fn what_expired_on_local_disk_goes_while_pages_cannot_be_read() {
    // B68: the process is new and has no page at hand.
    tidelog_sim::run(25, |context| async move {
        let mut setup = Setup::new(&context);
        let (disk, names) = (context.disk.clone(), ["a", "b", "c", "d"]);
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                topics_with_pages(&node, &context, &names, "3600000").await;
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        setup.options.retry_deadline = Duration::from_secs(60);
        for operation in [StoreOperation::Get, StoreOperation::Put] {
            setup.store.plan(operation, "", 0, u32::MAX, StoreFault::FailBefore);
        }
        let asked = setup.store.count(StoreOperation::Get, ".page");
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let last = node.create_topic("z", 200, &[("retention.ms", "5000")]).await;
                sealed(&context, &last, 1).await;
                node.pass(Duration::from_millis(5_001)).await;
                // Two ticks, each with a look whether the bucket serves again.
                node.pass(setup.tier.check_interval * 4).await;
                assert_eq!(last.snapshot().log_start, offset(1));
                assert!(setup.store.count(StoreOperation::Get, ".page") > asked, "pages are asked for");
                setup.store.clear_plan();
                let before = setup.store.log().len();
                node.pass(Duration::from_secs(20)).await;
                let log = setup.store.log().split_off(before);
                let read =
                    log.iter().filter(|(done, key)| *done == StoreOperation::Get && key.contains(".page"));
                assert_eq!(read.count(), names.len(), "each page is read once it serves again");
                node.pass(Duration::from_secs(3_600)).await;
                for name in names {
                    node.until("it expires", || node.partition(name).snapshot().log_start == offset(45))
                        .await;
                }
            })
            .await
            .unwrap();
    });
}

#[test]
fn pages_of_idle_partitions_are_read_once() {
    tidelog_sim::run(26, |context| async move {
        // None is kept, as where there are more than the memory for them holds.
        let mut setup = Setup { page_memory: ByteSize::ZERO, ..Setup::new(&context) };
        // The sweep reads pages, too.
        setup.tier.orphan_age = Duration::from_secs(24 * 3_600);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let names = ["a", "b", "c"];
                topics_with_pages(&node, &context, &names, "1000000").await;
                node.pass(Duration::from_secs(30)).await;
                let asked = setup.store.count(StoreOperation::Get, ".page");
                assert!(asked >= names.len());
                node.pass(setup.tier.check_interval * 300).await;
                assert_eq!(setup.store.count(StoreOperation::Get, ".page"), asked);
                // They go at their time.
                node.pass(Duration::from_secs(800)).await;
                for name in names {
                    assert_eq!(node.partition(name).snapshot().log_start, offset(45));
                }
            })
            .await
            .unwrap();
    });
}
