//! DeleteGroups (key 42).

use std::{collections::BTreeSet, sync::Arc};

use tidelog_wire::{
    ErrorCode,
    messages::{DeleteGroupsRequest, DeleteGroupsResponse, delete_groups::DeletableGroupResult},
};

use crate::{connection::Caller, coordinator, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    let mut named = BTreeSet::new();
    for group in request.groups_names {
        // Each once, as Kafka does.
        if !named.insert(group.clone()) {
            continue;
        }
        let deleted = match coordinator::shard_of(node, &group) {
            Ok(shard) => shard.delete(node, &group).await,
            Err(code) => Err(code),
        };
        if deleted.is_ok() {
            tracing::info!(group = group.as_str(), "group deleted");
        }
        let code = deleted.err().unwrap_or(ErrorCode::None);
        results.push(DeletableGroupResult { group_id: group, error_code: code.code() });
    }
    DeleteGroupsResponse { results, ..DeleteGroupsResponse::default() }
}
