//! What the cleaner of `__consumer_offsets` will leave says all that the whole log says: the last record of each key, and
//! later not even those that end something.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tempfile::TempDir;
use tidelog_format::batch::{BatchBuilder, DecodedBatch};
use tidelog_replica::{Acks, AppendRequest, PartitionHandle};
use tidelog_testkit::raw_client::{RawClient, batches, record};
use tidelog_types::{Offset, PartitionIndex, TopicName};
use tidelog_wire::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, DeleteGroupsRequest, DescribeGroupsRequest,
    JoinGroupResponse, ListGroupsRequest, OffsetDeleteRequest, OffsetFetchRequest,
    offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic},
    offset_fetch::OffsetFetchRequestGroup,
};

use crate::{
    consumer_groups::{AT_ONCE, Member, settle},
    groups::{
        QUICK, alone, commit, commit_of, coordinator, heartbeat, join_of, leave, offsets, state, sync, text,
    },
    held_disk::copy,
    node::{Node, Options},
};

const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// A key, and what it stands for; nothing where the record ends that.
type Entry = (Bytes, Option<Bytes>);

fn options() -> Options {
    Options::with(&[QUICK, AT_ONCE, &[("offsets.topic.num.partitions", "1")]].concat())
}

async fn served(node: &Node) -> RawClient {
    let mut client = node.client().await;
    coordinator(&mut client, "simple").await;
    client
}

fn partition(node: &Node) -> PartitionHandle {
    node.replicas.partition_by_name(&TopicName::new(OFFSETS_TOPIC).unwrap(), PartitionIndex(0)).unwrap()
}

/// Every record of the log, in its order.
async fn log(node: &Node) -> Vec<Entry> {
    let (mut client, mut entries) = (node.client().await, Vec::new());
    let end = partition(node).snapshot().log_end.to_wire();
    let mut at = partition(node).snapshot().log_start.to_wire();
    while at < end {
        let data = client.fetch(OFFSETS_TOPIC, 0, at).await;
        for batch in batches(&data) {
            at = batch.header.end_offset().unwrap().to_wire();
            for record in DecodedBatch::new(&batch, 1 << 20).unwrap().iter() {
                let record = record.unwrap();
                let value = record.value.map(Bytes::copy_from_slice);
                entries.push((Bytes::copy_from_slice(record.key.unwrap()), value));
            }
        }
    }
    entries
}

/// The last record of each key, each where it was.
fn cleaned(log: &[Entry]) -> Vec<Entry> {
    let last: BTreeMap<&Bytes, usize> = log.iter().enumerate().map(|(at, (key, _))| (key, at)).collect();
    let is_last = |(at, (key, _)): &(usize, &Entry)| last[key] == *at;
    log.iter().enumerate().filter(is_last).map(|(_, entry)| entry.clone()).collect()
}

/// The same node, with this for a log of its groups.
async fn with_log(folder: &TempDir, entries: &[Entry]) -> Node {
    let own = Arc::new(tempfile::tempdir().unwrap());
    copy(folder.path(), own.path());
    let node = Node::start_in(own, options()).await;
    served(&node).await;
    let partition = partition(&node);
    let end = partition.snapshot().high_watermark;
    assert_eq!(partition.advance_log_start(end).await.unwrap(), end);
    for some in entries.chunks(7) {
        let mut batch = BatchBuilder::new(Offset::ZERO);
        for (key, value) in some {
            batch = batch.record(&record(1_000, Some(key), value.as_deref()));
        }
        let records = batch.build().unwrap().to_bytes();
        let request = AppendRequest { records, frame_bytes: 0, acks: Acks::All, internal: true };
        partition.append(request).await.unwrap().ack.wait().await.unwrap();
    }
    let node = Node::start_in(node.stop().await, options()).await;
    served(&node).await;
    assert_eq!(log(&node).await, entries, "a load writes nothing");
    node
}

