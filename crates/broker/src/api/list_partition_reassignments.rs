//! ListPartitionReassignments (key 46): replicas that are being moved. None ever is.

use std::sync::Arc;

use tidelog_wire::messages::{ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse};

use crate::{connection::Caller, node::Node};

pub(crate) async fn handle(
    _: &Arc<Node>,
    _: &Caller,
    _: i16,
    _: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    ListPartitionReassignmentsResponse {
        error_message: None,
        ..ListPartitionReassignmentsResponse::default()
    }
}
