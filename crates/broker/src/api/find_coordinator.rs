//! FindCoordinator (key 10): groups and transactions have no coordinator here yet, which clients ask about again.

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str,
    messages::{FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator::Coordinator},
};

use crate::{connection::Caller, node::Node};

const MESSAGE: Str = Str::from_static("this broker has no coordinator for groups and transactions");

pub(crate) async fn handle(
    _: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let code = |key_type: i8| match key_type {
        0 | 1 => ErrorCode::CoordinatorNotAvailable.code(),
        _ => ErrorCode::InvalidRequest.code(),
    };
    if version >= 4 {
        let coordinators = request
            .coordinator_keys
            .into_iter()
            .map(|key| Coordinator {
                key,
                node_id: -1,
                port: -1,
                error_code: code(request.key_type),
                error_message: Some(MESSAGE),
                ..Coordinator::default()
            })
            .collect();
        return FindCoordinatorResponse { coordinators, ..FindCoordinatorResponse::default() };
    }
    FindCoordinatorResponse {
        error_code: code(request.key_type),
        error_message: Some(MESSAGE),
        node_id: -1,
        port: -1,
        ..FindCoordinatorResponse::default()
    }
}
