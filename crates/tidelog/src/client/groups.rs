//! The calls behind the verb `group`: groups, their members, their offsets, and where the logs of these are.
//!
//! **Owns** who is asked what: each group's coordinator, each partition's leader, and how long a coordinator that is loading or
//! moving is waited for.
//!
//! **Does not own** membership: it never joins a group, and commits offsets only as one that is in none.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tidelog_wire::{
    ApiKey, ErrorCode, Request, Str,
    messages::{
        ApiVersionsRequest, ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeClusterRequest,
        DescribeGroupsRequest, FindCoordinatorRequest, ListGroupsRequest, ListOffsetsRequest,
        MetadataRequest, MetadataResponse, OffsetCommitRequest, OffsetFetchRequest, consumer_group_describe,
        describe_groups::{DescribedGroup, DescribedGroupMember},
        list_offsets::{ListOffsetsPartition, ListOffsetsTopic},
        metadata::MetadataRequestTopic,
        offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
        offset_fetch::OffsetFetchRequestGroup,
    },
};

use super::{ADMIN_TIMEOUT, ClientError, Connection, METADATA_VERSION, assignment, check};
use crate::printable::named as named_group;

const FIND_COORDINATOR_VERSION: i16 = 4;
const LIST_GROUPS_VERSION: i16 = 5;
/// The newest that tells of a group that is not there as "Dead".
const DESCRIBE_GROUPS_VERSION: i16 = 5;
const CONSUMER_GROUP_DESCRIBE_VERSION: i16 = 0;
/// The newest in which a client need not name itself.
const API_VERSIONS_VERSION: i16 = 2;
const OFFSET_FETCH_VERSION: i16 = 8;
const OFFSET_COMMIT_VERSION: i16 = 8;
const DELETE_GROUPS_VERSION: i16 = 2;
const LIST_OFFSETS_VERSION: i16 = 7;
const DESCRIBE_CLUSTER_VERSION: i16 = 2;

/// Kafka's number of a coordinator of groups.
const GROUP_COORDINATOR: i8 = 0;

/// Offsets of one commit: its records stay far below the size of a batch.
const COMMITTED_AT_ONCE: usize = 1_000;

/// How often a coordinator that is loading or moving is asked again, and the waits before: some 17 s together.
const TRIES_MAX: u32 = 20;
const RETRY_WAIT_MAX: Duration = Duration::from_secs(1);
const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);

/// A partition, by its topic's name.
pub type Place = (String, i32);

/// What the leaders say of partitions: an offset, none, or why it is not known.
pub type LookedUp = BTreeMap<Place, Result<Option<i64>, ClientError>>;

/// A group as a list has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct ListedGroup {
    /// Its name.
    pub group: String,
    /// Kafka's word for where it stands.
    pub state: String,
    /// `classic` or `consumer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What its members are: `consumer` for consumers; empty where it has none.
    pub protocol_type: String,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// Its id in this group.
    pub member_id: String,
    /// Its name over restarts, of a static member.
    pub instance_id: Option<String>,
    /// How its client names itself.
    pub client_id: String,
    /// Where it connects from.
    pub host: String,
    /// The partitions it was given, in order; `None` where what it was given is not a consumer's.
    pub assigned: Option<Vec<Place>>,
}

/// A group with its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDescription {
    /// Its name.
    pub group: String,
    /// Kafka's word for where it stands; `Dead` where there is no such group.
    pub state: String,
    /// `classic` or `consumer`.
    pub kind: &'static str,
    /// What its members are.
    pub protocol_type: String,
    /// The assignor that its members agreed on; empty while there is none.
    pub protocol: String,
    /// The node that coordinates it, host:port.
    pub coordinator: String,
    /// In the order of their ids.
    pub members: Vec<GroupMember>,
}

impl GroupDescription {
    /// Whether there is no such group.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state == "Dead"
    }

    /// The refusal that means that there is no such group.
    #[must_use]
    pub fn not_found(group: &str) -> ClientError {
        let code = ErrorCode::GroupIdNotFound.code();
        ClientError::Refused { what: format!("group {}", named_group(group)), code, message: None }
    }
}

/// Connections to the nodes that groups ask: one each, made when it is needed.
#[derive(Debug)]
pub struct GroupAdmin {
    bootstrap: String,
    connections: BTreeMap<String, Connection>,
}

