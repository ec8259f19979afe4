//! AlterConfigs (key 33): replaces all overrides of a resource. What is not named goes back to its default.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_wire::{
    Str,
    messages::{
        AlterConfigsRequest, AlterConfigsResponse,
        alter_configs::{AlterConfigsResource, AlterConfigsResourceResponse},
    },
};

use super::config_changes::{ResourceChange, Target, alter, value_of};
use crate::{connection::Caller, error_code::ApiError, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let altered = alter(node, &request.resources, request.validate_only).await;
    let responses = altered.into_iter().map(|altered| AlterConfigsResourceResponse {
        error_code: altered.error_code,
        error_message: altered.error_message,
        resource_type: altered.resource_type,
        resource_name: altered.resource_name,
    });
    AlterConfigsResponse { responses: responses.collect(), ..AlterConfigsResponse::default() }
}

impl ResourceChange for AlterConfigsResource {
    const IS_WHOLE: bool = true;

    fn resource(&self) -> (i8, &Str) {
        (self.resource_type, &self.resource_name)
    }

    fn keys(&self) -> impl Iterator<Item = &Str> {
        self.configs.iter().map(|config| &config.name)
    }

    fn wanted(&self, _: &Target) -> Result<BTreeMap<String, String>, ApiError> {
        let pair = |(key, value): (&Str, Option<&Str>)| Ok((key.to_string(), value_of(key, value)?));
        self.configs.iter().map(|config| pair((&config.name, config.value.as_ref()))).collect()
    }
}
