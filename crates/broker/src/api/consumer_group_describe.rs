//! ConsumerGroupDescribe (key 69).

use std::sync::Arc;

use tidelog_core::groups::consumer::{self, DescribedMember, DescribedTopic};
use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse,
        consumer_group_describe::{Assignment, DescribedGroup, Member, TopicPartitions},
    },
};

use super::{
    Mentions,
    describe_groups::{GROUP_OPERATIONS_ALL, described_bytes},
    metadata::OPERATIONS_UNKNOWN,
    shown,
};
use crate::{
    connection::Caller,
    coordinator::{self, Kind},
    node::Node,
};

/// Kafka's words where a broker does not serve the consumer protocol.
const UNSUPPORTED: &str = "The version of API is not supported.";

/// What a member is: Kafka's numbers.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, request: &ConsumerGroupDescribeRequest) -> u64 {
    described_bytes(node, &request.group_ids, Kind::Consumer)
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let operations =
        if request.include_authorized_operations { GROUP_OPERATIONS_ALL } else { OPERATIONS_UNKNOWN };
    let is_served = node.groups.settings().serves_consumer_protocol;
    let one = |group: &Str| {
        let failed = |code: ErrorCode, message: Option<String>| DescribedGroup {
            group_id: group.clone(),
            error_code: code.code(),
            error_message: message.map(Str::from),
            ..DescribedGroup::default()
        };
        if !is_served {
            return failed(ErrorCode::UnsupportedVersion, Some(UNSUPPORTED.to_owned()));
        }
        if group.is_empty() {
            return failed(ErrorCode::InvalidGroupId, None);
        }
        let described =
            coordinator::shard_of(node, group).and_then(|shard| shard.describe_consumers(node, group));
        match described {
            Ok(Ok(view)) => DescribedGroup { authorized_operations: operations, ..known(group, view) },
            Ok(Err(None)) => {
                failed(ErrorCode::GroupIdNotFound, Some(format!("Group {} not found.", shown(group))))
            }
            Ok(Err(Some(_))) => failed(
                ErrorCode::GroupIdNotFound,
                Some(format!("Group {} is not a consumer group.", shown(group))),
            ),
            Err(code) => failed(code, None),
        }
    };
    let mut mentions = Mentions::default();
    ConsumerGroupDescribeResponse {
        groups: request.group_ids.iter().filter(|group| mentions.allow(*group)).map(one).collect(),
        ..ConsumerGroupDescribeResponse::default()
    }
}

fn known(group: &Str, view: consumer::DescribedGroup) -> DescribedGroup {
    DescribedGroup {
        group_id: group.clone(),
        group_state: Str::from_static(view.state.as_str()),
        group_epoch: view.epoch,
        assignment_epoch: view.target_epoch,
        assignor_name: Str::from_static(view.assignor.name()),
        members: view.members.into_iter().map(member).collect(),
        ..DescribedGroup::default()
    }
}

fn member(member: DescribedMember) -> Member {
    let metadata = member.metadata;
    Member {
        member_id: Str::from(&*member.member_id),
        instance_id: metadata.instance_id.as_deref().map(Str::from),
        rack_id: metadata.rack_id.as_deref().map(Str::from),
        member_epoch: member.epoch,
        client_id: Str::from(&*metadata.client_id),
        client_host: Str::from(&*metadata.client_host),
        subscribed_topic_names: metadata.subscribed_topics.iter().map(|topic| Str::from(&**topic)).collect(),
        // Empty where there is none: Kafka's members have one always.
        subscribed_topic_regex: Some(Str::from(&*metadata.subscribed_pattern)),
        assignment: assignment(member.assigned),
        target_assignment: assignment(member.target),
        member_type: if metadata.classic.is_some() { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
    }
}

fn assignment(topics: Vec<DescribedTopic>) -> Assignment {
    let topic = |topic: DescribedTopic| TopicPartitions {
        topic_id: Uuid::from(topic.id),
        topic_name: Str::from(&*topic.name),
        partitions: topic.partitions.into_iter().collect(),
    };
    Assignment { topic_partitions: topics.into_iter().map(topic).collect() }
}
