//! Offsets that end by their age (KIP-211), each to the millisecond: the test owns the wall clock.

use std::{sync::Arc, time::Duration};

use tempfile::TempDir;
use tidelog_testkit::raw_client::RawClient;
use tidelog_wire::{
    ErrorCode,
    messages::{
        ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, JoinGroupRequest, JoinGroupResponse,
        ListGroupsRequest, join_group::JoinGroupRequestProtocol,
    },
};

use crate::{
    consumer_groups::{AT_ONCE, Member},
    groups::{
        QUICK, alone, code_of_fetch, commit, commit_of, coordinator, join_of, leave, offsets, state,
        subscription, sync, text,
    },
    node::{Node, Options, OwnWall},
};

const RETENTION: Duration = Duration::from_secs(10 * 60);
const MINUTE: Duration = Duration::from_secs(60);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A group whose only offset ends at once: when it is gone, a look at all groups was over, and what that ended is in the log.
/// Groups are looked at in the order of their names, and this is the last.
const LAST: &str = "~";

/// A node with one partition of groups, and its clock.
struct Scene {
    node: Node,
    client: RawClient,
    clock: Arc<OwnWall>,
}

impl Scene {
    async fn new() -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut scene = Self::start(folder, OwnWall::new()).await;
        for topic in ["a", "b", "t"] {
            scene.client.create_topic(topic, 2, &[]).await;
        }
        scene
    }

    async fn start(folder: Arc<TempDir>, clock: Arc<OwnWall>) -> Self {
        let own = &[("offsets.topic.num.partitions", "1"), ("offsets.retention.minutes", "10")];
        let options = Options::with(&[QUICK, AT_ONCE, own].concat());
        let options = Options { clock: Some(Arc::clone(&clock) as Arc<_>), ..options };
        let node = Node::start_in(folder, options).await;
        let mut client = node.client().await;
        coordinator(&mut client, "g").await;
        Self { node, client, clock }
    }

    /// The same log, loaded again.
    async fn again(self) -> Self {
        Self::start(self.node.stop().await, self.clock).await
    }

    /// Has time pass, and waits until all groups were looked at since.
    async fn pass(&mut self, time: Duration) {
        self.clock.pass(time);
        let mut ending = commit_of(LAST, "", -1, &[("t", 0, 1)]);
        // Versions up to 4 name a retention of their own: nothing, which is over at once.
        ending.retention_time_ms = 0;
        assert_eq!(self.client.call(4, &ending).await.topics[0].partitions[0].error_code, 0);
        let begun = tokio::time::Instant::now();
        // A group that is being deleted is described as a dead one, and serves nobody until its end is in the log.
        while state(&mut self.client, LAST).await != "Dead"
            || code_of_fetch(&mut self.client, LAST).await != 0
        {
            assert!(begun.elapsed() < Duration::from_secs(20), "nobody looks at the groups");
        }
    }

    /// What the group has of its offsets: topic, partition and offset.
    async fn kept(&mut self) -> Vec<(String, i32, i64)> {
        offsets(&mut self.client, "g").await
    }

    async fn commits(&mut self, member: &str, generation: i32, offsets: &[(&str, i32, i64)]) {
        let request = commit_of("g", member, generation, offsets);
        let answer = self.client.call(9, &request).await;
        assert!(answer.topics.iter().all(|topic| topic.partitions[0].error_code == 0), "{answer:?}");
    }

    async fn listed(&mut self) -> Vec<(String, String)> {
        let listed = self.client.call(5, &ListGroupsRequest::default()).await;
        assert_eq!(listed.error_code, 0);
        let one = |group: &tidelog_wire::messages::list_groups::ListedGroup| {
            (group.group_id.to_string(), group.group_state.to_string())
        };
        listed.groups.iter().map(one).collect()
    }

    async fn is_gone(&mut self) {
        assert_eq!(self.kept().await, []);
        assert_eq!(state(&mut self.client, "g").await, "Dead");
        let describe = ConsumerGroupDescribeRequest { group_ids: vec![text("g")], ..Default::default() };
        let described = self.client.call(1, &describe).await.groups.remove(0);
        assert_eq!(described.error_code, ErrorCode::GroupIdNotFound.code());
        assert_eq!(self.listed().await, []);
    }

    /// The group ended with its last offset, and neither is found again by a start.
    async fn check_gone_for_good(mut self) {
        self.is_gone().await;
        let mut scene = self.again().await;
        scene.is_gone().await;
        scene.node.stop().await;
    }
}

