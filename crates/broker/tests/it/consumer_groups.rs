//! Consumer groups of the consumer protocol (KIP-848), over sockets: what the coordinator adds to the state machine.

use std::{collections::BTreeSet, time::Duration};

use tidelog_testkit::raw_client::RawClient;
use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
        DeleteGroupsRequest, DeleteTopicsRequest, DescribeConfigsRequest, DescribeGroupsRequest,
        IncrementalAlterConfigsRequest, ListConfigResourcesRequest, ListGroupsRequest, OffsetCommitRequest,
        OffsetFetchRequest,
        consumer_group_heartbeat::TopicPartitions,
        describe_configs::DescribeConfigsResource,
        incremental_alter_configs,
        offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
        offset_fetch::OffsetFetchRequestGroup,
    },
};

use crate::{
    groups::{commit, coordinator, join_of, offsets, quick, sync, text},
    node::{Node, Options},
};

/// Kafka's number of the resource type "group".
const GROUP: i8 = 32;

/// As small and quick as a classic group's, and no wait between two assignments.
pub(crate) const AT_ONCE: &[(&str, &str)] = &[("group.consumer.assignment.interval.ms", "0")];

/// One member, with what it knows.
pub(crate) struct Member {
    pub(crate) id: &'static str,
    pub(crate) epoch: i32,
    pub(crate) owned: BTreeSet<(Uuid, i32)>,
}

impl Member {
    pub(crate) fn new(id: &'static str) -> Self {
        Self { id, epoch: 0, owned: BTreeSet::new() }
    }

    pub(crate) fn request(&self, group: &str) -> ConsumerGroupHeartbeatRequest {
        let mut topics: Vec<TopicPartitions> = Vec::new();
        for (topic_id, partition) in &self.owned {
            match topics.iter_mut().find(|topic| topic.topic_id == *topic_id) {
                Some(topic) => topic.partitions.push(*partition),
                None => topics.push(TopicPartitions { topic_id: *topic_id, partitions: vec![*partition] }),
            }
        }
        ConsumerGroupHeartbeatRequest {
            group_id: text(group),
            member_id: text(self.id),
            member_epoch: self.epoch,
            rebalance_timeout_ms: 60_000,
            subscribed_topic_names: Some(vec![text("t")]),
            topic_partitions: Some(topics),
            ..Default::default()
        }
    }

    /// One full heartbeat: the member does at once what it is told.
    pub(crate) async fn beat(
        &mut self,
        client: &mut RawClient,
        group: &str,
    ) -> ConsumerGroupHeartbeatResponse {
        let answer = client.call(1, &self.request(group)).await;
        if answer.error_code == 0 {
            self.take(&answer);
        }
        answer
    }

    /// Does what an answer says.
    pub(crate) fn take(&mut self, answer: &ConsumerGroupHeartbeatResponse) {
        self.epoch = answer.member_epoch;
        if let Some(assignment) = &answer.assignment {
            let of_topic = |topic: &TopicPartitions| {
                let id = topic.topic_id;
                topic.partitions.iter().map(move |partition| (id, *partition)).collect::<Vec<_>>()
            };
            self.owned = assignment.topic_partitions.iter().flat_map(of_topic).collect();
        }
    }
}

/// Beats until nobody's epoch or partitions move.
pub(crate) async fn settle(client: &mut RawClient, group: &str, members: &mut [Member]) {
    for _ in 0..20 {
        let before: Vec<_> = members.iter().map(|member| (member.epoch, member.owned.clone())).collect();
        for member in &mut *members {
            assert_eq!(member.beat(client, group).await.error_code, 0, "{}", member.id);
        }
        let after: Vec<_> = members.iter().map(|member| (member.epoch, member.owned.clone())).collect();
        if before == after {
            return;
        }
    }
    panic!("the group does not settle");
}

async fn kinds(client: &mut RawClient) -> Vec<(String, String, String)> {
    let listed = client.call(5, &ListGroupsRequest::default()).await;
    let one = |group: tidelog_wire::messages::list_groups::ListedGroup| {
        (group.group_id.to_string(), group.group_type.to_string(), group.group_state.to_string())
    };
    listed.groups.into_iter().map(one).collect()
}

