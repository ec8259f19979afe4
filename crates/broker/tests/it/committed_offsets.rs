//! Where a committed offset lies after the power was cut.

use std::{sync::Arc, time::Duration};

use tempfile::TempDir;
use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{batch, values};
use tidelog_wire::ErrorCode;

use crate::{
    groups::{QUICK, commit, commit_of, coordinator, offsets},
    held_disk::HeldDisk,
    node::{Node, Options},
};

const COMMIT_TIMEOUT: Duration = Duration::from_millis(400);

fn options() -> Options {
    // No sync before records are visible, as in Kafka.
    let own = &[("log.flush.default", "replicated"), ("offsets.commit.timeout.ms", "400")];
    Options::with(&[QUICK, own].concat())
}

/// The end of the topic, and what is committed, on a node that starts with this.
async fn found(folder: Arc<TempDir>) -> (i64, Vec<i64>) {
    let node = Node::start_in(folder, options()).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let end = client.fetch("t", 0, 0).await.high_watermark;
    let committed = offsets(&mut client, "g").await.into_iter().map(|(_, _, offset)| offset).collect();
    node.stop().await;
    (end, committed)
}

// B56: records are visible before they are synced, and a commit never is. All partitions share a journal, in which the records
// that a client read are before its commit: what makes this durable makes those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_offset_is_not_above_the_end_after_the_power_was_cut() {
    let disk = HeldDisk::new();
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let options = Options { disk: Some(Arc::clone(&disk) as Arc<_>), ..options() };
    let node = Node::start_in(Arc::clone(&folder), options).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    coordinator(&mut client, "g").await;

    disk.hold(true);
    let sent = batch(Codec::None, 1_000, &[b"a", b"b", b"c"]).to_bytes();
    assert_eq!(client.produce("t", 0, sent.clone()).await.error_code, 0);
    let read = client.fetch("t", 0, 0).await;
    assert_eq!((read.high_watermark, values(&read).len()), (3, 3), "what is not synced is read");
    let (took, answer) = client.timed_call(8, &commit_of("g", "", -1, &[("t", 0, 3)])).await;
    let not_yet = ErrorCode::CoordinatorNotAvailable.code();
    assert_eq!(answer.topics[0].partitions[0].error_code, not_yet, "a commit waits for its sync");
    assert!(took >= COMMIT_TIMEOUT && took < Duration::from_secs(4), "as long as is said: {took:?}");
    assert_eq!(offsets(&mut client, "g").await, [], "nobody sees what is not durable");
    assert_eq!(found(disk.cut(&folder)).await, (0, vec![]), "both are lost, and neither alone");

    disk.hold(false);
    assert_eq!(commit(&mut client, "g", &[("t", 0, 3)]).await, [0]);
    disk.hold(true);
    assert_eq!(client.produce("t", 0, sent).await.error_code, 0);
    assert_eq!(client.fetch("t", 0, 3).await.high_watermark, 6);
    assert_eq!(commit(&mut client, "g", &[("t", 0, 6)]).await, [not_yet]);
    let (end, committed) = found(disk.cut(&folder)).await;
    assert_eq!(committed, [3]);
    assert_eq!(end, 3, "what the commit names is as durable as the commit");

    disk.hold(false);
    drop(folder);
    let folder = node.stop().await;
    assert_eq!(found(folder).await, (6, vec![6]), "a client that asks again finds it committed");
}
