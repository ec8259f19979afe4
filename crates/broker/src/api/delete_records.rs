//! DeleteRecords (key 21): moves the log start forward, in the bucket too.

use std::{sync::Arc, time::Duration};

use tidelog_types::{Offset, PartitionIndex, TopicName};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DeleteRecordsRequest, DeleteRecordsResponse,
        delete_records::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult},
    },
};

use crate::{
    connection::Caller,
    error_code,
    node::{Node, is_internal},
};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let topics = futures::future::join_all(request.topics.iter().map(|topic| async move {
        let partitions = topic.partitions.iter().map(|partition| {
            let deleting =
                delete(node, &topic.name, PartitionIndex(partition.partition_index), partition.offset);
            async move {
                let done =
                    tokio::time::timeout(timeout, deleting).await.unwrap_or(Err(ErrorCode::RequestTimedOut));
                let (low_watermark, error_code) = match done {
                    Ok(low_watermark) => (low_watermark.to_wire(), ErrorCode::None.code()),
                    Err(code) => (-1, code.code()),
                };
                DeleteRecordsPartitionResult {
                    partition_index: partition.partition_index,
                    low_watermark,
                    error_code,
                }
            }
        });
        DeleteRecordsTopicResult {
            name: topic.name.clone(),
            partitions: futures::future::join_all(partitions).await,
        }
    }))
    .await;
    DeleteRecordsResponse { topics, ..DeleteRecordsResponse::default() }
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
