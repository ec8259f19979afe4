//! Consumer groups of the classic protocol, over sockets: what the coordinator adds to the state machine.

use std::time::Duration;

use bytes::Bytes;
use tidelog_testkit::raw_client::RawClient;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DeleteGroupsRequest, DeleteTopicsRequest, DescribeGroupsRequest, FindCoordinatorRequest,
        HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest,
        OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest,
        join_group::JoinGroupRequestProtocol,
        leave_group::MemberIdentity,
        offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
        offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic},
        offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics},
        sync_group::SyncGroupRequestAssignment,
    },
};

use crate::node::{Node, Options};

/// Small and quick: four partitions of groups, no wait for more members.
pub(crate) const QUICK: &[(&str, &str)] = &[
    ("offsets.topic.num.partitions", "4"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "100"),
    ("offsets.retention.check.interval.ms", "20"),
];

pub(crate) async fn quick(more: &[(&str, &str)]) -> Node {
    Node::start_with(Options::with(&[QUICK, more].concat())).await
}

pub(crate) fn text(text: &str) -> Str {
    Str::from(text)
}

/// Asks for a group's coordinator, which makes the topic, until it serves the group.
pub(crate) async fn coordinator(client: &mut RawClient, group: &str) {
    for _ in 0..1_000 {
        let asked = FindCoordinatorRequest { coordinator_keys: vec![text(group)], ..Default::default() };
        let found = client.call(4, &asked).await;
        assert_eq!(found.coordinators[0].error_code, 0);
        if code_of_fetch(client, group).await == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("no coordinator of {group}");
}

pub(crate) fn fetch_of(group: &str) -> OffsetFetchRequest {
    let group = OffsetFetchRequestGroup { group_id: text(group), topics: None, ..Default::default() };
    OffsetFetchRequest { groups: vec![group], ..Default::default() }
}

pub(crate) async fn code_of_fetch(client: &mut RawClient, group: &str) -> i16 {
    client.call(8, &fetch_of(group)).await.groups[0].error_code
}

/// Every committed offset: topic, partition, offset.
pub(crate) async fn offsets(client: &mut RawClient, group: &str) -> Vec<(String, i32, i64)> {
    let mut answer = client.call(8, &fetch_of(group)).await;
    let group = answer.groups.remove(0);
    assert_eq!(group.error_code, 0);
    let of_topic = |topic: tidelog_wire::messages::offset_fetch::OffsetFetchResponseTopics| {
        let name = topic.name.to_string();
        topic
            .partitions
            .into_iter()
            .map(move |partition| (name.clone(), partition.partition_index, partition.committed_offset))
            .collect::<Vec<_>>()
    };
    group.topics.into_iter().flat_map(of_topic).collect()
}

pub(crate) fn commit_of(
    group: &str,
    member: &str,
    generation: i32,
    offsets: &[(&str, i32, i64)],
) -> OffsetCommitRequest {
    let topic = |(name, partition, offset): &(&str, i32, i64)| OffsetCommitRequestTopic {
        name: text(name),
        partitions: vec![OffsetCommitRequestPartition {
            partition_index: *partition,
            committed_offset: *offset,
            committed_metadata: Some(text("m")),
            ..Default::default()
        }],
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: text(group),
        member_id: text(member),
        generation_id_or_member_epoch: generation,
        topics: offsets.iter().map(topic).collect(),
        ..Default::default()
    }
}

/// Commits without a group, and answers the codes.
pub(crate) async fn commit(client: &mut RawClient, group: &str, offsets: &[(&str, i32, i64)]) -> Vec<i16> {
    let answer = client.call(8, &commit_of(group, "", -1, offsets)).await;
    answer.topics.iter().map(|topic| topic.partitions[0].error_code).collect()
}

pub(crate) fn join_of(group: &str, member: &str, instance: Option<&str>) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: text(group),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        member_id: text(member),
        group_instance_id: instance.map(text),
        protocol_type: text("consumer"),
        protocols: vec![JoinGroupRequestProtocol { name: text("range"), metadata: subscription(&["t"]) }],
        ..Default::default()
    }
}

