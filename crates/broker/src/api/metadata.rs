//! Metadata (key 3): brokers, topics and who leads them, and the creation of topics that are asked for by name.
//!
//! What is answered comes from the image that is *hosted*: a partition that is named here has a leader that serves it. So a
//! topic that this request creates is waited for: LEADER_NOT_AVAILABLE is the end for some clients.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::cluster::{MetadataImage, PartitionImage, TopicImage};
use tidelog_types::{BrokerId, TopicId, TopicName};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        MetadataRequest, MetadataResponse,
        metadata::{
            MetadataRequestTopic, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
        },
    },
};

use super::create_topics::{self, Wanted};
use crate::{
    connection::Caller,
    error_code,
    node::{Node, is_internal, wire_name},
};

/// Kafka's bits of what may be done to a topic, all of them: there is no authorizer.
pub(crate) const TOPIC_OPERATIONS_ALL: i32 = 0b1101_1111_1000;

/// Kafka's bits of what may be done to the cluster, all of them.
pub(crate) const CLUSTER_OPERATIONS_ALL: i32 = 0b1_1111_1010_0000;

/// Kafka's "was not asked for".
pub(crate) const OPERATIONS_UNKNOWN: i32 = i32::MIN;

/// How long the creation of a topic is waited for: a client asks again soon.
const CREATE_WAIT_MS: i32 = 10_000;

/// Bytes of a topic in an answer, and of each partition of it, at most, about.
const TOPIC_BYTES: u64 = 320;
const PARTITION_BYTES: u64 = 48;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, request: &MetadataRequest) -> u64 {
    let image = node.image();
    let of = |topic: &TopicImage| TOPIC_BYTES + PARTITION_BYTES * topic.partitions.len() as u64;
    match &request.topics {
        Some(asked) if !asked.is_empty() => asked
            .iter()
            .map(|asked| {
                let named = asked.name.as_ref().and_then(|name| TopicName::new(name).ok());
                let topic = match &named {
                    Some(name) => image.topic_by_name(name),
                    None => image.topic(TopicId::from(asked.topic_id)),
                };
                topic.map_or(TOPIC_BYTES, |topic| of(topic))
            })
            .sum(),
        _ => image.topics().map(|topic| of(topic)).sum(),
    }
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: MetadataRequest,
) -> MetadataResponse {
    if let Some(refused) = refuse_ids(version, &request) {
        return refused;
    }
    let mut image = node.image();
    let wants_operations = request.include_topic_authorized_operations;
    // Version 0 has no null: an empty list is all.
    let all = request.topics.as_ref().is_none_or(|topics| version == 0 && topics.is_empty());
    let mut topics = if all {
        image.topics().map(|topic| describe(&image, topic)).collect()
    } else {
        let mut asked = request.topics.unwrap_or_default();
        // Each once, as Kafka does: an answer may be thousands of times as large as its name.
        let mut named = BTreeSet::new();
        asked.retain(|topic| named.insert((topic.name.clone(), TopicId::from(topic.topic_id))));
        if request.allow_auto_topic_creation && create_missing(node, &image, &asked).await {
            image = node.image();
        }
        asked.iter().map(|topic| find(&image, version, topic)).collect::<Vec<_>>()
    };
    for topic in topics.iter_mut().filter(|topic| wants_operations && topic.error_code == 0) {
        topic.topic_authorized_operations = TOPIC_OPERATIONS_ALL;
    }
    let wants_cluster = (8..=10).contains(&version) && request.include_cluster_authorized_operations;
    MetadataResponse {
        brokers: brokers(node, caller, &image)
            .into_iter()
            .map(|(id, host, port, rack)| MetadataResponseBroker { node_id: id.0, host, port, rack })
            .collect(),
        cluster_id: image.cluster_id.map(|id| Str::from(id.to_string())),
        controller_id: node.id.0,
        topics,
        cluster_authorized_operations: if wants_cluster {
            CLUSTER_OPERATIONS_ALL
        } else {
            OPERATIONS_UNKNOWN
        },
        ..MetadataResponse::default()
    }
}

/// Versions 10 and 11 have a field for a topic's id, and neither asks by it: such a request is refused whole.
fn refuse_ids(version: i16, request: &MetadataRequest) -> Option<MetadataResponse> {
    let asked = request.topics.as_ref().filter(|_| (10..=11).contains(&version))?;
    if asked.iter().all(|topic| topic.name.is_some() && topic.topic_id.is_zero()) {
        return None;
    }
    let refuse = |topic: &MetadataRequestTopic| MetadataResponseTopic {
        error_code: ErrorCode::InvalidRequest.code(),
        name: Some(topic.name.clone().unwrap_or_default()),
        topic_id: topic.topic_id,
        ..MetadataResponseTopic::default()
    };
    Some(MetadataResponse { topics: asked.iter().map(refuse).collect(), ..MetadataResponse::default() })
}