impl GroupAdmin {
    /// Connects to a node.
    ///
    /// # Errors
    /// Where it does not answer.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        let mut connections = BTreeMap::new();
        connections.insert(address.to_owned(), Connection::open(address).await?);
        Ok(Self { bootstrap: address.to_owned(), connections })
    }

    /// The groups of every node, by name; with `states`, those in one of them.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code; `COORDINATOR_LOAD_IN_PROGRESS` where that lasts.
    pub async fn list(&mut self, states: &[&str]) -> Result<Vec<ListedGroup>, ClientError> {
        let nodes = DescribeClusterRequest::default();
        let nodes = self.call(None, DESCRIBE_CLUSTER_VERSION, &nodes).await?;
        check(|| "describe the cluster".to_owned(), nodes.error_code, nodes.error_message.as_ref())?;
        let request = ListGroupsRequest {
            states_filter: states.iter().map(|state| Str::from(*state)).collect(),
            types_filter: Vec::new(),
        };
        let mut listed = Vec::new();
        for node in nodes.brokers {
            let address = format!("{}:{}", node.host, node.port);
            let mut patience = Patience::default();
            let answer = loop {
                let answer = self.call(Some(&address), LIST_GROUPS_VERSION, &request).await?;
                if !patience.again(answer.error_code).await {
                    break answer;
                }
            };
            check(|| format!("list groups of node {}", node.broker_id), answer.error_code, None)?;
            listed.extend(answer.groups.into_iter().map(|group| ListedGroup {
                group: group.group_id.to_string(),
                state: group.group_state.to_string(),
                kind: group.group_type.to_string(),
                protocol_type: group.protocol_type.to_string(),
            }));
        }
        listed.sort();
        Ok(listed)
    }

    /// A group and its members. One that does not exist is `Dead`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code.
    pub async fn describe(&mut self, group: &str) -> Result<GroupDescription, ClientError> {
        let request =
            DescribeGroupsRequest { groups: vec![group.into()], include_authorized_operations: false };
        let code = |answer: &tidelog_wire::messages::DescribeGroupsResponse| {
            answer.groups.first().map_or(0, |group| group.error_code)
        };
        let what = || format!("describe group {}", named_group(group));
        let (coordinator, answer) =
            self.ask_coordinator(group, DESCRIBE_GROUPS_VERSION, &request, code, what).await?;
        let found = answer.groups.into_iter().next().ok_or(ClientError::Incomplete("the group"))?;
        let found = classic(found, coordinator);
        // A group whose members let the broker hand out the partitions is none to that question. None of these has an empty name.
        let other = if found.is_dead() && !group.is_empty() {
            self.describe_consumer(group, &found.coordinator).await?
        } else {
            None
        };
        Ok(other.unwrap_or(found))
    }

    /// A group of the consumer protocol; `None` where there is none, or the node does not know that protocol.
    async fn describe_consumer(
        &mut self,
        group: &str,
        coordinator: &str,
    ) -> Result<Option<GroupDescription>, ClientError> {
        let known = ApiVersionsRequest::default();
        let known = self.call(Some(coordinator), API_VERSIONS_VERSION, &known).await?;
        let key = ApiKey::ConsumerGroupDescribe.key();
        if !known.api_keys.iter().any(|api| api.api_key == key) {
            return Ok(None);
        }
        let request = ConsumerGroupDescribeRequest {
            group_ids: vec![group.into()],
            include_authorized_operations: false,
        };
        let answer = self.call(Some(coordinator), CONSUMER_GROUP_DESCRIBE_VERSION, &request).await?;
        let found = answer.groups.into_iter().next().ok_or(ClientError::Incomplete("the group"))?;
        if found.error_code == ErrorCode::GroupIdNotFound.code() {
            return Ok(None);
        }
        check(
            || format!("describe group {}", named_group(group)),
            found.error_code,
            found.error_message.as_ref(),
        )?;
        Ok(Some(consumer(found, coordinator)))
    }

    /// Every committed offset of a group; none where there is no such group.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code.
    pub async fn offsets(&mut self, group: &str) -> Result<BTreeMap<Place, i64>, ClientError> {
        let all = OffsetFetchRequestGroup { group_id: group.into(), topics: None, ..Default::default() };
        let request = OffsetFetchRequest { groups: vec![all], ..Default::default() };
        let code = |answer: &tidelog_wire::messages::OffsetFetchResponse| {
            answer.groups.first().map_or(0, |group| group.error_code)
        };
        let what = || format!("fetch the offsets of group {}", named_group(group));
        let (_, answer) = self.ask_coordinator(group, OFFSET_FETCH_VERSION, &request, code, what).await?;
        let found = answer.groups.into_iter().next().ok_or(ClientError::Incomplete("the group"))?;
        let mut offsets = BTreeMap::new();
        for topic in found.topics {
            for partition in topic.partitions {
                let place = (topic.name.to_string(), partition.partition_index);
                check(|| format!("the offset of {}", named(&place)), partition.error_code, None)?;
                if partition.committed_offset >= 0 {
                    offsets.insert(place, partition.committed_offset);
                }
            }
        }
        Ok(offsets)
    }

    /// Commits offsets for a group that nobody is in; one that does not exist is made by it.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code, `UNKNOWN_MEMBER_ID` where somebody joined meanwhile. Of more than 1,000
    /// offsets those before the refusal are committed.
    pub async fn commit(&mut self, group: &str, offsets: &BTreeMap<Place, i64>) -> Result<(), ClientError> {
        let all: Vec<_> = offsets.iter().collect();
        for some in all.chunks(COMMITTED_AT_ONCE) {
            let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
            for ((topic, partition), offset) in some {
                topics.entry(topic).or_default().push(OffsetCommitRequestPartition {
                    partition_index: *partition,
                    committed_offset: **offset,
                    committed_leader_epoch: -1,
                    committed_metadata: Some(Str::default()),
                });
            }
            let topic = |(name, partitions): (&str, Vec<_>)| OffsetCommitRequestTopic {
                name: name.into(),
                partitions,
                ..Default::default()
            };
            let request = OffsetCommitRequest {
                group_id: group.into(),
                topics: topics.into_iter().map(topic).collect(),
                ..Default::default()
            };
            let code = |answer: &tidelog_wire::messages::OffsetCommitResponse| {
                let mut partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
                partitions.find(|partition| partition.error_code != 0).map_or(0, |found| found.error_code)
            };
            let what = || format!("commit offsets of group {}", named_group(group));
            self.ask_coordinator(group, OFFSET_COMMIT_VERSION, &request, code, what).await?;
        }
        Ok(())
    }

    /// Deletes a group that nobody is in, with its offsets.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code: `NON_EMPTY_GROUP`, `GROUP_ID_NOT_FOUND`.
    pub async fn delete(&mut self, group: &str) -> Result<(), ClientError> {
        let request = DeleteGroupsRequest { groups_names: vec![group.into()] };
        let code = |answer: &tidelog_wire::messages::DeleteGroupsResponse| {
            answer.results.first().map_or(0, |result| result.error_code)
        };
        let what = || format!("delete group {}", named_group(group));
        self.ask_coordinator(group, DELETE_GROUPS_VERSION, &request, code, what).await?;
        Ok(())
    }

    /// How many partitions a topic has.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is no such topic.
    pub async fn partition_count(&mut self, topic: &str) -> Result<i32, ClientError> {
        let answer = self.metadata([topic]).await?;
        let found = answer.topics.into_iter().next().ok_or(ClientError::Incomplete("the topic"))?;
        check(|| format!("topic {topic}"), found.error_code, None)?;
        Ok(i32::try_from(found.partitions.len()).unwrap_or(i32::MAX))
    }

    /// Asks the leaders for the offsets of partitions at a time, or at one of Kafka's special ones (-1: the end, -2: the log
    /// start). Each partition has an answer of its own.
    ///
    /// # Errors
    /// Where a node cannot be talked to.
    pub async fn list_offsets<'a>(
        &mut self,
        places: impl IntoIterator<Item = &'a Place>,
        timestamp: i64,
    ) -> Result<LookedUp, ClientError> {
        let mut looked_up = LookedUp::new();
        let mut asked: BTreeMap<String, BTreeMap<&str, Vec<ListOffsetsPartition>>> = BTreeMap::new();
        let places: Vec<&Place> = places.into_iter().collect();
        let leaders = self.leaders(&places).await?;
        for place in places {
            match leaders.get(place) {
                Some(Ok(leader)) => {
                    let topics = asked.entry(leader.clone()).or_default();
                    topics.entry(&place.0).or_default().push(ListOffsetsPartition {
                        partition_index: place.1,
                        timestamp,
                        ..Default::default()
                    });
                }
                Some(Err(code)) => drop(looked_up.insert(place.clone(), Err(refused(place, *code)))),
                None => {
                    let code = ErrorCode::UnknownTopicOrPartition.code();
                    looked_up.insert(place.clone(), Err(refused(place, code)));
                }
            }
        }
        for (leader, topics) in asked {
            let topic =
                |(name, partitions): (&str, Vec<_>)| ListOffsetsTopic { name: name.into(), partitions };
            let topics = topics.into_iter().map(topic).collect();
            let request = ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
            let answer = self.call(Some(&leader), LIST_OFFSETS_VERSION, &request).await?;
            for topic in answer.topics {
                for found in topic.partitions {
                    let place = (topic.name.to_string(), found.partition_index);
                    let outcome = match found.error_code {
                        0 => Ok((found.offset >= 0).then_some(found.offset)),
                        code => Err(refused(&place, code)),
                    };
                    looked_up.insert(place, outcome);
                }
            }
        }
        Ok(looked_up)
    }

    /// The leader of each partition, or Kafka's code where there is none.
    async fn leaders(
        &mut self,
        places: &[&Place],
    ) -> Result<BTreeMap<Place, Result<String, i16>>, ClientError> {
        let mut leaders = BTreeMap::new();
        let names: BTreeSet<&str> = places.iter().map(|place| place.0.as_str()).collect();
        if names.is_empty() {
            return Ok(leaders);
        }
        let answer = self.metadata(names).await?;
        let nodes: BTreeMap<i32, String> = answer
            .brokers
            .iter()
            .map(|node| (node.node_id, format!("{}:{}", node.host, node.port)))
            .collect();
        for topic in answer.topics {
            let Some(name) = topic.name else { continue };
            for partition in topic.partitions {
                let leader = match (partition.error_code, nodes.get(&partition.leader_id)) {
                    (0, Some(address)) => Ok(address.clone()),
                    (0, None) => Err(ErrorCode::LeaderNotAvailable.code()),
                    (code, _) => Err(code),
                };
                leaders.insert((name.to_string(), partition.partition_index), leader);
            }
        }
        Ok(leaders)
    }

    async fn metadata<'a>(
        &mut self,
        topics: impl IntoIterator<Item = &'a str>,
    ) -> Result<MetadataResponse, ClientError> {
        let topic = |name: &str| MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
        let topics = topics.into_iter().map(topic).collect();
        let request =
            MetadataRequest { topics: Some(topics), allow_auto_topic_creation: false, ..Default::default() };
        self.call(None, METADATA_VERSION, &request).await
    }

    /// Asks the coordinator of a group, again where it is loading or has moved, and gives its address with the answer.
    async fn ask_coordinator<R: Request>(
        &mut self,
        group: &str,
        version: i16,
        request: &R,
        code: impl Fn(&R::Response) -> i16,
        what: impl Fn() -> String,
    ) -> Result<(String, R::Response), ClientError> {
        let mut patience = Patience::default();
        loop {
            let find = FindCoordinatorRequest {
                key_type: GROUP_COORDINATOR,
                coordinator_keys: vec![group.into()],
                ..Default::default()
            };
            let found = self.call(None, FIND_COORDINATOR_VERSION, &find).await?;
            let found =
                found.coordinators.into_iter().next().ok_or(ClientError::Incomplete("the coordinator"))?;
            if patience.again(found.error_code).await {
                continue;
            }
            let looked_for = || format!("find the coordinator of group {}", named_group(group));
            check(looked_for, found.error_code, found.error_message.as_ref())?;
            let address = format!("{}:{}", found.host, found.port);
            let answer = self.call(Some(&address), version, request).await?;
            if patience.again(code(&answer)).await {
                continue;
            }
            check(&what, code(&answer), None)?;
            return Ok((address, answer));
        }
    }

    /// Asks a node, or the one that was named first.
    async fn call<R: Request>(
        &mut self,
        address: Option<&str>,
        version: i16,
        request: &R,
    ) -> Result<R::Response, ClientError> {
        let address = address.unwrap_or(&self.bootstrap);
        if !self.connections.contains_key(address) {
            self.connections.insert(address.to_owned(), Connection::open(address).await?);
        }
        let connection =
            self.connections.get_mut(address).ok_or(ClientError::Incomplete("a node's connection"))?;
        Ok(connection.call(version, request, ADMIN_TIMEOUT).await?)
    }
}