/// Everything that can be asked of groups.
async fn told(client: &mut RawClient) -> Vec<String> {
    let mut listed = client.call(5, &ListGroupsRequest::default()).await.groups;
    listed.sort_by(|one, other| one.group_id.cmp(&other.group_id));
    let mut told = Vec::new();
    for group in listed {
        let groups = vec![group.group_id.clone()];
        let classic = DescribeGroupsRequest { groups: groups.clone(), ..Default::default() };
        let consumer = ConsumerGroupDescribeRequest { group_ids: groups, ..Default::default() };
        let all =
            OffsetFetchRequestGroup { group_id: group.group_id.clone(), topics: None, ..Default::default() };
        let fetch = OffsetFetchRequest { groups: vec![all], ..Default::default() };
        told.push(format!("{group:?}"));
        told.push(format!("{:?}", client.call(6, &classic).await));
        told.push(format!("{:?}", client.call(1, &consumer).await));
        told.push(format!("{:?}", client.call(8, &fetch).await));
    }
    told
}

async fn delete(client: &mut RawClient, group: &str) {
    let request = DeleteGroupsRequest { groups_names: vec![text(group)] };
    assert_eq!(client.call(2, &request).await.results[0].error_code, 0, "{group}");
}

async fn leaves(client: &mut RawClient, group: &str, member: &Member) {
    let request = ConsumerGroupHeartbeatRequest { member_epoch: -1, ..member.request(group) };
    assert_eq!(client.call(1, &request).await.error_code, 0);
}

