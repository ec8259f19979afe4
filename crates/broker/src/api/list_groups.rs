//! ListGroups (key 16).

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str,
    messages::{ListGroupsRequest, ListGroupsResponse, list_groups::ListedGroup},
};

use crate::{connection::Caller, node::Node};

/// Bytes of one group in an answer, about.
const GROUP_BYTES: u64 = 96;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, _: &ListGroupsRequest) -> u64 {
    node.groups.all().iter().fold(0, |sum, shard| sum.saturating_add(shard.count() as u64 * GROUP_BYTES))
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: ListGroupsRequest,
) -> ListGroupsResponse {
    let wanted = |filter: &[Str], what: &str| {
        filter.is_empty() || filter.iter().any(|word| word.eq_ignore_ascii_case(what))
    };
    let mut response = ListGroupsResponse::default();
    for shard in node.groups.all() {
        match shard.list() {
            Ok(groups) => {
                let listed = groups.into_iter().filter(|(_, kind, state, _)| {
                    wanted(&request.types_filter, kind.as_str()) && wanted(&request.states_filter, state)
                });
                response.groups.extend(listed.map(|(id, kind, state, protocol_type)| ListedGroup {
                    group_id: Str::from(&*id),
                    protocol_type: protocol_type.as_deref().map(Str::from).unwrap_or_default(),
                    group_state: Str::from_static(state),
                    group_type: Str::from_static(kind.as_str()),
                }));
            }
            // What is not led here any more is another node's to list.
            Err(ErrorCode::NotCoordinator) => {}
            Err(code) => {
                return ListGroupsResponse { error_code: code.code(), ..ListGroupsResponse::default() };
            }
        }
    }
    response
}
