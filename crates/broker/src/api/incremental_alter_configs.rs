//! IncrementalAlterConfigs (key 44): changes the named overrides, and no others.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_core::topic_config::{
    AlterOperation, ConfigError, alter as alter_override, broker_key, group_key, topic_key,
};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
        incremental_alter_configs::{AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig},
    },
};

use super::{
    config_changes::{ResourceChange, Target, alter, value_of},
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
    let altered = alter(node, &request.resources, request.validate_only).await;
    let responses = altered.into_iter().map(|altered| AlterConfigsResourceResponse {
        error_code: altered.error_code,
        error_message: altered.error_message,
        resource_type: altered.resource_type,
        resource_name: altered.resource_name,
    });
    IncrementalAlterConfigsResponse {
        responses: responses.collect(),
        ..IncrementalAlterConfigsResponse::default()
    }
}

impl ResourceChange for AlterConfigsResource {
    const IS_WHOLE: bool = false;

    fn resource(&self) -> (i8, &Str) {
        (self.resource_type, &self.resource_name)
    }

    fn keys(&self) -> impl Iterator<Item = &Str> {
        self.configs.iter().map(|config| &config.name)
    }

    fn wanted(&self, target: &Target) -> Result<BTreeMap<String, String>, ApiError> {
        let mut overrides = target.overrides();
        for config in &self.configs {
            let name = config.name.as_str();
            let (key, unknown) = match target.resource {
                Resource::Topic(_) => {
                    (topic_key(name), ConfigError::UnknownTopicKey { key: name.to_owned() })
                }
                Resource::Broker | Resource::BrokerDefaults => {
                    (broker_key(name), ConfigError::UnknownBrokerKey { key: name.to_owned() })
                }
                Resource::Group(_) => {
                    (group_key(name), ConfigError::UnknownGroupKey { key: name.to_owned() })
                }
            };
            let operation = operation(config)?;
            if key.is_none() && operation == AlterOperation::Delete {
                // Nothing has it, as was asked; so Kafka answers.
                continue;
            }
            let key = key.ok_or_else(|| config_errors(&[unknown]))?;
            alter_override(key, &mut overrides, operation).map_err(|error| config_errors(&[error]))?;
        }
        Ok(overrides)
    }
}

fn operation(config: &AlterableConfig) -> Result<AlterOperation, ApiError> {
    let value = || value_of(&config.name, config.value.as_ref());
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
