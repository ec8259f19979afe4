//! DeleteTopics (key 20): by name, or by id from version 6 on.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_core::cluster::{Command, MetadataImage};
use tidelog_types::{TopicId, TopicName};
use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        DeleteTopicsRequest, DeleteTopicsResponse,
        delete_topics::{DeletableTopicResult, DeleteTopicState},
    },
};

use crate::{
    connection::Caller,
    error_code::{self, ApiError},
    node::{Node, wire_name},
};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let asked: Vec<DeleteTopicState> = if version >= 6 {
        request.topics
    } else {
        let by_name = |name| DeleteTopicState { name: Some(name), topic_id: Uuid::ZERO };
        request.topic_names.into_iter().map(by_name).collect()
    };
    let image = node.image();
    let mut responses = Vec::with_capacity(asked.len());
    if !node.settings(&image).flag("delete.topic.enable") {
        let code = if version < 3 { ErrorCode::InvalidRequest } else { ErrorCode::TopicDeletionDisabled };
        for topic in &asked {
            responses.push(failed(
                topic.name.clone(),
                topic.topic_id,
                ApiError::new(code, "Topic deletion is disabled."),
            ));
        }
        return DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() };
    }
    for (id, name) in resolve(&image, &asked, &mut responses) {
        responses.push(match delete(node, id, request.timeout_ms).await {
            Ok(()) => DeletableTopicResult {
                name: Some(name),
                topic_id: id.into(),
                ..DeletableTopicResult::default()
            },
            Err(error) => failed(Some(name), id.into(), error),
        });
    }
    DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() }
}

fn failed(name: Option<Str>, topic_id: Uuid, error: ApiError) -> DeletableTopicResult {
    DeletableTopicResult {
        name,
        topic_id,
        error_code: error.code.code(),
        error_message: error.into_message(),
    }
}

/// What is to be deleted, as Kafka finds it out: nothing of what is named twice, by its name, by its id, or by both; that is
/// answered once.
fn resolve(
    image: &MetadataImage,
    asked: &[DeleteTopicState],
    responses: &mut Vec<DeletableTopicResult>,
) -> BTreeMap<TopicId, Str> {
    let invalid = |text: &str| ApiError::new(ErrorCode::InvalidRequest, text);
    let mut names: BTreeMap<&Str, usize> = BTreeMap::new();
    let mut ids: BTreeMap<TopicId, usize> = BTreeMap::new();
    for topic in asked {
        match &topic.name {
            None if topic.topic_id.is_zero() => {
                let error = invalid("Neither topic name nor id were specified.");
                responses.push(failed(None, topic.topic_id, error));
            }
            None => *ids.entry(topic.topic_id.into()).or_default() += 1,
            Some(name) if topic.topic_id.is_zero() => *names.entry(name).or_default() += 1,
            Some(name) => {
                let error = invalid("You may not specify both topic name and topic id.");
                responses.push(failed(Some(name.clone()), topic.topic_id, error));
            }
        }
    }
    let mut found: BTreeMap<TopicId, Str> = BTreeMap::new();
    for (id, times) in &ids {
        match image.topic(*id) {
            _ if *times > 1 => responses.push(failed(None, (*id).into(), invalid("Duplicate topic id."))),
            Some(topic) => drop(found.insert(*id, wire_name(&topic.name))),
            None => {
                let error =
                    ApiError::new(ErrorCode::UnknownTopicId, "This server does not host this topic ID.");
                responses.push(failed(None, (*id).into(), error));
            }
        }
    }
    for (name, times) in names {
        let topic = TopicName::new(name).ok().and_then(|name| image.topic_by_name(&name));
        match topic {
            _ if times > 1 => {
                responses.push(failed(Some(name.clone()), Uuid::ZERO, invalid("Duplicate topic name.")));
            }
            Some(topic) if ids.contains_key(&topic.id) => {
                found.remove(&topic.id);
                let error = invalid("The provided topic name maps to an ID that was already supplied.");
                responses.push(failed(Some(name.clone()), topic.id.into(), error));
            }
            Some(topic) => drop(found.insert(topic.id, name.clone())),
            None => {
                let text = "This server does not host this topic-partition.";
                let error = ApiError::new(ErrorCode::UnknownTopicOrPartition, text);
                responses.push(failed(Some(name.clone()), Uuid::ZERO, error));
            }
        }
    }
    found
}

async fn delete(node: &Node, topic_id: TopicId, timeout_ms: i32) -> Result<(), ApiError> {
    node.metadata
        .propose(Command::DeleteTopic { topic_id })
        .await
        .map_err(|failure| error_code::propose(&failure))?;
    if node.wait_visible(timeout_ms, |image| image.topic(topic_id).is_none()).await {
        Ok(())
    } else {
        Err(ApiError::new(ErrorCode::RequestTimedOut, "The topic is deleted and still hosted."))
    }
}
