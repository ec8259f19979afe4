//! FindCoordinator (key 10): of groups and of transactions, which on a node alone is this node.
//!
//! Whoever first asks for a group's has the topic of groups and offsets made. What a coordinator of transactions does is not
//! served yet, and not announced: a client that goes on from here learns so at once from the table of versions, where an answer
//! that there is no coordinator *now* would keep it asking for as long as its session time-out.

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str,
    messages::{FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator::Coordinator},
};

use crate::{connection::Caller, coordinator, error_code::ApiError, node::Node};

const MESSAGE: Str = Str::from_static("this broker coordinates groups and transactions alone");

const NO_ERROR: Str = Str::from_static("NONE");

/// Kafka's numbers of what a coordinator is for. Share groups are not served, of which Kafka says nothing in words.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;

pub(crate) async fn handle(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let missing = match request.key_type {
        GROUP => coordinator::ensure_topic(node).await.err(),
        _ => None,
    };
    let this = |key: Str| {
        let endpoint = &caller.endpoint;
        match request.key_type {
            GROUP if missing.is_some() => Coordinator {
                key,
                node_id: -1,
                port: -1,
                error_code: ErrorCode::CoordinatorNotAvailable.code(),
                error_message: missing.clone().and_then(ApiError::into_message),
                ..Coordinator::default()
            },
            GROUP | TRANSACTION => Coordinator {
                key,
                node_id: node.id.0,
                host: Str::from(endpoint.host.as_str()),
                port: i32::from(endpoint.port),
                ..Coordinator::default()
            },
            _ => Coordinator {
                key,
                node_id: -1,
                port: -1,
                error_code: ErrorCode::InvalidRequest.code(),
                error_message: (request.key_type != SHARE).then_some(MESSAGE).or(Some(Str::default())),
                ..Coordinator::default()
            },
        }
    };
    if version >= 4 {
        let coordinators = request.coordinator_keys.into_iter().map(this).collect();
        return FindCoordinatorResponse { coordinators, ..FindCoordinatorResponse::default() };
    }
    let one = this(request.key);
    FindCoordinatorResponse {
        error_code: one.error_code,
        // These versions have a text always, and Kafka a word for no error.
        error_message: one.error_message.filter(|text| !text.is_empty()).or(Some(match one.error_code {
            0 => NO_ERROR,
            _ => MESSAGE,
        })),
        node_id: one.node_id,
        host: one.host,
        port: one.port,
        ..FindCoordinatorResponse::default()
    }
}
