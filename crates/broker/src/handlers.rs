//! The table of what is served, and the way of a frame to its handler and back.
//!
//! What ApiVersions announces is computed from this table: an API that has no handler is not announced.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;
use tidelog_runtime::Permit;
use tidelog_wire::{
    ApiKey, DecodeError, EncodeError, Message, PRODUCE_ANNOUNCED_VERSION_MIN, Reader, RequestHeader,
    Versions, encode_response_frame, messages::api_versions::ApiVersion,
};

use crate::{
    api::{self, produce::Started},
    connection::{Answer, Caller, FramePermit},
    node::{AnswerLane, Node},
};

/// Why a request closes its connection: nothing sensible can be answered.
#[derive(Debug, Error)]
pub(crate) enum BadRequest {
    /// The frame is not what its header says, or has no header.
    #[error("a request could not be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// A version that was not announced.
    #[error("{api} version {version} is not served")]
    NotServed {
        /// The API.
        api: ApiKey,
        /// The version.
        version: i16,
    },
    /// An answer has no encoding: a defect of ours.
    #[error("the answer to {api} version {version} could not be encoded: {source}")]
    Encode {
        /// The API.
        api: ApiKey,
        /// The version.
        version: i16,
        /// Why.
        source: EncodeError,
    },
}

/// A request whose header is read.
#[derive(Debug)]
pub(crate) struct Request {
    pub header: RequestHeader,
    pub body: Reader,
    /// The frame's share of a budget.
    pub permit: FramePermit,
}

impl Request {
    pub(crate) fn decode(frame: Bytes, permit: FramePermit) -> Result<Self, BadRequest> {
        let mut body = Reader::new(frame);
        let header = RequestHeader::decode(&mut body)?;
        Ok(Self { header, body, permit })
    }

    pub(crate) fn is_produce(&self) -> bool {
        self.header.api == ApiKey::Produce
    }

    /// Reads the body. What follows the message is ignored, as Kafka does: librdkafka's Metadata request for all topics
    /// has three bytes too many.
    pub(crate) fn body<M: Message>(&mut self) -> Result<M, BadRequest> {
        Ok(M::decode(&mut self.body, self.header.version)?)
    }
}

/// Encodes an answer.
pub(crate) fn encode<R: tidelog_wire::Response>(
    header: &RequestHeader,
    response: &R,
) -> Result<Answer, BadRequest> {
    let (api, version) = (header.api, header.version);
    let slices = encode_response_frame(version, header.correlation_id, response)
        .map_err(|source| BadRequest::Encode { api, version, source })?;
    Ok(Answer { slices, ..Answer::default() })
}

/// Answers up to this size take no part of a budget: what clients ask for all day long is below it.
pub(crate) const ANSWER_FREE: u64 = 64 * 1024;

/// From this size on an answer is a large one, for which the others do not wait.
const ANSWER_LARGE: u64 = 1024 * 1024;

/// What an answer of about `bytes` shares with its like.
fn lane(node: &Node, bytes: u64) -> &AnswerLane {
    if bytes > ANSWER_LARGE { &node.large_answers } else { &node.answers }
}

/// Memory for an answer of about `bytes`, before it is made: waits while others hold all there is. `None`: the connection
/// ended meanwhile.
pub(crate) async fn memory(node: &Node, caller: &Caller, bytes: u64) -> Option<Permit> {
    tokio::select! {
        biased;
        () = caller.ended.cancelled() => None,
        permit = lane(node, bytes).budget.acquire(bytes) => Some(permit),
    }
}

/// Has an answer hold what it pins until it is sent.
fn charged(node: &Node, mut answer: Answer, permit: Option<Permit>) -> Answer {
    let bytes = answer.slices.iter().fold(0_u64, |sum, slice| sum.saturating_add(slice.len() as u64));
    let mut permit = permit.unwrap_or_else(|| lane(node, bytes).budget.charge(0));
    if bytes < permit.bytes() || bytes > ANSWER_FREE {
        permit.resize_to(bytes);
    }
    answer.permit = Some(permit);
    answer
}

