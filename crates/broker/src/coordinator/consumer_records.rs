//! Records of groups of the consumer protocol, from and to what their machine keeps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_core::groups::consumer::{
    ClassicMember, ConsumerRecord, CurrentAssignment, EpochPartitions, GroupMetadata, MemberMetadata,
    MemberState, Partitions, ResolvedPattern, TargetAssignmentMetadata,
};
use tidelog_types::{Timestamp, TopicId};
use tidelog_wire::{
    DecodeError, EncodeError, Str, Uuid,
    coordinator::{
        ClassicMemberMetadata, ClassicProtocol, ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupCurrentMemberAssignmentValue, ConsumerGroupMemberMetadataKey,
        ConsumerGroupMemberMetadataValue, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue,
        ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue,
        ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue,
        CurrentTopicPartitions, Key, RecordValue, TargetTopicPartitions,
    },
};

use super::records::{copied, duration, millis, shared, time};

/// The one version that all of these have.
const VERSION: i16 = 0;

/// A value as it is in a record; `None` ends what its key stands for.
type Value = Option<Result<bytes::Bytes, EncodeError>>;

/// The key and the value of a record.
pub(super) fn written(group: &str, record: &ConsumerRecord) -> (Key, Value) {
    let group_id = || Str::from(group);
    match record {
        ConsumerRecord::GroupMetadata(value) => {
            let value = value.map(|value| {
                ConsumerGroupMetadataValue { epoch: value.epoch, metadata_hash: value.metadata_hash }
                    .encode(VERSION)
            });
            (Key::ConsumerGroupMetadata(ConsumerGroupMetadataKey { group_id: group_id() }), value)
        }
        ConsumerRecord::MemberMetadata { member_id, value } => {
            let key =
                ConsumerGroupMemberMetadataKey { group_id: group_id(), member_id: Str::from(&**member_id) };
            let value = value.as_ref().map(|value| member_value(value).encode(VERSION));
            (Key::ConsumerGroupMemberMetadata(key), value)
        }
        ConsumerRecord::TargetAssignmentMetadata(value) => {
            let value = value.map(|value| {
                ConsumerGroupTargetAssignmentMetadataValue {
                    assignment_epoch: value.assignment_epoch,
                    assignment_timestamp: value.timestamp.map_or(0, Timestamp::to_wire),
                }
                .encode(VERSION)
            });
            let key = ConsumerGroupTargetAssignmentMetadataKey { group_id: group_id() };
            (Key::ConsumerGroupTargetAssignmentMetadata(key), value)
        }
        ConsumerRecord::TargetAssignmentMember { member_id, value } => {
            let key = ConsumerGroupTargetAssignmentMemberKey {
                group_id: group_id(),
                member_id: Str::from(&**member_id),
            };
            let value = value.as_ref().map(|value| target_value(value).encode(VERSION));
            (Key::ConsumerGroupTargetAssignmentMember(key), value)
        }
        ConsumerRecord::CurrentMemberAssignment { member_id, value } => {
            let key = ConsumerGroupCurrentMemberAssignmentKey {
                group_id: group_id(),
                member_id: Str::from(&**member_id),
            };
            let value = value.as_ref().map(|value| current_value(value).encode(VERSION));
            (Key::ConsumerGroupCurrentMemberAssignment(key), value)
        }
        ConsumerRecord::RegularExpression { pattern, value } => {
            let key = ConsumerGroupRegularExpressionKey {
                group_id: group_id(),
                regular_expression: Str::from(&**pattern),
            };
            let value = value.as_ref().map(|value| {
                ConsumerGroupRegularExpressionValue {
                    topics: value.topics.iter().map(|topic| Str::from(&**topic)).collect(),
                    version: value.version,
                    timestamp: value.timestamp.to_wire(),
                }
                .encode(VERSION)
            });
            (Key::ConsumerGroupRegularExpression(key), value)
        }
    }
}

fn member_value(member: &MemberMetadata) -> ConsumerGroupMemberMetadataValue {
    ConsumerGroupMemberMetadataValue {
        instance_id: member.instance_id.as_deref().map(Str::from),
        rack_id: member.rack_id.as_deref().map(Str::from),
        client_id: Str::from(&*member.client_id),
        client_host: Str::from(&*member.client_host),
        subscribed_topic_names: member.subscribed_topics.iter().map(|topic| Str::from(&**topic)).collect(),
        subscribed_topic_regex: Some(Str::from(&*member.subscribed_pattern)),
        rebalance_timeout_ms: millis(member.rebalance_timeout),
        server_assignor: member.server_assignor.as_deref().map(Str::from),
        classic_member_metadata: member.classic.as_ref().map(|classic| ClassicMemberMetadata {
            session_timeout_ms: millis(classic.session_timeout),
            supported_protocols: classic
                .protocols
                .iter()
                .map(|(name, metadata)| ClassicProtocol {
                    name: Str::from(&**name),
                    metadata: metadata.clone(),
                })
                .collect(),
        }),
    }
}

