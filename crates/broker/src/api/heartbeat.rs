//! Heartbeat (key 12).

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode,
    messages::{HeartbeatRequest, HeartbeatResponse},
};

use crate::{connection::Caller, coordinator, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: HeartbeatRequest,
) -> HeartbeatResponse {
    let code = match alive(node, &request) {
        // While the group loads nobody can be told from a stranger: its members are not to be sent away.
        Ok(()) | Err(ErrorCode::CoordinatorLoadInProgress) => ErrorCode::None,
        Err(code) => code,
    };
    HeartbeatResponse { error_code: code.code(), ..HeartbeatResponse::default() }
}

fn alive(node: &Node, request: &HeartbeatRequest) -> Result<(), ErrorCode> {
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let shard = coordinator::shard_of(node, &request.group_id)?;
    let instance_id = request.group_instance_id.as_deref();
    shard.heartbeat(node, &request.group_id, &request.member_id, instance_id, request.generation_id)
}