/// Makes a large answer where it is in nobody's way: behind, since the front computes nothing for more than a moment, and a
/// few at a time, so that whoever asks for all partitions over and over waits for himself.
async fn large<R, W>(
    node: &Arc<Node>,
    caller: &Caller,
    header: RequestHeader,
    bytes: u64,
    work: impl FnOnce(Arc<Node>, Caller) -> W,
) -> Result<Answer, BadRequest>
where
    R: tidelog_wire::Response,
    W: Future<Output = R> + Send + 'static,
{
    let ended = || Ok(Answer { close: true, ..Answer::default() });
    let Some(permit) = memory(node, caller, bytes).await else { return ended() };
    let Ok(_turn) = lane(node, bytes).turns.acquire().await else { return ended() };
    let response = work(Arc::clone(node), caller.clone());
    let making = async move { encode(&header, &response.await) };
    match node.supervisor.spawn_back("large answer", making).join().await {
        Ok(answer) => Ok(charged(node, answer?, Some(permit))),
        // It panicked, which is logged, or the broker stops.
        Err(_) => ended(),
    }
}

/// A JoinGroup: only when its group has answered is it known how much there is to tell.
async fn join_group(
    node: &Arc<Node>,
    caller: &Caller,
    mut request: Box<Request>,
) -> Result<Answer, BadRequest> {
    let body = request.body()?;
    let caller = &caller.named(request.header.client_id.take());
    let (response, permit) = api::join_group::handle(node, caller, request.header.version, body).await;
    Ok(charged(node, encode(&request.header, &response)?, permit))
}

macro_rules! served {
    // `as` names what an answer will be at most, about: where a small request may have a large one, or the same large one a
    // thousand times.
    ($($api:ident [$min:literal-$max:literal] $handler:path $(as $bytes:path)?;)*) => {
        /// What is served. The first four have ways of their own.
        const SERVED: &[(ApiKey, Versions)] = &[
            (ApiKey::Produce, Versions { min: api::produce::VERSION_MIN, max: api::produce::VERSION_MAX }),
            (ApiKey::Fetch, Versions { min: api::fetch::VERSION_MIN, max: api::fetch::VERSION_MAX }),
            (ApiKey::ApiVersions, Versions { min: 0, max: api::api_versions::VERSION_MAX }),
            (ApiKey::JoinGroup, Versions { min: 0, max: api::join_group::VERSION_MAX }),
            $((ApiKey::$api, Versions { min: $min, max: $max }),)*
        ];

        async fn dispatch(node: &Arc<Node>, caller: &Caller, mut request: Box<Request>) -> Result<Answer, BadRequest> {
            let version = request.header.version;
            match request.header.api {
                ApiKey::ApiVersions => api::api_versions::answer(*request),
                ApiKey::Fetch => api::fetch::answer(node, caller, request).await,
                ApiKey::JoinGroup => Box::pin(join_group(node, caller, request)).await,
                // Boxed: these are rare, and a connection's task has room for the frequent ones only.
                $(ApiKey::$api => {
                    Box::pin(async move {
                        let body = request.body()?;
                        let caller = &caller.named(request.header.client_id.take());
                        $(
                            let bytes = $bytes(node, &body);
                            if bytes > ANSWER_FREE {
                                let work = move |node: Arc<Node>, caller: Caller| async move {
                                    $handler(&node, &caller, version, body).await
                                };
                                return large(node, caller, request.header, bytes, work).await;
                            }
                        )?
                        let response = $handler(node, caller, version, body).await;
                        Ok(charged(node, encode(&request.header, &response)?, None))
                    })
                    .await
                })*
                api => Err(BadRequest::NotServed { api, version }),
            }
        }
    };
}

