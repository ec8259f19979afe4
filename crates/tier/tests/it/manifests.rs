//! Pages and published manifests.

use std::time::Duration;

use tidelog_core::cluster::{
    Command, ConfigChange, ConfigResource, DeletionItem, DeletionTarget, ObjectName,
};
use tidelog_replica::PartitionHandle;
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_types::limits::{MANIFEST_COPIES_KEPT, MANIFEST_ENTRIES_MAX, MANIFEST_ENTRIES_SPILL};

use crate::{
    bucket::key,
    node::{Node, Setup, offset, sealed, with_node},
};

async fn with_pages(node: &Node, context: &tidelog_sim::Context, count: usize) -> PartitionHandle {
    let partition = node.create_topic("t", 1, &[("retention.ms", "-1"), ("local.retention.ms", "1")]).await;
    sealed(context, &partition, count).await;
    node.until_tiered(&partition, count as u64).await;
    node.until("the entries moved", || {
        node.image(partition.place()).manifest.entries.len() < MANIFEST_ENTRIES_SPILL
    })
    .await;
    partition
}

#[test]
fn a_long_history_moves_into_pages_and_is_still_whole() {
    with_node(41, async |context, _, node| {
        let partition = with_pages(&node, context, 45).await;
        let image = node.image(partition.place());
        assert_eq!(image.manifest.lines.len(), 1, "one page takes them all");
        assert!(image.manifest.entries.len() < MANIFEST_ENTRIES_SPILL);
        assert!(node.metric("tier_manifest_spills_total") >= 3);
        assert_eq!(node.records(&partition).await.len(), 45);

        let segments = node.tier.segments(partition.topic()).await.unwrap().segments;
        assert_eq!(segments.len(), 45);
        assert!(segments.windows(2).all(|pair| pair[0].end_offset == pair[1].base_offset));
        let keys: Vec<String> = segments.into_iter().map(|segment| segment.key).collect();
        assert_eq!(keys, node.keys(".seg").await.into_keys().collect::<Vec<_>>());
        let status = node.status("t").await;
        assert_eq!(status.bucket_objects, Some(45));
        assert_eq!(
            status.bucket_bytes,
            node.entries(&partition).await.iter().map(|entry| entry.bytes).sum::<u64>()
        );

        // Replaced pages and old copies go once their grace is over and a manifest without them is published.
        node.until("the queue is empty", || node.controller.image().deletions().is_empty()).await;
        let page = image.manifest.lines[0].page;
        let held: Vec<String> = node.keys(".page").await.into_keys().collect();
        assert_eq!(held, [key("t", partition.place(), &ObjectName::Page { page })]);
        assert_eq!(node.keys(".manifest").await.len(), MANIFEST_COPIES_KEPT);
        node.stop().await;
    });
}

// Found by the crash model of a whole node: a page that arrived short was named, and was the only list of what it listed.
#[test]
fn a_page_or_a_copy_that_arrived_short_is_named_by_nothing() {
    // B86
    with_node(46, async |context, setup, node| {
        for kind in [".page", ".manifest"] {
            setup.store.plan(StoreOperation::Put, kind, 0, 1, StoreFault::ShortBody(50));
        }
        let partition = with_pages(&node, context, 45).await;
        let lines = node.image(partition.place()).manifest.lines.clone();
        let pages = node.keys(".page").await;
        for line in &lines {
            let name = key("t", partition.place(), &ObjectName::Page { page: line.page });
            assert!(pages[&name] > 50, "{name} is whole: {pages:?}");
        }
        assert!(pages.values().any(|bytes| *bytes == 50), "the fault was met");
        assert_eq!(node.records(&partition).await.len(), 45);
        node.until("the short ones are swept", || node.metric("tier_orphans_deleted_total") >= 2).await;
        for kind in [".page", ".manifest"] {
            assert!(node.keys(kind).await.into_values().all(|bytes| bytes > 50), "{kind}");
        }
    });
}