/// The brokers that are alive, with the address of the listener that the request came in on.
pub(crate) fn brokers(
    node: &Node,
    caller: &Caller,
    image: &MetadataImage,
) -> Vec<(BrokerId, Str, i32, Option<Str>)> {
    let listener = &caller.endpoint;
    image
        .brokers()
        .filter(|broker| !broker.fenced || broker.id == node.id)
        .filter_map(|broker| {
            let rack = broker.rack.as_deref().map(Str::from);
            if broker.id == node.id {
                return Some((broker.id, Str::from(listener.host.as_str()), i32::from(listener.port), rack));
            }
            let theirs = broker.listeners.iter().find(|theirs| theirs.name == listener.name)?;
            Some((broker.id, Str::from(theirs.host.as_str()), i32::from(theirs.port), rack))
        })
        .collect()
}

/// Creates the topics that are asked for by a valid name and do not exist. Answers whether any was created.
async fn create_missing(node: &Arc<Node>, image: &MetadataImage, asked: &[MetadataRequestTopic]) -> bool {
    if !node.settings(image).flag("auto.create.topics.enable") {
        return false;
    }
    let mut created = false;
    for topic in asked {
        let Some(name) = topic.name.as_ref().and_then(|name| TopicName::new(name).ok()) else { continue };
        if image.topic_by_name(&name).is_some() || is_internal(&name) {
            continue;
        }
        let wanted = Wanted::by_default(node, image, name.clone());
        match create_topics::create(node, wanted, CREATE_WAIT_MS).await {
            Ok(_) => {
                node.metrics.topics_auto_created.inc();
                created = true;
            }
            // Another client was first, which is as good.
            Err(error) if error.code == ErrorCode::TopicAlreadyExists => created = true,
            Err(error) => {
                tracing::warn!(topic = %name, code = %error.code, message = %error.message, "topic not auto-created");
            }
        }
    }
    created
}

fn find(image: &MetadataImage, version: i16, asked: &MetadataRequestTopic) -> MetadataResponseTopic {
    let failed = |code: ErrorCode, name: Option<Str>| MetadataResponseTopic {
        error_code: code.code(),
        // Null is allowed from version 12 on only.
        name: name.or_else(|| (version < 12).then(Str::default)),
        topic_id: asked.topic_id,
        ..MetadataResponseTopic::default()
    };
    let Some(name) = &asked.name else {
        let topic = if asked.topic_id.is_zero() { None } else { image.topic(TopicId::from(asked.topic_id)) };
        return match topic {
            Some(topic) => describe(image, topic),
            None => failed(ErrorCode::UnknownTopicId, None),
        };
    };
    match TopicName::new(name) {
        Err(error) => failed(error_code::topic_name(&error), Some(name.clone())),
        Ok(valid) => match image.topic_by_name(&valid) {
            Some(topic) => describe(image, topic),
            None => failed(ErrorCode::UnknownTopicOrPartition, Some(name.clone())),
        },
    }
}

fn describe(image: &MetadataImage, topic: &TopicImage) -> MetadataResponseTopic {
    let partitions = topic.partitions.iter().zip(0..);
    MetadataResponseTopic {
        name: Some(wire_name(&topic.name)),
        topic_id: topic.id.into(),
        is_internal: is_internal(&topic.name),
        partitions: partitions
            .map(|(partition, index)| {
                let (leader, code) = leader(partition);
                MetadataResponsePartition {
                    error_code: code,
                    partition_index: index,
                    leader_id: leader,
                    leader_epoch: partition.leader_epoch.to_wire(),
                    replica_nodes: ids(&partition.replicas),
                    isr_nodes: ids(&partition.isr),
                    offline_replicas: offline(image, partition),
                }
            })
            .collect(),
        ..MetadataResponseTopic::default()
    }
}

/// The leader's number and the code that goes with it.
pub(crate) fn leader(partition: &PartitionImage) -> (i32, i16) {
    match partition.leader {
        Some(leader) => (leader.0, ErrorCode::None.code()),
        None => (-1, ErrorCode::LeaderNotAvailable.code()),
    }
}

pub(crate) fn ids(brokers: &[BrokerId]) -> Vec<i32> {
    brokers.iter().map(|broker| broker.0).collect()
}

/// The replicas whose broker is not alive.
pub(crate) fn offline(image: &MetadataImage, partition: &PartitionImage) -> Vec<i32> {
    let dead = |id: &&BrokerId| image.broker(**id).is_none_or(|broker| broker.fenced);
    partition.replicas.iter().filter(dead).map(|id| id.0).collect()
}
