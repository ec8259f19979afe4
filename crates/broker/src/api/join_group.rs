//! JoinGroup (key 11).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidelog_core::groups::classic::{JoinRequest, Joined};
use tidelog_runtime::Permit;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{JoinGroupRequest, JoinGroupResponse, join_group::JoinGroupResponseMember},
};

use crate::{
    connection::Caller,
    coordinator,
    handlers::{ANSWER_FREE, memory},
    node::Node,
};

pub(crate) const VERSION_MAX: i16 = 9;

/// From which version on a client without an id is given one and comes again with it (KIP-394).
const KNOWN_MEMBER_VERSION: i16 = 4;

/// From which version on the answer has a protocol type, and a protocol that may be null.
const PROTOCOL_TYPE_VERSION: i16 = 7;

/// From which version on a leader may be told to keep the assignment (KIP-814).
const SKIP_ASSIGNMENT_VERSION: i16 = 9;

pub(crate) async fn handle(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: JoinGroupRequest,
) -> (JoinGroupResponse, Option<Permit>) {
    let member_id = request.member_id.clone();
    match join(node, caller, version, request).await {
        Ok(answer) => answer,
        Err((code, id)) => {
            let refused = JoinGroupResponse {
                error_code: code.code(),
                member_id: id.map_or(member_id, |id| Str::from(&*id)),
                protocol_name: (version < PROTOCOL_TYPE_VERSION).then(Str::default),
                ..JoinGroupResponse::default()
            };
            (refused, None)
        }
    }
}

type Refused = (ErrorCode, Option<Arc<str>>);

async fn join(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: JoinGroupRequest,
) -> Result<(JoinGroupResponse, Option<Permit>), Refused> {
    let refused = |code| (code, None);
    if request.group_id.is_empty() {
        return Err(refused(ErrorCode::InvalidGroupId));
    }
    let rules = node.groups.settings().rules;
    let session = Duration::from_millis(u64::try_from(request.session_timeout_ms).unwrap_or(0));
    if !(rules.session_timeout_min..=rules.session_timeout_max).contains(&session) {
        return Err(refused(ErrorCode::InvalidSessionTimeout));
    }
    if names_twice(&request) {
        // Kafka's coordinator fails at it.
        return Err((ErrorCode::UnknownServerError, Some(Arc::from(""))));
    }
    let shard = coordinator::shard_of(node, &request.group_id).map_err(refused)?;
    // Version 0 has no time for a rebalance of its own, and reads as -1.
    let rebalance = u64::try_from(request.rebalance_timeout_ms).map_or(session, Duration::from_millis);
    let instance_id: Option<Arc<str>> = request.group_instance_id.as_deref().map(Arc::from);
    let asked = JoinRequest {
        member_id: Arc::from(request.member_id.as_str()),
        new_member_id: new_member_id(node, instance_id.as_deref().unwrap_or(caller.client_id.as_str())),
        instance_id,
        client_id: Arc::from(caller.client_id.as_str()),
        client_host: format!("/{}", caller.address.ip()).into(),
        session_timeout: session,
        rebalance_timeout: rebalance,
        protocol_type: Arc::from(request.protocol_type.as_str()),
        // Copied: what a member says of itself stays, and its frame does not.
        protocols: request
            .protocols
            .iter()
            .map(|protocol| {
                (Arc::from(protocol.name.as_str()), bytes::Bytes::copy_from_slice(&protocol.metadata))
            })
            .collect(),
        require_known_member_id: version >= KNOWN_MEMBER_VERSION,
        supports_skip_assignment: version >= SKIP_ASSIGNMENT_VERSION,
        reason: request.reason.as_deref().map(Arc::from),
    };
    let joined = shard.join(node, caller, &request.group_id, asked).await;
    let joined = joined.map_err(|(code, id)| (code, Some(id)))?;
    let permit = memory_for(node, caller, &joined).await;
    Ok((told(version, joined), permit))
}

fn told(version: i16, joined: Joined) -> JoinGroupResponse {
    let protocol_name = joined.protocol_name.as_deref().map(Str::from);
    JoinGroupResponse {
        generation_id: joined.generation,
        protocol_type: joined.protocol_type.as_deref().map(Str::from),
        protocol_name: if version < PROTOCOL_TYPE_VERSION {
            Some(protocol_name.unwrap_or_default())
        } else {
            protocol_name
        },
        leader: Str::from(&*joined.leader),
        skip_assignment: joined.skip_assignment,
        member_id: Str::from(&*joined.member_id),
        members: joined
            .members
            .into_iter()
            .map(|member| JoinGroupResponseMember {
                member_id: Str::from(&*member.member_id),
                group_instance_id: member.instance_id.as_deref().map(Str::from),
                metadata: member.metadata,
            })
            .collect(),
        ..JoinGroupResponse::default()
    }
}

/// Memory for what a leader is told of all members: it may be large, and the same leader may ask for it on many connections.
async fn memory_for(node: &Node, caller: &Caller, joined: &Joined) -> Option<Permit> {
    let bytes = joined.members.iter().map(|member| (member.member_id.len() + member.metadata.len()) as u64);
    let bytes = bytes.fold(0, u64::saturating_add);
    if bytes > ANSWER_FREE { memory(node, caller, bytes).await } else { None }
}

/// Whether it has two protocols of one name.
fn names_twice(request: &JoinGroupRequest) -> bool {
    let mut named = BTreeSet::new();
    !request.protocols.iter().all(|protocol| named.insert(protocol.name.as_str()))
}

/// How much of an id may be who it is: with a hyphen and a UUID it is as long as a string can be.
const WHO_BYTES_MAX: usize = 0x7fff - 1 - 36;

/// An id as Kafka makes it: who it is, and what nobody else has. Kafka fails at a name that leaves no place for that; here its end is
/// cut.
fn new_member_id(node: &Node, who: &str) -> Arc<str> {
    let who = &who[..who.floor_char_boundary(WHO_BYTES_MAX)];
    format!("{who}-{}", uuid_text(node.ids.uuid())).into()
}

/// As Java writes one.
pub(crate) fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
