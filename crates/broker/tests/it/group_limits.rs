//! What one client asks for that is too much: it is refused, its group is what it was, and nobody else notices.

use bytes::Bytes;
use tidelog_testkit::raw_client::RawClient;
use tidelog_wire::{
    ErrorCode,
    messages::{
        ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
        DescribeGroupsRequest, JoinGroupRequest, LeaveGroupRequest, OffsetCommitRequest,
        join_group::JoinGroupRequestProtocol,
        leave_group::MemberIdentity,
        offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
    },
};

use crate::groups::{coordinator, join_of, quick, subscription, text};

/// All groups in one shard, so that what harms one harms all.
const ONE_SHARD: &[(&str, &str)] =
    &[("offsets.topic.num.partitions", "1"), ("group.consumer.assignment.interval.ms", "0")];

/// Names that are no record's: more than a mebibyte.
fn names() -> Vec<String> {
    (0..16_000).map(|number| format!("{number:066}")).collect()
}

fn joining(group: &str, member: &str, topics: &[String]) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: text(group),
        member_id: text(member),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(topics.iter().map(|topic| text(topic)).collect()),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    }
}

async fn beat(
    client: &mut RawClient,
    request: &ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    client.call(1, request).await
}

/// A commit of somebody without a group: answered with an error where the shard does not serve.
async fn commit(client: &mut RawClient) -> i16 {
    let partition = OffsetCommitRequestPartition { committed_offset: 1, ..Default::default() };
    let topic =
        OffsetCommitRequestTopic { name: text("t"), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: text("another"),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    client.call(9, &request).await.topics[0].partitions[0].error_code
}

/// Epoch, and the ids of its members.
async fn consumers(client: &mut RawClient, group: &str) -> (i32, Vec<String>) {
    let request = ConsumerGroupDescribeRequest { group_ids: vec![text(group)], ..Default::default() };
    let mut answer = client.call(1, &request).await;
    let group = answer.groups.remove(0);
    (group.group_epoch, group.members.iter().map(|member| member.member_id.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_no_batch_holds_is_refused_and_nobody_notices() {
    let node = quick(ONE_SHARD).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let few = vec!["t".to_owned()];
    let first = beat(&mut client, &joining("g", "first", &few)).await;
    assert_eq!(first.error_code, 0);

    for _ in 0..3 {
        let refused = beat(&mut client, &joining("g", "large", &names())).await;
        assert_eq!(refused.error_code, ErrorCode::UnknownServerError.code());
        // A group of its own comes to nothing as well.
        let refused = beat(&mut client, &joining("new", "large", &names())).await;
        assert_eq!(refused.error_code, ErrorCode::UnknownServerError.code());
        assert_eq!(commit(&mut client).await, 0, "the shard serves on");
    }
    assert_eq!(consumers(&mut client, "g").await, (first.member_epoch, vec!["first".to_owned()]));
    assert_eq!(consumers(&mut client, "new").await, (0, Vec::new()));
    // The member that was there goes on, and may not say it either.
    let keeps = ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: Some(names().iter().map(|name| text(name)).collect()),
        member_epoch: first.member_epoch,
        ..joining("g", "first", &few)
    };
    assert_eq!(beat(&mut client, &keeps).await.error_code, ErrorCode::UnknownServerError.code());
    let goes_on =
        ConsumerGroupHeartbeatRequest { member_epoch: first.member_epoch, ..joining("g", "first", &few) };
    let answer = beat(&mut client, &goes_on).await;
    assert_eq!((answer.error_code, answer.member_epoch), (0, first.member_epoch));
    node.stop().await;
}

fn classic(group: &str, metadata: Bytes) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol { name: text("range"), metadata };
    JoinGroupRequest {
        protocols: vec![protocol],
        session_timeout_ms: 60_000,
        rebalance_timeout_ms: 60_000,
        ..join_of(group, "", None)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_group_that_no_batch_holds_does_not_go_over() {
    let node = quick(ONE_SHARD).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let names = names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Version 3: the last that takes a member without an id.
    let joined = client.call(3, &classic("g", subscription(&names))).await;
    assert_eq!(joined.error_code, 0);

    let refused = beat(&mut client, &joining("g", "new", &["t".to_owned()])).await;
    assert_eq!(refused.error_code, ErrorCode::UnknownServerError.code());
    assert_eq!(commit(&mut client).await, 0, "the shard serves on");
    let asked = DescribeGroupsRequest { groups: vec![text("g")], ..Default::default() };
    let described = client.call(5, &asked).await;
    let group = &described.groups[0];
    assert_eq!((group.group_state.as_str(), group.members.len()), ("CompletingRebalance", 1));
    assert_eq!(group.members[0].member_id, joined.member_id);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_say_much_leave_room_for_those_that_say_little() {
    const LARGE: usize = 9_000_000;
    let node = quick(ONE_SHARD).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let large = Bytes::from(vec![0; LARGE]);
    let mut joined = Vec::new();
    let refused = loop {
        let group = format!("large-{}", joined.len());
        let answer = client.call(3, &classic(&group, large.clone())).await;
        if answer.error_code != 0 {
            break answer.error_code;
        }
        joined.push((group, answer.member_id));
    };
    assert_eq!(refused, ErrorCode::CoordinatorNotAvailable.code());
    assert_eq!(joined.len(), 128 * 1024 * 1024 / LARGE, "128 MiB of them");
    let ordinary = client.call(3, &classic("ordinary", subscription(&["t"]))).await;
    assert_eq!(ordinary.error_code, 0);

    // Who leaves makes room.
    let (group, member_id) = joined.pop().unwrap();
    let leaving = LeaveGroupRequest {
        group_id: text(&group),
        members: vec![MemberIdentity { member_id, ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(client.call(4, &leaving).await.error_code, 0);
    assert_eq!(client.call(3, &classic("again", large)).await.error_code, 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expression_has_a_length_and_is_matched_whoever_else_waits() {
    let node = quick(ONE_SHARD).await;
    let mut client = node.client().await;
    client.create_topic("orders-eu", 2, &[]).await;
    client.create_topic("invoices", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let by = |member: &str, pattern: &str| ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: None,
        subscribed_topic_regex: Some(text(pattern)),
        ..joining("g", member, &[])
    };
    for bad in [format!("orders{}", ".?".repeat(3_000)), "[".to_owned()] {
        let refused = beat(&mut client, &by("m", &bad)).await;
        assert_eq!(refused.error_code, ErrorCode::InvalidRegularExpression.code(), "{}", bad.len());
    }
    assert_eq!(consumers(&mut client, "g").await, (0, Vec::new()), "nobody joined");
    let joined = beat(&mut client, &by("m", "orders-.*")).await;
    assert_eq!(joined.error_code, 0);
    let given = joined.assignment.unwrap().topic_partitions;
    assert_eq!(given.iter().map(|topic| topic.partitions.len()).collect::<Vec<_>>(), [2]);
    node.stop().await;
}
