//! Idempotent producers on the wire: epochs that a client raises itself, and producers that nobody remembers.

use tidelog_testkit::raw_client::{RawClient, idempotent_batch, values};

use crate::{
    asks::{delete_records, producer_id},
    node::{Node, Options},
};

/// Produces `count` records and gives the error and the base offset.
async fn produce(client: &mut RawClient, id: i64, epoch: i16, sequence: i32, count: usize) -> (i16, i64) {
    let records = vec![b"x".as_slice(); count];
    let produced =
        client.produce("t", 0, idempotent_batch(id, epoch, sequence, 1_000, &records).to_bytes()).await;
    (produced.error_code, produced.base_offset)
}

// B26: the codes that clients act on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raised_epoch_begins_at_sequence_zero_and_a_lower_one_is_fenced() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = producer_id(&mut client).await;
    assert_eq!(produce(&mut client, id, 0, 0, 10).await, (0, 0));
    assert_eq!(produce(&mut client, id, 1, 0, 1).await, (0, 10));
    assert_eq!(produce(&mut client, id, 0, 10, 1).await.0, 47, "INVALID_PRODUCER_EPOCH");
    assert_eq!(produce(&mut client, id, 2, 5, 1).await.0, 45, "OUT_OF_ORDER_SEQUENCE_NUMBER");
    assert_eq!(produce(&mut client, id, 1, 1, 1).await, (0, 11));
    assert_eq!(values(&client.fetch("t", 0, 0).await).len(), 12);
    node.stop().await;
}

// B25: no state is no reason to refuse a healthy producer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_whose_records_are_gone_goes_on_where_it_was() {
    let mut node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = producer_id(&mut client).await;
    assert_eq!(produce(&mut client, id, 0, 0, 2).await, (0, 0));
    for (round, sequence) in (1..).zip([2, 4, 6]) {
        assert_eq!(delete_records(&mut client, "t", 0, -1).await, i64::from(sequence));
        if round == 2 {
            let folder = node.stop().await;
            node = Node::start_in(folder, Options::default()).await;
            client = node.client().await;
        }
        let offset = i64::from(sequence);
        assert_eq!(produce(&mut client, id, 0, sequence, 2).await, (0, offset), "round {round}");
        assert_eq!(produce(&mut client, id, 0, sequence, 2).await, (0, offset), "and its retry is known");
    }
    assert_eq!(values(&client.fetch("t", 0, 6).await).len(), 2);
    node.stop().await;
}

// B23, B28: a repeat after a restart is the original, and nothing is appended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_after_a_restart_answer_their_first_offsets() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = producer_id(&mut client).await;
    for sequence in (0..14).step_by(2) {
        assert_eq!(produce(&mut client, id, 0, sequence, 2).await, (0, i64::from(sequence)));
    }
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::default()).await;
    let mut client = node.client().await;
    // The last five batches are remembered.
    for sequence in (4..14).step_by(2) {
        assert_eq!(produce(&mut client, id, 0, sequence, 2).await, (0, i64::from(sequence)));
    }
    assert_eq!(produce(&mut client, id, 0, 14, 2).await, (0, 14));
    // What was recovered lies on disk, and what came after it in memory: two reads.
    let before = values(&client.fetch("t", 0, 0).await).len();
    assert!(before >= 14, "{before}");
    assert_eq!(values(&client.fetch("t", 0, 14).await).len(), 2);
    assert_eq!(client.list_offset(7, "t", 0, -1).await.offset, 16, "and nothing was stored twice");
    node.stop().await;
}
