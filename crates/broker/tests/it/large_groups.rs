//! Groups of a thousand topics, and requests that would change them and may not.

use tidelog_testkit::raw_client::RawClient;
use tidelog_wire::{
    ErrorCode,
    messages::{
        ConsumerGroupHeartbeatRequest, CreateTopicsRequest, OffsetCommitRequest, OffsetFetchRequest,
        create_topics::CreatableTopic,
        offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
        offset_fetch::OffsetFetchRequestGroup,
    },
};

use crate::{
    groups::{QUICK, coordinator, quick, text},
    node::{Node, Options},
};

const TOPICS: usize = 1_000;

fn name(number: usize) -> String {
    format!("topic-{number:04}")
}

/// A commit of this offset for so many topics, of which those from [`TOPICS`] on do not exist.
fn commit_of(member: &str, epoch: i32, topics: usize, offset: i64) -> OffsetCommitRequest {
    let topic = |number| OffsetCommitRequestTopic {
        name: text(&name(number)),
        partitions: vec![OffsetCommitRequestPartition {
            committed_offset: offset,
            committed_metadata: Some(text("m")),
            ..Default::default()
        }],
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: text("large"),
        member_id: text(member),
        generation_id_or_member_epoch: epoch,
        topics: (0..topics).map(topic).collect(),
        ..Default::default()
    }
}

async fn codes_of(client: &mut RawClient, request: &OffsetCommitRequest) -> Vec<i16> {
    let answer = client.call(9, request).await;
    answer.topics.iter().map(|topic| topic.partitions[0].error_code).collect()
}

/// What all of them are, where they are alike.
fn all_of<T: Copy + PartialEq>(values: &[T]) -> Option<T> {
    let first = *values.first()?;
    values.iter().all(|value| *value == first).then_some(first)
}

async fn offsets(client: &mut RawClient) -> Vec<i64> {
    let group = OffsetFetchRequestGroup { group_id: text("large"), topics: None, ..Default::default() };
    let answer = client.call(8, &OffsetFetchRequest { groups: vec![group], ..Default::default() }).await;
    assert_eq!(answer.groups[0].error_code, 0);
    answer.groups[0].topics.iter().map(|topic| topic.partitions[0].committed_offset).collect()
}

fn heartbeat(epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: text("large"),
        member_id: text("m"),
        member_epoch: epoch,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_a_thousand_topics_commits_them_and_epochs_of_other_times_change_nothing() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    let topic = |number| CreatableTopic {
        name: text(&name(number)),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let create = CreateTopicsRequest {
        topics: (0..TOPICS).map(topic).collect(),
        timeout_ms: 30_000,
        ..Default::default()
    };
    let created = client.call(7, &create).await;
    assert!(created.topics.iter().all(|topic| topic.error_code == 0));
    coordinator(&mut client, "large").await;

    // Half of what it subscribes to does not exist.
    let joins = ConsumerGroupHeartbeatRequest {
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some((0..2 * TOPICS).map(|number| text(&name(number))).collect()),
        topic_partitions: Some(Vec::new()),
        ..heartbeat(0)
    };
    let joined = client.call(1, &joins).await;
    assert_eq!(joined.error_code, 0);
    let given = joined.assignment.unwrap().topic_partitions;
    assert_eq!(given.iter().map(|topic| topic.partitions.len()).sum::<usize>(), TOPICS);
    let epoch = joined.member_epoch;

    let codes = codes_of(&mut client, &commit_of("m", epoch, 2 * TOPICS, 7)).await;
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert!(
        codes[..TOPICS].iter().all(|code| *code == 0) && codes[TOPICS..].iter().all(|code| *code == unknown)
    );
    let committed = offsets(&mut client).await;
    assert_eq!((committed.len(), all_of(&committed)), (TOPICS, Some(7)));

    for other in [epoch + 1, epoch + 1_000, i32::MAX] {
        let answer = client.call(1, &heartbeat(other)).await;
        assert_eq!(answer.error_code, ErrorCode::FencedMemberEpoch.code(), "epoch {other}");
        let codes = codes_of(&mut client, &commit_of("m", other, TOPICS, 9)).await;
        assert_eq!(all_of(&codes), Some(ErrorCode::StaleMemberEpoch.code()), "epoch {other}");
    }
    for (member, other, code) in [
        ("m", -1, ErrorCode::StaleMemberEpoch),
        ("stranger", epoch, ErrorCode::UnknownMemberId),
        ("", -1, ErrorCode::UnknownMemberId),
    ] {
        let codes = codes_of(&mut client, &commit_of(member, other, TOPICS, 9)).await;
        assert_eq!(all_of(&codes), Some(code.code()), "member {member}, epoch {other}");
    }
    let committed = offsets(&mut client).await;
    assert_eq!((committed.len(), all_of(&committed)), (TOPICS, Some(7)));
    assert_eq!(client.call(1, &heartbeat(epoch)).await.error_code, 0, "the member goes on");

    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(QUICK)).await;
    let mut client = node.client().await;
    coordinator(&mut client, "large").await;
    let committed = offsets(&mut client).await;
    assert_eq!((committed.len(), all_of(&committed)), (TOPICS, Some(7)));
    assert_eq!(client.call(1, &heartbeat(epoch)).await.error_code, 0, "and after a restart");

    // A scrape stays small, and each group has its sum.
    let sent = tidelog_testkit::raw_client::batch(tidelog_format::codec::Codec::None, 1, &[b"a", b"b"]);
    assert_eq!(client.produce(&name(TOPICS - 1), 0, sent.to_bytes()).await.error_code, 0);
    for number in 0..10 {
        let group = format!("simple-{number}");
        coordinator(&mut client, &group).await;
        let commit = OffsetCommitRequest { group_id: text(&group), ..commit_of("", -1, TOPICS, 1) };
        assert_eq!(all_of(&codes_of(&mut client, &commit).await), Some(0));
    }
    let told = node.registry.encode();
    let lines = |start: &str| told.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
    assert_eq!(lines("group_lag_records{").len(), 10_000);
    let sums = lines("group_lag_records_sum{");
    assert_eq!(sums.len(), 11);
    assert_eq!(sums.iter().filter(|line| line.ends_with(" 1")).count(), 10, "{sums:?}");
    node.stop().await;
}
