//! A bucket that is a folder on the log's own disk.

use std::time::Duration;

use crate::node::{append, batch, now, offset, sealed, with_node};

// Found by hand: uploads filled the disk that the log needs, to its last byte.
#[test]
fn uploads_beside_the_log_leave_it_its_room() {
    with_node(71, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        node.tier.share_disk();
        sealed(context, &partition, 1).await;
        node.until_tiered(&partition, 1).await;
        assert_eq!(node.metric("tier_uploads_wait_for_space"), 0);

        append(&partition, batch(now(context), &["value"])).await;
        // The disk is not full, and below its floor.
        let paths = context.disk.paths();
        let used: usize = paths.iter().map(|path| context.disk.contents(path).unwrap().len()).sum();
        context.disk.set_capacity(Some(used as u64 + 64 * 1024));
        node.until("the floor is seen", || !node.log.status().free_space_ok).await;
        partition.roll().await.unwrap();
        node.until("uploads wait", || node.metric("tier_uploads_wait_for_space") == 1).await;
        node.pass(Duration::from_secs(20)).await;
        assert_eq!(partition.snapshot().tiered_end, offset(1), "nothing is uploaded meanwhile");
        assert_eq!(node.metric("tier_upload_failures_total"), 0, "a wait is no failure");

        context.disk.set_capacity(None);
        node.until_tiered(&partition, 2).await;
        assert_eq!(node.metric("tier_uploads_wait_for_space"), 0);
        node.stop().await;
    });
}
