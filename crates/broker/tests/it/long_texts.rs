//! Texts of clients as long as a string can be: whatever repeats them is cut, and every request is answered.

use std::time::Duration;

use tidelog_testkit::raw_client::{RawClient, request_header};
use tidelog_wire::{
    ApiKey, ErrorCode, FieldSpec, Kind, StructSpec,
    messages::{
        AlterConfigsRequest, ApiVersionsRequest, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest,
        CreateTopicsRequest, DescribeGroupsRequest, IncrementalAlterConfigsRequest, LeaveGroupRequest,
        alter_configs,
        create_topics::{CreatableTopic, CreatableTopicConfig},
        incremental_alter_configs,
        leave_group::MemberIdentity,
    },
};

use crate::{
    groups::{coordinator, join_of, quick, sync, text},
    node::Node,
};

/// The longest string of the protocol.
const LONGEST: usize = 32_767;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;

fn longest() -> String {
    "x".repeat(LONGEST)
}

fn length(bytes: &mut Vec<u8>, length: usize, flexible: bool, width: usize) {
    if !flexible {
        bytes.extend_from_slice(&length.to_be_bytes()[8 - width..]);
        return;
    }
    let mut encoded = length + 1;
    while encoded > 0x7f {
        bytes.push(encoded.to_le_bytes()[0] | 0x80);
        encoded >>= 7;
    }
    bytes.push(encoded.to_le_bytes()[0]);
}

/// A body in which every string is as long as can be, every list has one element, and every number is this one, where it does not
/// say how long to wait.
struct Body {
    bytes: Vec<u8>,
    version: i16,
    flexible: bool,
    number: i64,
}

impl Body {
    fn of(api: ApiKey, version: i16, number: i64) -> Vec<u8> {
        let flexible = api.flexible_versions().contains(version);
        let mut body = Self { bytes: Vec::new(), version, flexible, number };
        body.structure(api.request_spec());
        body.bytes
    }

    fn structure(&mut self, spec: &StructSpec) {
        let version = self.version;
        for field in spec.fields.iter().filter(|field| field.is_plain_in(version)) {
            self.value(field, field.kind);
        }
        if self.flexible {
            self.bytes.push(0);
        }
    }

