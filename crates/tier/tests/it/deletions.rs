//! The deletion queue.

use std::time::Duration;

use tidelog_core::cluster::Command;
use tidelog_testkit::{StoreFault, StoreOperation};

use crate::node::{Node, Setup, sealed, with_node};

#[test]
fn a_deleted_topic_leaves_nothing_and_its_successor_keeps_everything() {
    // B89
    tidelog_sim::run(51, |context| async move {
        let setup = Setup::new(&context);
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let old = node.create_topic("t", 1, &[]).await;
                sealed(&context, &old, 20).await;
                node.until_tiered(&old, 20).await;
                for operation in [StoreOperation::Delete, StoreOperation::List] {
                    setup.store.plan(operation, "", 0, u32::MAX, StoreFault::FailBefore);
                }
                node.propose(Command::DeleteTopic { topic_id: old.place().topic_id }).await;
                node.settled().await;
                let new = node.create_topic("t", 2, &[]).await;
                assert_ne!(new.place(), old.place());
                sealed(&context, &new, 3).await;
                node.until_tiered(&new, 3).await;
                node.until("deletions fail", || node.metric("tier_deletion_failures_total") > 0).await;
                assert!(node.controller.image().deletions().holds_topic(old.place().topic_id));
            })
            .await
            .unwrap();
        // Killed meanwhile: the queue is durable.
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&setup, &disk, supervisor).await;
                let new = node.partition("t");
                let (old_id, new_id) = (tidelog_types::TopicId::from_bytes([1; 16]), new.place().topic_id);
                let deletes = setup.store.count(StoreOperation::Delete, "");
                setup.store.clear_plan();
                node.until("the folder is empty", || {
                    setup.store.count(StoreOperation::Delete, "") > deletes + 20
                })
                .await;
                assert_eq!(node.keys(&old_id.to_string()).await.len(), 0);
                assert!(node.controller.image().deletions().holds_topic(old_id), "an upload may still land");
                // One does.
                let late = format!("topics/t-{old_id}/0/late.seg");
                node.client.put_new(&late, vec!["late".into()]).await.unwrap();
                node.until("the item is done", || !node.controller.image().deletions().holds_topic(old_id))
                    .await;
                assert_eq!(node.keys(&old_id.to_string()).await.len(), 0);
                assert_eq!(node.records(&new).await.len(), 3);
                assert_eq!(
                    node.keys(&new_id.to_string()).await.keys().filter(|key| key.ends_with(".seg")).count(),
                    3
                );
            })
            .await
            .unwrap();
    });
}

#[test]
fn an_empty_topic_is_listed_again_when_its_orphan_age_is_over() {
    tidelog_sim::run(55, |context| async move {
        let mut setup = Setup::new(&context);
        setup.tier.orphan_age = Duration::from_secs(3_600);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                sealed(&context, &partition, 3).await;
                node.until_tiered(&partition, 3).await;
                let topic_id = partition.place().topic_id;
                drop(partition);
                let lists = || setup.store.count(StoreOperation::List, &topic_id.to_string());
                let before = lists();
                node.propose(Command::DeleteTopic { topic_id }).await;
                node.pass(setup.tier.orphan_age).await;
                assert!(
                    node.controller.image().deletions().holds_topic(topic_id),
                    "its folder is empty too late"
                );
                node.pass(Duration::from_secs(30)).await;
                assert!(!node.controller.image().deletions().holds_topic(topic_id));
                // With its objects, empty, and empty again; the store's clock may want one more.
                assert!((3..=4).contains(&(lists() - before)), "{}", lists() - before);
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_deletion_that_fails_is_not_reported_done() {
    with_node(52, async |context, setup, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        sealed(context, &partition, 4).await;
        node.until_tiered(&partition, 4).await;
        setup.store.plan(StoreOperation::Delete, ".seg", 1, u32::MAX, StoreFault::FailBefore);
        partition.delete_records(Some(crate::node::offset(3))).await.unwrap();
        node.until("one goes", || node.metric("tier_deleted_objects_total") == 1).await;
        node.pass(Duration::from_secs(20)).await;
        assert_eq!(node.controller.image().deletions().partition(partition.place()).len(), 2);
        assert_eq!(node.keys(".seg").await.len(), 3);
        assert_eq!(node.metric("tier_deletions_waiting"), 2);
        setup.store.clear_plan();
        node.until("the queue is empty", || node.controller.image().deletions().is_empty()).await;
        assert_eq!(node.keys(".seg").await.len(), 1);
        assert_eq!(node.metric("tier_deletions_waiting"), 0);
    });
}

#[test]
fn a_listing_that_fails_half_way_is_no_absence() {
    // T7: a deleted topic's folder has more keys than a page, and the store fails at the second.
    with_node(54, async |context, setup, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        sealed(context, &partition, 1).await;
        node.until_tiered(&partition, 1).await;
        let key = node.keys(".seg").await.into_keys().next().unwrap();
        let (folder, _) = key.rsplit_once('/').unwrap();
        for number in 0..1_100 {
            let key = format!("{folder}/zz-{number:04}");
            node.client.put_new(&key, vec![bytes::Bytes::from_static(b"x")]).await.unwrap();
        }
        let topic_id = partition.place().topic_id;
        drop(partition);
        // Every other page fails, at every try.
        setup.store.plan(StoreOperation::List, "topics/t-", 1, u32::MAX, StoreFault::FailBefore);
        node.propose(Command::DeleteTopic { topic_id }).await;
        node.until("the first page goes", || node.metric("tier_deleted_objects_total") == 1_000).await;
        node.pass(Duration::from_secs(120)).await;
        assert_eq!(node.metric("tier_deletions_waiting"), 1, "an error is not taken for absence");
        setup.store.clear_plan();
        node.until("the rest goes", || node.controller.image().deletions().is_empty()).await;
        assert_eq!(node.keys("topics/t-").await.len(), 0);
    });
}

#[test]
fn the_grace_is_the_nodes_setting() {
    tidelog_sim::run(53, |context| async move {
        let mut setup = Setup::new(&context);
        setup.tier.deletion_grace = Duration::from_secs(100);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                sealed(&context, &partition, 2).await;
                node.until_tiered(&partition, 2).await;
                partition.delete_records(Some(crate::node::offset(1))).await.unwrap();
                node.pass(Duration::from_secs(90)).await;
                assert_eq!(node.keys(".seg").await.len(), 2);
                node.pass(Duration::from_secs(20)).await;
                assert_eq!(node.keys(".seg").await.len(), 1);
            })
            .await
            .unwrap();
    });
}
