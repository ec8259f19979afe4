use std::{collections::BTreeMap, sync::Arc};

use super::*;

fn refused(outcome: Outcome) -> Refusal {
    outcome.into_result().unwrap_err()
}

#[test]
fn a_topic_is_spread_over_live_brokers() {
    let mut cluster = Cluster::with_brokers(2);
    cluster.create(1, 3, 2);
    let topic = cluster.state.image().topic_by_name(&TopicName::new("topic-1").unwrap()).unwrap().clone();
    let (one, two) = (BrokerId(1), BrokerId(2));
    let replicas: Vec<_> = topic.partitions.iter().map(|partition| partition.replicas.clone()).collect();
    assert_eq!(replicas, [vec![one, two], vec![two, one], vec![one, two]]);
    let leaders: Vec<_> = topic.partitions.iter().map(|partition| partition.leader).collect();
    assert_eq!(leaders, [Some(one), Some(two), Some(one)]);
    assert!(topic.partitions.iter().all(|partition| partition.isr == [one, two] && partition.tiered));
}

#[test]
fn neighbouring_replicas_are_in_different_racks() {
    let mut cluster = Cluster::empty();
    cluster.apply(&initialize());
    for (broker, rack) in [(1, "a"), (2, "a"), (3, "b"), (4, "b")] {
        let number = u8::try_from(broker).unwrap();
        let Command::RegisterBroker { mut registration } = registration(broker, number, 1, true) else {
            unreachable!()
        };
        registration.rack = Some(rack.to_owned());
        cluster.apply(&Command::RegisterBroker { registration });
    }
    let topic = cluster.create(1, 4, 2);
    for partition in 0..4 {
        let replicas = &cluster.partition(place(topic, partition)).replicas;
        let racks: Vec<_> = replicas
            .iter()
            .map(|replica| cluster.state.image().broker(*replica).unwrap().rack.clone())
            .collect();
        assert_ne!(racks[0], racks[1], "{replicas:?}");
    }
}

#[test]
fn a_name_belongs_to_one_topic() {
    let mut cluster = Cluster::with_brokers(1);
    let topic_id = cluster.create(1, 1, 1);
    let again = Command::CreateTopic { topic: new_topic(1, 5, 1) };
    assert_eq!(
        cluster.apply(&again),
        Outcome::TopicCreated { topic_id, partition_count: 1 },
        "the proposer asks again under the same id"
    );
    let mut rival = new_topic(2, 1, 1);
    rival.name = TopicName::new("topic-1").unwrap();
    assert_eq!(
        refused(cluster.apply(&Command::CreateTopic { topic: rival.clone() })),
        Refusal::TopicExists { name: rival.name.clone(), topic_id }
    );
    let mut taken = new_topic(1, 1, 1);
    taken.name = TopicName::new("other").unwrap();
    assert_eq!(
        refused(cluster.apply(&Command::CreateTopic { topic: taken })),
        Refusal::TopicIdTaken { topic_id }
    );
    let mut dotted = new_topic(3, 1, 1);
    dotted.name = TopicName::new("a.b").unwrap();
    cluster.apply(&Command::CreateTopic { topic: dotted.clone() });
    let mut scored = new_topic(4, 1, 1);
    scored.name = TopicName::new("a_b").unwrap();
    assert_eq!(
        refused(cluster.apply(&Command::CreateTopic { topic: scored.clone() })),
        Refusal::TopicCollides { name: scored.name, with: dotted.name }
    );
}

#[test]
fn what_cannot_be_placed_is_refused() {
    let mut cluster = Cluster::with_brokers(2);
    let create = |partitions, replicas| Command::CreateTopic { topic: new_topic(1, partitions, replicas) };
    let limits = Refusal::PartitionCount { count: 0, least: 1, most: 10_000 };
    assert_eq!(refused(cluster.apply(&create(0, 1))), limits);
    let limits = Refusal::PartitionCount { count: 10_001, least: 1, most: 10_000 };
    assert_eq!(refused(cluster.apply(&create(10_001, 1))), limits);
    for replicas in [-1, 0, 3] {
        let refusal = Refusal::ReplicationFactor { asked: replicas, live: 2 };
        assert_eq!(refused(cluster.apply(&create(1, replicas))), refusal);
    }
    let (one, two) = (BrokerId(1), BrokerId(2));
    for wrong in [vec![vec![one], vec![two]], vec![vec![]], vec![vec![one, one]], vec![vec![BrokerId(3)]]] {
        let mut topic = new_topic(1, 1, 1);
        topic.assignments = wrong;
        assert!(matches!(
            refused(cluster.apply(&Command::CreateTopic { topic })),
            Refusal::Assignment { .. }
        ));
    }
    assert_eq!(cluster.state.image().topics().count(), 0);
}