fn rows(offsets: &[(&str, i32, i64)]) -> Vec<(String, i32, i64)> {
    offsets.iter().map(|(topic, partition, offset)| ((*topic).to_owned(), *partition, *offset)).collect()
}

/// A consumer of one topic joins.
fn reader_of(topic: &str, member: &str) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol { name: text("range"), metadata: subscription(&[topic]) };
    JoinGroupRequest { protocols: vec![protocol], ..join_of("g", member, None) }
}

/// The only member of the group, which reads this topic.
async fn only_reader_of(client: &mut RawClient, topic: &str) -> JoinGroupResponse {
    let joined = client.call(3, &reader_of(topic, "")).await;
    assert_eq!(joined.error_code, 0);
    assert_eq!(sync(client, "g", &joined, b"mine").await.0, 0);
    joined
}

// B49
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_a_classic_group_live_on_from_when_it_became_empty() {
    let mut scene = Scene::new().await;
    let member = alone(&mut scene.client, "g").await;
    scene.commits(&member.member_id, 1, &[("t", 0, 5)]).await;
    // What never had an offset has nothing to wait for.
    let idle = alone(&mut scene.client, "idle").await;
    assert_eq!(leave(&mut scene.client, "idle", &idle.member_id).await, 0);
    scene.pass(3 * RETENTION).await;
    assert_eq!(state(&mut scene.client, "idle").await, "Dead");
    assert_eq!(scene.kept().await, rows(&[("t", 0, 5)]), "its member reads the topic");
    assert_eq!(leave(&mut scene.client, "g", &member.member_id).await, 0);
    scene.pass(RETENTION / 2).await;
    assert_eq!(scene.listed().await, [("g".to_owned(), "Empty".to_owned())]);
    // The log says when it became empty: a start is no new beginning, and neither is it the commit again.
    let mut scene = scene.again().await;
    scene.pass(RETENTION / 2 - MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("t", 0, 5)]), "a millisecond is left");
    scene.pass(MILLISECOND).await;
    scene.check_gone_for_good().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_a_topic_that_no_member_reads_any_more_live_on_from_their_commit() {
    let mut scene = Scene::new().await;
    let member = only_reader_of(&mut scene.client, "a").await;
    scene.commits(&member.member_id, 1, &[("a", 0, 1), ("b", 0, 2)]).await;
    scene.pass(MINUTE).await;
    scene.commits(&member.member_id, 1, &[("b", 1, 3)]).await;
    scene.pass(RETENTION - MINUTE - MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("a", 0, 1), ("b", 0, 2), ("b", 1, 3)]));
    scene.pass(MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("a", 0, 1), ("b", 1, 3)]), "each by its own commit");
    scene.pass(MINUTE).await;
    assert_eq!(scene.kept().await, rows(&[("a", 0, 1)]));
    let mut scene = scene.again().await;
    assert_eq!(scene.kept().await, rows(&[("a", 0, 1)]), "what ended does not come back");
    assert_eq!(scene.listed().await, [("g".to_owned(), "Stable".to_owned())]);
    scene.node.stop().await;
}

