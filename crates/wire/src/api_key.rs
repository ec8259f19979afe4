//! The APIs: key, name, and which messages carry them.
//!
//! What a broker *announces* is not here: it follows from what it serves.

use std::fmt;

use bytes::Bytes;

use crate::{DecodeError, EncodeError, Message, Request, Response, StructSpec, Versions, Writer, messages};

macro_rules! apis {
    ($($api:ident = $key:literal $module:ident::{$request:ident, $response:ident};)*) => {
        /// An API of Kafka's protocol that has a codec here.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(
                #[doc = concat!("Key ", stringify!($key), ".")]
                $api = $key,
            )*
        }

        impl ApiKey {
            /// All of them, by key.
            pub const ALL: &'static [Self] = &[$(Self::$api),*];

            /// The API of a key.
            #[must_use]
            pub const fn from_key(key: i16) -> Option<Self> {
                match key {
                    $($key => Some(Self::$api),)*
                    _ => None,
                }
            }

            /// The key on the wire.
            #[must_use]
            pub const fn key(self) -> i16 {
                match self {
                    $(Self::$api => $key,)*
                }
            }

            /// Kafka's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$api => stringify!($api),)*
                }
            }

            /// The versions that are encoded and decoded here.
            #[must_use]
            pub const fn codec_versions(self) -> Versions {
                match self {
                    $(Self::$api => messages::$request::VERSIONS,)*
                }
            }

            /// The versions with compact lengths, tagged fields, and headers that have them.
            #[must_use]
            pub const fn flexible_versions(self) -> Versions {
                match self {
                    $(Self::$api => messages::$request::FLEXIBLE,)*
                }
            }

            /// What the table says of the request.
            #[must_use]
            pub const fn request_spec(self) -> &'static StructSpec {
                match self {
                    $(Self::$api => &messages::$request::SPEC,)*
                }
            }

            /// What the table says of the response.
            #[must_use]
            pub const fn response_spec(self) -> &'static StructSpec {
                match self {
                    $(Self::$api => &messages::$response::SPEC,)*
                }
            }
        }

        $(
            impl Request for messages::$request {
                type Response = messages::$response;
            }
            impl Response for messages::$response {}
        )*

        bodies!(
            /// A request of any API.
            RequestBody { $($api($request)),* }
        );
        bodies!(
            /// A response of any API.
            ResponseBody { $($api($response)),* }
        );
    };
}