#[test]
fn partitions_are_added_and_never_taken_away() {
    let mut cluster = Cluster::with_brokers(2);
    let topic_id = cluster.create(1, 1, 1);
    let grow =
        |partition_count| Command::CreatePartitions { topic_id, partition_count, assignments: Vec::new() };
    assert_eq!(cluster.apply(&grow(3)), Outcome::TopicCreated { topic_id, partition_count: 3 });
    let leaders: Vec<_> =
        (0..3).map(|partition| cluster.partition(place(topic_id, partition)).leader.unwrap().0).collect();
    assert_eq!(leaders, [1, 2, 1], "placement goes on where it was");
    for count in [3, 2] {
        let refusal = Refusal::PartitionCount { count, least: 4, most: 10_000 };
        assert_eq!(refused(cluster.apply(&grow(count))), refusal);
    }
    let chosen =
        Command::CreatePartitions { topic_id, partition_count: 4, assignments: vec![vec![BrokerId(2)]] };
    cluster.apply(&chosen);
    assert_eq!(cluster.partition(place(topic_id, 3)).replicas, [BrokerId(2)]);
}

#[test]
fn configurations_are_kept_as_given() {
    let mut cluster = Cluster::with_brokers(1);
    let topic_id = cluster.create(1, 2, 1);
    let set = |key: &str, value: &str| (key.to_owned(), ConfigChange::Set { value: value.to_owned() });
    let resource = ConfigResource::Topic { topic_id };
    let changes = vec![set("retention.ms", "5"), set("remote.storage.enable", "false")];
    assert_eq!(cluster.apply(&Command::AlterConfigs { resource, changes }), Outcome::Done);
    let topic = cluster.state.image().topic(topic_id).unwrap();
    assert_eq!(topic.configs["retention.ms"], "5");
    assert!(topic.partitions.iter().all(|partition| !partition.tiered));
    let changes = vec![("remote.storage.enable".to_owned(), ConfigChange::Delete {})];
    cluster.apply(&Command::AlterConfigs { resource, changes });
    let topic = cluster.state.image().topic(topic_id).unwrap();
    assert!(topic.partitions.iter().all(|partition| partition.tiered), "tiering is the default");
    for resource in [ConfigResource::Broker { broker: BrokerId(7) }, ConfigResource::ClusterDefault {}] {
        cluster.apply(&Command::AlterConfigs { resource, changes: vec![set("log.retention.ms", "9")] });
        assert_eq!(cluster.state.image().configs(resource).unwrap()["log.retention.ms"], "9");
        let changes = vec![("log.retention.ms".to_owned(), ConfigChange::Delete {})];
        cluster.apply(&Command::AlterConfigs { resource, changes });
        assert_eq!(cluster.state.image().configs(resource), None);
    }
    let unknown = ConfigResource::Topic { topic_id: super::topic_id(200) };
    let refusal = refused(cluster.apply(&Command::AlterConfigs { resource: unknown, changes: Vec::new() }));
    assert_eq!(refusal, Refusal::UnknownTopic { topic_id: super::topic_id(200) });
    let long = vec![set("x", &"y".repeat(32 * 1024 + 1))];
    assert!(matches!(
        refused(cluster.apply(&Command::AlterConfigs { resource, changes: long })),
        Refusal::TooMuch { .. }
    ));
}

