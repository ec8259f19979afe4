//! Names and numbers of things.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::limits;

/// A text is not the base64url form of a 16-byte id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not an id: 22 characters of A-Z a-z 0-9 - _ are expected")]
pub struct IdParseError {
    /// What was given.
    pub text: String,
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode_id(bytes: [u8; 16]) -> String {
    let value = u128::from_be_bytes(bytes);
    (0..22)
        .map(|index| {
            let shift = 128 - 6 * (index + 1);
            let digit = if shift >= 0 { (value >> shift) & 63 } else { (value << -shift) & 63 };
            char::from(ALPHABET[usize::try_from(digit).expect("six bits fit an index")])
        })
        .collect()
}

fn decode_id(text: &str) -> Result<[u8; 16], IdParseError> {
    let refused = || IdParseError { text: text.chars().take(64).collect() };
    if text.len() != 22 {
        return Err(refused());
    }
    let mut value = 0_u128;
    for (index, character) in text.bytes().enumerate() {
        let digit = ALPHABET.iter().position(|known| *known == character).ok_or_else(refused)?;
        let digit = u128::try_from(digit).expect("a position below 64");
        if index < 21 {
            value = value << 6 | digit;
        } else if digit & 15 != 0 {
            // The last character carries two bits; the other four must be zero, or one id had many spellings.
            return Err(refused());
        } else {
            value = value << 2 | digit >> 4;
        }
    }
    Ok(value.to_be_bytes())
}

macro_rules! uuid_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Takes the 16 bytes as they are.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The 16 bytes, as on the wire.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&encode_id(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = IdParseError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                decode_id(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

uuid_type!(
    /// The id of one life of a topic: a topic deleted and created again under its name has another one. Shown as
    /// Kafka shows it, in 22 characters of base64url.
    TopicId
);
uuid_type!(
    /// The id of a cluster, fixed when its first controller starts.
    ClusterId
);
uuid_type!(
    /// The id of a data directory, fixed when it is first used.
    DirectoryId
);
uuid_type!(
    /// The id of one boot of the machine: two starts with equal ids had no power cut between them.
    BootId
);
uuid_type!(
    /// The id of one claim of a bucket by a broker: a start that goes on from a data directory knows the one before.
    ClaimId
);

macro_rules! number_type {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $raw);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_type!(
    /// A broker's number, as `node.id` configures it; never negative in a valid configuration.
    BrokerId(i32)
);
number_type!(
    /// The number of a partition in its topic.
    PartitionIndex(i32)
);
number_type!(
    /// An idempotent producer's id, never given out twice.
    ProducerId(i64)
);
number_type!(
    /// The epoch of a producer id: a larger one fences the smaller.
    ProducerEpoch(i16)
);
number_type!(
    /// One registration of a broker; the controller issues a larger one each time. The upper 32 bits are the restore
    /// number of the cluster, so that keys written before a restore are never written again.
    BrokerIncarnation(u64)
);
number_type!(
    /// A count of uploads within one incarnation.
    UploadSequence(u64)
);

/// What makes an object key unique without chance: who wrote it, and its how-manyeth upload it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct UploadId {
    /// The writer's incarnation.
    pub incarnation: BrokerIncarnation,
    /// The writer's count.
    pub sequence: UploadSequence,
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.incarnation, self.sequence)
    }
}

/// A topic's name: Kafka's rules, checked once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// Why a topic name is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopicNameError {
    /// No characters.
    #[error("a topic name is empty")]
    Empty,
    /// `.` and `..` are folders.
    #[error("a topic name cannot be `.` or `..`")]
    Dots,
    /// More than [`limits::TOPIC_NAME_BYTES_MAX`].
    #[error("a topic name has {length} characters, at most {} are allowed", limits::TOPIC_NAME_BYTES_MAX)]
    TooLong {
        /// How many it has.
        length: usize,
    },
    /// A character outside of ASCII letters, digits, `.`, `_` and `-`.
    #[error("a topic name holds {character:?}; letters, digits, '.', '_' and '-' are allowed")]
    Character {
        /// The first such character.
        character: char,
    },
}

impl TopicName {
    /// Checks a name by Kafka's rules.
    ///
    /// # Errors
    /// Which rule it breaks; the caller's name will never be accepted.
    pub fn new(name: &str) -> Result<Self, TopicNameError> {
        if name.is_empty() {
            return Err(TopicNameError::Empty);
        }
        if name == "." || name == ".." {
            return Err(TopicNameError::Dots);
        }
        if name.len() > limits::TOPIC_NAME_BYTES_MAX {
            return Err(TopicNameError::TooLong { length: name.chars().count() });
        }
        match name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
            Some(character) => Err(TopicNameError::Character { character }),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for TopicName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TopicName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// One partition of one life of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// The topic's life.
    pub topic_id: TopicId,
    /// The partition in it.
    pub partition: PartitionIndex,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic_id, self.partition)
    }
}

impl FromStr for TopicPartition {
    type Err = IdParseError;

    /// Reads `<topic id>-<partition>`, the name of a partition's folder.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || IdParseError { text: text.chars().take(64).collect() };
        let (topic_id, partition) = text.split_at_checked(22).ok_or_else(refused)?;
        let digits = partition.strip_prefix('-').ok_or_else(refused)?;
        let partition: i32 = digits.parse().map_err(|_| refused())?;
        if partition < 0 || partition.to_string() != digits {
            return Err(refused());
        }
        Ok(Self { topic_id: topic_id.parse()?, partition: PartitionIndex(partition) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_reads_as_kafka_writes_it() {
        let id = TopicId::from_bytes([0xff; 16]);
        assert_eq!(id.to_string(), "_____________________w");
        assert_eq!(TopicId::from_bytes([0; 16]).to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert!("_____________________x".parse::<TopicId>().is_err(), "loose bits are refused");
    }

    #[test]
    fn topic_names_follow_kafkas_rules() {
        assert!(TopicName::new("flights.2013_a-b").is_ok());
        assert_eq!(TopicName::new(""), Err(TopicNameError::Empty));
        assert_eq!(TopicName::new(".."), Err(TopicNameError::Dots));
        assert_eq!(TopicName::new("a/b"), Err(TopicNameError::Character { character: '/' }));
        assert_eq!(TopicName::new(&"a".repeat(250)), Err(TopicNameError::TooLong { length: 250 }));
        assert!(TopicName::new(&"a".repeat(249)).is_ok());
    }

    #[test]
    fn a_folder_name_has_one_spelling() {
        assert!("AAAAAAAAAAAAAAAAAAAAAA-01".parse::<TopicPartition>().is_err());
        assert!("AAAAAAAAAAAAAAAAAAAAAA--1".parse::<TopicPartition>().is_err());
        assert!("AAAAAAAAAAAAAAAAAAAAA\u{e9}-1".parse::<TopicPartition>().is_err());
    }

    proptest! {
        #[test]
        fn ids_and_partitions_round_trip(bytes: [u8; 16], partition in 0..i32::MAX) {
            let place = TopicPartition { topic_id: TopicId::from_bytes(bytes), partition: PartitionIndex(partition) };
            prop_assert_eq!(place.to_string().parse::<TopicPartition>().unwrap(), place);
        }
    }
}