// B49
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_expires_while_a_group_rebalances() {
    let mut scene = Scene::new().await;
    let first = only_reader_of(&mut scene.client, "a").await;
    scene.commits(&first.member_id, 1, &[("a", 0, 1), ("b", 0, 2)]).await;
    let all = rows(&[("a", 0, 1), ("b", 0, 2)]);
    // A second member waits for the first to join again.
    let mut other = scene.node.client().await;
    let waiting = other.send(3, &reader_of("a", "")).await;
    let begun = tokio::time::Instant::now();
    while state(&mut scene.client, "g").await != "PreparingRebalance" {
        assert!(begun.elapsed() < Duration::from_secs(10), "the second member is not in the group");
    }
    scene.pass(100 * RETENTION).await;
    assert_eq!(scene.kept().await, all);
    let joined = scene.client.call(3, &reader_of("a", &first.member_id)).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 2));
    let second = other.receive::<JoinGroupRequest>(3, waiting).await;
    assert_eq!(state(&mut scene.client, "g").await, "CompletingRebalance");
    scene.pass(100 * RETENTION).await;
    assert_eq!(scene.kept().await, all, "the leader has not handed out anything yet");
    let leader = if second.leader == second.member_id { &second } else { &joined };
    assert_eq!(sync(&mut scene.client, "g", leader, b"all").await.0, 0);
    assert_eq!(state(&mut scene.client, "g").await, "Stable");
    scene.pass(Duration::ZERO).await;
    assert_eq!(scene.kept().await, rows(&[("a", 0, 1)]), "nobody reads the other topic");
    for member in [&joined.member_id, &second.member_id] {
        assert_eq!(leave(&mut scene.client, "g", member).await, 0);
    }
    scene.pass(RETENTION - MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("a", 0, 1)]));
    scene.pass(MILLISECOND).await;
    scene.check_gone_for_good().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_an_empty_group_of_the_consumer_protocol_live_on_from_their_commit() {
    let mut scene = Scene::new().await;
    let mut member = Member::new("m");
    assert_eq!(member.beat(&mut scene.client, "g").await.error_code, 0);
    scene.commits("m", member.epoch, &[("t", 0, 1), ("b", 0, 2)]).await;
    scene.pass(RETENTION - MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("b", 0, 2), ("t", 0, 1)]));
    scene.pass(MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("t", 0, 1)]), "of the topics only one is read");
    scene.pass(MINUTE).await;
    scene.commits("m", member.epoch, &[("t", 1, 3)]).await;
    scene.pass(MINUTE).await;
    assert_eq!(scene.kept().await, rows(&[("t", 0, 1), ("t", 1, 3)]));
    let leaves = ConsumerGroupHeartbeatRequest { member_epoch: -1, ..member.request("g") };
    assert_eq!(scene.client.call(1, &leaves).await.error_code, 0);
    // When it became empty is no matter to Kafka here: what was committed long ago ends with the next look.
    scene.pass(Duration::ZERO).await;
    assert_eq!(scene.kept().await, rows(&[("t", 1, 3)]));
    assert_eq!(scene.listed().await, [("g".to_owned(), "Empty".to_owned())]);
    let mut scene = scene.again().await;
    scene.pass(RETENTION - MINUTE - MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("t", 1, 3)]), "a millisecond is left");
    scene.pass(MILLISECOND).await;
    scene.check_gone_for_good().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_that_were_committed_without_a_group_live_on_from_their_commit() {
    let mut scene = Scene::new().await;
    assert_eq!(commit(&mut scene.client, "g", &[("t", 0, 1), ("t", 1, 2)]).await, [0, 0]);
    scene.pass(RETENTION / 2).await;
    assert_eq!(commit(&mut scene.client, "g", &[("t", 1, 3)]).await, [0]);
    let mut scene = scene.again().await;
    scene.pass(RETENTION / 2 - MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("t", 0, 1), ("t", 1, 3)]));
    scene.pass(MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("t", 1, 3)]));
    scene.pass(RETENTION / 2 - MILLISECOND).await;
    assert_eq!(scene.kept().await, rows(&[("t", 1, 3)]));
    scene.pass(MILLISECOND).await;
    scene.check_gone_for_good().await;
}
