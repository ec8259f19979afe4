//! The one mapping of the system's errors to Kafka's codes. No wildcard arm: a new error is decided on here.

use tidelog_core::{
    cluster::Refusal, groups::GroupError, partition::AppendRefusal, producers::ProducerError,
    read_plan::LeadershipMismatch, topic_config::ConfigError,
};
use tidelog_format::batch::{BatchError, BatchErrorKind, RecordError};
use tidelog_replica::{
    AckError, AppendError, ColdError, DeleteRecordsError, LookUpError, ProposeFailure, ReadError,
};
use tidelog_types::{TopicName, TopicNameError, limits, shown};
use tidelog_wire::{ErrorCode, Str, messages::produce::BatchIndexAndErrorMessage};

/// A code and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub code: ErrorCode,
    pub message: String,
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn into_message(self) -> Option<Str> {
        (!self.message.is_empty()).then(|| Str::from(self.message))
    }
}

pub(crate) const fn topic_name(error: &TopicNameError) -> ErrorCode {
    match error {
        TopicNameError::Empty
        | TopicNameError::Dots
        | TopicNameError::TooLong { .. }
        | TopicNameError::Character { .. } => ErrorCode::InvalidTopicException,
    }
}

/// A topic's name that is none, in Kafka's words.
pub(crate) fn invalid_topic(name: &str, error: &TopicNameError) -> ApiError {
    let why = match error {
        TopicNameError::Empty => "the empty string is not allowed".to_owned(),
        TopicNameError::Dots => "'.' or '..' is not allowed".to_owned(),
        TopicNameError::TooLong { .. } => {
            let (name, most) = (shown(name), limits::TOPIC_NAME_BYTES_MAX);
            format!("the length of '{name}' is longer than the max allowed length {most}")
        }
        TopicNameError::Character { .. } => format!(
            "'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
        ),
    };
    ApiError::new(topic_name(error), format!("Topic name is invalid: {why}"))
}

pub(crate) const fn config(error: &ConfigError) -> ErrorCode {
    match error {
        ConfigError::UnknownTopicKey { .. }
        | ConfigError::UnknownGroupKey { .. }
        | ConfigError::Null { .. }
        | ConfigError::Invalid { .. }
        | ConfigError::NotAList { .. }
        | ConfigError::WithoutEffect { .. }
        | ConfigError::Conflict { .. } => ErrorCode::InvalidConfig,
        ConfigError::UnknownBrokerKey { .. }
        | ConfigError::ReadOnly { .. }
        | ConfigError::OfOneBroker { .. } => ErrorCode::InvalidRequest,
    }
}

/// A change that has no outcome here. Unknown is not refused: a client that asks again may find it done.
pub(crate) fn propose(failure: &ProposeFailure) -> ApiError {
    match failure {
        ProposeFailure::Refused(why) => refusal(why),
        ProposeFailure::Unavailable(_) => ApiError::new(ErrorCode::NotController, failure.to_string()),
        ProposeFailure::Unknown(_) => ApiError::new(ErrorCode::RequestTimedOut, failure.to_string()),
    }
}

pub(crate) fn refusal(refusal: &Refusal) -> ApiError {
    let code = match refusal {
        Refusal::NotInitialized | Refusal::UnknownBroker { .. } | Refusal::StaleIncarnation { .. } => {
            ErrorCode::NotController
        }
        Refusal::AnotherCluster { .. } => ErrorCode::InconsistentClusterId,
        Refusal::DuplicateBroker { .. } => ErrorCode::DuplicateBrokerRegistration,
        Refusal::UnknownIncarnation { .. } => ErrorCode::StaleBrokerEpoch,
        Refusal::FeatureLevel { .. } => ErrorCode::InvalidUpdateVersion,
        Refusal::TopicExists { name, .. } => {
            return ApiError::new(ErrorCode::TopicAlreadyExists, format!("Topic '{name}' already exists."));
        }
        Refusal::TopicCollides { name, with } => {
            return ApiError::new(
                ErrorCode::InvalidTopicException,
                format!("Topic '{name}' collides with existing topic: {with}"),
            );
        }
        // An id is drawn by the proposer: the next draw will do.
        Refusal::TopicIdTaken { .. } => ErrorCode::NotController,
        Refusal::UnknownTopic { .. } | Refusal::UnknownPartition { .. } => ErrorCode::UnknownTopicOrPartition,
        Refusal::PartitionCount { .. } | Refusal::TooManyPartitions { .. } => ErrorCode::InvalidPartitions,
        Refusal::ReplicationFactor { .. } => ErrorCode::InvalidReplicationFactor,
        Refusal::Assignment { .. } => ErrorCode::InvalidReplicaAssignment,
        Refusal::TooMuch { .. } => ErrorCode::PolicyViolation,
        Refusal::StaleLeaderEpoch { .. } => ErrorCode::NotLeaderOrFollower,
        Refusal::ProducerIdsExhausted
        | Refusal::UploadFenced
        | Refusal::SpillMismatch { .. }
        | Refusal::PublishedVersion { .. }
        | Refusal::TimeOverflow { .. } => ErrorCode::UnknownServerError,
    };
    ApiError::new(code, refusal.to_string())
}

