//! `broker.rack`, and what assignors make of it on a real node (KIP-881, KIP-1101).

use tidelog_core::cluster::{BrokerRegistration, Command};
use tidelog_testkit::raw_client::RawClient;
use tidelog_types::{BootId, BrokerId, DirectoryId};
use tidelog_wire::messages::{
    ConsumerGroupHeartbeatRequest, CreateTopicsRequest,
    create_topics::{CreatableReplicaAssignment, CreatableTopic},
};

use crate::{
    consumer_groups::{AT_ONCE, Member},
    groups::{QUICK, coordinator, text},
    node::{BROKER, Node, Options},
};

const OTHER_BROKER: BrokerId = BrokerId(2);

fn in_rack(rack: &str) -> Options {
    Options { rack: Some(rack.to_owned()), ..Options::with(&[QUICK, AT_ONCE].concat()) }
}

/// A member, and its rack.
struct RackMember(Member, &'static str);

impl RackMember {
    async fn beat(&mut self, client: &mut RawClient) {
        let request = ConsumerGroupHeartbeatRequest { rack_id: Some(text(self.1)), ..self.0.request("g") };
        let answer = client.call(1, &request).await;
        assert_eq!(answer.error_code, 0, "{answer:?}");
        self.0.take(&answer);
    }

    fn state(&self) -> (i32, Vec<i32>) {
        (self.0.epoch, self.0.owned.iter().map(|(_, partition)| *partition).collect())
    }
}

fn members() -> [RackMember; 2] {
    [RackMember(Member::new("a"), "west"), RackMember(Member::new("b"), "east")]
}

/// Has members beat until nothing moves. Answers the epoch and the partitions of each.
async fn settle(client: &mut RawClient, members: &mut [RackMember; 2]) -> [(i32, Vec<i32>); 2] {
    for _ in 0..20 {
        let before = members.each_ref().map(RackMember::state);
        for member in &mut *members {
            member.beat(client).await;
        }
        let after = members.each_ref().map(RackMember::state);
        if before == after {
            return after;
        }
    }
    panic!("the group does not settle");
}

/// A topic whose partitions have these replicas, one each.
async fn create(client: &mut RawClient, replicas: &[BrokerId]) {
    let assignment = |(partition_index, broker): (i32, &BrokerId)| CreatableReplicaAssignment {
        partition_index,
        broker_ids: vec![broker.0],
    };
    let topic = CreatableTopic {
        name: text("t"),
        num_partitions: -1,
        replication_factor: -1,
        assignments: (0..).zip(replicas).map(assignment).collect(),
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: false };
    let created = client.call(7, &request).await;
    assert_eq!(created.topics[0].error_code, 0, "{:?}", created.topics[0].error_message);
}

/// Another broker, as the cluster knows it; nobody runs it.
pub(crate) async fn register_other(node: &Node, rack: &str) {
    let registration = BrokerRegistration {
        broker: OTHER_BROKER,
        directory: DirectoryId::from_bytes([8; 16]),
        boot: BootId::from_bytes([2; 16]),
        clean: true,
        listeners: Vec::new(),
        rack: Some(rack.to_owned()),
        feature_level_max: 1,
    };
    node.propose(Command::RegisterBroker { registration }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_get_the_partitions_of_their_racks_as_far_as_the_balance_allows() {
    let node = Node::start_with(in_rack("east")).await;
    let mut client = node.client().await;
    // Before the other broker is there, which would get groups as well.
    coordinator(&mut client, "g").await;
    register_other(&node, "west").await;
    // Nobody has anything that he would keep when the topic comes.
    let mut members = members();
    let [(first, none), _] = settle(&mut client, &mut members).await;
    assert_eq!(none, [0_i32; 0]);
    create(&mut client, &[BROKER, OTHER_BROKER, BROKER, OTHER_BROKER]).await;
    let given = settle(&mut client, &mut members).await;
    // By their names alone the first would have 0 and 1.
    assert_eq!(given, [(first + 1, vec![1, 3]), (first + 1, vec![0, 2])]);
    // A rack is part of what the group was assigned by: another one is a new epoch, in which what is kept stays kept.
    register_other(&node, "south").await;
    assert_eq!(settle(&mut client, &mut members).await, [(first + 2, vec![1, 3]), (first + 2, vec![0, 2])]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_one_rack_there_is_nothing_to_choose_and_its_new_name_is_a_new_epoch() {
    let node = Node::start_with(in_rack("east")).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let mut members = members();
    let [(first, _), _] = settle(&mut client, &mut members).await;
    create(&mut client, &[BROKER; 4]).await;
    let given = settle(&mut client, &mut members).await;
    assert_eq!(given, [(first + 1, vec![0, 1]), (first + 1, vec![2, 3])], "as without racks");
    let folder = node.stop().await;

    let node = Node::start_in(folder, in_rack("east")).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    assert_eq!(settle(&mut client, &mut members).await, given, "the same rack changes nothing");
    let folder = node.stop().await;

    let node = Node::start_in(folder, in_rack("north")).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let moved = settle(&mut client, &mut members).await;
    assert_eq!(moved, [(first + 2, vec![0, 1]), (first + 2, vec![2, 3])]);
    node.stop().await;
}
