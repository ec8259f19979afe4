//! Fetch (key 1): from a request and its session to records, and back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tidelog_core::{
    cluster::{MetadataImage, PartitionImage, TopicImage},
    partition::PartitionSnapshot,
    read_plan::Isolation,
};
use tidelog_replica::PartitionHandle;
use tidelog_types::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicName, TopicPartition};
use tidelog_wire::{
    ErrorCode, Records, Str, Uuid,
    messages::{
        FetchRequest, FetchResponse,
        fetch::{
            EpochEndOffset, FetchTopic, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
        },
    },
};

use super::metadata;
use crate::{
    connection::{Answer, Caller},
    fetch::{
        Asked, FetchKey, FetchLimits, Found, PartitionRead, Plan, Seen, SessionIds, TopicKey, Wanted,
        read_all,
    },
    handlers::{self, BadRequest, Request},
    node::Node,
};

pub(crate) const VERSION_MIN: i16 = 4;
pub(crate) const VERSION_MAX: i16 = 17;

/// The first version that names topics by id.
const TOPIC_ID_VERSION_MIN: i16 = 13;
/// The first version with sessions.
const SESSION_VERSION_MIN: i16 = 7;
/// The first version that says who leads now.
const LEADER_VERSION_MIN: i16 = 16;
/// What a fetch is limited to where the answer's size prefix would end.
const BYTES_MAX: usize = 0x7000_0000;

/// A partition of the plan: what is read, or the answer that says why it cannot be.
enum Part {
    Read(usize),
    Failed(Box<PartitionData>),
}

pub(crate) async fn answer(
    node: &Arc<Node>,
    caller: &Caller,
    mut request: Box<Request>,
) -> Result<Answer, BadRequest> {
    let body: FetchRequest = request.body()?;
    let version = request.header.version;
    if !(0..=1).contains(&body.isolation_level) {
        return handlers::encode(&request.header, &refused(version, &body, ErrorCode::UnknownServerError));
    }
    let follower = if version >= 15 { body.replica_state.replica_id } else { body.replica_id };
    let unlimited = body.max_bytes < 0;
    let plan = match begin(node, version, &body) {
        Ok(plan) => plan,
        Err(code) => {
            let response = FetchResponse { error_code: code.code(), ..FetchResponse::default() };
            return handlers::encode(&request.header, &response);
        }
    };
    let limits = limits(node, &body);
    // The frame is not needed any more, and a fetch may wait long: other requests need the room.
    drop(body);
    let Request { header, body: frame, permit } = *request;
    drop((frame, permit));
    let image = node.image();
    let mut reads = Vec::with_capacity(plan.wanted.len());
    let parts: Vec<Part> = plan
        .wanted
        .iter()
        .map(|wanted| match find(node, &image, wanted, follower, unlimited) {
            Ok(read) => {
                reads.push(read);
                Part::Read(reads.len() - 1)
            }
            Err(code) => Part::Failed(Box::new(not_read(&image, version, wanted, code))),
        })
        .collect();
    let failed = parts.iter().any(|part| matches!(part, Part::Failed(_)));
    let permit = read_all(node, caller, limits, &mut reads, failed || plan.wanted.is_empty()).await;
    let response = finish(node, caller, version, &plan, &parts, &mut reads, limits.isolation);
    let mut answer = handlers::encode(&header, &response)?;
    answer.permit = Some(permit);
    Ok(answer)
}

fn limits(node: &Node, body: &FetchRequest) -> FetchLimits {
    let amount = |number: i32| usize::try_from(number).unwrap_or(0);
    let bytes_max = amount(body.max_bytes).min(node.limits.fetch_bytes_max).min(BYTES_MAX);
    FetchLimits {
        bytes_max,
        bytes_min: amount(body.min_bytes).min(bytes_max),
        wait_max: Duration::from_millis(u64::try_from(body.max_wait_ms).unwrap_or(0)),
        isolation: if body.isolation_level == 1 {
            Isolation::ReadCommitted
        } else {
            Isolation::ReadUncommitted
        },
    }
}

