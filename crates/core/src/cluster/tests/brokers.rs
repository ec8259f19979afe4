use super::*;

fn refused(outcome: Outcome) -> Refusal {
    outcome.into_result().unwrap_err()
}

#[test]
fn nothing_is_decided_before_the_cluster_has_an_id() {
    let mut cluster = Cluster::empty();
    assert_eq!(refused(cluster.apply(&registration(1, 1, 1, true))), Refusal::NotInitialized);
    assert_eq!(cluster.apply(&initialize()), Outcome::Done);
    assert_eq!(cluster.apply(&initialize()), Outcome::Done, "the same id again changes nothing");
    let other = Command::Initialize {
        cluster_id: ClusterId::from_bytes([8; 16]),
        feature_level: 1,
        restore_number: 0,
        producer_ids_from: ProducerId(0),
    };
    assert_eq!(
        refused(cluster.apply(&other)),
        Refusal::AnotherCluster { cluster_id: ClusterId::from_bytes([9; 16]) }
    );
}

#[test]
fn a_registration_raises_the_leader_epoch_of_all_it_led() {
    let mut cluster = Cluster::with_brokers(1);
    let topic = cluster.create(1, 2, 1);
    let again = cluster.register(1, 1, 1, true);
    assert_eq!(again, BrokerIncarnation(2));
    for partition in 0..2 {
        let partition = cluster.partition(place(topic, partition));
        assert_eq!((partition.leader, partition.leader_epoch), (Some(BrokerId(1)), epoch(1)));
        assert_eq!(partition.partition_epoch, 1);
    }
}

/// B116: a copy of a node's configuration with a directory of its own.
#[test]
fn another_directory_is_refused_while_the_session_lives() {
    let mut cluster = Cluster::with_brokers(1);
    cluster.create(1, 1, 1);
    let before = cluster.state.image().broker(BrokerId(1)).cloned();
    let refusal = refused(cluster.apply(&registration(1, 7, 1, true)));
    let directory = DirectoryId::from_bytes([1; 16]);
    assert_eq!(refusal, Refusal::DuplicateBroker { broker: BrokerId(1), directory, session_ms: 9_000 });
    assert_eq!(cluster.state.image().broker(BrokerId(1)).cloned(), before, "the first one is undisturbed");
    cluster.tick(8_999);
    assert!(matches!(
        refused(cluster.apply(&registration(1, 7, 1, true))),
        Refusal::DuplicateBroker { session_ms: 1, .. }
    ));
    let incarnation = before.unwrap().incarnation;
    assert_eq!(cluster.apply(&Command::Heartbeat { broker: BrokerId(1), incarnation }), Outcome::Done);
    cluster.tick(1);
    assert!(matches!(refused(cluster.apply(&registration(1, 7, 1, true))), Refusal::DuplicateBroker { .. }));
    cluster.tick(8_999);
    assert_eq!(cluster.register(1, 7, 1, true), BrokerIncarnation(2));
}

#[test]
fn an_ended_session_leaves_its_id_to_another_directory() {
    let mut cluster = Cluster::with_brokers(1);
    let incarnation = BrokerIncarnation(1);
    assert_eq!(cluster.apply(&Command::EndSession { broker: BrokerId(1), incarnation }), Outcome::Done);
    assert_eq!(cluster.register(1, 7, 1, true), BrokerIncarnation(2));
    let stale = Command::EndSession { broker: BrokerId(1), incarnation };
    assert_eq!(
        refused(cluster.apply(&stale)),
        Refusal::StaleIncarnation { broker: BrokerId(1), newest: BrokerIncarnation(2) }
    );
}

#[test]
fn a_clean_stop_hands_leadership_to_the_isr() {
    let mut cluster = Cluster::with_brokers(2);
    let place = place(cluster.create(1, 1, 2), 0);
    assert_eq!(cluster.partition(place).leader, Some(BrokerId(1)));
    cluster.apply(&Command::EndSession { broker: BrokerId(1), incarnation: BrokerIncarnation(1) });
    let partition = cluster.partition(place);
    assert_eq!((partition.leader, partition.leader_epoch), (Some(BrokerId(2)), epoch(1)));
    assert_eq!(partition.isr, [BrokerId(2)]);
}

#[test]
fn the_only_replica_leads_again_after_its_stop() {
    let mut cluster = Cluster::with_brokers(1);
    let place = place(cluster.create(1, 1, 1), 0);
    cluster.apply(&Command::EndSession { broker: BrokerId(1), incarnation: BrokerIncarnation(1) });
    assert_eq!((cluster.partition(place).leader, cluster.partition(place).leader_epoch), (None, epoch(1)));
    cluster.register(1, 1, 1, true);
    assert_eq!(
        (cluster.partition(place).leader, cluster.partition(place).leader_epoch),
        (Some(BrokerId(1)), epoch(2))
    );
}