/// How often a coordinator was asked already.
#[derive(Debug, Default)]
struct Patience {
    tries: u32,
}

impl Patience {
    /// Whether to ask again after an answer with this code, once its wait is over.
    async fn again(&mut self, code: i16) -> bool {
        let passes = matches!(
            ErrorCode::from_code(code),
            Some(
                ErrorCode::CoordinatorLoadInProgress
                    | ErrorCode::CoordinatorNotAvailable
                    | ErrorCode::NotCoordinator
            )
        );
        if !passes || self.tries >= TRIES_MAX {
            return false;
        }
        self.tries += 1;
        let wait = RETRY_WAIT_MIN.saturating_mul(1 << self.tries.min(10)).min(RETRY_WAIT_MAX);
        tokio::time::sleep(wait).await;
        true
    }
}

fn classic(found: DescribedGroup, coordinator: String) -> GroupDescription {
    let consumers = found.protocol_type.as_str() == assignment::PROTOCOL_TYPE;
    let member = |member: DescribedGroupMember| GroupMember {
        member_id: member.member_id.to_string(),
        instance_id: member.group_instance_id.map(|id| id.to_string()),
        client_id: member.client_id.to_string(),
        host: member.client_host.to_string(),
        assigned: if consumers { assignment::partitions(&member.member_assignment) } else { None },
    };
    let mut members: Vec<_> = found.members.into_iter().map(member).collect();
    members.sort_by(|a, b| a.member_id.cmp(&b.member_id));
    GroupDescription {
        group: found.group_id.to_string(),
        state: found.group_state.to_string(),
        kind: "classic",
        protocol_type: found.protocol_type.to_string(),
        protocol: found.protocol_data.to_string(),
        coordinator,
        members,
    }
}

