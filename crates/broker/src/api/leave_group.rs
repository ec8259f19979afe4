//! LeaveGroup (key 13).

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode,
    messages::{
        LeaveGroupRequest, LeaveGroupResponse,
        leave_group::{MemberIdentity, MemberResponse},
    },
};

use crate::{connection::Caller, coordinator, node::Node};

/// From which version on a request names several members, and each has an answer of its own.
const MEMBERS_VERSION: i16 = 3;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    let members = if version >= MEMBERS_VERSION {
        request.members
    } else {
        vec![MemberIdentity { member_id: request.member_id, ..MemberIdentity::default() }]
    };
    let (code, outcomes) = match leave(node, &request.group_id, &members).await {
        Ok(outcomes) => (ErrorCode::None, outcomes),
        // There is no such group: its members are not in it.
        Err(ErrorCode::UnknownMemberId) => {
            (ErrorCode::None, vec![Err(ErrorCode::UnknownMemberId); members.len()])
        }
        Err(code) => (code, Vec::new()),
    };
    let outcomes = outcomes.into_iter().map(|outcome| outcome.err().unwrap_or(ErrorCode::None));
    if version < MEMBERS_VERSION {
        let code = outcomes.chain([code]).find(|code| *code != ErrorCode::None).unwrap_or(ErrorCode::None);
        return LeaveGroupResponse { error_code: code.code(), ..LeaveGroupResponse::default() };
    }
    let members = members.into_iter().zip(outcomes).map(|(member, code)| MemberResponse {
        member_id: member.member_id,
        group_instance_id: member.group_instance_id,
        error_code: code.code(),
    });
    LeaveGroupResponse {
        error_code: code.code(),
        members: members.collect(),
        ..LeaveGroupResponse::default()
    }
}

type Outcomes = Vec<Result<(), ErrorCode>>;

async fn leave(node: &Node, group: &str, members: &[MemberIdentity]) -> Result<Outcomes, ErrorCode> {
    if group.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let shard = coordinator::shard_of(node, group)?;
    let members: Vec<(Arc<str>, Option<Arc<str>>)> = members
        .iter()
        .map(|member| {
            let instance_id = member.group_instance_id.as_deref().map(Arc::from);
            (Arc::from(member.member_id.as_str()), instance_id)
        })
        .collect();
    shard.leave(node, group, &members).await
}