/// Why a group refuses.
pub(crate) const fn group(error: &GroupError) -> ErrorCode {
    match error {
        GroupError::InvalidGroupId => ErrorCode::InvalidGroupId,
        GroupError::GroupIdNotFound => ErrorCode::GroupIdNotFound,
        GroupError::NonEmptyGroup => ErrorCode::NonEmptyGroup,
        GroupError::GroupSubscribedToTopic => ErrorCode::GroupSubscribedToTopic,
        GroupError::UnknownMemberId => ErrorCode::UnknownMemberId,
        GroupError::MemberIdRequired => ErrorCode::MemberIdRequired,
        GroupError::IllegalGeneration => ErrorCode::IllegalGeneration,
        GroupError::RebalanceInProgress => ErrorCode::RebalanceInProgress,
        GroupError::InconsistentGroupProtocol => ErrorCode::InconsistentGroupProtocol,
        GroupError::FencedInstanceId => ErrorCode::FencedInstanceId,
        GroupError::UnreleasedInstanceId => ErrorCode::UnreleasedInstanceId,
        GroupError::FencedMemberEpoch => ErrorCode::FencedMemberEpoch,
        GroupError::StaleMemberEpoch => ErrorCode::StaleMemberEpoch,
        GroupError::UnsupportedAssignor => ErrorCode::UnsupportedAssignor,
        GroupError::GroupMaxSizeReached => ErrorCode::GroupMaxSizeReached,
        GroupError::InvalidSessionTimeout => ErrorCode::InvalidSessionTimeout,
        GroupError::InvalidRequest => ErrorCode::InvalidRequest,
        GroupError::InvalidRegularExpression => ErrorCode::InvalidRegularExpression,
        GroupError::UnsupportedVersion => ErrorCode::UnsupportedVersion,
        GroupError::CoordinatorLoadInProgress => ErrorCode::CoordinatorLoadInProgress,
        GroupError::CoordinatorNotAvailable => ErrorCode::CoordinatorNotAvailable,
        GroupError::NotCoordinator => ErrorCode::NotCoordinator,
        GroupError::UnknownServer => ErrorCode::UnknownServerError,
    }
}

/// Why nothing was appended.
pub(crate) fn append(error: &AppendError) -> ErrorCode {
    match error {
        AppendError::Batch(batch) => match batch.kind() {
            BatchErrorKind::Corrupt => ErrorCode::CorruptMessage,
            BatchErrorKind::InvalidRecord => ErrorCode::InvalidRecord,
            BatchErrorKind::UnsupportedCodec => ErrorCode::UnsupportedCompressionType,
            BatchErrorKind::TooLarge => ErrorCode::MessageTooLarge,
        },
        AppendError::WithoutKey { .. } => ErrorCode::InvalidRecord,
        AppendError::OutOfTime { refusal, .. } => append_refusal(refusal),
        AppendError::Records(error) => match &**error {
            // The checksum is right: sending the same again gives the same.
            RecordError::Corrupt { .. }
            | RecordError::Trailing { .. }
            | RecordError::OffsetDelta { .. }
            | RecordError::Decompress(_) => ErrorCode::InvalidRecord,
            RecordError::UnknownCodec { .. } => ErrorCode::UnsupportedCompressionType,
        },
        AppendError::Refused(refusal) => append_refusal(refusal),
        AppendError::NoSpace | AppendError::Storage(_) => ErrorCode::KafkaStorageError,
        AppendError::Deleted => ErrorCode::UnknownTopicOrPartition,
    }
}

