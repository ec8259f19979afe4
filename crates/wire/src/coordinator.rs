//! The records of `__consumer_offsets`, as Kafka's group coordinator writes them.
//!
//! **Owns** the bytes of a record's key and value: the key is the record's type and then its fields, the value is the
//! version and then its fields. A key without a value takes back what the key's last value said.
//!
//! **Does not own** what the records mean, nor when they are written: that is the coordinator's.
//!
//! **Bad input** is an error as it is for a frame: the same reader, the same bounds. A key of a type that is not here
//! ([`Key::Unknown`]) is not bad: Kafka keeps share groups and Streams groups in the same topic, and a later version may
//! add more. A reader leaves such records alone.
//!
//! ```text
//!  key     +----------+-----------------+        value   +-------------+-----------------+
//!          | type:i16 | fields (v0)     |                | version:i16 | fields          |
//!          +----------+-----------------+                +-------------+-----------------+
//! ```

mod consumer_group_current_member_assignment;
mod consumer_group_member_metadata;
mod consumer_group_metadata;
mod consumer_group_partition_metadata;
mod consumer_group_regular_expression;
mod consumer_group_target_assignment_member;
mod consumer_group_target_assignment_metadata;
mod group_metadata;
mod offset_commit;

use std::fmt::Debug;

use bytes::Bytes;

pub use self::{
    consumer_group_current_member_assignment::{
        ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue,
        TopicPartitions as CurrentTopicPartitions,
    },
    consumer_group_member_metadata::{
        ClassicMemberMetadata, ClassicProtocol, ConsumerGroupMemberMetadataKey,
        ConsumerGroupMemberMetadataValue,
    },
    consumer_group_metadata::{ConsumerGroupMetadataKey, ConsumerGroupMetadataValue},
    consumer_group_partition_metadata::{
        ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, PartitionMetadata,
        TopicMetadata,
    },
    consumer_group_regular_expression::{
        ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue,
    },
    consumer_group_target_assignment_member::{
        ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue,
        TopicPartition as TargetTopicPartitions,
    },
    consumer_group_target_assignment_metadata::{
        ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue,
    },
    group_metadata::{GroupMetadataKey, GroupMetadataValue, MemberMetadata},
    offset_commit::{LegacyOffsetCommitValue, OffsetCommitKey, OffsetCommitValue},
};
use crate::{Context, DecodeError, EncodeError, Reader, StructSpec, Versions, Writer};

/// A record's value, of one kind.
pub trait RecordValue: crate::Value + Default + Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The versions that are encoded and decoded here: all of Kafka's.
    const VERSIONS: Versions;
    /// The versions with compact lengths and tagged fields.
    const FLEXIBLE: Versions;
    /// What the table says of it.
    const SPEC: &'static StructSpec;

    /// Reads a value: its version, then its fields, and nothing else.
    ///
    /// # Errors
    /// What is wrong with the bytes, or that there is no such version.
    fn decode(value: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let version = i16::from_be_bytes(reader.array()?);
        if !Self::VERSIONS.contains(version) {
            return Err(DecodeError::UnsupportedRecordVersion { value: Self::SPEC.name, version });
        }
        let decoded = Self::read(&mut reader, value_context::<Self>(version))?;
        reader.finish()?;
        Ok(decoded)
    }

    /// The value in a version, with the version before it.
    ///
    /// # Errors
    /// Why it has no encoding in `version`: no such version, a field set that the version lacks and that may not be left
    /// out, a string beyond Kafka's longest.
    fn encode(&self, version: i16) -> Result<Bytes, EncodeError> {
        if !Self::VERSIONS.contains(version) {
            return Err(EncodeError::UnsupportedRecordVersion { value: Self::SPEC.name, version });
        }
        let mut writer = Writer::new();
        writer.put(&version.to_be_bytes());
        self.write(&mut writer, value_context::<Self>(version))?;
        Ok(writer.into_bytes())
    }
}

fn value_context<V: RecordValue>(version: i16) -> Context {
    Context {
        version,
        flexible: V::FLEXIBLE.contains(version),
        nullable: false,
        tagged: false,
        field: V::SPEC.name,
    }
}

const fn key_context(spec: &'static StructSpec) -> Context {
    Context { version: 0, flexible: false, nullable: false, tagged: false, field: spec.name }
}

