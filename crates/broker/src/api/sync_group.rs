//! SyncGroup (key 14).

use std::sync::Arc;

use tidelog_core::groups::classic::{SyncRequest, Synced};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{SyncGroupRequest, SyncGroupResponse},
};

use crate::{connection::Caller, coordinator, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: SyncGroupRequest,
) -> SyncGroupResponse {
    match sync(node, caller, version, request).await {
        Ok(synced) => SyncGroupResponse {
            protocol_type: synced.protocol_type.as_deref().map(Str::from),
            protocol_name: synced.protocol_name.as_deref().map(Str::from),
            assignment: synced.assignment,
            ..SyncGroupResponse::default()
        },
        Err(code) => SyncGroupResponse { error_code: code.code(), ..SyncGroupResponse::default() },
    }
}

/// From which version on a member names the protocol that it joined with.
const PROTOCOL_VERSION: i16 = 5;

async fn sync(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: SyncGroupRequest,
) -> Result<Synced, ErrorCode> {
    // In this version both must be named (KIP-559).
    if version >= PROTOCOL_VERSION && (request.protocol_type.is_none() || request.protocol_name.is_none()) {
        return Err(ErrorCode::InconsistentGroupProtocol);
    }
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let shard = coordinator::shard_of(node, &request.group_id)?;
    let asked = SyncRequest {
        member_id: Arc::from(request.member_id.as_str()),
        instance_id: request.group_instance_id.as_deref().map(Arc::from),
        generation: request.generation_id,
        protocol_type: request.protocol_type.as_deref().map(Arc::from),
        protocol_name: request.protocol_name.as_deref().map(Arc::from),
        // Copied: an assignment stays, and its frame does not.
        assignments: request
            .assignments
            .iter()
            .map(|assigned| {
                let assignment = bytes::Bytes::copy_from_slice(&assigned.assignment);
                (Arc::from(assigned.member_id.as_str()), assignment)
            })
            .collect(),
    };
    shard.sync(node, caller, &request.group_id, asked).await
}