fn target_value(target: &Partitions) -> ConsumerGroupTargetAssignmentMemberValue {
    let topic = |(topic, partitions): (&TopicId, &BTreeSet<i32>)| TargetTopicPartitions {
        topic_id: Uuid::from(*topic),
        partitions: partitions.iter().copied().collect(),
    };
    ConsumerGroupTargetAssignmentMemberValue { topic_partitions: target.iter().map(topic).collect() }
}

fn current_value(current: &CurrentAssignment) -> ConsumerGroupCurrentMemberAssignmentValue {
    ConsumerGroupCurrentMemberAssignmentValue {
        member_epoch: current.epoch,
        previous_member_epoch: current.previous_epoch,
        state: current.state.to_wire(),
        assigned_partitions: epochs_value(&current.assigned),
        partitions_pending_revocation: epochs_value(&current.pending_revocation),
    }
}

fn epochs_value(partitions: &EpochPartitions) -> Vec<CurrentTopicPartitions> {
    let topic = |(topic, partitions): (&TopicId, &BTreeMap<i32, i32>)| CurrentTopicPartitions {
        topic_id: Uuid::from(*topic),
        partitions: partitions.keys().copied().collect(),
        assignment_epochs: Some(partitions.values().copied().collect()),
    };
    partitions.iter().map(topic).collect()
}

/// Reads a record; the group's name with it. `None`: of a kind that is not kept here.
///
/// # Errors
/// The bytes are not what their kind is.
pub(super) fn read(
    key: Key,
    value: Option<bytes::Bytes>,
) -> Result<Option<(Arc<str>, ConsumerRecord)>, DecodeError> {
    fn decoded<V: RecordValue>(value: Option<bytes::Bytes>) -> Result<Option<V>, DecodeError> {
        value.map(V::decode).transpose()
    }
    Ok(Some(match key {
        Key::ConsumerGroupMetadata(key) => {
            let value = decoded::<ConsumerGroupMetadataValue>(value)?;
            let value =
                value.map(|value| GroupMetadata { epoch: value.epoch, metadata_hash: value.metadata_hash });
            (shared(&key.group_id), ConsumerRecord::GroupMetadata(value))
        }
        Key::ConsumerGroupMemberMetadata(key) => {
            let value = decoded(value)?.map(member_of);
            let member_id = shared(&key.member_id);
            (shared(&key.group_id), ConsumerRecord::MemberMetadata { member_id, value })
        }
        Key::ConsumerGroupTargetAssignmentMetadata(key) => {
            let value = decoded::<ConsumerGroupTargetAssignmentMetadataValue>(value)?;
            let value = value.map(|value| TargetAssignmentMetadata {
                assignment_epoch: value.assignment_epoch,
                timestamp: time(value.assignment_timestamp).filter(|_| value.assignment_timestamp != 0),
            });
            (shared(&key.group_id), ConsumerRecord::TargetAssignmentMetadata(value))
        }
        Key::ConsumerGroupTargetAssignmentMember(key) => {
            let value = decoded(value)?.map(|value| Arc::new(target_of(&value)));
            let member_id = shared(&key.member_id);
            (shared(&key.group_id), ConsumerRecord::TargetAssignmentMember { member_id, value })
        }
        Key::ConsumerGroupCurrentMemberAssignment(key) => {
            let value = decoded(value)?.map(|value| current_of(&value));
            let member_id = shared(&key.member_id);
            (shared(&key.group_id), ConsumerRecord::CurrentMemberAssignment { member_id, value })
        }
        Key::ConsumerGroupRegularExpression(key) => {
            let value = decoded::<ConsumerGroupRegularExpressionValue>(value)?;
            let value = value.map(|value| ResolvedPattern {
                topics: value.topics.iter().map(shared).collect(),
                version: value.version,
                timestamp: time(value.timestamp).unwrap_or(Timestamp::from_millis(0)),
            });
            let pattern = shared(&key.regular_expression);
            (shared(&key.group_id), ConsumerRecord::RegularExpression { pattern, value })
        }
        _ => return Ok(None),
    }))
}