#[test]
fn a_last_page_that_is_lost_or_damaged_stops_no_upload() {
    for (seed, fault) in [(50, StoreFault::NotFound), (51, StoreFault::WrongByte(60))] {
        tidelog_sim::run(seed, |context| async move {
            let setup = Setup::new(&context);
            context
                .life(&context.disk, async |supervisor| {
                    let node = Node::start(&setup, &context.disk, supervisor).await;
                    let partition = with_pages(&node, &context, 20).await;
                    assert_eq!(node.image(partition.place()).manifest.lines.len(), 1);
                    node.stop().await;
                })
                .await
                .unwrap();
            let disk = context.disk.kill();
            // What is kept of pages is gone with the process.
            setup.store.plan(StoreOperation::Get, ".page", 0, u32::MAX, fault);
            context
                .life(&disk, async |supervisor| {
                    let node = Node::start(&setup, &disk, supervisor).await;
                    let partition = node.partition("t");
                    let before = node.image(partition.place()).manifest.lines[0];
                    sealed(&context, &partition, 20).await;
                    node.until_tiered(&partition, 40).await;
                    let after = node.image(partition.place());
                    assert_eq!(after.manifest.lines.len(), 2);
                    assert_eq!(after.manifest.lines[0], before, "the bad page stays what it is");
                    setup.store.clear_plan();
                    assert_eq!(node.records(&partition).await.len(), 40);
                })
                .await
                .unwrap();
        });
    }
}

#[test]
fn a_spill_that_fails_stops_uploads_only_where_the_manifest_is_full() {
    with_node(52, async |context, setup, node| {
        setup.store.plan(StoreOperation::Put, ".page", 0, u32::MAX, StoreFault::FailBefore);
        let partition = node.create_topic("t", 1, &[("retention.ms", "-1")]).await;
        sealed(context, &partition, 40).await;
        node.until_tiered(&partition, MANIFEST_ENTRIES_MAX as u64).await;
        node.pass(Duration::from_secs(30)).await;
        assert_eq!(partition.snapshot().tiered_end, offset(MANIFEST_ENTRIES_MAX as u64));
        assert_eq!(node.metric("tier_uploads_abandoned_total"), 0, "none is written to be refused");
        assert!(node.metric("tier_upload_failures_total") > 0, "it is told");
        setup.store.clear_plan();
        node.until_tiered(&partition, 40).await;
        assert_eq!(node.records(&partition).await.len(), 40);
    });
}

#[test]
fn the_newest_published_manifest_is_the_first_listed_and_says_what_the_cluster_says() {
    // B82
    tidelog_sim::run(42, |context| async move {
        let setup = Setup::new(&context);
        let disk = context.disk.clone();
        let mut newest = 0;
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let partition = with_pages(&node, &context, 20).await;
                let image = node.image(partition.place());
                let files = node.manifests("t-").await;
                let versions: Vec<u64> = files.iter().map(|file| file.version).collect();
                assert_eq!(versions, image.manifest.published.iter().rev().copied().collect::<Vec<_>>());
                newest = versions[0];
            })
            .await
            .unwrap();
        for round in 0..3 {
            let disk = disk.kill();
            context
                .life(&disk, async |supervisor| {
                    let node = Node::start(&setup, &disk, supervisor).await;
                    let partition = node.partition("t");
                    node.pass(Duration::from_secs(30)).await;
                    let image = node.image(partition.place());
                    let files = node.manifests("t-").await;
                    assert!(files[0].version >= newest, "round {round}: a manifest never shrinks");
                    assert_eq!(
                        files[0].version, image.manifest.version,
                        "after a start the newest is published"
                    );
                    assert_eq!(files[0].lines, image.manifest.lines);
                    assert_eq!(files[0].entries, image.manifest.entries);
                    assert_eq!(files[0].tiered_end, offset(20));
                })
                .await
                .unwrap();
        }
    });
}

