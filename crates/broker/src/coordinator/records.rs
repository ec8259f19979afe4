//! Records of `__consumer_offsets`, from and to what the coordinator keeps. Their bytes are `tidelog_wire::coordinator`'s.

use std::{sync::Arc, time::Duration};

use tidelog_core::groups::{
    classic::{Stored, StoredMember},
    consumer::ConsumerRecord,
    offsets::{CommittedOffset, Place},
};
use tidelog_types::{Timestamp, TopicId};
use tidelog_wire::{
    DecodeError, ErrorCode, Str, Uuid,
    coordinator::{
        GroupMetadataKey, GroupMetadataValue, Key, MemberMetadata, OffsetCommitKey, OffsetCommitValue,
        RecordValue,
    },
};

use super::{consumer_records, write::Entry};

/// The version of a group's value: the last without tagged fields, which every Kafka since 2.3 reads.
const GROUP_VERSION: i16 = 3;

/// The version of an offset's value: with its topic's id, as Kafka writes it since 4.2.
const OFFSET_VERSION: i16 = 4;

/// The one version with an end of its own.
const EXPIRING_OFFSET_VERSION: i16 = 1;

/// What one record says.
#[derive(Debug, PartialEq)]
pub(super) enum Change {
    /// Who is in a group; `None` ends it.
    Members { group: Arc<str>, stored: Option<Stored> },
    /// A committed offset; `None` ends it.
    Offset { group: Arc<str>, place: Place, committed: Option<CommittedOffset> },
    /// A change of a group of the consumer protocol.
    Consumer { group: Arc<str>, record: ConsumerRecord },
    /// Of a kind that is not kept here.
    Other,
}

/// Reads one record.
///
/// # Errors
/// The bytes are not what their kind is.
pub(super) fn read(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Change, DecodeError> {
    let Some(key) = key else { return Ok(Change::Other) };
    let value = value.map(bytes::Bytes::copy_from_slice);
    Ok(match Key::decode(bytes::Bytes::copy_from_slice(key))? {
        Key::OffsetCommit(key) => Change::Offset {
            group: shared(&key.group),
            place: (shared(&key.topic), key.partition),
            committed: match value {
                Some(value) => Some(committed(&OffsetCommitValue::decode(value)?)),
                None => None,
            },
        },
        Key::GroupMetadata(key) => Change::Members {
            group: shared(&key.group),
            stored: match value {
                Some(value) => Some(stored(GroupMetadataValue::decode(value)?)),
                None => None,
            },
        },
        other => match consumer_records::read(other, value)? {
            Some((group, record)) => Change::Consumer { group, record },
            None => Change::Other,
        },
    })
}

/// The record of a change of a group of the consumer protocol.
///
/// # Errors
/// As [`group`].
pub(super) fn consumer(group: &str, record: &ConsumerRecord) -> Result<Entry, ErrorCode> {
    let (key, value) = consumer_records::written(group, record);
    entry(&key, value)
}

/// The record of a group's members.
///
/// # Errors
/// `UNKNOWN_SERVER_ERROR`: it has no encoding, as where a name is longer than Kafka's longest.
pub(super) fn group(name: &str, stored: &Stored) -> Result<Entry, ErrorCode> {
    let members = stored.members.iter().map(|member| MemberMetadata {
        member_id: Str::from(&*member.member_id),
        group_instance_id: member.instance_id.as_deref().map(Str::from),
        client_id: Str::from(&*member.client_id),
        client_host: Str::from(&*member.client_host),
        rebalance_timeout: millis(member.rebalance_timeout),
        session_timeout: millis(member.session_timeout),
        subscription: member.subscription.clone(),
        assignment: member.assignment.clone(),
    });
    let value = GroupMetadataValue {
        protocol_type: stored.protocol_type.as_deref().map(Str::from).unwrap_or_default(),
        generation: stored.generation,
        protocol: stored.protocol.as_deref().map(Str::from),
        leader: stored.leader.as_deref().map(Str::from),
        current_state_timestamp: stored.state_timestamp.map_or(-1, Timestamp::to_wire),
        members: members.collect(),
    };
    entry(&group_key(name), Some(value.encode(GROUP_VERSION)))
}

/// The record that ends a group.
///
/// # Errors
/// As [`group`].
pub(super) fn group_tombstone(name: &str) -> Result<Entry, ErrorCode> {
    entry(&group_key(name), None)
}

/// The records of a commit.
///
/// # Errors
/// As [`group`].
pub(super) fn offsets(group: &str, changes: &[(Place, CommittedOffset)]) -> Result<Vec<Entry>, ErrorCode> {
    let one = |(place, committed): &(Place, CommittedOffset)| {
        let value = OffsetCommitValue {
            offset: committed.offset,
            leader_epoch: committed.leader_epoch,
            metadata: Str::from(&*committed.metadata),
            commit_timestamp: committed.commit_time.to_wire(),
            expire_timestamp: committed.expire_time.map_or(-1, Timestamp::to_wire),
            topic_id: committed.topic_id.map(Uuid::from).unwrap_or(Uuid::ZERO),
        };
        let version = if committed.expire_time.is_some() { EXPIRING_OFFSET_VERSION } else { OFFSET_VERSION };
        entry(&offset_key(group, place), Some(value.encode(version)))
    };
    changes.iter().map(one).collect()
}

/// The record that ends an offset.
///
/// # Errors
/// As [`group`].
pub(super) fn offset_tombstone(group: &str, place: &Place) -> Result<Entry, ErrorCode> {
    entry(&offset_key(group, place), None)
}

fn group_key(group: &str) -> Key {
    Key::GroupMetadata(GroupMetadataKey { group: Str::from(group) })
}

fn offset_key(group: &str, (topic, partition): &Place) -> Key {
    Key::OffsetCommit(OffsetCommitKey {
        group: Str::from(group),
        topic: Str::from(&**topic),
        partition: *partition,
    })
}

fn entry(
    key: &Key,
    value: Option<Result<bytes::Bytes, tidelog_wire::EncodeError>>,
) -> Result<Entry, ErrorCode> {
    let unwritable = |error: tidelog_wire::EncodeError| {
        tracing::warn!(%error, "a record of a group has no encoding");
        ErrorCode::UnknownServerError
    };
    Ok(Entry { key: key.encode().map_err(unwritable)?, value: value.transpose().map_err(unwritable)? })
}

fn committed(value: &OffsetCommitValue) -> CommittedOffset {
    CommittedOffset {
        offset: value.offset,
        leader_epoch: value.leader_epoch,
        metadata: shared(&value.metadata),
        commit_time: time(value.commit_timestamp).unwrap_or(Timestamp::from_millis(0)),
        expire_time: time(value.expire_timestamp),
        topic_id: (!value.topic_id.is_zero()).then(|| TopicId::from(value.topic_id)),
    }
}

fn stored(value: GroupMetadataValue) -> Stored {
    let members = value.members.into_iter().map(|member| StoredMember {
        member_id: shared(&member.member_id),
        instance_id: member.group_instance_id.as_ref().map(shared),
        client_id: shared(&member.client_id),
        client_host: shared(&member.client_host),
        // Version 0 had none: what a member had to answer by was its session.
        rebalance_timeout: duration(if member.rebalance_timeout < 0 {
            member.session_timeout
        } else {
            member.rebalance_timeout
        }),
        session_timeout: duration(member.session_timeout),
        subscription: copied(&member.subscription),
        assignment: copied(&member.assignment),
    });
    Stored {
        protocol_type: (!value.protocol_type.is_empty()).then(|| shared(&value.protocol_type)),
        generation: value.generation,
        protocol: value.protocol.as_ref().map(shared),
        leader: value.leader.as_ref().map(shared),
        state_timestamp: time(value.current_state_timestamp),
        members: members.collect(),
    }
}

/// A text that outlives the record it came in.
pub(super) fn shared(text: &Str) -> Arc<str> {
    Arc::from(text.as_str())
}

/// Bytes that do not keep the record alive that they came in.
pub(super) fn copied(bytes: &bytes::Bytes) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}

