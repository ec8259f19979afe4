//! DeleteRecords (key 21): moves the log start forward, in the bucket too.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tidelog_types::{Offset, PartitionIndex, TopicName};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DeleteRecordsRequest, DeleteRecordsResponse,
        delete_records::{DeleteRecordsPartitionResult, DeleteRecordsTopic, DeleteRecordsTopicResult},
    },
};

use super::{PARTITIONS_AT_ONCE, TOPICS_AT_ONCE};
use crate::{
    connection::Caller,
    error_code,
    node::{Node, is_internal},
};

/// A request's time-out is for the other replicas. What this node does itself, a sync and a commit, has at least this long, so
/// that a client which does not want to wait for others is not told that nothing was done.
const OWN_PART_MIN: Duration = Duration::from_secs(5);

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).max(OWN_PART_MIN);
    // A topic without partitions is left out of the answer.
    let named: Vec<_> = request.topics.iter().filter(|topic| !topic.partitions.is_empty()).collect();
    let mut topics = Vec::with_capacity(named.len());
    for some in named.chunks(TOPICS_AT_ONCE) {
        topics.extend(join_all(some.iter().map(|topic| delete_of_topic(node, topic, timeout))).await);
    }
    DeleteRecordsResponse { topics, ..DeleteRecordsResponse::default() }
}

async fn delete_of_topic(
    node: &Arc<Node>,
    topic: &DeleteRecordsTopic,
    timeout: Duration,
) -> DeleteRecordsTopicResult {
    let mut partitions = Vec::with_capacity(topic.partitions.len());
    for some in topic.partitions.chunks(PARTITIONS_AT_ONCE) {
        let deleted = some.iter().map(|partition| async move {
            let index = partition.partition_index;
            let deleting = to_the_end(node, &topic.name, PartitionIndex(index), partition.offset);
            let done =
                tokio::time::timeout(timeout, deleting).await.unwrap_or(Err(ErrorCode::RequestTimedOut));
            let (low_watermark, error_code) = match done {
                Ok(low_watermark) => (low_watermark.to_wire(), ErrorCode::None.code()),
                Err(code) => (-1, code.code()),
            };
            DeleteRecordsPartitionResult { partition_index: index, low_watermark, error_code }
        });
        partitions.extend(join_all(deleted).await);
    }
    DeleteRecordsTopicResult { name: topic.name.clone(), partitions }
}

/// Deletes in a task of its own: whoever asked may have enough of it, or go away, when the log start has moved and files are
/// being removed, and half of that would stay so.
async fn to_the_end(
    node: &Arc<Node>,
    topic: &Str,
    partition: PartitionIndex,
    offset: i64,
) -> Result<Offset, ErrorCode> {
    let turn = Arc::clone(&node.deletion_turns).acquire_owned().await;
    let turn = turn.map_err(|_| ErrorCode::RequestTimedOut)?;
    let (here, topic) = (Arc::clone(node), topic.clone());
    let deleting = async move {
        let deleted = delete(&here, &topic, partition, offset).await;
        drop(turn);
        deleted
    };
    let deleting = node.supervisor.spawn("delete records", deleting);
    // It panicked, which is logged, or the node ends.
    deleting.join().await.unwrap_or(Err(ErrorCode::UnknownServerError))
}

async fn delete(
    node: &Node,
    topic: &Str,
    partition: PartitionIndex,
    offset: i64,
) -> Result<Offset, ErrorCode> {
    let name = TopicName::new(topic).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
    if is_internal(&name) {
        return Err(ErrorCode::InvalidTopicException);
    }
    let handle =
        node.replicas.partition_by_name(&name, partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let to = match offset {
        // Kafka's "all that is committed".
        -1 => None,
        offset => Some(Offset::from_wire(offset).ok_or(ErrorCode::OffsetOutOfRange)?),
    };
    handle.delete_records(to).await.map_err(|error| error_code::delete_records(&error))
}