fn consumer(found: consumer_group_describe::DescribedGroup, coordinator: &str) -> GroupDescription {
    let member = |member: consumer_group_describe::Member| {
        let topics = member.assignment.topic_partitions;
        let places = topics.into_iter().flat_map(|topic| {
            let name = topic.topic_name.to_string();
            topic.partitions.into_iter().map(move |partition| (name.clone(), partition))
        });
        let mut assigned: Vec<Place> = places.collect();
        assigned.sort();
        GroupMember {
            member_id: member.member_id.to_string(),
            instance_id: member.instance_id.map(|id| id.to_string()),
            client_id: member.client_id.to_string(),
            host: member.client_host.to_string(),
            assigned: Some(assigned),
        }
    };
    let mut members: Vec<_> = found.members.into_iter().map(member).collect();
    members.sort_by(|a, b| a.member_id.cmp(&b.member_id));
    GroupDescription {
        group: found.group_id.to_string(),
        state: found.group_state.to_string(),
        kind: "consumer",
        protocol_type: assignment::PROTOCOL_TYPE.to_owned(),
        protocol: found.assignor_name.to_string(),
        coordinator: coordinator.to_owned(),
        members,
    }
}

fn named((topic, partition): &Place) -> String {
    format!("partition {partition} of {topic}")
}

