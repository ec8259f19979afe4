//! What stays on local disk.

use std::time::Duration;

use tidelog_core::cluster::Command;
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_types::ByteSize;

use crate::node::{Node, Setup, offset, sealed};

#[test]
fn a_full_disk_evicts_the_oldest_across_partitions_and_only_what_is_uploaded() {
    tidelog_sim::run(31, |context| async move {
        let mut setup = Setup::new(&context);
        setup.tier.local_disk_bytes_max = Some(ByteSize::bytes(400));
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let configs = [("local.retention.ms", "-1"), ("retention.ms", "-1")];
                let (old, young) = (
                    node.create_topic("old", 1, &configs).await,
                    node.create_topic("young", 2, &configs).await,
                );
                setup.store.plan(StoreOperation::Put, "", 0, u32::MAX, StoreFault::FailBefore);
                for partition in [&old, &young] {
                    for _ in 0..4 {
                        sealed(&context, partition, 1).await;
                        node.pass(Duration::from_secs(1)).await;
                    }
                }
                node.pass(Duration::from_secs(20)).await;
                let all = old.local_bytes() + young.local_bytes();
                assert!(all > 400, "{all} bytes");
                assert_eq!(
                    (old.snapshot().local_log_start, young.snapshot().local_log_start),
                    (offset(0), offset(0))
                );
                assert_eq!(node.metric("tier_local_disk_excess_bytes"), all - 400);
                // So that both are in the bucket when the first may go, whichever was tried first.
                node.commands.hold(|command| matches!(command, Command::CommitSegments { .. }));
                setup.store.clear_plan();
                node.until("an object waits for its commit", || node.commands.waiting() == 1).await;
                node.pass(Duration::from_secs(5)).await;
                node.commands.release();
                node.until_tiered(&old, 4).await;
                node.until_tiered(&young, 4).await;
                node.until("it is below the limit", || old.local_bytes() + young.local_bytes() <= 400).await;
                let each = all / 8;
                let gone = (all - 400).div_ceil(each);
                // The bytes are gone for readers before the files are, and the partition tells of it when they are.
                node.until("it is told", || old.snapshot().local_log_start.get() >= gone.min(4)).await;
                assert_eq!(old.snapshot().local_log_start.get(), gone.min(4));
                assert_eq!(young.snapshot().local_log_start.get(), gone.saturating_sub(4));
                node.pass(Duration::from_secs(2)).await;
                assert_eq!(node.metric("tier_local_disk_excess_bytes"), 0);
            })
            .await
            .unwrap();
    });
}

#[test]
fn internal_topics_keep_their_whole_local_log() {
    tidelog_sim::run(32, |context| async move {
        let mut setup = Setup::new(&context);
        setup.tier.local_disk_bytes_max = Some(ByteSize::bytes(1));
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let configs = [("local.retention.ms", "1"), ("cleanup.policy", "compact")];
                let internal = node.create_topic("__consumer_offsets", 1, &configs).await;
                sealed(&context, &internal, 3).await;
                node.until_tiered(&internal, 3).await;
                node.pass(Duration::from_secs(30)).await;
                assert_eq!(internal.snapshot().local_log_start, offset(0));
            })
            .await
            .unwrap();
    });
}