const fn append_refusal(refusal: &AppendRefusal) -> ErrorCode {
    match refusal {
        AppendRefusal::NotLeader { .. } => ErrorCode::NotLeaderOrFollower,
        AppendRefusal::TooFewInSync { .. } => ErrorCode::NotEnoughReplicas,
        AppendRefusal::TooLarge { .. } => ErrorCode::MessageTooLarge,
        AppendRefusal::TimestampOutOfBounds { .. } => ErrorCode::InvalidTimestamp,
        AppendRefusal::ControlBatch => ErrorCode::InvalidRecord,
        AppendRefusal::NoTransaction => ErrorCode::InvalidTxnState,
        AppendRefusal::Producer(ProducerError::Fenced { .. }) => ErrorCode::InvalidProducerEpoch,
        AppendRefusal::Producer(ProducerError::OutOfOrder { .. }) => ErrorCode::OutOfOrderSequenceNumber,
        AppendRefusal::OffsetsExhausted => ErrorCode::UnknownServerError,
    }
}

/// Whether a refusal tells where the log starts. Kafka tells it where the partition's own checks refused, and not where the request
/// was no good, the batch too large or damaged, or the partition not to be written.
pub(crate) const fn tells_log_start(code: ErrorCode, error: &AppendError) -> bool {
    let request = matches!(error, AppendError::Batch(BatchError::NotOne { .. } | BatchError::Magic { .. }));
    let refused = matches!(
        code,
        ErrorCode::CorruptMessage
            | ErrorCode::MessageTooLarge
            | ErrorCode::UnknownTopicOrPartition
            | ErrorCode::NotLeaderOrFollower
            | ErrorCode::KafkaStorageError
    );
    !request && !refused
}

/// The records that are to blame, by their place in the batch.
pub(crate) fn record_errors(
    error: &AppendError,
    topic: &TopicName,
    partition: i32,
) -> Vec<BatchIndexAndErrorMessage> {
    let (indexes, text) = match error {
        AppendError::WithoutKey { indexes } => (
            indexes,
            format!(
                "Compacted topic cannot accept message without key in topic partition {topic}-{partition}."
            ),
        ),
        AppendError::OutOfTime { refusal, indexes } => (indexes, refusal.to_string()),
        _ => return Vec::new(),
    };
    let text = Str::from(text);
    indexes
        .iter()
        .map(|index| BatchIndexAndErrorMessage {
            batch_index: i32::try_from(*index).unwrap_or(i32::MAX),
            batch_index_error_message: Some(text.clone()),
        })
        .collect()
}

/// Appended, and nobody knows whether it stays: Kafka's code for that is the time-out.
pub(crate) const fn ack(_: &AckError) -> ErrorCode {
    ErrorCode::RequestTimedOut
}

pub(crate) const fn leadership(mismatch: LeadershipMismatch) -> ErrorCode {
    match mismatch {
        LeadershipMismatch::NotLeader => ErrorCode::NotLeaderOrFollower,
        LeadershipMismatch::FencedEpoch => ErrorCode::FencedLeaderEpoch,
        LeadershipMismatch::UnknownEpoch => ErrorCode::UnknownLeaderEpoch,
    }
}

/// Why the bucket gave no answer. What can be asked again gets a code that clients ask again for.
const fn cold(error: &ColdError) -> ErrorCode {
    match error {
        ColdError::NotHeld { .. } => ErrorCode::OffsetNotAvailable,
        ColdError::Unavailable { .. } => ErrorCode::ReplicaNotAvailable,
        ColdError::Damaged { .. } | ColdError::NotSetUp => ErrorCode::KafkaStorageError,
    }
}

pub(crate) const fn read(error: &ReadError) -> ErrorCode {
    match error {
        ReadError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        ReadError::NotAvailable { .. } => ErrorCode::OffsetNotAvailable,
        ReadError::Leadership(mismatch) => leadership(*mismatch),
        ReadError::Storage(_) => ErrorCode::KafkaStorageError,
        ReadError::Cold(error) => cold(error),
    }
}

pub(crate) const fn look_up(error: &LookUpError) -> ErrorCode {
    match error {
        LookUpError::Leadership(mismatch) => leadership(*mismatch),
        LookUpError::Storage(_) | LookUpError::Records(_) => ErrorCode::KafkaStorageError,
        LookUpError::Cold(error) => cold(error),
    }
}

pub(crate) fn delete_records(error: &DeleteRecordsError) -> ErrorCode {
    match error {
        DeleteRecordsError::NotLeader => ErrorCode::NotLeaderOrFollower,
        DeleteRecordsError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        DeleteRecordsError::Policy => ErrorCode::PolicyViolation,
        DeleteRecordsError::Controller(failure) => match propose(failure).code {
            // A client of this API knows the leader only, and asks it again.
            ErrorCode::NotController => ErrorCode::NotLeaderOrFollower,
            code => code,
        },
        DeleteRecordsError::Log(_) => ErrorCode::KafkaStorageError,
    }
}