fn row(group: &str, kind: &str, state: &str) -> (String, String, String) {
    (group.to_owned(), kind.to_owned(), state.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_the_partitions_and_go_on_after_a_restart() {
    let node = quick(AT_ONCE).await;
    let mut client = node.client().await;
    client.create_topic("t", 6, &[]).await;
    coordinator(&mut client, "g").await;
    let mut members = [Member::new("a"), Member::new("b"), Member::new("c")];
    settle(&mut client, "g", &mut members).await;
    let all: BTreeSet<_> = members.iter().flat_map(|member| member.owned.clone()).collect();
    assert_eq!((all.len(), members.each_ref().map(|member| member.owned.len())), (6, [2, 2, 2]));
    let epochs = members.each_ref().map(|member| member.epoch);
    let folder = node.stop().await;

    let node = Node::start_in(folder, Options::with(&[crate::groups::QUICK, AT_ONCE].concat())).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let owned = members.each_ref().map(|member| member.owned.clone());
    settle(&mut client, "g", &mut members).await;
    assert_eq!(members.each_ref().map(|member| member.epoch), epochs, "nobody is told to join again");
    assert_eq!(members.each_ref().map(|member| member.owned.clone()), owned);
    let described = ConsumerGroupDescribeRequest { group_ids: vec![text("g")], ..Default::default() };
    let group = client.call(1, &described).await.groups.remove(0);
    assert_eq!((group.error_code, group.group_state.as_str(), group.members.len()), (0, "Stable", 3));
    assert_eq!((group.assignor_name.as_str(), group.group_epoch), ("uniform", epochs[0]));
    assert!(group.members.iter().all(|member| member.assignment == member.target_assignment));
    node.stop().await;
}

// B53, at the socket: a partition goes to its next owner only when the one before has given it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_has_one_owner_and_a_stale_member_is_told_so() {
    let node = quick(AT_ONCE).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let mut first = Member::new("a");
    first.beat(&mut client, "g").await;
    assert_eq!(first.owned.len(), 2);
    let mut second = Member::new("b");
    second.beat(&mut client, "g").await;
    assert_eq!(second.owned.len(), 0, "the first has not given up anything");
    // The first hears of it, and has not yet given it up.
    let held = first.owned.clone();
    first.beat(&mut client, "g").await;
    assert_eq!(first.owned.len(), 1);
    second.beat(&mut client, "g").await;
    assert_eq!(second.owned.len(), 0, "the first has been told, and has not said that it did");
    first.beat(&mut client, "g").await;
    second.beat(&mut client, "g").await;
    assert_eq!(second.owned.len(), 1);
    assert_eq!(first.owned.union(&second.owned).cloned().collect::<BTreeSet<_>>(), held);
    // A member of an epoch that never was is fenced, a stranger unknown.
    let mut ghost = Member { epoch: 99, ..Member::new("a") };
    assert_eq!(ghost.beat(&mut client, "g").await.error_code, ErrorCode::FencedMemberEpoch.code());
    let mut stranger = Member { epoch: 1, ..Member::new("x") };
    assert_eq!(stranger.beat(&mut client, "g").await.error_code, ErrorCode::UnknownMemberId.code());
    // So is its commit, and its look at offsets.
    let commit = |member: &str, epoch| OffsetCommitRequest {
        group_id: text("g"),
        member_id: text(member),
        generation_id_or_member_epoch: epoch,
        topics: vec![OffsetCommitRequestTopic {
            name: text("t"),
            partitions: vec![OffsetCommitRequestPartition {
                partition_index: 0,
                committed_offset: 4,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut codes = Vec::new();
    for (member, epoch) in [("a", first.epoch), ("a", first.epoch + 1), ("x", 1)] {
        let answer = client.call(9, &commit(member, epoch)).await;
        codes.push(answer.topics[0].partitions[0].error_code);
    }
    let (stale, unknown) = (ErrorCode::StaleMemberEpoch.code(), ErrorCode::UnknownMemberId.code());
    assert_eq!(codes, [0, stale, unknown]);
    let mut codes = Vec::new();
    for (member, epoch) in [("a", first.epoch), ("a", first.epoch - 1), ("x", 1)] {
        let group = OffsetFetchRequestGroup {
            group_id: text("g"),
            member_id: Some(text(member)),
            member_epoch: epoch,
            topics: None,
        };
        let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
        codes.push(client.call(9, &request).await.groups[0].error_code);
    }
    assert_eq!(codes, [0, stale, unknown]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_group_goes_over_and_back_and_stays_what_it_is_after_a_restart() {
    let node = quick(AT_ONCE).await;
    let (mut client, mut other) = (node.client().await, node.client().await);
    client.create_topic("t", 4, &[]).await;
    coordinator(&mut client, "g").await;
    let classic = client.call(3, &join_of("g", "", None)).await;
    // An assignment that a consumer can read: version 0, no topic, no data.
    assert_eq!(sync(&mut client, "g", &classic, &[0, 0, 0, 0, 0, 0, 255, 255, 255, 255]).await.0, 0);
    assert_eq!(kinds(&mut client).await, [row("g", "classic", "Stable")]);
    let mut modern = Member::new("new");
    assert_eq!(modern.beat(&mut other, "g").await.error_code, 0);
    assert_eq!(kinds(&mut client).await[0].1, "consumer");
    let described = DescribeGroupsRequest { groups: vec![text("g")], ..Default::default() };
    assert_eq!(client.call(6, &described).await.groups[0].error_code, ErrorCode::GroupIdNotFound.code());
    let folder = node.stop().await;

    let node = Node::start_in(folder, Options::with(&[crate::groups::QUICK, AT_ONCE].concat())).await;
    let (mut client, mut other) = (node.client().await, node.client().await);
    coordinator(&mut client, "g").await;
    assert_eq!(kinds(&mut client).await[0].1, "consumer");
    assert_eq!(modern.beat(&mut other, "g").await.error_code, 0, "the new member goes on");
    // It leaves: whoever is left is of the classic protocol, and so is the group.
    modern.epoch = -1;
    assert_eq!(modern.beat(&mut other, "g").await.error_code, 0);
    assert_eq!(kinds(&mut client).await[0].1, "classic");
    let rejoined = client.call(3, &join_of("g", &classic.member_id, None)).await;
    assert_eq!((rejoined.error_code, rejoined.members.len()), (0, 1));
    assert_eq!(sync(&mut client, "g", &rejoined, b"mine").await.0, 0);
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(crate::groups::QUICK)).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    assert_eq!(kinds(&mut client).await, [row("g", "classic", "Stable")]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_group_of_either_protocol_gives_its_name_to_the_other_and_can_be_deleted() {
    let node = quick(AT_ONCE).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    coordinator(&mut client, "g").await;
    let mut member = Member::new("a");
    member.beat(&mut client, "g").await;
    let delete = DeleteGroupsRequest { groups_names: vec![text("g")] };
    let busy = client.call(2, &delete).await.results[0].error_code;
    assert_eq!(busy, ErrorCode::NonEmptyGroup.code());
    member.epoch = -1;
    assert_eq!(member.beat(&mut client, "g").await.error_code, 0);
    assert_eq!(kinds(&mut client).await, [row("g", "consumer", "Empty")]);
    let joined = client.call(3, &join_of("g", "", None)).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!(kinds(&mut client).await, [row("g", "classic", "CompletingRebalance")]);
    let mut other = Member::new("b");
    coordinator(&mut client, "h").await;
    other.beat(&mut client, "h").await;
    other.epoch = -1;
    other.beat(&mut client, "h").await;
    let delete = DeleteGroupsRequest { groups_names: vec![text("h")] };
    assert_eq!(client.call(2, &delete).await.results[0].error_code, 0);
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(crate::groups::QUICK)).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    coordinator(&mut client, "h").await;
    assert_eq!(kinds(&mut client).await, [], "one was deleted, the other never had a generation");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_that_match_an_expression_are_found_when_they_come() {
    let node = quick(AT_ONCE).await;
    let mut client = node.client().await;
    client.create_topic("orders-a", 1, &[]).await;
    coordinator(&mut client, "g").await;
    let pattern = |text: &str| Some(Str::from(text));
    let mut request = Member::new("a").request("g");
    request.subscribed_topic_names = None;
    request.subscribed_topic_regex = pattern("orders-(");
    let bad = client.call(1, &request).await;
    assert_eq!(bad.error_code, ErrorCode::InvalidRegularExpression.code());
    request.subscribed_topic_regex = pattern("orders-.*");
    let joined = client.call(1, &request).await;
    let partitions = |answer: &ConsumerGroupHeartbeatResponse| {
        answer.assignment.as_ref().map(|assignment| assignment.topic_partitions.len())
    };
    assert_eq!((joined.error_code, partitions(&joined)), (0, Some(1)));
    // kgo Test848RegexBrokerResolves: the broker's expression leaves no topic out.
    let mut request = Member::new("b").request("h");
    request.subscribed_topic_names = None;
    request.subscribed_topic_regex = pattern("orders-a|__consumer_offsets");
    assert_eq!(partitions(&client.call(1, &request).await), Some(2), "internal topics too");
    // After a load they are looked at again at once, where no heartbeat waits for it.
    client.create_topic("orders-b", 1, &[]).await;
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(&[crate::groups::QUICK, AT_ONCE].concat())).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let mut beat = ConsumerGroupHeartbeatRequest {
        group_id: text("g"),
        member_id: text("a"),
        member_epoch: joined.member_epoch,
        ..Default::default()
    };
    let begun = tokio::time::Instant::now();
    let found = loop {
        let answer = client.call(1, &beat).await;
        assert_eq!(answer.error_code, 0);
        beat.member_epoch = answer.member_epoch;
        if let Some(count) = partitions(&answer) {
            break count;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "the new topic is not found");
    };
    assert_eq!(found, 2);
    node.stop().await;
}

async fn set(client: &mut RawClient, group: &str, configs: &[(&str, Option<&str>)]) -> (i16, Option<String>) {
    let configs = configs
        .iter()
        .map(|(name, value)| incremental_alter_configs::AlterableConfig {
            name: text(name),
            config_operation: i8::from(value.is_none()),
            value: value.map(text),
        })
        .collect();
    let resource = incremental_alter_configs::AlterConfigsResource {
        resource_type: GROUP,
        resource_name: text(group),
        configs,
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer = client.call(1, &request).await.responses.remove(0);
    (answer.error_code, answer.error_message.map(|message| message.to_string()))
}

async fn setting(client: &mut RawClient, group: &str, key: &str) -> (String, i8) {
    let resource = DescribeConfigsResource {
        resource_type: GROUP,
        resource_name: text(group),
        configuration_keys: Some(vec![text(key)]),
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let found = client.call(4, &request).await.results.remove(0).configs.remove(0);
    (found.value.unwrap().to_string(), found.config_source)
}

async fn with_settings(client: &mut RawClient) -> Vec<String> {
    let request = ListConfigResourcesRequest { resource_types: vec![GROUP] };
    let listed = client.call(1, &request).await.config_resources;
    listed.into_iter().map(|resource| resource.resource_name.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_groups_own_settings_are_acted_on_at_once_and_after_a_restart() {
    let bounds = &[
        ("group.consumer.min.session.timeout.ms", "300"),
        ("group.consumer.min.heartbeat.interval.ms", "100"),
    ];
    let settings = [AT_ONCE, bounds].concat();
    let node = quick(&settings).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for group in ["g", "h"] {
        coordinator(&mut client, group).await;
    }
    let (session, heartbeat) = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms");
    let mut members = [Member::new("a"), Member::new("b")];
    assert_eq!(members[0].beat(&mut client, "g").await.heartbeat_interval_ms, 5_000);
    assert_eq!(set(&mut client, "g", &[(session, Some("301")), (heartbeat, Some("200"))]).await, (0, None));
    assert_eq!(setting(&mut client, "g", session).await, ("301".to_owned(), 8));
    assert_eq!(setting(&mut client, "h", session).await, ("45000".to_owned(), 5));
    assert_eq!(with_settings(&mut client).await, ["g"]);
    assert_eq!(members[0].beat(&mut client, "g").await.heartbeat_interval_ms, 200, "the next answer says so");
    assert_eq!(members[1].beat(&mut client, "h").await.heartbeat_interval_ms, 5_000);
    // What is refused changes nothing.
    let bad = set(&mut client, "g", &[(heartbeat, Some("250")), (session, Some("299"))]).await;
    let why =
        "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms";
    assert_eq!(bad, (40, Some(why.to_owned())));
    assert_eq!(setting(&mut client, "g", heartbeat).await, ("200".to_owned(), 8));
    // Who is silent for that long is gone; a member of another group is not.
    let describe = ConsumerGroupDescribeRequest { group_ids: vec![text("g")], ..Default::default() };
    let begun = tokio::time::Instant::now();
    while !client.call(1, &describe).await.groups.remove(0).members.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "a session of 301 ms ends");
    }
    assert_eq!(members[1].beat(&mut client, "h").await.error_code, 0);
    let folder = node.stop().await;

    // A bound that has moved holds, whatever the group says.
    let settings =
        [crate::groups::QUICK, AT_ONCE, bounds, &[("group.consumer.max.heartbeat.interval.ms", "5000")]]
            .concat();
    let node = Node::start_in(folder, Options::with(&settings)).await;
    let mut client = node.client().await;
    for group in ["g", "h"] {
        coordinator(&mut client, group).await;
    }
    assert_eq!(setting(&mut client, "g", session).await, ("301".to_owned(), 8));
    let mut member = Member::new("c");
    assert_eq!(member.beat(&mut client, "g").await.heartbeat_interval_ms, 200);
    assert_eq!(set(&mut client, "g", &[(session, None), (heartbeat, None)]).await, (0, None));
    assert_eq!(member.beat(&mut client, "g").await.heartbeat_interval_ms, 5_000);
    assert!(with_settings(&mut client).await.is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_protocol_nobody_is_served_by_it() {
    let node = quick(&[("group.coordinator.rebalance.protocols", "classic")]).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    coordinator(&mut client, "g").await;
    for version in 0..=1 {
        let answer = client.call(version, &Member::new("a").request("g")).await;
        assert_eq!((answer.error_code, answer.error_message, answer.member_id), (35, None, None));
        let describe =
            ConsumerGroupDescribeRequest { group_ids: vec![text("g"), text("")], ..Default::default() };
        for group in client.call(version, &describe).await.groups {
            assert_eq!((group.error_code, group.members.len()), (35, 0));
            assert_eq!(group.error_message.as_deref(), Some("The version of API is not supported."));
        }
    }
    let joined = client.call(3, &join_of("g", "", None)).await;
    assert_eq!(joined.error_code, 0, "the classic protocol is served as ever");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_changes_no_group_and_holds_up_no_other_of_its_partition() {
    let one_shard = [crate::groups::QUICK, AT_ONCE, &[("offsets.topic.num.partitions", "1")]].concat();
    let node = Node::start_with(Options::with(&one_shard)).await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    coordinator(&mut client, "g").await;
    let mut first = Member::new("a");
    settle(&mut client, "g", std::slice::from_mut(&mut first)).await;
    assert_eq!(commit(&mut client, "other", &[("t", 0, 7)]).await, [0]);
    let folder = node.stop().await;

    // The floor below which nothing is appended is all of the file system.
    let full = Options { free_space_floor_percent: 100, ..Options::with(&one_shard) };
    let node = Node::start_in(folder, full).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    node.until("the disk is known to be full", || node.metric("log_free_bytes") > 0).await;
    let mut second = Member::new("b");
    for _ in 0..5 {
        let refused = second.beat(&mut client, "g").await;
        assert_eq!(refused.error_code, ErrorCode::CoordinatorNotAvailable.code());
        // It would be COORDINATOR_LOAD_IN_PROGRESS, were all of the partition loaded anew for a change that cannot be written.
        assert_eq!(offsets(&mut client, "other").await, [("t".to_owned(), 0, 7)]);
        assert_eq!(first.beat(&mut client, "g").await.error_code, 0, "who changes nothing is served");
    }
    assert_eq!(node.metric("group_failed_writes_total"), 0, "nothing was tried");
    // An offset of a topic that is gone is none, though its end cannot be written.
    let delete =
        DeleteTopicsRequest { topic_names: vec![text("t")], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(client.call(5, &delete).await.responses[0].error_code, 0);
    assert_eq!(offsets(&mut client, "other").await, []);
    client.create_topic("t", 2, &[]).await;
    assert_eq!(offsets(&mut client, "other").await, []);
    let folder = node.stop().await;

    let node = Node::start_in(folder, Options::with(&one_shard)).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    assert_eq!(offsets(&mut client, "other").await, []);
    node.until("the offset has its end in the log", || node.metric("group_offsets_deleted_total") == 1).await;
    settle(&mut client, "g", &mut [first, second]).await;
    node.stop().await;
}
