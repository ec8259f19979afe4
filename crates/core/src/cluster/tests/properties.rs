//! Two leaders that propose whatever they like, in any order: what must hold holds after every command.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// What a proposer does, by small numbers; wrong as often as right.
#[derive(Debug, Clone)]
enum Step {
    Register {
        broker: i32,
        directory: u8,
        boot: u8,
        clean: bool,
    },
    EndSession {
        broker: i32,
        incarnation: u64,
    },
    Create {
        number: u8,
        partitions: i32,
        replicas: i32,
    },
    Delete {
        number: u8,
    },
    Grow {
        number: u8,
        to: i32,
    },
    /// A commit: at the tiered end or some steps beside it, in the current epoch or one beside it.
    Commit {
        topic: u8,
        partition: i32,
        base_off: i64,
        length: u64,
        epoch_off: i32,
        incarnation_off: u64,
    },
    Spill {
        topic: u8,
        partition: i32,
        count: usize,
        replaces: bool,
        stale: bool,
    },
    Advance {
        topic: u8,
        partition: i32,
        by: i64,
        epoch_off: i32,
    },
    Fence {
        incarnation: u64,
        sequence: u64,
    },
    Publish {
        topic: u8,
        partition: i32,
        back: u64,
    },
    Tick {
        elapsed_ms: u64,
    },
    Done {
        count: usize,
    },
    Tiered {
        topic: u8,
        tiered: bool,
    },
    Producers {
        broker: i32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let topic = || 1_u8..4;
    let partition = || 0..2_i32;
    prop_oneof![
        2 => (1..3, 1_u8..3, 1_u8..3, any::<bool>())
            .prop_map(|(broker, directory, boot, clean)| Step::Register { broker, directory, boot, clean }),
        1 => (1..3, 1_u64..6).prop_map(|(broker, incarnation)| Step::EndSession { broker, incarnation }),
        2 => (topic(), 1..3, 1..3).prop_map(|(number, partitions, replicas)| Step::Create { number, partitions, replicas }),
        1 => topic().prop_map(|number| Step::Delete { number }),
        1 => (topic(), 1..4).prop_map(|(number, to)| Step::Grow { number, to }),
        14 => (topic(), partition(), prop_oneof![5 => Just(0_i64), 1 => -3_i64..4], 1_u64..5,
            prop_oneof![5 => Just(0), 1 => -1..2], prop_oneof![5 => Just(0_u64), 1 => 1_u64..3])
            .prop_map(|(topic, partition, base_off, length, epoch_off, incarnation_off)| Step::Commit {
                topic, partition, base_off, length, epoch_off, incarnation_off }),
        6 => (topic(), partition(), 0_usize..6, any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(topic, partition, count, replaces, stale)| Step::Spill { topic, partition, count, replaces, stale }),
        6 => (topic(), partition(), -3_i64..12, prop_oneof![5 => Just(0), 1 => -1..2])
            .prop_map(|(topic, partition, by, epoch_off)| Step::Advance { topic, partition, by, epoch_off }),
        1 => (1_u64..6, 0_u64..60).prop_map(|(incarnation, sequence)| Step::Fence { incarnation, sequence }),
        2 => (topic(), partition(), 0_u64..3).prop_map(|(topic, partition, back)| Step::Publish { topic, partition, back }),
        3 => prop_oneof![0_u64..10, 20_000_u64..70_000].prop_map(|elapsed_ms| Step::Tick { elapsed_ms }),
        3 => (1_usize..5).prop_map(|count| Step::Done { count }),
        1 => (topic(), any::<bool>()).prop_map(|(topic, tiered)| Step::Tiered { topic, tiered }),
        1 => (1..3).prop_map(|broker| Step::Producers { broker }),
    ]
}

/// Turns a step into a command against the state as a proposer would see it. `count` makes uploads unique.
fn command(state: &ClusterState, step: &Step, count: u64) -> Option<Command> {
    let image = state.image();
    let find = |topic: u8, partition: i32| {
        let name = TopicName::new(&format!("topic-{topic}")).unwrap();
        let place = place(image.topic_by_name(&name)?.id, partition);
        Some((place, image.partition(&place)?.clone()))
    };
    let shifted =
        |epoch: LeaderEpoch, by: i32| LeaderEpoch::from_wire((epoch.to_wire() + by).max(0)).unwrap();
    Some(match step {
        Step::Register { broker, directory, boot, clean } => registration(*broker, *directory, *boot, *clean),
        Step::EndSession { broker, incarnation } => {
            Command::EndSession { broker: BrokerId(*broker), incarnation: BrokerIncarnation(*incarnation) }
        }
        Step::Create { number, partitions, replicas } => {
            // Another life has another id.
            let mut topic = new_topic(*number, *partitions, *replicas);
            topic.topic_id = TopicId::from_bytes([
                *number,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                u8::try_from(count % 251).unwrap(),
                0,
            ]);
            Command::CreateTopic { topic }
        }
        Step::Delete { number } => Command::DeleteTopic { topic_id: find(*number, 0)?.0.topic_id },
        Step::Grow { number, to } => Command::CreatePartitions {
            topic_id: find(*number, 0)?.0.topic_id,
            partition_count: *to,
            assignments: Vec::new(),
        },
        Step::Commit { topic, partition, base_off, length, epoch_off, incarnation_off } => {
            let (place, partition) = find(*topic, *partition)?;
            let leader = image.broker(partition.last_leader)?;
            let base = partition.manifest.tiered_end.get().saturating_add_signed(*base_off);
            let incarnation = BrokerIncarnation(leader.incarnation.0.saturating_sub(*incarnation_off));
            let leader_epoch = shifted(partition.leader_epoch, *epoch_off);
            Command::CommitSegments {
                commits: vec![commit(place, leader_epoch, incarnation, count, base..base + length)],
            }
        }
        Step::Spill { topic, partition, count: moved, replaces, stale } => {
            let (place, partition) = find(*topic, *partition)?;
            let manifest = &partition.manifest;
            let entries: Vec<_> = manifest.entries.iter().skip(usize::from(*stale)).take(*moved).collect();
            let (first, last) = (entries.first()?, entries.last()?);
            let line = manifest.lines.last();
            let base = if *replaces {
                line.map_or(first.range.base, |line| line.range.base)
            } else {
                first.range.base
            };
            let incarnation = image.broker(partition.last_leader)?.incarnation;
            let spill = Spill {
                place,
                leader_epoch: partition.leader_epoch,
                last_page: line.map(|line| line.page),
                replaces_last: *replaces,
                moved: entries.iter().map(|entry| entry.object).collect(),
                line: PageLine {
                    page: page(base.get(), incarnation, count),
                    range: OffsetRange { base, end: last.range.end },
                    bytes: 1,
                    max_timestamp: None,
                },
            };
            Command::SpillManifest { spill }
        }
        Step::Advance { topic, partition, by, epoch_off } => {
            let (place, partition) = find(*topic, *partition)?;
            let to = offset(partition.log_start.get().saturating_add_signed(*by));
            Command::AdvanceLogStart { place, leader_epoch: shifted(partition.leader_epoch, *epoch_off), to }
        }
        Step::Fence { incarnation, sequence } => Command::FenceUploads {
            incarnation: BrokerIncarnation(*incarnation),
            sequence: UploadSequence(*sequence),
        },
        Step::Publish { topic, partition, back } => {
            let (place, partition) = find(*topic, *partition)?;
            let version = partition.manifest.version.saturating_sub(*back);
            Command::ManifestPublished { place, leader_epoch: partition.leader_epoch, version }
        }
        Step::Tick { elapsed_ms } => Command::Tick { elapsed_ms: *elapsed_ms },
        Step::Done { count } => {
            let ready = image.ready_deletions(*count);
            Command::DeletionDone { items: ready.into_iter().map(|(scope, item)| (scope, item.id)).collect() }
        }
        Step::Tiered { topic, tiered } => {
            let resource = ConfigResource::Topic { topic_id: find(*topic, 0)?.0.topic_id };
            let value = tiered.to_string();
            Command::AlterConfigs {
                resource,
                changes: vec![(REMOTE_STORAGE_ENABLE.to_owned(), ConfigChange::Set { value })],
            }
        }
        Step::Producers { broker } => {
            let known = image.broker(BrokerId(*broker))?;
            Command::AllocateProducerIds { broker: known.id, incarnation: known.incarnation }
        }
    })
}

/// What holds between one state and the next, whatever the command was.
fn check_step(before: &ClusterState, after: &ClusterState, command: &Command, outcome: &Outcome) {
    after.check().unwrap();
    if matches!(outcome, Outcome::Refused(_)) {
        let mut same = before.clone();
        same.image.index = after.image.index;
        assert_eq!(same, *after, "a refusal of {command:?} changes nothing");
    }
    assert!(
        before.next_producer_id <= after.next_producer_id
            && before.next_registration <= after.next_registration
    );
    assert!(before.image.now_ms <= after.image.now_ms);
    for (place, old) in before.image.partitions() {
        let Some(new) = after.image.partition(&place) else { continue };
        assert!(old.log_start <= new.log_start, "T6: {place}");
        assert!(old.leader_epoch <= new.leader_epoch && old.manifest.version <= new.manifest.version);
        assert!(old.manifest.tiered_end <= new.manifest.tiered_end);
        if old.leader != new.leader {
            assert!(old.leader_epoch < new.leader_epoch, "one leader per epoch: {place}");
        }
        // T4: an object leaves the manifest only into the queue, or into a page.
        let held: BTreeSet<_> = new.manifest.entries.iter().map(|entry| entry.object).collect();
        let queue = after.image.deletions().partition(place);
        for entry in old.manifest.entries.iter().filter(|entry| !held.contains(&entry.object)) {
            let key = DeletionTarget::Key { object: ObjectName::Segment { object: entry.object } };
            let queued = queue.iter().any(|item| item.target == key);
            let paged =
                matches!(command, Command::SpillManifest { spill } if spill.moved.contains(&entry.object));
            assert!(queued || paged, "{:?} left {place} by {command:?}", entry.object);
        }
        let pages: BTreeSet<_> = new.manifest.lines.iter().map(|line| line.page).collect();
        for line in old.manifest.lines.iter().filter(|line| !pages.contains(&line.page)) {
            let queued = queue.iter().any(|item| match &item.target {
                DeletionTarget::Key { object: ObjectName::Page { page } } => *page == line.page,
                DeletionTarget::Range { page, whole_page, .. } => *whole_page && *page == line.page,
                _ => false,
            });
            assert!(queued, "page {:?} left {place} by {command:?}", line.page);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_every_command_and_equal_commands_give_equal_states(steps in prop::collection::vec(step(), 1..160)) {
        let mut cluster = Cluster::with_brokers(2);
        for number in 1..3 {
            cluster.create(number, 2, 1);
        }
        let mut twin = ClusterState::decode_snapshot(&cluster.state.encode_snapshot()).unwrap();
        // Two leaders: one sees the newest state, the other one of some commands ago.
        let mut stale = cluster.state.clone();
        for (number, step) in steps.iter().enumerate() {
            let count = u64::try_from(number).unwrap() + 100;
            let sees = if number % 3 == 2 { &stale } else { &cluster.state };
            let Some(command) = command(sees, step, count) else { continue };
            let before = cluster.state.clone();
            let outcome = cluster.apply(&command);
            check_step(&before, &cluster.state, &command, &outcome);
            prop_assert_eq!(&twin.apply(LogIndex(cluster.index), &command), &outcome);
            if number % 16 == 0 {
                stale = cluster.state.clone();
            }
        }
        prop_assert_eq!(&twin, &cluster.state);
        let bytes = cluster.state.encode_snapshot();
        prop_assert_eq!(&twin.encode_snapshot(), &bytes);
        prop_assert_eq!(&ClusterState::decode_snapshot(&bytes).unwrap(), &cluster.state);
    }

    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut command = vec![1];
        command.extend(&bytes);
        if let Ok(read) = Command::decode(&command) {
            prop_assert_eq!(Command::decode(&read.encode()), Ok(read));
        }
        prop_assert!(ClusterState::decode_snapshot(&bytes).is_err());
        // The payload of a snapshot as if its CRC were right.
        let _ = persist::from_bytes::<ClusterState>(&bytes);
    }

    #[test]
    fn numbers_round_trip(unsigned: u64, signed: i64) {
        prop_assert_eq!(persist::from_bytes::<u64>(&persist::to_bytes(&unsigned)), Ok(unsigned));
        prop_assert_eq!(persist::from_bytes::<i64>(&persist::to_bytes(&signed)), Ok(signed));
    }
}