/// The answer to a request that is refused whole: up to version 12 Kafka says so of each partition too.
fn refused(version: i16, body: &FetchRequest, code: ErrorCode) -> FetchResponse {
    let topics: &[FetchTopic] = if version < TOPIC_ID_VERSION_MIN { &body.topics } else { &[] };
    let responses = topics.iter().map(|topic| FetchableTopicResponse {
        topic: topic.topic.clone(),
        partitions: topic
            .partitions
            .iter()
            .map(|partition| PartitionData {
                aborted_transactions: Some(Vec::new()),
                ..failed(partition.partition, code)
            })
            .collect(),
        ..FetchableTopicResponse::default()
    });
    FetchResponse { error_code: code.code(), responses: responses.collect(), ..FetchResponse::default() }
}

/// What the request asks for, in its session.
fn begin(node: &Node, version: i16, body: &FetchRequest) -> Result<Plan, ErrorCode> {
    let by_id = version >= TOPIC_ID_VERSION_MIN;
    let image = node.image();
    let topic_key = |name: &Str, id: Uuid| {
        if by_id { TopicKey::Id(TopicId::from(id)) } else { TopicKey::Name(Arc::from(name.as_str())) }
    };
    let mut named = Vec::new();
    for topic in &body.topics {
        let key = topic_key(&topic.topic, topic.topic_id);
        let known_name = match &key {
            TopicKey::Id(id) => image.topic(*id).map(|topic| Arc::from(topic.name.as_str())),
            TopicKey::Name(_) => None,
        };
        named.extend(topic.partitions.iter().map(|partition| Wanted {
            key: FetchKey { topic: key.clone(), partition: partition.partition },
            asked: Asked {
                offset: partition.fetch_offset,
                bytes_max: partition.partition_max_bytes,
                leader_epoch: partition.current_leader_epoch,
                last_fetched_epoch: partition.last_fetched_epoch,
            },
            known_name: known_name.clone(),
        }));
    }
    once_each(&mut named);
    let forgotten: Vec<FetchKey> = body
        .forgotten_topics_data
        .iter()
        .flat_map(|topic| {
            let key = topic_key(&topic.topic, topic.topic_id);
            topic
                .partitions
                .iter()
                .map(move |partition| FetchKey { topic: key.clone(), partition: *partition })
        })
        .collect();
    let ids = if version >= SESSION_VERSION_MIN {
        SessionIds { id: body.session_id, epoch: body.session_epoch }
    } else {
        SessionIds { id: 0, epoch: -1 }
    };
    node.sessions().begin(node.clock.monotonic(), ids, by_id, named, &forgotten)
}

/// Leaves each partition once, where it was named first, with what was asked of it last, as Kafka does.
fn once_each(named: &mut Vec<Wanted>) {
    if named.len() < 2 {
        return;
    }
    let mut last: BTreeMap<FetchKey, Asked> = BTreeMap::new();
    for wanted in &*named {
        last.insert(wanted.key.clone(), wanted.asked);
    }
    if last.len() < named.len() {
        named.retain_mut(|wanted| {
            let asked = last.remove(&wanted.key);
            asked.is_some_and(|asked| {
                wanted.asked = asked;
                true
            })
        });
    }
}

