//! DescribeCluster (key 60): the brokers and the controller.

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str,
    messages::{DescribeClusterRequest, DescribeClusterResponse, describe_cluster::DescribeClusterBroker},
};

use super::metadata::{CLUSTER_OPERATIONS_ALL, OPERATIONS_UNKNOWN, brokers};
use crate::{connection::Caller, node::Node};

/// Kafka's numbers of endpoint types.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

pub(crate) async fn handle(
    node: &Arc<Node>,
    caller: &Caller,
    _: i16,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    let failed = |code: ErrorCode, message: &'static str| DescribeClusterResponse {
        error_code: code.code(),
        error_message: Some(Str::from_static(message)),
        ..DescribeClusterResponse::default()
    };
    match request.endpoint_type {
        BROKERS => {}
        CONTROLLERS => {
            return failed(
                ErrorCode::MismatchedEndpointType,
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
            );
        }
        _ => return failed(ErrorCode::UnsupportedEndpointType, "Unsupported endpoint type"),
    }
    let image = node.image();
    let operations = request.include_cluster_authorized_operations;
    DescribeClusterResponse {
        endpoint_type: BROKERS,
        cluster_id: image.cluster_id.map(|id| Str::from(id.to_string())).unwrap_or_default(),
        controller_id: node.id.0,
        brokers: brokers(node, caller, &image)
            .into_iter()
            .map(|(id, host, port, rack)| DescribeClusterBroker {
                broker_id: id.0,
                host,
                port,
                rack,
                is_fenced: image.broker(id).is_some_and(|broker| broker.fenced),
            })
            .collect(),
        cluster_authorized_operations: if operations { CLUSTER_OPERATIONS_ALL } else { OPERATIONS_UNKNOWN },
        ..DescribeClusterResponse::default()
    }
}