/// A subscription as consumers write it: version 0, topics, no data of the user.
pub(crate) fn subscription(topics: &[&str]) -> Bytes {
    let mut bytes = vec![0, 0];
    bytes.extend(i32::try_from(topics.len()).unwrap().to_be_bytes());
    for topic in topics {
        bytes.extend(i16::try_from(topic.len()).unwrap().to_be_bytes());
        bytes.extend(topic.as_bytes());
    }
    bytes.extend((-1_i32).to_be_bytes());
    bytes.into()
}

/// Joins as the only member, and hands itself an assignment.
pub(crate) async fn alone(client: &mut RawClient, group: &str) -> JoinGroupResponse {
    let first = client.call(9, &join_of(group, "", None)).await;
    assert_eq!(first.error_code, ErrorCode::MemberIdRequired.code());
    let joined = client.call(9, &join_of(group, &first.member_id, None)).await;
    assert_eq!((joined.error_code, &joined.leader), (0, &first.member_id));
    assert_eq!(sync(client, group, &joined, b"mine").await, (0, b"mine".to_vec()));
    joined
}

pub(crate) async fn sync(
    client: &mut RawClient,
    group: &str,
    joined: &JoinGroupResponse,
    mine: &[u8],
) -> (i16, Vec<u8>) {
    let assigned = SyncGroupRequestAssignment {
        member_id: joined.member_id.clone(),
        assignment: Bytes::copy_from_slice(mine),
    };
    let request = SyncGroupRequest {
        group_id: text(group),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        protocol_type: Some(text("consumer")),
        protocol_name: Some(text("range")),
        assignments: vec![assigned],
        ..Default::default()
    };
    let synced = client.call(5, &request).await;
    (synced.error_code, synced.assignment.to_vec())
}

pub(crate) async fn heartbeat(client: &mut RawClient, group: &str, joined: &JoinGroupResponse) -> i16 {
    let request = HeartbeatRequest {
        group_id: text(group),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        ..Default::default()
    };
    client.call(4, &request).await.error_code
}

pub(crate) async fn leave(client: &mut RawClient, group: &str, member: &Str) -> i16 {
    let member = MemberIdentity { member_id: member.clone(), ..Default::default() };
    let request = LeaveGroupRequest { group_id: text(group), members: vec![member], ..Default::default() };
    client.call(5, &request).await.members[0].error_code
}

pub(crate) async fn state(client: &mut RawClient, group: &str) -> String {
    let request = DescribeGroupsRequest { groups: vec![text(group)], ..Default::default() };
    client.call(5, &request).await.groups[0].group_state.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_and_its_offsets_outlive_a_restart_and_its_members_go_on() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let joined = alone(&mut client, "g").await;
    let committed = client.call(8, &commit_of("g", &joined.member_id, 1, &[("t", 0, 5), ("t", 1, 7)])).await;
    assert!(committed.topics.iter().all(|topic| topic.partitions[0].error_code == 0));
    let before = client.call(8, &fetch_of("g")).await;
    let folder = node.stop().await;

    let node = Node::start_in(folder, Options::with(QUICK)).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    assert_eq!(client.call(8, &fetch_of("g")).await, before, "epochs and metadata included");
    assert_eq!(state(&mut client, "g").await, "Stable");
    assert_eq!(heartbeat(&mut client, "g", &joined).await, 0, "the same generation, nobody rebalances");
    assert_eq!(node.metric("group_rebalances_total"), 0);
    let described = DescribeGroupsRequest { groups: vec![text("g")], ..Default::default() };
    let member = client.call(5, &described).await.groups.remove(0).members.remove(0);
    assert_eq!((member.member_id, member.member_assignment), (joined.member_id, Bytes::from_static(b"mine")));
    node.stop().await;
}