fn refused(place: &Place, code: i16) -> ClientError {
    ClientError::Refused { what: named(place), code, message: None }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidelog_wire::messages::consumer_group_describe::{Assignment, Member, TopicPartitions};

    use super::*;

    #[test]
    fn both_protocols_are_described_alike() {
        let written = |id: &str, assignment: &'static [u8]| DescribedGroupMember {
            member_id: id.into(),
            member_assignment: Bytes::from_static(assignment),
            ..Default::default()
        };
        let found = |protocol_type: &str| DescribedGroup {
            group_id: "g".into(),
            group_state: "Stable".into(),
            protocol_type: protocol_type.into(),
            protocol_data: "range".into(),
            members: vec![
                written("b", b"\0\0\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\x03\0\0\0\x01"),
                written("a", b""),
            ],
            ..Default::default()
        };
        let described = classic(found("consumer"), "node:1".to_owned());
        let of = |described: &GroupDescription| {
            let members = described.members.iter();
            members.map(|member| (member.member_id.clone(), member.assigned.clone())).collect::<Vec<_>>()
        };
        let expected = vec![
            ("a".to_owned(), Some(Vec::new())),
            ("b".to_owned(), Some(vec![("t".to_owned(), 1), ("t".to_owned(), 3)])),
        ];
        assert_eq!(of(&described), expected);
        assert_eq!(of(&classic(found("connect"), String::new()))[1].1, None, "bytes of another protocol");
        let member = |id: &str, partitions: Vec<i32>| Member {
            member_id: id.into(),
            assignment: Assignment {
                topic_partitions: vec![TopicPartitions {
                    topic_name: "t".into(),
                    partitions,
                    ..Default::default()
                }],
            },
            ..Default::default()
        };
        let found = consumer_group_describe::DescribedGroup {
            group_id: "g".into(),
            group_state: "Stable".into(),
            assignor_name: "range".into(),
            members: vec![member("b", vec![3, 1]), member("a", Vec::new())],
            ..Default::default()
        };
        let other = consumer(found, "node:1");
        assert_eq!(other, GroupDescription { kind: "consumer", ..described });
    }
}