#[test]
fn settings_of_groups_are_kept_until_the_last_is_gone() {
    let mut cluster = Cluster::with_brokers(1);
    let without = cluster.state.encode_snapshot();
    let set = |key: &str, value: &str| (key.to_owned(), ConfigChange::Set { value: value.to_owned() });
    let alter = |group: &str, changes| Command::AlterGroupConfigs { group: group.to_owned(), changes };
    let session = "consumer.session.timeout.ms";
    assert_eq!(cluster.apply(&alter("g", vec![set(session, "46000"), set("x", "1")])), Outcome::Done);
    assert_eq!(cluster.apply(&alter("h", vec![set(session, "47000")])), Outcome::Done);
    let bytes = cluster.state.encode_snapshot();
    assert_eq!((without[9], bytes[9]), (1, 2), "the version says whether there are any");
    assert_eq!(ClusterState::decode_snapshot(&bytes).as_ref(), Ok(&cluster.state));
    let configs = Arc::clone(cluster.state.image().group_configs());
    assert_eq!(configs.keys().collect::<Vec<_>>(), ["g", "h"]);
    assert_eq!(configs["g"], BTreeMap::from([(session.into(), "46000".into()), ("x".into(), "1".into())]));
    let unset = |key: &str| (key.to_owned(), ConfigChange::Delete {});
    cluster.apply(&alter("g", vec![unset("x"), unset(session)]));
    cluster.apply(&alter("h", vec![unset(session)]));
    assert!(cluster.state.image().group_configs().is_empty());
    assert_eq!(cluster.state.encode_snapshot()[9], 1);
    for number in 0..10_000 {
        cluster.apply(&alter(&number.to_string(), vec![set(session, "46000")]));
    }
    let refusal = Refusal::TooMuch { what: "groups with settings", most: 10_000 };
    assert_eq!(refused(cluster.apply(&alter("g", vec![set(session, "46000")]))), refusal);
    assert_eq!(cluster.apply(&alter("7", vec![set(session, "47000")])), Outcome::Done);
    cluster.apply(&alter("7", vec![unset(session)]));
    let long = refused(cluster.apply(&alter(&"g".repeat(1025), vec![set(session, "46000")])));
    assert_eq!(long, Refusal::TooMuch { what: "bytes of a group's id", most: 1024 });
}

/// B89, T10: the deleted topic's objects are queued under its own id; the new topic of that name starts empty.
#[test]
fn a_deleted_topic_is_queued_and_its_name_is_free() {
    let mut cluster = Cluster::with_brokers(1);
    let old = cluster.create(1, 2, 1);
    cluster.upload(place(old, 0), 3);
    cluster.advance(place(old, 0), 10);
    assert_eq!(cluster.apply(&Command::DeleteTopic { topic_id: old }), Outcome::Done);
    assert_eq!(
        refused(cluster.apply(&Command::DeleteTopic { topic_id: old })),
        Refusal::UnknownTopic { topic_id: old }
    );
    let mut topic = new_topic(2, 1, 1);
    topic.name = TopicName::new("topic-1").unwrap();
    let new = topic.topic_id;
    cluster.apply(&Command::CreateTopic { topic });
    let partition = cluster.partition(place(new, 0));
    assert_eq!((partition.manifest.tiered_end, partition.manifest.entries.len()), (Offset::ZERO, 0));
    assert_eq!(cluster.ready(), [], "the grace is not over");
    cluster.tick(60_000);
    let scope = DeletionScope::Topic { topic_id: old };
    let ready = cluster.state.image().ready_deletions(10);
    assert_eq!(ready.len(), 1, "its partitions' items went with it");
    assert_eq!(ready[0].0, scope);
    let name = TopicName::new("topic-1").unwrap();
    assert_eq!(ready[0].1.target, DeletionTarget::Topic { name, partition_count: 2 });
    let reborn =
        Command::CreateTopic { topic: NewTopic { name: TopicName::new("x").unwrap(), ..new_topic(1, 1, 1) } };
    assert_eq!(
        refused(cluster.apply(&reborn)),
        Refusal::TopicIdTaken { topic_id: old },
        "while its objects are there"
    );
    let items = vec![(scope, ready[0].1.id)];
    assert_eq!(
        cluster.apply(&Command::DeletionDone { items }),
        Outcome::DeletionsRemoved { removed: vec![true] }
    );
    assert!(cluster.state.image().deletions().is_empty());
}