// B46: an absent offset is told only where there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_offset_is_said_to_be_absent_while_its_group_is_loaded() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for number in 0..50 {
        let group = format!("g{number}");
        coordinator(&mut client, &group).await;
        assert_eq!(commit(&mut client, &group, &[("t", 0, number)]).await, [0]);
    }
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(QUICK)).await;
    let mut client = node.client().await;
    // From the first moment on.
    for number in 0..50 {
        let group = format!("g{number}");
        let answer = loop {
            let answer = client.call(8, &fetch_of(&group)).await.groups.remove(0);
            let waits = [ErrorCode::NotCoordinator.code(), ErrorCode::CoordinatorLoadInProgress.code()];
            if !waits.contains(&answer.error_code) {
                break answer;
            }
        };
        assert_eq!(answer.error_code, 0);
        assert_eq!(answer.topics[0].partitions[0].committed_offset, number, "{group}");
    }
    node.stop().await;
}

// B55: a topic of the same name begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_end_with_their_topic_and_stay_ended() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.create_topic("other", 1, &[]).await;
    coordinator(&mut client, "g").await;
    assert_eq!(commit(&mut client, "g", &[("t", 0, 10_000), ("other", 0, 3)]).await, [0, 0]);
    let delete =
        DeleteTopicsRequest { topic_names: vec![text("t")], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(client.call(5, &delete).await.responses[0].error_code, 0);
    client.create_topic("t", 1, &[]).await;
    let only_other = [("other".to_owned(), 0, 3)];
    assert_eq!(offsets(&mut client, "g").await, only_other, "at once: its end may be on its way");
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(QUICK)).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    assert_eq!(offsets(&mut client, "g").await, only_other);
    node.stop().await;
}

// B49: nothing of a group with members expires; of an empty one it does, and the group with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_expire_by_their_own_end_and_take_an_unused_group_with_them() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    coordinator(&mut client, "used").await;
    coordinator(&mut client, "unused").await;
    let joined = alone(&mut client, "used").await;
    // Versions up to 4 name a retention of their own: nothing, which is over at once.
    let mut ending = commit_of("used", &joined.member_id, 1, &[("t", 0, 5)]);
    ending.retention_time_ms = 0;
    assert_eq!(client.call(4, &ending).await.topics[0].partitions[0].error_code, 0);
    let mut ending = commit_of("unused", "", -1, &[("t", 0, 6)]);
    ending.retention_time_ms = 0;
    assert_eq!(client.call(4, &ending).await.topics[0].partitions[0].error_code, 0);
    node.until("the unused offset expires", || node.metric("group_offsets_expired_total") == 1).await;
    let begun = tokio::time::Instant::now();
    while state(&mut client, "unused").await != "Dead" {
        assert!(begun.elapsed() < Duration::from_secs(10), "the unused group is still there");
    }
    assert_eq!(offsets(&mut client, "used").await, [("t".to_owned(), 0, 5)], "its member reads the topic");
    assert_eq!(leave(&mut client, "used", &joined.member_id).await, 0);
    let begun = tokio::time::Instant::now();
    while state(&mut client, "used").await != "Dead" {
        assert!(begun.elapsed() < Duration::from_secs(10), "the group that became empty is still there");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_group_is_gone_for_good_and_its_name_is_free() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let joined = alone(&mut client, "g").await;
    assert_eq!(commit(&mut client, "other", &[("t", 1, 1)]).await, [0]);
    let committed = client.call(8, &commit_of("g", &joined.member_id, 1, &[("t", 0, 5)])).await;
    assert_eq!(committed.topics[0].partitions[0].error_code, 0);
    let delete = DeleteGroupsRequest { groups_names: vec![text("g"), text("none")] };
    let codes = |answer: tidelog_wire::messages::DeleteGroupsResponse| {
        answer.results.iter().map(|result| result.error_code).collect::<Vec<_>>()
    };
    let (busy, none) = (ErrorCode::NonEmptyGroup.code(), ErrorCode::GroupIdNotFound.code());
    assert_eq!(codes(client.call(2, &delete).await), [busy, none]);
    assert_eq!(leave(&mut client, "g", &joined.member_id).await, 0);
    assert_eq!(codes(client.call(2, &delete).await), [0, none]);
    assert_eq!(offsets(&mut client, "g").await, []);
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(QUICK)).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    assert_eq!((state(&mut client, "g").await.as_str(), offsets(&mut client, "g").await), ("Dead", vec![]));
    assert_eq!(offsets(&mut client, "other").await, [("t".to_owned(), 1, 1)]);
    let listed = client.call(5, &ListGroupsRequest::default()).await;
    let names: Vec<&str> = listed.groups.iter().map(|group| group.group_id.as_str()).collect();
    assert_eq!(names, ["other"]);
    assert_eq!(alone(&mut client, "g").await.generation_id, 1, "a group of that name begins anew");
    node.stop().await;
}