/// The partition that is asked for.
fn find(
    node: &Node,
    image: &MetadataImage,
    wanted: &Wanted,
    follower: i32,
    unlimited: bool,
) -> Result<PartitionRead, ErrorCode> {
    let handle = handle(node, image, wanted)?;
    if follower >= 0 {
        // Nobody follows a leader of one replica: Kafka's code for a replica that is none of the partition's.
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    if unlimited || wanted.asked.bytes_max < 0 {
        return Err(ErrorCode::UnknownServerError);
    }
    let offset = Offset::from_wire(wanted.asked.offset).ok_or(ErrorCode::OffsetOutOfRange)?;
    let bytes_max = usize::try_from(wanted.asked.bytes_max).unwrap_or(0);
    let mut read = PartitionRead::new(handle, offset, bytes_max);
    read.current_leader_epoch = LeaderEpoch::from_wire(wanted.asked.leader_epoch);
    read.last_fetched_epoch = LeaderEpoch::from_wire(wanted.asked.last_fetched_epoch);
    Ok(read)
}

fn handle(node: &Node, image: &MetadataImage, wanted: &Wanted) -> Result<PartitionHandle, ErrorCode> {
    let partition = PartitionIndex(wanted.key.partition);
    let topic = topic_of(image, &wanted.key.topic).ok_or_else(|| match &wanted.key.topic {
        TopicKey::Id(_) => gone(image, wanted),
        TopicKey::Name(_) => ErrorCode::UnknownTopicOrPartition,
    })?;
    let place = TopicPartition { topic_id: topic.id, partition };
    let known = image.partition(&place).is_some();
    node.replicas.partition(&place).ok_or(if known {
        ErrorCode::NotLeaderOrFollower
    } else {
        ErrorCode::UnknownTopicOrPartition
    })
}

fn topic_of<'a>(image: &'a MetadataImage, key: &TopicKey) -> Option<&'a TopicImage> {
    match key {
        TopicKey::Id(id) => image.topic(*id).map(|topic| &**topic),
        TopicKey::Name(name) => image.topic_by_name(&TopicName::new(name).ok()?).map(|topic| &**topic),
    }
}

/// A topic id that is not known. Where the session knew it, and its name is another topic's now, the client is told that
/// its ids are old.
fn gone(image: &MetadataImage, wanted: &Wanted) -> ErrorCode {
    let again = wanted.known_name.as_deref().and_then(|name| TopicName::new(name).ok());
    match again.and_then(|name| image.topic_by_name(&name)) {
        Some(_) => ErrorCode::InconsistentTopicId,
        None => ErrorCode::UnknownTopicId,
    }
}

fn finish(
    node: &Node,
    caller: &Caller,
    version: i16,
    plan: &Plan,
    parts: &[Part],
    reads: &mut [PartitionRead],
    isolation: Isolation,
) -> FetchResponse {
    let mut answers: Vec<PartitionData> = plan
        .wanted
        .iter()
        .zip(parts)
        .map(|(wanted, part)| match part {
            Part::Failed(data) => PartitionData::clone(data),
            Part::Read(index) => partition_data(version, wanted.key.partition, &mut reads[*index], isolation),
        })
        .collect();
    let seen: Vec<Seen> = answers.iter().map(seen).collect();
    let told = {
        let mut sessions = node.sessions();
        let told = sessions.finish(node.clock.monotonic(), plan, &seen, || node.rng.next_u64());
        node.metrics.fetch_sessions.set(u64::try_from(sessions.len()).unwrap_or(0));
        node.metrics.fetch_sessions_evicted.add(sessions.take_evicted());
        told
    };
    let (session_id, told) = match told {
        Ok(told) => told,
        Err(code) => return FetchResponse { error_code: code.code(), ..FetchResponse::default() },
    };
    let mut response = FetchResponse { session_id, ..FetchResponse::default() };
    let mut moved = false;
    let mut behind = Vec::new();
    for (((wanted, data), part), told) in plan.wanted.iter().zip(answers.drain(..)).zip(parts).zip(&told) {
        if !told {
            continue;
        }
        match part {
            Part::Read(_) => {
                moved |= data.current_leader != LeaderIdAndEpoch::default();
                push(&mut response.responses, &wanted.key.topic, data);
            }
            // Behind what was read, as in Kafka.
            Part::Failed(_) => {
                let leader = data.current_leader.leader_id;
                moved |= leader >= 0 && leader != node.id.0;
                behind.push((&wanted.key.topic, data));
            }
        }
    }
    for (topic, data) in behind {
        push(&mut response.responses, topic, data);
    }
    if moved && version >= LEADER_VERSION_MIN {
        response.node_endpoints = metadata::brokers(node, caller, &node.image())
            .into_iter()
            .map(|(id, host, port, rack)| NodeEndpoint { node_id: id.0, host, port, rack })
            .collect();
    }
    response
}