served! {
    ListOffsets [1-11] api::list_offsets::handle;
    Metadata [0-13] api::metadata::handle as api::metadata::answer_bytes;
    OffsetCommit [2-9] api::offset_commit::handle;
    OffsetFetch [1-9] api::offset_fetch::handle as api::offset_fetch::answer_bytes;
    FindCoordinator [0-6] api::find_coordinator::handle;
    Heartbeat [0-4] api::heartbeat::handle;
    LeaveGroup [0-5] api::leave_group::handle;
    SyncGroup [0-5] api::sync_group::handle;
    DescribeGroups [0-6] api::describe_groups::handle as api::describe_groups::answer_bytes;
    ListGroups [0-5] api::list_groups::handle as api::list_groups::answer_bytes;
    SaslHandshake [0-1] api::sasl::handshake;
    CreateTopics [2-7] api::create_topics::handle;
    DeleteTopics [1-6] api::delete_topics::handle;
    DeleteRecords [0-2] api::delete_records::handle;
    InitProducerId [0-5] api::init_producer_id::handle;
    OffsetForLeaderEpoch [2-4] api::offset_for_leader_epoch::handle;
    DescribeConfigs [1-4] api::describe_configs::handle as api::describe_configs::answer_bytes;
    AlterConfigs [0-2] api::alter_configs::handle;
    DescribeLogDirs [1-4] api::describe_log_dirs::handle as api::describe_log_dirs::answer_bytes;
    DeleteGroups [0-2] api::delete_groups::handle;
    OffsetDelete [0-0] api::offset_delete::handle;
    SaslAuthenticate [0-2] api::sasl::authenticate;
    CreatePartitions [0-3] api::create_partitions::handle;
    ElectLeaders [0-2] api::elect_leaders::handle as api::elect_leaders::answer_bytes;
    IncrementalAlterConfigs [0-1] api::incremental_alter_configs::handle;
    AlterPartitionReassignments [0-1] api::alter_partition_reassignments::handle
        as api::alter_partition_reassignments::answer_bytes;
    ListPartitionReassignments [0-0] api::list_partition_reassignments::handle;
    DescribeQuorum [0-2] api::describe_quorum::handle as api::describe_quorum::answer_bytes;
    UpdateFeatures [0-2] api::update_features::handle;
    DescribeCluster [0-2] api::describe_cluster::handle;
    DescribeProducers [0-0] api::describe_producers::handle as api::describe_producers::answer_bytes;
    UnregisterBroker [0-0] api::unregister_broker::handle;
    ListConfigResources [0-1] api::list_config_resources::handle
        as api::list_config_resources::answer_bytes;
    ConsumerGroupHeartbeat [0-1] api::consumer_group_heartbeat::handle;
    ConsumerGroupDescribe [0-1] api::consumer_group_describe::handle
        as api::consumer_group_describe::answer_bytes;
    DescribeTopicPartitions [0-0] api::describe_topic_partitions::handle
        as api::describe_topic_partitions::answer_bytes;
}

/// The APIs that are served.
pub(crate) fn served() -> impl Iterator<Item = ApiKey> {
    SERVED.iter().map(|(api, _)| *api)
}

/// The versions of an API that are served; none where it is not.
fn versions(api: ApiKey) -> Versions {
    SERVED.iter().find(|(served, _)| *served == api).map_or(Versions::NONE, |(_, versions)| *versions)
}

/// What ApiVersions announces, by key.
pub(crate) fn announced() -> Vec<ApiVersion> {
    let mut announced: Vec<ApiVersion> = SERVED
        .iter()
        .map(|(api, versions)| ApiVersion {
            api_key: api.key(),
            // The versions below are refused when they are asked, see the constant.
            min_version: if *api == ApiKey::Produce { PRODUCE_ANNOUNCED_VERSION_MIN } else { versions.min },
            max_version: versions.max,
        })
        .collect();
    announced.sort_unstable_by_key(|range| range.api_key);
    announced
}

/// Whether a request can be answered at all: else its connection is closed before anything is done.
fn check_served(request: &Request) -> Result<(), BadRequest> {
    let (api, version) = (request.header.api, request.header.version);
    // ApiVersions is answered in any version: a client cannot know yet which ones there are.
    let any = match api {
        ApiKey::ApiVersions => true,
        ApiKey::Produce => (PRODUCE_ANNOUNCED_VERSION_MIN..api::produce::VERSION_MIN).contains(&version),
        _ => false,
    };
    if any || versions(api).contains(version) { Ok(()) } else { Err(BadRequest::NotServed { api, version }) }
}

/// The whole of a request other than Produce, or of a Produce behind one.
pub(crate) async fn run(
    node: &Arc<Node>,
    caller: &Caller,
    request: Box<Request>,
) -> Result<Answer, BadRequest> {
    check_served(&request)?;
    if request.is_produce() {
        let started = api::produce::start(node, *request).await?;
        return api::produce::finish(node, caller, started).await;
    }
    let (api, began) = (request.header.api, node.clock.monotonic());
    let answer = dispatch(node, caller, request).await?;
    count(node, api, began);
    Ok(answer)
}

/// Starts a Produce: when this is done its batches are appended, or refused.
pub(crate) async fn start_produce(node: &Node, request: Request) -> Result<Box<Started>, BadRequest> {
    check_served(&request)?;
    api::produce::start(node, request).await
}

pub(crate) fn count(node: &Node, api: ApiKey, started: std::time::Duration) {
    if let Some(metrics) = node.metrics.api(api) {
        metrics.requests.inc();
        metrics.seconds.observe_duration(node.clock.monotonic().saturating_sub(started));
    }
}