// B05, and what stays of a commit that names too much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_committed_is_told_apart_and_the_rest_is_committed() {
    let node = quick(&[("offset.metadata.max.bytes", "4")]).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let mut request = commit_of("g", "", -1, &[("t", 0, 1), ("t", 1, 2), ("t", 2, 3), ("none", 0, 4)]);
    request.topics[1].partitions[0].committed_metadata = Some(text("longer"));
    let answer = client.call(9, &request).await;
    let codes: Vec<i16> = answer.topics.iter().map(|topic| topic.partitions[0].error_code).collect();
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(codes, [0, ErrorCode::OffsetMetadataTooLarge.code(), unknown, unknown]);
    assert_eq!(offsets(&mut client, "g").await, [("t".to_owned(), 0, 1)]);
    // A stale member changes nothing.
    let stale = commit_of("g", "stranger", 3, &[("t", 0, 99)]);
    let answer = client.call(9, &stale).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, ErrorCode::UnknownMemberId.code());
    let nobody = commit_of("nobody", "stranger", 3, &[("t", 0, 99)]);
    for (version, code) in [(8, ErrorCode::IllegalGeneration), (9, ErrorCode::GroupIdNotFound)] {
        let answer = client.call(version, &nobody).await;
        assert_eq!(answer.topics[0].partitions[0].error_code, code.code());
    }
    assert_eq!(offsets(&mut client, "g").await, [("t".to_owned(), 0, 1)]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_fits_no_batch_is_refused_by_its_name_and_leaves_no_group() {
    let node = quick(&[("offset.metadata.max.bytes", "32000")]).await;
    let mut client = node.client().await;
    client.create_topic("t", 40, &[]).await;
    coordinator(&mut client, "g").await;
    let all: Vec<(&str, i32, i64)> = (0..40).map(|partition| ("t", partition, 1)).collect();
    let mut request = commit_of("g", "", -1, &all);
    for topic in &mut request.topics {
        topic.partitions[0].committed_metadata = Some(text(&"m".repeat(30_000)));
    }
    let answer = client.call(9, &request).await;
    let too_large = ErrorCode::InvalidCommitOffsetSize.code();
    assert!(answer.topics.iter().all(|topic| topic.partitions[0].error_code == too_large), "{answer:?}");
    assert_eq!(state(&mut client, "g").await, "Dead");
    node.stop().await;
}

// A small request must not have an answer a thousand times its size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_names_again_and_again_is_answered_a_few_times() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    coordinator(&mut client, "g").await;
    assert_eq!(commit(&mut client, "g", &[("t", 0, 7)]).await, [0]);
    let topic = || OffsetFetchRequestTopics {
        name: text("t"),
        partition_indexes: vec![0; 100],
        ..Default::default()
    };
    let group = || OffsetFetchRequestGroup {
        group_id: text("g"),
        topics: Some(vec![topic(), topic()]),
        ..Default::default()
    };
    let request = OffsetFetchRequest { groups: vec![group(), group()], ..Default::default() };
    let answer = client.call(8, &request).await;
    let partitions = answer.groups.iter().flat_map(|group| &group.topics).flat_map(|topic| &topic.partitions);
    let offsets: Vec<i64> = partitions.map(|partition| partition.committed_offset).collect();
    assert_eq!((answer.groups.len(), offsets), (2, vec![7; 8]));
    let request = DescribeGroupsRequest { groups: vec![text("g"); 100], ..Default::default() };
    assert_eq!(client.call(5, &request).await.groups.len(), 4);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_what_nobody_reads_can_be_deleted() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.create_topic("left", 1, &[]).await;
    coordinator(&mut client, "g").await;
    let joined = alone(&mut client, "g").await;
    let committed =
        client.call(8, &commit_of("g", &joined.member_id, 1, &[("t", 0, 1), ("left", 0, 2)])).await;
    assert!(committed.topics.iter().all(|topic| topic.partitions[0].error_code == 0));
    let topic = |name: &str| OffsetDeleteRequestTopic {
        name: text(name),
        partitions: vec![OffsetDeleteRequestPartition { partition_index: 0 }],
    };
    let request = OffsetDeleteRequest { group_id: text("g"), topics: vec![topic("t"), topic("left")] };
    let answer = client.call(0, &request).await;
    let codes: Vec<i16> = answer.topics.iter().map(|topic| topic.partitions[0].error_code).collect();
    assert_eq!((answer.error_code, codes), (0, vec![ErrorCode::GroupSubscribedToTopic.code(), 0]));
    assert_eq!(offsets(&mut client, "g").await, [("t".to_owned(), 0, 1)]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_falls_silent_is_put_out_and_the_others_go_on() {
    let node = quick(&[]).await;
    let (mut client, mut other) = (node.client().await, node.client().await);
    coordinator(&mut client, "g").await;
    let mut short = join_of("g", "", None);
    short.session_timeout_ms = 300;
    let first = client.call(3, &short).await;
    assert_eq!((first.error_code, first.generation_id), (0, 1));
    assert_eq!(sync(&mut client, "g", &first, b"all").await.0, 0);
    // The second waits for the first, which says nothing more, and is alone then.
    let second = other.call(3, &join_of("g", "", None)).await;
    assert_eq!((second.error_code, second.generation_id, second.members.len()), (0, 2, 1));
    // The first by its join, the other by the time that was over.
    assert_eq!(node.metric("group_rebalances_total"), 2);
    assert_eq!(sync(&mut other, "g", &second, b"all").await, (0, b"all".to_vec()));
    assert_eq!(heartbeat(&mut client, "g", &first).await, ErrorCode::UnknownMemberId.code());
    assert_eq!(heartbeat(&mut other, "g", &second).await, 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_group_does_not_keep_the_broker_from_ending() {
    let node = quick(&[("group.initial.rebalance.delay.ms", "60000")]).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let waiting = client.send(3, &join_of("g", "", None)).await;
    let mut other = node.client().await;
    let begun = tokio::time::Instant::now();
    while state(&mut other, "g").await != "PreparingRebalance" {
        assert!(begun.elapsed() < Duration::from_secs(10), "the member is not in its group");
    }
    let (_, answer) = tokio::join!(node.stop(), client.receive::<JoinGroupRequest>(3, waiting));
    assert_eq!(answer.error_code, ErrorCode::CoordinatorNotAvailable.code());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_of_a_group_is_what_lies_before_the_end() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    coordinator(&mut client, "g").await;
    for _ in 0..3 {
        let sent = tidelog_testkit::raw_client::batch(tidelog_format::codec::Codec::None, 1, &[b"a", b"b"]);
        assert_eq!(client.produce("t", 0, sent.to_bytes()).await.error_code, 0);
    }
    assert_eq!(commit(&mut client, "g", &[("t", 0, 2)]).await, [0]);
    let shown = |text: &str| node.registry.encode().lines().any(|line| line == text);
    assert!(shown("group_lag_records{group=\"g\",topic=\"t\",partition=\"0\"} 4"));
    assert!(shown("group_lag_records_sum{group=\"g\"} 4"));
    assert_eq!(commit(&mut client, "g", &[("t", 0, 6)]).await, [0]);
    assert!(shown("group_lag_records_sum{group=\"g\"} 0"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_write_into_the_topic_of_groups() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let sent = tidelog_testkit::raw_client::batch(tidelog_format::codec::Codec::None, 1, &[b"x"]);
    let produced = client.produce("__consumer_offsets", 0, sent.to_bytes()).await;
    assert_eq!(produced.error_code, ErrorCode::InvalidTopicException.code());
    node.stop().await;
}
