//! DeleteTopics (key 20): by name, or by id from version 6 on.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::cluster::{Command, MetadataImage, TopicImage};
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
    let mut responses = Vec::with_capacity(asked.len());
    let mut seen = BTreeSet::new();
    for topic in &asked {
        let result = if seen.insert((&topic.name, TopicId::from(topic.topic_id))) {
            delete(node, version, topic, request.timeout_ms).await
        } else {
            Err(ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic in the request."))
        };
        responses.push(match result {
            Ok((name, id)) => DeletableTopicResult {
                name: Some(name),
                topic_id: id.into(),
                ..DeletableTopicResult::default()
            },
            Err(error) => DeletableTopicResult {
                name: topic.name.clone().or_else(|| (version < 6).then(Str::default)),
                topic_id: topic.topic_id,
                error_code: error.code.code(),
                error_message: error.into_message(),
            },
        });
    }
    DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() }
}

fn find(image: &MetadataImage, topic: &DeleteTopicState) -> Result<Arc<TopicImage>, ApiError> {
    match &topic.name {
        Some(_) if !topic.topic_id.is_zero() => {
            Err(ApiError::new(ErrorCode::InvalidRequest, "You may not specify both topic name and topic id."))
        }
        None if topic.topic_id.is_zero() => {
            Err(ApiError::new(ErrorCode::InvalidRequest, "Neither topic name nor id were specified."))
        }
        None => image.topic(TopicId::from(topic.topic_id)).cloned().ok_or_else(|| {
            ApiError::new(ErrorCode::UnknownTopicId, "This server does not host this topic ID.")
        }),
        Some(name) => {
            let unknown = || {
                ApiError::new(
                    ErrorCode::UnknownTopicOrPartition,
                    "This server does not host this topic-partition.",
                )
            };
            let name = TopicName::new(name).map_err(|_| unknown())?;
            image.topic_by_name(&name).cloned().ok_or_else(unknown)
        }
    }
}

async fn delete(
    node: &Node,
    version: i16,
    topic: &DeleteTopicState,
    timeout_ms: i32,
) -> Result<(Str, TopicId), ApiError> {
    let image = node.image();
    if !node.settings(&image).flag("delete.topic.enable") {
        let code = if version < 3 { ErrorCode::InvalidRequest } else { ErrorCode::TopicDeletionDisabled };
        return Err(ApiError::new(code, "Topic deletion is disabled."));
    }
    let found = find(&image, topic)?;
    let topic_id = found.id;
    node.metadata
        .propose(Command::DeleteTopic { topic_id })
        .await
        .map_err(|failure| error_code::propose(&failure))?;
    if node.wait_visible(timeout_ms, |image| image.topic(topic_id).is_none()).await {
        Ok((wire_name(&found.name), topic_id))
    } else {
        Err(ApiError::new(ErrorCode::RequestTimedOut, "The topic is deleted and still hosted."))
    }
}