/// Adds a partition; neighbours of one topic share its entry.
fn push(topics: &mut Vec<FetchableTopicResponse>, key: &TopicKey, data: PartitionData) {
    let same = |topic: &FetchableTopicResponse| match key {
        TopicKey::Name(name) => topic.topic == **name,
        TopicKey::Id(id) => topic.topic_id == Uuid::from(*id),
    };
    match topics.last_mut() {
        Some(topic) if same(topic) => topic.partitions.push(data),
        _ => {
            let mut topic =
                FetchableTopicResponse { partitions: vec![data], ..FetchableTopicResponse::default() };
            match key {
                TopicKey::Name(name) => topic.topic = Str::from(&**name),
                TopicKey::Id(id) => topic.topic_id = Uuid::from(*id),
            }
            topics.push(topic);
        }
    }
}

fn failed(partition_index: i32, code: ErrorCode) -> PartitionData {
    PartitionData {
        partition_index,
        error_code: code.code(),
        high_watermark: -1,
        aborted_transactions: None,
        // Empty, not null: there are clients that cannot read null here.
        records: Some(Records::new()),
        ..PartitionData::default()
    }
}

/// The answer for a partition that is not read at all.
fn not_read(image: &MetadataImage, version: i16, wanted: &Wanted, code: ErrorCode) -> PartitionData {
    let mut data = failed(wanted.key.partition, code);
    let unknown =
        [ErrorCode::UnknownTopicOrPartition, ErrorCode::UnknownTopicId, ErrorCode::InconsistentTopicId];
    if unknown.contains(&code) {
        // Kafka's words for what is not there differ in this from those for what could not be read.
        data.aborted_transactions = Some(Vec::new());
    } else if code == ErrorCode::NotLeaderOrFollower && version >= LEADER_VERSION_MIN {
        let partition = PartitionIndex(wanted.key.partition);
        let topic = topic_of(image, &wanted.key.topic);
        let known =
            topic.and_then(|topic| image.partition(&TopicPartition { topic_id: topic.id, partition }));
        data.current_leader = known.map_or_else(LeaderIdAndEpoch::default, |image| leader_of(image));
    }
    data
}

fn leader_of(image: &PartitionImage) -> LeaderIdAndEpoch {
    LeaderIdAndEpoch {
        leader_id: image.leader.map_or(-1, |leader| leader.0),
        leader_epoch: image.leader_epoch.to_wire(),
    }
}

fn partition_data(
    version: i16,
    partition_index: i32,
    read: &mut PartitionRead,
    isolation: Isolation,
) -> PartitionData {
    let snapshot = Arc::clone(read.found.snapshot());
    let mut data = with_offsets(partition_index, &snapshot, isolation);
    let nothing = Found::Nothing { snapshot: Arc::clone(&snapshot) };
    match std::mem::replace(&mut read.found, nothing) {
        Found::Nothing { .. } | Found::Cold { .. } => {}
        Found::Records { chunks, .. } => data.records = Some(Records::from(chunks)),
        Found::Diverging { epoch, end, .. } => {
            data.diverging_epoch = EpochEndOffset { epoch: epoch.to_wire(), end_offset: end.to_wire() };
        }
        Found::Error { code, .. } => {
            // Nothing is told of a partition that could not be read.
            data = failed(partition_index, code);
            let elsewhere = matches!(code, ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch);
            if elsewhere && version >= LEADER_VERSION_MIN {
                data.current_leader = leader_of(&read.handle.image());
            }
        }
    }
    data
}

fn with_offsets(partition_index: i32, snapshot: &PartitionSnapshot, isolation: Isolation) -> PartitionData {
    PartitionData {
        partition_index,
        high_watermark: snapshot.high_watermark.to_wire(),
        last_stable_offset: snapshot.last_stable_offset.to_wire(),
        log_start_offset: snapshot.log_start.to_wire(),
        // No transaction has ever been open here: the list is empty, and for read_committed only.
        aborted_transactions: (isolation == Isolation::ReadCommitted).then(Vec::new),
        records: Some(Records::new()),
        ..PartitionData::default()
    }
}

fn seen(data: &PartitionData) -> Seen {
    Seen {
        high_watermark: data.high_watermark,
        last_stable_offset: data.last_stable_offset,
        log_start: data.log_start_offset,
        must_tell: data.records.as_ref().is_some_and(|records| !records.is_empty())
            || data.diverging_epoch != EpochEndOffset::default(),
        error: data.error_code != ErrorCode::None.code(),
    }
}
