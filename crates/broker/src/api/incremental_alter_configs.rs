//! IncrementalAlterConfigs (key 44): changes the named overrides, and no others.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::topic_config::{AlterOperation, ConfigError, alter, broker_key, topic_key};
use tidelog_wire::{
    ErrorCode,
    messages::{
        IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
        incremental_alter_configs::{AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig},
    },
};

use super::{
    alter_configs::{Target, outcome},
    create_topics::config_errors,
    describe_configs::Resource,
};
use crate::{connection::Caller, error_code::ApiError, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for (position, resource) in request.resources.iter().enumerate() {
        let same = |other: &AlterConfigsResource| {
            (other.resource_type, &other.resource_name) == (resource.resource_type, &resource.resource_name)
        };
        let result = if request.resources[..position].iter().any(same) {
            Err(ApiError::new(ErrorCode::InvalidRequest, "Each resource must appear at most once."))
        } else {
            change(node, resource, request.validate_only).await
        };
        let (error_code, error_message) = outcome(result);
        responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
        });
    }
    IncrementalAlterConfigsResponse { responses, ..IncrementalAlterConfigsResponse::default() }
}

async fn change(node: &Node, resource: &AlterConfigsResource, validate_only: bool) -> Result<(), ApiError> {
    let target = Target::find(node, resource.resource_type, &resource.resource_name)?;
    let mut names = BTreeSet::new();
    let mut overrides = target.overrides();
    for config in &resource.configs {
        if !names.insert(&config.name) {
            return Err(ApiError::new(ErrorCode::InvalidRequest, "Error due to duplicate config keys"));
        }
        let name = config.name.as_str();
        let (key, unknown) = match target.resource {
            Resource::Topic(_) => (topic_key(name), ConfigError::UnknownTopicKey { key: name.to_owned() }),
            Resource::Broker | Resource::BrokerDefaults => {
                (broker_key(name), ConfigError::UnknownBrokerKey { key: name.to_owned() })
            }
        };
        let key = key.ok_or_else(|| config_errors(&[unknown]))?;
        alter(key, &mut overrides, operation(config)?).map_err(|error| config_errors(&[error]))?;
    }
    target.apply(node, overrides, validate_only).await
}

fn operation(config: &AlterableConfig) -> Result<AlterOperation, ApiError> {
    let value = || {
        config.value.as_ref().map(ToString::to_string).ok_or_else(|| {
            let error = ConfigError::Null { key: config.name.to_string() };
            ApiError::new(ErrorCode::InvalidRequest, error.to_string())
        })
    };
    match config.config_operation {
        0 => value().map(AlterOperation::Set),
        1 => Ok(AlterOperation::Delete),
        2 => value().map(AlterOperation::Append),
        3 => value().map(AlterOperation::Subtract),
        other => {
            Err(ApiError::new(ErrorCode::InvalidRequest, format!("Unknown configuration operation {other}")))
        }
    }
}