#[test]
fn after_a_power_cut_a_follower_leaves_the_isr_and_the_last_leader_stays() {
    let mut cluster = Cluster::with_brokers(2);
    let place = place(cluster.create(1, 1, 2), 0);
    cluster.register(2, 2, 5, false);
    assert_eq!(
        cluster.partition(place).isr,
        [BrokerId(1)],
        "another boot, not clean: it may have lost what it acknowledged"
    );
    cluster.register(1, 1, 5, false);
    let partition = cluster.partition(place);
    assert_eq!((partition.leader, partition.leader_epoch), (Some(BrokerId(1)), epoch(1)));
    assert_eq!(partition.isr, [BrokerId(1)]);
}

#[test]
fn a_crash_within_one_boot_keeps_the_isr() {
    let mut cluster = Cluster::with_brokers(2);
    let place = place(cluster.create(1, 1, 2), 0);
    cluster.register(2, 2, 1, false);
    assert_eq!(cluster.partition(place).isr, [BrokerId(1), BrokerId(2)]);
}

#[test]
fn an_empty_directory_leads_nothing_it_never_held() {
    let mut cluster = Cluster::with_brokers(1);
    let kept = place(cluster.create(1, 1, 1), 0);
    let mut topic = new_topic(2, 1, 1);
    topic.configs.insert("unclean.leader.election.enable".to_owned(), "true".to_owned());
    let unclean = place(topic.topic_id, 0);
    cluster.apply(&Command::CreateTopic { topic });
    cluster.apply(&Command::EndSession { broker: BrokerId(1), incarnation: BrokerIncarnation(1) });
    cluster.register(1, 7, 1, true);
    assert_eq!(cluster.partition(kept).leader, None);
    assert_eq!(cluster.partition(unclean).leader, Some(BrokerId(1)), "the topic allows it");
    cluster.apply(&Command::EndSession { broker: BrokerId(1), incarnation: BrokerIncarnation(2) });
    cluster.register(1, 1, 1, true);
    assert_eq!(cluster.partition(kept).leader, Some(BrokerId(1)), "the directory that holds it is back");
}

#[test]
fn the_restore_number_is_the_upper_half_of_incarnations() {
    let mut cluster = Cluster::empty();
    cluster.apply(&Command::Initialize {
        cluster_id: ClusterId::from_bytes([9; 16]),
        feature_level: 1,
        restore_number: 3,
        producer_ids_from: ProducerId(5_000),
    });
    assert_eq!(cluster.register(1, 1, 1, true), BrokerIncarnation(3 << 32 | 1));
    assert_eq!(cluster.register(1, 1, 1, true), BrokerIncarnation(3 << 32 | 2));
}

/// B29: a block is given out once, over restarts, and above what a restored log holds.
#[test]
fn producer_ids_are_never_given_out_twice() {
    let mut cluster = Cluster::empty();
    cluster.apply(&Command::Initialize {
        cluster_id: ClusterId::from_bytes([9; 16]),
        feature_level: 1,
        restore_number: 1,
        producer_ids_from: ProducerId(5_000),
    });
    let incarnation = cluster.register(1, 1, 1, true);
    let allocate = Command::AllocateProducerIds { broker: BrokerId(1), incarnation };
    assert_eq!(cluster.apply(&allocate), Outcome::ProducerIds { first: ProducerId(5_000), count: 1_000 });
    cluster.state = ClusterState::decode_snapshot(&cluster.state.encode_snapshot()).unwrap();
    assert_eq!(cluster.apply(&allocate), Outcome::ProducerIds { first: ProducerId(6_000), count: 1_000 });
    cluster.register(1, 1, 1, true);
    assert_eq!(
        refused(cluster.apply(&allocate)),
        Refusal::StaleIncarnation { broker: BrokerId(1), newest: BrokerIncarnation(1 << 32 | 2) }
    );
    cluster.state.next_producer_id = i64::MAX - 999;
    let newest =
        Command::AllocateProducerIds { broker: BrokerId(1), incarnation: BrokerIncarnation(1 << 32 | 2) };
    assert_eq!(refused(cluster.apply(&newest)), Refusal::ProducerIdsExhausted);
}

#[test]
fn the_feature_level_only_grows_and_gates_registrations() {
    let mut cluster = Cluster::with_brokers(1);
    assert_eq!(cluster.apply(&Command::SetFeatureLevel { level: 1 }), Outcome::Done);
    for asked in [0, 2] {
        let refusal = Refusal::FeatureLevel { asked, finalised: 1, known: 1 };
        assert_eq!(refused(cluster.apply(&Command::SetFeatureLevel { level: asked })), refusal);
    }
    let Command::RegisterBroker { mut registration } = registration(2, 2, 1, true) else { unreachable!() };
    registration.feature_level_max = 0;
    let refusal = refused(cluster.apply(&Command::RegisterBroker { registration }));
    assert_eq!(refusal, Refusal::FeatureLevel { asked: 0, finalised: 1, known: 1 });
}

#[test]
fn a_refused_command_changes_only_the_index() {
    let mut cluster = Cluster::with_brokers(1);
    cluster.tick(u64::MAX);
    let mut before = cluster.state.clone();
    let refusal = refused(cluster.apply(&Command::Tick { elapsed_ms: 1 }));
    assert_eq!(refusal, Refusal::TimeOverflow { elapsed_ms: 1 });
    before.image.index = cluster.state.image.index;
    assert_eq!(cluster.state, before);
}
