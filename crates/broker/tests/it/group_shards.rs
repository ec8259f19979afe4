//! One partition of `__consumer_offsets` that cannot be read: its groups wait, those of the others do not.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_testkit::raw_client::RawClient;
use tidelog_wire::{
    ErrorCode,
    messages::{DescribeGroupsRequest, FindCoordinatorRequest, JoinGroupResponse, ListGroupsRequest},
};

use crate::{
    cold::{Bucket, Gate, Reader},
    consumer_groups::{AT_ONCE, Member, settle},
    group_racks::register_other,
    groups::{
        QUICK, alone, code_of_fetch, commit, coordinator, heartbeat, join_of, offsets, state, sync, text,
    },
    node::{BROKER, Node, Options},
};

/// The groups by their names' first letters, of four partitions: Java's hash of one letter is its number.
const FIRST: [&str; 2] = ["d", "h"];
const OTHERS: [&str; 3] = ["a", "b", "c"];

fn options() -> Options {
    Options::with(&[QUICK, AT_ONCE].concat())
}

/// What is told of a group whose partition is not loaded, by everything that asks for it.
async fn codes(client: &mut RawClient, group: &str) -> Vec<(&'static str, i16)> {
    let stranger = JoinGroupResponse { member_id: text("m"), generation_id: 1, ..Default::default() };
    let joined: i16 = client.call(9, &join_of(group, "", None)).await.error_code;
    let beat = client.call(1, &Member::new("m").request(group)).await.error_code;
    let asked = DescribeGroupsRequest { groups: vec![text(group)], ..Default::default() };
    vec![
        ("JoinGroup", joined),
        ("SyncGroup", sync(client, group, &stranger, b"").await.0),
        ("Heartbeat", heartbeat(client, group, &stranger).await),
        ("OffsetCommit", commit(client, group, &[("t", 0, 9)]).await[0]),
        ("OffsetFetch", code_of_fetch(client, group).await),
        ("ConsumerGroupHeartbeat", beat),
        ("DescribeGroups", client.call(5, &asked).await.groups[0].error_code),
    ]
}

/// Asks for every group, and has those that are served commit this offset.
async fn others_go_on(
    client: &mut RawClient,
    (classic, modern): (&JoinGroupResponse, &mut Member),
    offset: i64,
) {
    for group in FIRST {
        for (what, code) in codes(client, group).await {
            // Kafka has members of a group that is being loaded believe that all is well.
            let right =
                if what == "Heartbeat" { ErrorCode::None } else { ErrorCode::CoordinatorLoadInProgress };
            assert_eq!(code, right.code(), "{what} of {group}");
        }
    }
    assert_eq!(heartbeat(client, "a", classic).await, 0);
    assert_eq!(modern.beat(client, "b").await.error_code, 0);
    assert_eq!(commit(client, "c", &[("t", 1, offset)]).await, [0]);
    assert_eq!(offsets(client, "c").await, [("t".to_owned(), 1, offset)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_of_groups_that_cannot_be_read_holds_up_no_other() {
    let node = Node::start_with(options()).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    for group in FIRST.into_iter().chain(OTHERS) {
        coordinator(&mut client, group).await;
        assert_eq!(commit(&mut client, group, &[("t", 1, 7)]).await, [0]);
    }
    let classic = alone(&mut client, "a").await;
    let mut modern = Member::new("m");
    settle(&mut client, "b", std::slice::from_mut(&mut modern)).await;
    // All of partition 0 but its last, empty segment is in the bucket alone.
    let bucket = Bucket::new(Gate::Closed);
    assert_eq!(bucket.take(&node, "__consumer_offsets", 1).await, 2);
    let folder = node.stop().await;

    // Nobody is there who would read the bucket: the load fails, and is tried again.
    let node = Node::start_in(folder, options()).await;
    let mut client = node.client().await;
    for group in OTHERS {
        coordinator(&mut client, group).await;
    }
    others_go_on(&mut client, (&classic, &mut modern), 8).await;
    // Somebody is, and has no answer: the load waits.
    node.replicas.set_cold_reader(Arc::new(Reader(Arc::clone(&bucket))));
    node.until("the load asks the bucket", || bucket.reads() == 1).await;
    others_go_on(&mut client, (&classic, &mut modern), 9).await;
    // The coordinator is known, and a list would not be whole.
    let asked = FindCoordinatorRequest { coordinator_keys: vec![text("d")], ..Default::default() };
    assert_eq!(client.call(4, &asked).await.coordinators[0].error_code, 0);
    let listed = client.call(5, &ListGroupsRequest::default()).await;
    assert_eq!(listed.error_code, ErrorCode::CoordinatorLoadInProgress.code());
    assert_eq!(node.metric("group_shards_loading"), 1);

    bucket.open();
    node.until("the groups are loaded", || node.metric("group_shards_loading") == 0).await;
    for group in FIRST {
        coordinator(&mut client, group).await;
        assert_eq!(
            offsets(&mut client, group).await,
            [("t".to_owned(), 1, 7)],
            "and nothing of what was refused"
        );
        assert_eq!(state(&mut client, group).await, "Empty");
    }
    assert_eq!(client.call(5, &ListGroupsRequest::default()).await.groups.len(), 5);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_a_partition_that_another_node_leads_are_refused_and_no_others() {
    let node = Node::start_with(options()).await;
    register_other(&node, "west").await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    let asked = FindCoordinatorRequest { coordinator_keys: vec![text("a")], ..Default::default() };
    client.call(4, &asked).await;
    let topic = client.metadata(Some("__consumer_offsets")).await.topics.remove(0);
    let led: BTreeMap<i32, i32> =
        topic.partitions.iter().map(|partition| (partition.partition_index, partition.leader_id)).collect();
    let own: Vec<bool> = [1, 2, 3, 0].iter().map(|partition| led[partition] == BROKER.0).collect();
    assert_eq!(own.iter().filter(|own| **own).count(), 2, "{led:?}");
    // Each is in the partition of its place in that list.
    for (group, own) in ["a", "b", "c", "d"].into_iter().zip(own) {
        if own {
            coordinator(&mut client, group).await;
            assert_eq!(commit(&mut client, group, &[("t", 0, 3)]).await, [0], "{group}");
            continue;
        }
        for (what, code) in codes(&mut client, group).await {
            assert_eq!(code, ErrorCode::NotCoordinator.code(), "{what} of {group}");
        }
    }
    let listed = client.call(5, &ListGroupsRequest::default()).await;
    assert_eq!((listed.error_code, listed.groups.len()), (0, 2), "those that are led here");
    node.stop().await;
}