macro_rules! bodies {
    ($(#[$doc:meta])* $name:ident { $($api:ident($message:ident)),* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "one exists for each request in flight, not in arrays")]
        pub enum $name {
            $(
                #[doc = concat!("Of ", stringify!($api), ".")]
                $api(messages::$message),
            )*
        }

        impl $name {
            /// Reads a body that is the message and nothing else.
            ///
            /// # Errors
            /// As [`Message::from_bytes`].
            pub fn from_bytes(api: ApiKey, body: Bytes, version: i16) -> Result<Self, DecodeError> {
                match api {
                    $(ApiKey::$api => messages::$message::from_bytes(body, version).map(Self::$api),)*
                }
            }

            /// Writes the message.
            ///
            /// # Errors
            /// As [`Message::encode`].
            pub fn encode(&self, version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
                match self {
                    $(Self::$api(message) => message.encode(version, writer),)*
                }
            }
        }

        $(
            impl From<messages::$message> for $name {
                fn from(message: messages::$message) -> Self {
                    Self::$api(message)
                }
            }
        )*
    };
}

apis! {
    Produce = 0 produce::{ProduceRequest, ProduceResponse};
    Fetch = 1 fetch::{FetchRequest, FetchResponse};
    ListOffsets = 2 list_offsets::{ListOffsetsRequest, ListOffsetsResponse};
    Metadata = 3 metadata::{MetadataRequest, MetadataResponse};
    OffsetCommit = 8 offset_commit::{OffsetCommitRequest, OffsetCommitResponse};
    OffsetFetch = 9 offset_fetch::{OffsetFetchRequest, OffsetFetchResponse};
    FindCoordinator = 10 find_coordinator::{FindCoordinatorRequest, FindCoordinatorResponse};
    JoinGroup = 11 join_group::{JoinGroupRequest, JoinGroupResponse};
    Heartbeat = 12 heartbeat::{HeartbeatRequest, HeartbeatResponse};
    LeaveGroup = 13 leave_group::{LeaveGroupRequest, LeaveGroupResponse};
    SyncGroup = 14 sync_group::{SyncGroupRequest, SyncGroupResponse};
    DescribeGroups = 15 describe_groups::{DescribeGroupsRequest, DescribeGroupsResponse};
    ListGroups = 16 list_groups::{ListGroupsRequest, ListGroupsResponse};
    SaslHandshake = 17 sasl_handshake::{SaslHandshakeRequest, SaslHandshakeResponse};
    ApiVersions = 18 api_versions::{ApiVersionsRequest, ApiVersionsResponse};
    CreateTopics = 19 create_topics::{CreateTopicsRequest, CreateTopicsResponse};
    DeleteTopics = 20 delete_topics::{DeleteTopicsRequest, DeleteTopicsResponse};
    DeleteRecords = 21 delete_records::{DeleteRecordsRequest, DeleteRecordsResponse};
    InitProducerId = 22 init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
    OffsetForLeaderEpoch = 23 offset_for_leader_epoch::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
    AddPartitionsToTxn = 24 add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
    AddOffsetsToTxn = 25 add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
    EndTxn = 26 end_txn::{EndTxnRequest, EndTxnResponse};
    WriteTxnMarkers = 27 write_txn_markers::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
    TxnOffsetCommit = 28 txn_offset_commit::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
    DescribeConfigs = 32 describe_configs::{DescribeConfigsRequest, DescribeConfigsResponse};
    AlterConfigs = 33 alter_configs::{AlterConfigsRequest, AlterConfigsResponse};
    DescribeLogDirs = 35 describe_log_dirs::{DescribeLogDirsRequest, DescribeLogDirsResponse};
    SaslAuthenticate = 36 sasl_authenticate::{SaslAuthenticateRequest, SaslAuthenticateResponse};
    CreatePartitions = 37 create_partitions::{CreatePartitionsRequest, CreatePartitionsResponse};
    DeleteGroups = 42 delete_groups::{DeleteGroupsRequest, DeleteGroupsResponse};
    ElectLeaders = 43 elect_leaders::{ElectLeadersRequest, ElectLeadersResponse};
    IncrementalAlterConfigs = 44 incremental_alter_configs::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
    AlterPartitionReassignments = 45 alter_partition_reassignments::{AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse};
    ListPartitionReassignments = 46 list_partition_reassignments::{ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse};
    OffsetDelete = 47 offset_delete::{OffsetDeleteRequest, OffsetDeleteResponse};
    DescribeQuorum = 55 describe_quorum::{DescribeQuorumRequest, DescribeQuorumResponse};
    UpdateFeatures = 57 update_features::{UpdateFeaturesRequest, UpdateFeaturesResponse};
    DescribeCluster = 60 describe_cluster::{DescribeClusterRequest, DescribeClusterResponse};
    DescribeProducers = 61 describe_producers::{DescribeProducersRequest, DescribeProducersResponse};
    UnregisterBroker = 64 unregister_broker::{UnregisterBrokerRequest, UnregisterBrokerResponse};
    DescribeTransactions = 65 describe_transactions::{DescribeTransactionsRequest, DescribeTransactionsResponse};
    ListTransactions = 66 list_transactions::{ListTransactionsRequest, ListTransactionsResponse};
    ConsumerGroupHeartbeat = 68 consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
    ConsumerGroupDescribe = 69 consumer_group_describe::{ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse};
    ListConfigResources = 74 list_config_resources::{ListConfigResourcesRequest, ListConfigResourcesResponse};
    DescribeTopicPartitions = 75 describe_topic_partitions::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};
}

/// The lowest version of Produce that a broker announces. Those below the codec's are answered with
/// UNSUPPORTED_VERSION: librdkafka before 2.11 turns compression off, silently, where Produce 0 is not announced.
pub const PRODUCE_ANNOUNCED_VERSION_MIN: i16 = 0;

impl ApiKey {
    /// The header version of a request: 2 with tagged fields, else 1. Also right for versions without a codec.
    #[must_use]
    pub const fn request_header_version(self, version: i16) -> i16 {
        if self.flexible_versions().contains(version) { 2 } else { 1 }
    }

    /// The header version of a response: 1 with tagged fields, else 0. ApiVersions always has 0: a client reads the
    /// answer before it knows which versions the broker speaks.
    #[must_use]
    pub const fn response_header_version(self, version: i16) -> i16 {
        if self.flexible_versions().contains(version) && !matches!(self, Self::ApiVersions) { 1 } else { 0 }
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
