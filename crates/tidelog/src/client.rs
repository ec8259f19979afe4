//! The product's own Kafka client: what the verbs of the command line and the demo speak.
//!
//! **Owns** connections, metadata look-ups, an idempotent producer, a reader of partitions, the calls of the admin verbs.
//!
//! **Does not own** membership in consumer groups (it looks at groups and sets their offsets) or transactions. It talks to a node as any other client does, over the Kafka
//! protocol, so that what a verb shows is what a client sees.

mod admin;
mod assignment;
mod connection;
mod groups;
mod partitioner;
mod producer;
mod reader;

use std::{collections::BTreeMap, time::Duration};

use thiserror::Error;
use tidelog_types::{TopicId, TopicName};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{MetadataRequest, MetadataResponse, metadata::MetadataRequestTopic},
};

use crate::printable::printable;

pub use admin::{Admin, ConfigEntry, Configured, NewTopic};
pub use connection::{Connection, ConnectionError};
pub use groups::{GroupAdmin, GroupDescription, GroupMember, ListedGroup, LookedUp, Place};
pub use partitioner::partition_of;
pub use producer::{Compression, NewRecord, Producer, ProducerOptions};
#[doc(hidden)]
pub use reader::fetched;
pub use reader::{LeaderFetch, LeaderReader, PartitionReader, ReadRecord, StartAt};

/// How long an admin call may take on the broker.
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);

const METADATA_VERSION: i16 = 12;

/// Why a call of the client failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The broker cannot be talked to.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The broker refused.
    #[error("{}: {}", printable(what), refusal(*code, message.as_deref()))]
    Refused {
        /// What was asked.
        what: String,
        /// Kafka's error code.
        code: i16,
        /// What the broker adds to it.
        message: Option<String>,
    },
    /// An answer lacks what it must have.
    #[error("the broker's answer lacks {0}")]
    Incomplete(&'static str),
    /// A record batch that the broker gave does not decode.
    #[error("offset {offset} of partition {partition}: {reason}")]
    BadBatch {
        /// The partition.
        partition: i32,
        /// Where in it.
        offset: i64,
        /// What is wrong.
        reason: String,
    },
}

fn refusal(code: i16, message: Option<&str>) -> String {
    let name = ErrorCode::from_code(code).map_or_else(|| format!("error {code}"), |known| known.to_string());
    match message {
        Some(message) => format!("{name}: {}", printable(message)),
        None => name,
    }
}

impl ClientError {
    /// Kafka's code, where the broker refused.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => ErrorCode::from_code(*code),
            _ => None,
        }
    }
}

/// Makes a refusal of an error code; nothing for code 0.
pub(crate) fn check(
    what: impl FnOnce() -> String,
    code: i16,
    message: Option<&Str>,
) -> Result<(), ClientError> {
    if code == 0 {
        return Ok(());
    }
    Err(ClientError::Refused { what: what(), code, message: message.map(|text| text.to_string()) })
}

/// Where the partitions of a topic are.
#[derive(Debug, Clone)]
pub struct TopicMetadata {
    /// The topic's name.
    pub name: TopicName,
    /// Its present life.
    pub topic_id: TopicId,
    /// The address of each partition's leader, by partition.
    pub leaders: Vec<String>,
    /// Each partition's leader epoch.
    pub leader_epochs: Vec<i32>,
}

/// Asks a node where a topic is.
///
/// # Errors
/// [`ClientError::Refused`] where the topic does not exist or has no leader.
pub async fn topic_metadata(
    connection: &mut Connection,
    name: &TopicName,
) -> Result<TopicMetadata, ClientError> {
    let topic = MetadataRequestTopic { name: Some(name.as_str().into()), ..Default::default() };
    let request =
        MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation: false, ..Default::default() };
    let answer: MetadataResponse = connection.call(METADATA_VERSION, &request, ADMIN_TIMEOUT).await?;
    let brokers: BTreeMap<i32, String> = answer
        .brokers
        .iter()
        .map(|broker| (broker.node_id, format!("{}:{}", broker.host, broker.port)))
        .collect();
    let topic = answer.topics.into_iter().next().ok_or(ClientError::Incomplete("the topic"))?;
    check(|| format!("topic {name}"), topic.error_code, None)?;
    let mut partitions = topic.partitions;
    partitions.sort_by_key(|partition| partition.partition_index);
    let mut leaders = Vec::with_capacity(partitions.len());
    for partition in &partitions {
        check(|| format!("partition {} of {name}", partition.partition_index), partition.error_code, None)?;
        let leader =
            brokers.get(&partition.leader_id).ok_or(ClientError::Incomplete("a partition's leader"))?;
        leaders.push(leader.clone());
    }
    Ok(TopicMetadata {
        name: name.clone(),
        topic_id: topic.topic_id.into(),
        leaders,
        leader_epochs: partitions.iter().map(|partition| partition.leader_epoch).collect(),
    })
}