/// One kind of record, as the table has it.
#[derive(Debug, Clone, Copy)]
pub struct RecordSpec {
    /// Kafka's name, without `Key` or `Value`.
    pub name: &'static str,
    /// What its keys begin with.
    pub record_type: i16,
    /// The fields of the key.
    pub key: &'static StructSpec,
    /// The fields of the value.
    pub value: &'static StructSpec,
    /// The versions of the value.
    pub versions: Versions,
    /// Those of them with compact lengths and tagged fields.
    pub flexible: Versions,
}

macro_rules! records {
    ($($record:ident = $number:literal ($key:ident, $value:ident);)*) => {
        /// What a record is about.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Key {
            $(
                #[doc = concat!("Type ", stringify!($number), ".")]
                $record($key),
            )*
            /// A type that is not here. What follows it is not read.
            Unknown(i16),
        }

        /// What a record says.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "one exists at a time: records are read one by one")]
        pub enum Value {
            $(
                #[doc = concat!("Of type ", stringify!($number), ".")]
                $record($value),
            )*
        }

        /// All kinds of records, by type.
        pub const RECORDS: &[RecordSpec] = &[$(
            RecordSpec {
                name: stringify!($record),
                record_type: $number,
                key: &$key::SPEC,
                value: &$value::SPEC,
                versions: <$value as RecordValue>::VERSIONS,
                flexible: <$value as RecordValue>::FLEXIBLE,
            },
        )*];

        impl Key {
            /// What the key begins with.
            #[must_use]
            pub const fn record_type(&self) -> i16 {
                match self {
                    $(Self::$record(_) => $number,)*
                    Self::Unknown(record_type) => *record_type,
                }
            }

            /// Reads a key: its type, then its fields, and nothing else. Of an unknown type only the type is read.
            ///
            /// # Errors
            /// What is wrong with the bytes.
            pub fn decode(key: Bytes) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(key);
                let decoded = match i16::from_be_bytes(reader.array()?) {
                    $($number => Self::$record(crate::Value::read(&mut reader, key_context(&$key::SPEC))?),)*
                    record_type => return Ok(Self::Unknown(record_type)),
                };
                reader.finish()?;
                Ok(decoded)
            }

            /// The key with its type before it.
            ///
            /// # Errors
            /// A string beyond Kafka's longest, and [`EncodeError::UnknownRecordType`] for a key that was not read.
            pub fn encode(&self) -> Result<Bytes, EncodeError> {
                let mut writer = Writer::new();
                writer.put(&self.record_type().to_be_bytes());
                match self {
                    $(Self::$record(key) => crate::Value::write(key, &mut writer, key_context(&$key::SPEC))?,)*
                    Self::Unknown(record_type) => {
                        return Err(EncodeError::UnknownRecordType { record_type: *record_type });
                    }
                }
                Ok(writer.into_bytes())
            }
        }

        impl Value {
            /// Reads the value of a record whose key has this type.
            ///
            /// # Errors
            /// What is wrong with the bytes, or that there is no such type or version.
            pub fn decode(record_type: i16, value: Bytes) -> Result<Self, DecodeError> {
                match record_type {
                    $($number => RecordValue::decode(value).map(Self::$record),)*
                    _ => Err(DecodeError::UnknownRecordType { record_type }),
                }
            }

            /// The value in a version, with the version before it.
            ///
            /// # Errors
            /// As [`RecordValue::encode`].
            pub fn encode(&self, version: i16) -> Result<Bytes, EncodeError> {
                match self {
                    $(Self::$record(value) => RecordValue::encode(value, version),)*
                }
            }
        }
    };
}

records! {
    LegacyOffsetCommit = 0 (OffsetCommitKey, LegacyOffsetCommitValue);
    OffsetCommit = 1 (OffsetCommitKey, OffsetCommitValue);
    GroupMetadata = 2 (GroupMetadataKey, GroupMetadataValue);
    ConsumerGroupMetadata = 3 (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue);
    ConsumerGroupPartitionMetadata = 4 (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue);
    ConsumerGroupMemberMetadata = 5 (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue);
    ConsumerGroupTargetAssignmentMetadata = 6
        (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue);
    ConsumerGroupTargetAssignmentMember = 7
        (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue);
    ConsumerGroupCurrentMemberAssignment = 8
        (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue);
    ConsumerGroupRegularExpression = 16 (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue);
}