    fn value(&mut self, field: &FieldSpec, kind: Kind) {
        match kind {
            Kind::Bool => self.bytes.push(0),
            Kind::Int(size) => {
                let number = match field.name {
                    "session_timeout_ms" | "rebalance_timeout_ms" => 6_000,
                    "timeout_ms" | "max_wait_ms" => 10,
                    // Else nothing is answered.
                    "acks" => 1,
                    _ => self.number,
                };
                self.bytes.extend_from_slice(&number.to_be_bytes()[8 - size..]);
            }
            Kind::Float => self.bytes.extend_from_slice(&[0; 8]),
            Kind::Uuid => self.bytes.extend_from_slice(&[0; 16]),
            Kind::String => {
                length(&mut self.bytes, LONGEST, self.flexible, 2);
                self.bytes.extend_from_slice(longest().as_bytes());
            }
            Kind::Bytes | Kind::Records => length(&mut self.bytes, 0, self.flexible, 4),
            Kind::Array { element, .. } => {
                length(&mut self.bytes, 1, self.flexible, 4);
                self.value(field, *element);
            }
            Kind::Struct(spec) => {
                if field.nullable.contains(self.version) && matches!(field.kind, Kind::Struct(_)) {
                    self.bytes.push(1);
                }
                self.structure(spec);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_every_text_is_the_longest_is_answered_in_every_version() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    coordinator(&mut client, "g").await;
    let announced = client.call(0, &ApiVersionsRequest::default()).await.api_keys;
    let mut sent = 0;
    for range in announced {
        let api = ApiKey::from_key(range.api_key).unwrap();
        // What is announced below is refused, see the constant of Produce.
        let least = if api == ApiKey::Produce { 3 } else { range.min_version };
        for version in least..=range.max_version {
            // The types of resources, of coordinators and of elections are among them.
            for number in [-1, 0, 1, 2, 4, 8, 16, 32] {
                let mut frame = request_header(api, version, 5);
                frame.extend_from_slice(&Body::of(api, version, number));
                client.send_frame(&frame).await;
                let answer = tokio::time::timeout(Duration::from_secs(15), client.receive_frame()).await;
                let answer = answer.unwrap_or_else(|_| panic!("{api} {version} with {number} hangs"));
                assert_eq!(answer[..4], [0, 0, 0, 5], "{api} {version} with {number}");
                sent += 1;
            }
        }
    }
    assert!(sent > 1_000, "{sent}");
    assert_eq!(node.metric("runtime_task_panics_total"), 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_client_has_the_longest_name_gets_an_id_and_its_group_can_be_described() {
    let node = quick(&[]).await;
    let mut client = node.client().await.named(&longest());
    coordinator(&mut client, "g").await;
    // Version 3 makes a member at once; a newer one is given an id to come again with.
    let joined = client.call(3, &join_of("g", "", None)).await;
    assert_eq!(joined.error_code, 0);
    assert_eq!(joined.member_id.len(), LONGEST, "{}", joined.member_id);
    assert_eq!(sync(&mut client, "g", &joined, b"mine").await, (0, b"mine".to_vec()));
    let request = DescribeGroupsRequest { groups: vec![text("g")], ..Default::default() };
    let described = client.call(6, &request).await.groups.remove(0);
    assert_eq!((described.error_code, described.members.len()), (0, 1));
    assert_eq!(described.members[0].member_id, joined.member_id);
    assert_eq!(described.members[0].client_id.len(), LONGEST, "repeated as it was sent");
    let member = MemberIdentity { member_id: joined.member_id, ..Default::default() };
    let leave = LeaveGroupRequest { group_id: text("g"), members: vec![member], ..Default::default() };
    assert_eq!(client.call(5, &leave).await.members[0].error_code, 0);

    let first = client.call(9, &join_of("g", "", None)).await;
    assert_eq!(first.error_code, ErrorCode::MemberIdRequired.code());
    assert_eq!(first.member_id.len(), LONGEST);
    // A static member's id is made of its own name, and cut between two characters.
    let name = "ü".repeat(16_383);
    let joined = client.call(9, &join_of("s", "", Some(&name))).await;
    assert_eq!(joined.error_code, 0);
    let kept = "ü".repeat((LONGEST - 37) / 2);
    assert!(joined.member_id.starts_with(&format!("{kept}-")), "{}", joined.member_id);
    let request = DescribeGroupsRequest { groups: vec![text("s")], ..Default::default() };
    let described = client.call(6, &request).await.groups.remove(0);
    assert_eq!(described.members[0].group_instance_id, Some(text(&name)));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_groups_name_and_what_a_member_asks_for_are_cut_where_an_error_repeats_them() {
    let node = quick(&[]).await;
    let mut client = node.client().await;
    let (long, cut) = (longest(), "x".repeat(249));
    coordinator(&mut client, &long).await;
    let request = DescribeGroupsRequest { groups: vec![text(&long)], ..Default::default() };
    let described = client.call(6, &request).await.groups.remove(0);
    assert_eq!(described.error_code, ErrorCode::GroupIdNotFound.code());
    assert_eq!(described.error_message, Some(text(&format!("Group {cut} not found."))));
    assert_eq!(described.group_id.len(), LONGEST);
    let request = ConsumerGroupDescribeRequest { group_ids: vec![text(&long)], ..Default::default() };
    let described = client.call(1, &request).await.groups.remove(0);
    assert_eq!(described.error_message, Some(text(&format!("Group {cut} not found."))));

    // Each kind of group, asked for as the other.
    assert_eq!(client.call(3, &join_of(&long, "", None)).await.error_code, 0);
    let described = client.call(1, &request).await.groups.remove(0);
    assert_eq!(described.error_message, Some(text(&format!("Group {cut} is not a consumer group."))));
    let other = format!("{}y", &long[1..]);
    let beat = ConsumerGroupHeartbeatRequest {
        group_id: text(&other),
        member_id: text("m"),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec![text("t")]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let absent = ConsumerGroupHeartbeatRequest { member_epoch: 1, ..beat.clone() };
    let answer = client.call(1, &absent).await;
    assert_eq!(answer.error_code, ErrorCode::GroupIdNotFound.code());
    assert_eq!(answer.error_message, Some(text(&format!("Group {cut} not found."))));
    let unsupported = ConsumerGroupHeartbeatRequest { server_assignor: Some(text(&long)), ..beat.clone() };
    let answer = client.call(1, &unsupported).await;
    assert_eq!(answer.error_code, ErrorCode::UnsupportedAssignor.code());
    assert_eq!(answer.error_message, Some(text(&format!("the assignor {cut} is not supported"))));
    // The expression is repeated by whoever explains what is wrong with it, too.
    let wrong = format!("({}", &long[1..]);
    let unreadable =
        ConsumerGroupHeartbeatRequest { subscribed_topic_regex: Some(text(&wrong)), ..beat.clone() };
    let answer = client.call(1, &unreadable).await;
    assert_eq!(answer.error_code, ErrorCode::InvalidRegularExpression.code());
    assert!(answer.error_message.unwrap().len() <= LONGEST);
    assert_eq!(client.call(1, &beat).await.error_code, 0);
    let request = DescribeGroupsRequest { groups: vec![text(&other)], ..Default::default() };
    let described = client.call(6, &request).await.groups.remove(0);
    let described = described.error_message.unwrap().to_string();
    assert_eq!(described, format!("Group {cut} is not a classic group."));
    node.stop().await;
}

async fn altered(
    client: &mut RawClient,
    kind: i8,
    name: &str,
    keys: &[(&str, i8, Option<&str>)],
) -> (i16, String) {
    let configs = keys.iter().map(|(key, operation, value)| incremental_alter_configs::AlterableConfig {
        name: text(key),
        config_operation: *operation,
        value: value.map(text),
    });
    let resource = incremental_alter_configs::AlterConfigsResource {
        resource_type: kind,
        resource_name: text(name),
        configs: configs.collect(),
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer = client.call(1, &request).await.responses.remove(0);
    (answer.error_code, answer.error_message.map(|message| message.to_string()).unwrap_or_default())
}

/// AlterConfigs, likewise.
async fn replaced(
    client: &mut RawClient,
    kind: i8,
    name: &str,
    keys: &[(&str, Option<&str>)],
) -> (i16, String) {
    let configs = keys
        .iter()
        .map(|(key, value)| alter_configs::AlterableConfig { name: text(key), value: value.map(text) });
    let resource = alter_configs::AlterConfigsResource {
        resource_type: kind,
        resource_name: text(name),
        configs: configs.collect(),
    };
    let request = AlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer = client.call(2, &request).await.responses.remove(0);
    (answer.error_code, answer.error_message.map(|message| message.to_string()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_values_are_cut_where_an_error_repeats_them() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let (long, cut) = (longest(), "x".repeat(249));
    for (kind, name, word) in [(TOPIC, "t", "topic"), (BROKER, "1", "broker"), (GROUP, "g", "group")] {
        let unknown = format!("Unknown {word} config name: {cut}");
        assert_eq!(altered(&mut client, kind, name, &[(&long, 0, Some("1"))]).await.1, unknown);
        assert_eq!(replaced(&mut client, kind, name, &[(&long, Some("1"))]).await.1, unknown);
        let null = format!("Null value not supported for : {cut}");
        assert_eq!(replaced(&mut client, kind, name, &[(&long, None)]).await.1, null);
    }
    for (kind, name, key) in [
        (TOPIC, "t", "cleanup.policy"),
        (BROKER, "1", "log.cleanup.policy"),
        (GROUP, "g", "consumer.session.timeout.ms"),
    ] {
        let (code, told) = altered(&mut client, kind, name, &[(key, 0, Some(&long))]).await;
        assert_eq!(code, ErrorCode::InvalidConfig.code());
        assert!(told.starts_with(&format!("Invalid value {} for", "x".repeat(256))), "{told}");
    }
    // Many texts that fit make one that does not.
    let keys: Vec<String> = (0..2_000).map(|number| format!("no.such.key.{number}")).collect();
    let keys: Vec<(&str, Option<&str>)> = keys.iter().map(|key| (key.as_str(), Some("1"))).collect();
    let (code, told) = replaced(&mut client, TOPIC, "t", &keys).await;
    assert_eq!((code, told.len()), (ErrorCode::InvalidConfig.code(), LONGEST));
    assert!(told.starts_with("Unknown topic config name: no.such.key.0; Unknown"), "{}", &told[..90]);

    for (value, told) in [
        (Some("1"), format!("Unknown topic config name: {cut}")),
        (None, format!("Null value not supported for topic configs: {cut}")),
    ] {
        let config = CreatableTopicConfig { name: text(&long), value: value.map(text) };
        let topic = CreatableTopic {
            name: text("u"),
            num_partitions: 1,
            replication_factor: 1,
            configs: vec![config],
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1_000, validate_only: false };
        let created = client.call(7, &request).await.topics.remove(0);
        assert_eq!(created.error_message.unwrap(), *told);
    }
    node.stop().await;
}
