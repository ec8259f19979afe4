//! DescribeGroups (key 15).

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DescribeGroupsRequest, DescribeGroupsResponse,
        describe_groups::{DescribedGroup, DescribedGroupMember},
    },
};

use super::{Mentions, metadata::OPERATIONS_UNKNOWN, shown};
use crate::{
    connection::Caller,
    coordinator::{self, GroupView, Kind},
    node::Node,
};

/// From which version on a client knows the error that there is no such group; older ones are told that it is dead.
const GROUP_NOT_FOUND_VERSION: i16 = 6;

/// Kafka's bits of what may be done to a group (read, delete, describe, and its configuration), all of them: there is no
/// authorizer.
pub(crate) const GROUP_OPERATIONS_ALL: i32 = 0b1101_0100_1000;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, request: &DescribeGroupsRequest) -> u64 {
    described_bytes(node, &request.groups, Kind::Classic)
}

/// About how many bytes these groups are described by, as groups of one kind.
pub(crate) fn described_bytes(node: &Node, groups: &[Str], kind: Kind) -> u64 {
    let mut mentions = Mentions::default();
    let told = groups.iter().filter(|group| mentions.allow(*group)).map(|group| {
        // What cannot be found is told by its name, twice.
        let members =
            coordinator::shard_of(node, group).map_or(0, |shard| shard.described_bytes(group, kind));
        (members + 2 * group.len() + 64) as u64
    });
    told.fold(0, u64::saturating_add)
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let operations =
        if request.include_authorized_operations { GROUP_OPERATIONS_ALL } else { OPERATIONS_UNKNOWN };
    let one = |group: &Str| {
        let described = coordinator::shard_of(node, group).and_then(|shard| shard.describe(group));
        match described {
            Ok(Ok(view)) => DescribedGroup { authorized_operations: operations, ..known(&view) },
            Ok(Err(_)) if version < GROUP_NOT_FOUND_VERSION => {
                DescribedGroup { authorized_operations: operations, ..dead(group) }
            }
            Ok(Err(other)) => DescribedGroup {
                error_code: ErrorCode::GroupIdNotFound.code(),
                error_message: Some(Str::from(match other {
                    None => format!("Group {} not found.", shown(group)),
                    Some(_) => format!("Group {} is not a classic group.", shown(group)),
                })),
                ..dead(group)
            },
            Err(code) => DescribedGroup {
                error_code: code.code(),
                group_id: group.clone(),
                ..DescribedGroup::default()
            },
        }
    };
    let mut mentions = Mentions::default();
    DescribeGroupsResponse {
        groups: request.groups.iter().filter(|group| mentions.allow(*group)).map(one).collect(),
        ..DescribeGroupsResponse::default()
    }
}

/// What is told of a group that is not there.
fn dead(group: &Str) -> DescribedGroup {
    DescribedGroup {
        group_id: group.clone(),
        group_state: Str::from_static("Dead"),
        ..DescribedGroup::default()
    }
}

fn known(view: &GroupView) -> DescribedGroup {
    let members = view.members.iter().map(|member| DescribedGroupMember {
        member_id: Str::from(&*member.member_id),
        group_instance_id: member.instance_id.as_deref().map(Str::from),
        client_id: Str::from(&*member.client_id),
        client_host: Str::from(&*member.client_host),
        member_metadata: member.metadata.clone(),
        member_assignment: member.assignment.clone(),
    });
    DescribedGroup {
        group_id: Str::from(&*view.id),
        group_state: Str::from_static(view.state),
        protocol_type: view.protocol_type.as_deref().map(Str::from).unwrap_or_default(),
        // Of a group between two generations there is none to tell.
        protocol_data: view.protocol.as_deref().map(Str::from).unwrap_or_default(),
        members: members.collect(),
        ..DescribedGroup::default()
    }
}