fn member_of(value: ConsumerGroupMemberMetadataValue) -> MemberMetadata {
    // Every classic member has a protocol. Where the field was left out, which Kafka takes for an empty one, there is none.
    let classic = value.classic_member_metadata.filter(|classic| !classic.supported_protocols.is_empty());
    MemberMetadata {
        instance_id: value.instance_id.as_ref().map(shared),
        rack_id: value.rack_id.as_ref().map(shared),
        client_id: shared(&value.client_id),
        client_host: shared(&value.client_host),
        subscribed_topics: Arc::new(value.subscribed_topic_names.iter().map(shared).collect()),
        subscribed_pattern: value.subscribed_topic_regex.as_ref().map_or_else(|| "".into(), shared),
        rebalance_timeout: duration(value.rebalance_timeout_ms),
        server_assignor: value.server_assignor.as_ref().map(shared),
        classic: classic.map(|classic| ClassicMember {
            session_timeout: duration(classic.session_timeout_ms),
            protocols: classic
                .supported_protocols
                .iter()
                .map(|protocol| (shared(&protocol.name), copied(&protocol.metadata)))
                .collect(),
        }),
    }
}

fn target_of(value: &ConsumerGroupTargetAssignmentMemberValue) -> Partitions {
    let mut target = Partitions::new();
    for topic in &value.topic_partitions {
        target.entry(TopicId::from(topic.topic_id)).or_default().extend(&topic.partitions);
    }
    target
}

fn current_of(value: &ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment {
    CurrentAssignment {
        epoch: value.member_epoch,
        previous_epoch: value.previous_member_epoch,
        state: MemberState::from_wire(value.state),
        assigned: epochs_of(&value.assigned_partitions, value.member_epoch),
        pending_revocation: epochs_of(&value.partitions_pending_revocation, value.member_epoch),
    }
}

/// Partitions with the epochs at which they were given; records of older versions have none, and the member's own is then the
/// latest that it can have been.
fn epochs_of(topics: &[CurrentTopicPartitions], epoch: i32) -> EpochPartitions {
    let mut partitions = EpochPartitions::new();
    for topic in topics {
        let epochs = topic.assignment_epochs.as_deref().unwrap_or_default();
        let of_topic = partitions.entry(TopicId::from(topic.topic_id)).or_default();
        for (index, partition) in topic.partitions.iter().enumerate() {
            of_topic.insert(*partition, epochs.get(index).copied().unwrap_or(epoch));
        }
    }
    partitions
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        let topic = TopicId::from_bytes([3; 16]);
        let member_id: Arc<str> = "m".into();
        let id = || Arc::clone(&member_id);
        let metadata = MemberMetadata {
            instance_id: Some("i".into()),
            rack_id: Some("r".into()),
            client_id: "c".into(),
            client_host: "/127.0.0.1".into(),
            subscribed_topics: Arc::new(["a".into(), "b".into()].into()),
            subscribed_pattern: "t.*".into(),
            rebalance_timeout: Duration::from_secs(60),
            server_assignor: Some("range".into()),
            classic: Some(ClassicMember {
                session_timeout: Duration::from_secs(45),
                protocols: vec![("range".into(), bytes::Bytes::from_static(b"\0\x01"))],
            }),
        };
        let current = CurrentAssignment {
            epoch: 7,
            previous_epoch: 6,
            state: MemberState::UnrevokedPartitions,
            assigned: [(topic, [(0, 5), (2, 7)].into())].into(),
            pending_revocation: [(topic, [(1, 6)].into())].into(),
        };
        let pattern = ResolvedPattern {
            topics: ["tx".into(), "ty".into()].into(),
            version: 12,
            timestamp: Timestamp::from_millis(99),
        };
        let target =
            TargetAssignmentMetadata { assignment_epoch: 8, timestamp: Some(Timestamp::from_millis(77)) };
        let records = [
            ConsumerRecord::GroupMetadata(Some(GroupMetadata { epoch: 8, metadata_hash: -5 })),
            ConsumerRecord::MemberMetadata { member_id: id(), value: Some(metadata) },
            ConsumerRecord::TargetAssignmentMetadata(Some(target)),
            ConsumerRecord::TargetAssignmentMember {
                member_id: id(),
                value: Some(Arc::new([(topic, [0, 1].into())].into())),
            },
            ConsumerRecord::CurrentMemberAssignment { member_id: id(), value: Some(current) },
            ConsumerRecord::RegularExpression { pattern: "t.*".into(), value: Some(pattern) },
            ConsumerRecord::GroupMetadata(None),
            ConsumerRecord::MemberMetadata { member_id: id(), value: None },
            ConsumerRecord::TargetAssignmentMetadata(None),
            ConsumerRecord::TargetAssignmentMember { member_id: id(), value: None },
            ConsumerRecord::CurrentMemberAssignment { member_id: id(), value: None },
            ConsumerRecord::RegularExpression { pattern: "t.*".into(), value: None },
        ];
        for record in records {
            let (key, value) = written("g", &record);
            let key = Key::decode(key.encode().unwrap()).unwrap();
            let back = read(key, value.transpose().unwrap()).unwrap();
            assert_eq!(back, Some(("g".into(), record)));
        }
    }
}
