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

/// The types that there are, as Kafka lists them.
const ORDER: [i8; 5] = [GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC];

/// Bytes of a resource in an answer beside its name, about.
const RESOURCE_BYTES: u64 = 16;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, _: &ListConfigResourcesRequest) -> u64 {
    let image = node.image();
    let topics = image.topics().map(|topic| topic.name.as_str().len());
    let names = topics.chain(image.group_configs().keys().map(String::len));
    names.fold(1024, |sum: u64, name| sum.saturating_add(name as u64 + RESOURCE_BYTES))
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    // Version 0 is Kafka's ListClientMetricsResources: there are none.
    let types = match request.resource_types {
        _ if version == 0 => vec![CLIENT_METRICS],
        types if types.is_empty() => ORDER.to_vec(),
        types => types,
    };
    if !types.iter().all(|kind| ORDER.contains(kind)) {
        return ListConfigResourcesResponse {
            error_code: ErrorCode::UnsupportedVersion.code(),
            ..ListConfigResourcesResponse::default()
        };
    }
    let image = node.image();
    let mut resources = Vec::new();
    for kind in ORDER.into_iter().filter(|kind| types.contains(kind)) {
        let of = |name: Str| ConfigResource { resource_name: name, resource_type: kind };
        match kind {
            TOPIC => resources.extend(image.topics().map(|topic| of(wire_name(&topic.name)))),
            GROUP => {
                resources.extend(image.group_configs().keys().map(|group| of(Str::from(group.as_str()))));
            }
            BROKER_LOGGER | BROKER => {
                resources.extend(image.brokers().map(|broker| of(Str::from(broker.id.to_string()))))
            }
            // There are no subscriptions to client metrics.
            _ => {}
        }
    }
    ListConfigResourcesResponse { config_resources: resources, ..ListConfigResourcesResponse::default() }
}