pub(super) fn time(millis: i64) -> Option<Timestamp> {
    u64::try_from(millis).ok().map(Timestamp::from_millis)
}

pub(super) fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

pub(super) fn duration(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(entry: &Entry) -> Change {
        read(Some(&entry.key), entry.value.as_deref()).unwrap()
    }

    #[test]
    fn members_are_read_as_they_were_written() {
        let written = Stored {
            protocol_type: Some("consumer".into()),
            generation: 7,
            protocol: Some("range".into()),
            leader: Some("m-1".into()),
            state_timestamp: Some(Timestamp::from_millis(99)),
            members: vec![StoredMember {
                member_id: "m-1".into(),
                instance_id: Some("i".into()),
                client_id: "c".into(),
                client_host: "/127.0.0.1".into(),
                rebalance_timeout: Duration::from_secs(300),
                session_timeout: Duration::from_secs(45),
                subscription: bytes::Bytes::from_static(b"\0\x01"),
                assignment: bytes::Bytes::from_static(b"\0"),
            }],
        };
        let entry = group("g", &written).unwrap();
        assert_eq!(back(&entry), Change::Members { group: "g".into(), stored: Some(written) });
        let end = group_tombstone("g").unwrap();
        assert_eq!((&end.key, end.value.is_none()), (&entry.key, true));
        assert_eq!(back(&end), Change::Members { group: "g".into(), stored: None });
    }

    #[test]
    fn offsets_are_read_as_they_were_written() {
        let place = |partition| -> Place { ("t".into(), partition) };
        let plain = CommittedOffset {
            offset: 42,
            leader_epoch: 3,
            metadata: "m".into(),
            commit_time: Timestamp::from_millis(5),
            expire_time: None,
            topic_id: Some(TopicId::from_bytes([9; 16])),
        };
        // The version with an end has neither epoch nor topic id.
        let ending = CommittedOffset {
            expire_time: Some(Timestamp::from_millis(8)),
            leader_epoch: -1,
            topic_id: None,
            ..plain.clone()
        };
        let changes = [(place(0), plain), (place(1), ending)];
        let entries = offsets("g", &changes).unwrap();
        for (entry, (place, committed)) in entries.iter().zip(changes) {
            let change =
                Change::Offset { group: "g".into(), place: place.clone(), committed: Some(committed) };
            assert_eq!(back(entry), change);
            let end = offset_tombstone("g", &place).unwrap();
            assert_eq!(end.key, entry.key);
            assert_eq!(back(&end), Change::Offset { group: "g".into(), place, committed: None });
        }
    }

    #[test]
    fn what_is_not_known_is_left_alone_and_what_is_broken_is_an_error() {
        assert_eq!(read(None, None), Ok(Change::Other));
        assert_eq!(read(Some(&[0, 99, 1]), Some(b"x")), Ok(Change::Other));
        assert!(read(Some(&[0, 2, 0, 9]), None).is_err(), "a key that is cut");
        let key = group_tombstone("g").unwrap().key;
        assert!(read(Some(&key), Some(&[0, 3, 0])).is_err(), "a value that is cut");
    }
}
