//! ConsumerGroupHeartbeat (key 68).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidelog_core::groups::consumer::{Heartbeat, HeartbeatAnswer, Partitions};
use tidelog_types::TopicId;
use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
        consumer_group_heartbeat::{Assignment, TopicPartitions},
    },
};

use crate::{connection::Caller, coordinator, node::Node};

/// From which version on a member brings an id of its own.
const OWN_MEMBER_ID_VERSION: i16 = 1;

pub(crate) async fn handle(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    if !node.groups.settings().serves_consumer_protocol {
        return ConsumerGroupHeartbeatResponse {
            error_code: ErrorCode::UnsupportedVersion.code(),
            ..ConsumerGroupHeartbeatResponse::default()
        };
    }
    match beat(node, caller, version, request).await {
        Ok(answer) => answered(answer),
        Err((code, message)) => ConsumerGroupHeartbeatResponse {
            error_code: code.code(),
            error_message: message.map(Str::from),
            ..ConsumerGroupHeartbeatResponse::default()
        },
    }
}

async fn beat(
    node: &Arc<Node>,
    caller: &Caller,
    version: i16,
    request: ConsumerGroupHeartbeatRequest,
) -> Result<HeartbeatAnswer, (ErrorCode, Option<String>)> {
    let invalid = |what: &str| Err((ErrorCode::InvalidRequest, Some(what.to_owned())));
    if request.group_id.trim().is_empty() {
        return invalid("GroupId can't be empty.");
    }
    if !(request.rebalance_timeout_ms == -1 || request.rebalance_timeout_ms > 0) {
        return invalid("RebalanceTimeoutMs must be larger than 0.");
    }
    let shared = |text: &Str| -> Arc<str> { Arc::from(text.as_str()) };
    let draws = version < OWN_MEMBER_ID_VERSION && request.member_id.is_empty();
    let heartbeat = Heartbeat {
        member_id: shared(&request.member_id),
        drawn_member_id: draws.then(|| short_text(node.ids.uuid()).into()),
        epoch: request.member_epoch,
        instance_id: request.instance_id.as_ref().map(shared),
        rack_id: request.rack_id.as_ref().map(shared),
        rebalance_timeout: u64::try_from(request.rebalance_timeout_ms).ok().map(Duration::from_millis),
        client_id: shared(&caller.client_id),
        client_host: format!("/{}", caller.address.ip()).into(),
        subscribed_topics: request
            .subscribed_topic_names
            .map(|names| names.iter().map(shared).collect::<BTreeSet<_>>()),
        subscribed_pattern: request.subscribed_topic_regex.as_ref().map(shared),
        server_assignor: request.server_assignor.as_ref().map(shared),
        owned: request.topic_partitions.map(|topics| {
            let mut owned = Partitions::new();
            for topic in topics {
                owned.entry(TopicId::from(topic.topic_id)).or_default().extend(topic.partitions);
            }
            owned
        }),
    };
    let shard = coordinator::shard_of(node, &request.group_id).map_err(|code| (code, None))?;
    shard.consumer_heartbeat(node, &request.group_id, heartbeat).await
}

/// An id as Kafka's coordinator writes one: base64 of the kind for names, without padding.
fn short_text(uuid: [u8; 16]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // 22 letters of six bits: the last one has four of its own.
    let bits = u128::from_be_bytes(uuid);
    let letter = |place: u32| {
        let six = if place < 21 { bits >> (122 - 6 * place) } else { bits << 4 } & 0x3f;
        char::from(LETTERS[usize::try_from(six).unwrap_or(0)])
    };
    (0..22).map(letter).collect()
}

fn answered(answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        member_id: Some(Str::from(&*answer.member_id)),
        member_epoch: answer.epoch,
        heartbeat_interval_ms: i32::try_from(answer.heartbeat_interval.as_millis()).unwrap_or(i32::MAX),
        assignment: answer.assignment.map(|partitions| Assignment {
            topic_partitions: partitions
                .into_iter()
                .map(|(topic, partitions)| TopicPartitions {
                    topic_id: Uuid::from(topic),
                    partitions: partitions.into_iter().collect(),
                })
                .collect(),
        }),
        ..ConsumerGroupHeartbeatResponse::default()
    }
}