#[test]
fn equal_versions_have_equal_bytes_whoever_writes_them() {
    tidelog_sim::run(43, |context| async move {
        let setup = Setup::new(&context);
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                sealed(&context, &partition, 2).await;
                node.until_tiered(&partition, 2).await;
                // The copy is written, and its announcement never arrives.
                node.commands.hold(|command| matches!(command, Command::ManifestPublished { .. }));
                partition.delete_records(Some(offset(1))).await.unwrap();
                node.until("the copy is written", || node.commands.waiting() == 1).await;
            })
            .await
            .unwrap();
        let written = setup.store.count(tidelog_testkit::StoreOperation::Put, ".manifest");
        assert_eq!(written, 1);
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let place = node.partition("t").place();
                let version = node.image(place).manifest.version;
                // The next leader writes the same key: it succeeds, since the bytes are the same.
                node.until("it is published", || node.image(place).manifest.published == [version]).await;
                assert_eq!(node.keys(".manifest").await.len(), 1);
                assert_eq!(node.manifests("t-").await[0].log_start, offset(1));
            })
            .await
            .unwrap();
    });
}

// Found by the kill campaign: the queue of the partition stood still for ever, and the sweep with it.
#[test]
fn a_kill_between_the_deletion_of_a_page_and_its_report_does_not_stop_the_queue() {
    tidelog_sim::run(48, |context| async move {
        let setup = Setup::new(&context);
        let left = context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = with_pages(&node, &context, 45).await;
                node.until("the queue is empty", || node.controller.image().deletions().is_empty()).await;
                setup.store.plan(StoreOperation::Delete, ".seg", 0, u32::MAX, StoreFault::FailBefore);
                let line = node.image(partition.place()).manifest.lines[0];
                partition.delete_records(Some(offset(5))).await.unwrap();
                // So long that the two ranges are items of their own.
                node.pass(Duration::from_secs(10)).await;
                partition.delete_records(Some(line.range.end)).await.unwrap();
                node.settled().await;
                let image = node.controller.image();
                let queued = image.deletions().partition(partition.place());
                let is_range = |item: &&DeletionItem| matches!(item.target, DeletionTarget::Range { .. });
                assert_eq!(queued.iter().filter(is_range).count(), 2);
                // What a life did that ended before it could report either.
                let page = ObjectName::Page { page: line.page };
                node.client.delete(&key("t", partition.place(), &page)).await.unwrap();
                node.stop().await;
                45 - usize::try_from(line.range.end.get()).unwrap()
            })
            .await
            .unwrap();
        setup.store.clear_plan();
        let disk = context.disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                node.until("the queue is empty", || node.controller.image().deletions().is_empty()).await;
                node.pass(Duration::from_secs(60)).await;
                assert_eq!(node.keys(".seg").await.len(), left, "what the page listed is swept as orphans");
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn retention_looks_into_a_page_and_deletes_exactly_what_it_took() {
    with_node(44, async |context, _, node| {
        let partition = with_pages(&node, context, 45).await;
        let entries = node.entries(&partition).await;
        let change = ConfigChange::Set { value: (entries[0].bytes * 40).to_string() };
        let resource = ConfigResource::Topic { topic_id: partition.place().topic_id };
        let changes = vec![("retention.bytes".to_owned(), change)];
        node.propose(Command::AlterConfigs { resource, changes }).await;
        node.until("five go", || partition.snapshot().log_start == offset(5)).await;
        node.until("the queue is empty", || node.controller.image().deletions().is_empty()).await;
        assert_eq!(node.keys(".seg").await.len(), 40);
        assert_eq!(node.records(&partition).await.len(), 40);
        assert_eq!(node.status("t").await.bucket_objects, Some(40));

        // The whole page, and a part of what is held in full.
        let last = node.image(partition.place()).manifest.lines[0].range.end;
        partition.delete_records(Some(last.next())).await.unwrap();
        node.settled().await;
        node.until("the queue is empty", || node.controller.image().deletions().is_empty()).await;
        assert_eq!(node.keys(".page").await.len(), 0);
        let left = 45 - last.next().get();
        assert_eq!(node.keys(".seg").await.len() as u64, left);
        assert_eq!(node.records(&partition).await.len() as u64, left);
    });
}
