//! ListConfigResources (key 74): what DescribeConfigs can be asked about.

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        ListConfigResourcesRequest, ListConfigResourcesResponse, list_config_resources::ConfigResource,
    },
};

use super::describe_configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::{
    connection::Caller,
    node::{Node, wire_name},
};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    // Version 0 is Kafka's ListClientMetricsResources: there are none.
    let types = match request.resource_types {
        _ if version == 0 => vec![CLIENT_METRICS],
        types if types.is_empty() => vec![TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP],
        types => types,
    };
    let image = node.image();
    let mut resources = Vec::new();
    for kind in types {
        let of = |name: Str| ConfigResource { resource_name: name, resource_type: kind };
        match kind {
            TOPIC => resources.extend(image.topics().map(|topic| of(wire_name(&topic.name)))),
            BROKER => resources.extend(image.brokers().map(|broker| of(Str::from(broker.id.to_string())))),
            // Their configuration is not kept here.
            BROKER_LOGGER | CLIENT_METRICS | GROUP => {}
            _ => {
                return ListConfigResourcesResponse {
                    error_code: ErrorCode::UnsupportedVersion.code(),
                    ..ListConfigResourcesResponse::default()
                };
            }
        }
    }
    ListConfigResourcesResponse { config_resources: resources, ..ListConfigResourcesResponse::default() }
}