/// Its members, as far as they go on.
struct Groups {
    classic: Vec<(&'static str, JoinGroupResponse)>,
    consumer: Vec<(&'static str, Vec<Member>)>,
}

/// Groups of the classic protocol: with a member, without, and of one that has neither.
async fn classic_groups(client: &mut RawClient, groups: &mut Groups) {
    let member = alone(client, "classic").await;
    for offset in 0..5 {
        let own = commit_of("classic", &member.member_id, 1, &[("t", 0, offset), ("t", 1, 10 * offset)]);
        assert_eq!(client.call(8, &own).await.topics[1].partitions[0].error_code, 0);
        assert_eq!(commit(client, "simple", &[("t", 2, offset), ("u", 0, 7)]).await, [0, 0]);
    }
    groups.classic.push(("classic", member));
    let ended = OffsetDeleteRequestTopic {
        name: text("u"),
        partitions: vec![OffsetDeleteRequestPartition { partition_index: 0 }],
    };
    let request = OffsetDeleteRequest { group_id: text("simple"), topics: vec![ended] };
    assert_eq!(client.call(0, &request).await.topics[0].partitions[0].error_code, 0);
    for group in ["emptied", "deleted", "again"] {
        let member = alone(client, group).await;
        let own = commit_of(group, &member.member_id, 1, &[("t", 0, 1)]);
        assert_eq!(client.call(8, &own).await.topics[0].partitions[0].error_code, 0);
        assert_eq!(leave(client, group, &member.member_id).await, 0);
    }
    delete(client, "deleted").await;
    delete(client, "again").await;
    let again = alone(client, "again").await;
    groups.classic.push(("again", again));
}

/// Groups of the consumer protocol, whose members came and went.
async fn consumer_groups(client: &mut RawClient, groups: &mut Groups) {
    let mut members = vec![Member::new("a"), Member::new("b"), Member::new("c")];
    settle(client, "consumer", &mut members).await;
    let gone = members.remove(1);
    leaves(client, "consumer", &gone).await;
    settle(client, "consumer", &mut members).await;
    for offset in 0..3 {
        let own = commit_of("consumer", "a", members[0].epoch, &[("t", 3, offset)]);
        assert_eq!(client.call(9, &own).await.topics[0].partitions[0].error_code, 0);
    }
    groups.consumer.push(("consumer", members));
    let by_expression = ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: None,
        subscribed_topic_regex: Some(text("[tu]")),
        ..Member::new("e").request("expressed")
    };
    assert_eq!(client.call(1, &by_expression).await.error_code, 0);
    for group in ["left", "erased", "returned"] {
        let mut member = Member::new("m");
        settle(client, group, std::slice::from_mut(&mut member)).await;
        let own = commit_of(group, "m", member.epoch, &[("t", 0, 1)]);
        assert_eq!(client.call(9, &own).await.topics[0].partitions[0].error_code, 0);
        leaves(client, group, &member).await;
    }
    delete(client, "erased").await;
    delete(client, "returned").await;
    let mut members = vec![Member::new("n")];
    settle(client, "returned", &mut members).await;
    groups.consumer.push(("returned", members));
}

/// Groups that changed their protocol, with members and without.
async fn migrated_groups(client: &mut RawClient, groups: &mut Groups) {
    const NOTHING: &[u8] = &[0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    for group in ["back", "mixed"] {
        let classic = client.call(3, &join_of(group, "", None)).await;
        assert_eq!(sync(client, group, &classic, NOTHING).await.0, 0);
        assert_eq!(commit(client, "simple", &[("t", 0, 1)]).await, [0]);
        let mut modern = Member::new("new");
        assert_eq!(modern.beat(client, group).await.error_code, 0);
        if group == "mixed" {
            continue;
        }
        leaves(client, group, &modern).await;
        let rejoined = client.call(3, &join_of(group, &classic.member_id, None)).await;
        assert_eq!(sync(client, group, &rejoined, b"mine").await, (0, b"mine".to_vec()));
        groups.classic.push(("back", rejoined));
    }
    // Empty, and taken over by the other protocol.
    let classic = alone(client, "to-consumer").await;
    assert_eq!(leave(client, "to-consumer", &classic.member_id).await, 0);
    assert_eq!(commit(client, "to-consumer", &[("t", 0, 4)]).await, [0]);
    let mut members = vec![Member::new("o")];
    settle(client, "to-consumer", &mut members).await;
    groups.consumer.push(("to-consumer", members));
    let mut member = Member::new("p");
    settle(client, "to-classic", std::slice::from_mut(&mut member)).await;
    leaves(client, "to-classic", &member).await;
    assert_eq!(commit(client, "to-classic", &[("t", 0, 5)]).await, [0]);
    let classic = alone(client, "to-classic").await;
    groups.classic.push(("to-classic", classic));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cleaned_log_of_groups_says_what_the_whole_log_says() {
    let node = Node::start_with(options()).await;
    let mut client = served(&node).await;
    client.create_topic("t", 4, &[]).await;
    client.create_topic("u", 1, &[]).await;
    let mut groups = Groups { classic: Vec::new(), consumer: Vec::new() };
    classic_groups(&mut client, &mut groups).await;
    consumer_groups(&mut client, &mut groups).await;
    migrated_groups(&mut client, &mut groups).await;
    assert_eq!(state(&mut client, "deleted").await, "Dead");
    let whole = log(&node).await;
    let before = told(&mut client).await;
    assert_eq!(before.len(), 4 * 12, "all but the two that were deleted");
    let folder = node.stop().await;

    let last = cleaned(&whole);
    let bare: Vec<Entry> = last.iter().filter(|(_, value)| value.is_some()).cloned().collect();
    assert!(bare.len() < last.len() && last.len() < whole.len(), "{} {}", bare.len(), last.len());
    for entries in [whole, last, bare] {
        let count = entries.len();
        let node = with_log(&folder, &entries).await;
        let mut client = node.client().await;
        let after = told(&mut client).await;
        assert_eq!(after.len(), before.len(), "of {count} records");
        for (after, before) in after.iter().zip(&before) {
            assert_eq!(after, before, "of {count} records");
        }
        // Nobody has to join again.
        for (group, member) in &groups.classic {
            assert_eq!(heartbeat(&mut client, group, member).await, 0, "{group} of {count} records");
        }
        for (group, members) in &mut groups.consumer {
            for member in members {
                let had = (member.epoch, member.owned.clone());
                assert_eq!(member.beat(&mut client, group).await.error_code, 0, "{group} of {count} records");
                assert_eq!((member.epoch, member.owned.clone()), had, "{group} of {count} records");
            }
        }
        assert_eq!(offsets(&mut client, "erased").await, []);
        node.stop().await;
    }
}
