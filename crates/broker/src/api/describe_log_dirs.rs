//! DescribeLogDirs (key 35): the one data directory and what each partition has in it. What is in the bucket is not here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DescribeLogDirsRequest, DescribeLogDirsResponse,
        describe_log_dirs::{DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic},
    },
};

use crate::{connection::Caller, node::Node};

/// About how large the answer will be: 18 bytes for each partition, and its topic's name.
pub(crate) fn answer_bytes(node: &Node, request: &DescribeLogDirsRequest) -> u64 {
    let partitions: usize = match &request.topics {
        Some(topics) => topics.iter().map(|topic| topic.partitions.len()).sum(),
        None => node.image().topics().map(|topic| topic.partitions.len()).sum(),
    };
    24 * partitions as u64
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    let asked: Option<BTreeMap<Str, BTreeSet<i32>>> = request.topics.map(|topics| {
        let mut asked: BTreeMap<Str, BTreeSet<i32>> = BTreeMap::new();
        for topic in topics {
            asked.entry(topic.topic).or_default().extend(topic.partitions);
        }
        asked
    });
    let mut topics: BTreeMap<String, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for usage in node.replicas.usage() {
        let index = usage.place.partition.0;
        let wanted = asked.as_ref().is_none_or(|asked| {
            asked.get(usage.topic.as_str()).is_some_and(|partitions| partitions.contains(&index))
        });
        if wanted {
            topics.entry(usage.topic.as_str().to_owned()).or_default().push(DescribeLogDirsPartition {
                partition_index: index,
                partition_size: i64::try_from(usage.local_bytes).unwrap_or(i64::MAX),
                offset_lag: 0,
                is_future_key: false,
            });
        }
    }
    let space = node.disk.space(&node.data_directory).await;
    let amount = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let (error_code, total_bytes, usable_bytes) = match space {
        Ok(space) => (ErrorCode::None, amount(space.total), amount(space.free)),
        Err(error) => {
            tracing::warn!(%error, "the free space of the data directory is not known");
            (ErrorCode::KafkaStorageError, -1, -1)
        }
    };
    let result = DescribeLogDirsResult {
        error_code: error_code.code(),
        log_dir: Str::from(node.config.data_directory.as_str()),
        topics: topics
            .into_iter()
            .map(|(name, partitions)| DescribeLogDirsTopic { name: Str::from(name), partitions })
            .collect(),
        total_bytes,
        usable_bytes,
        ..DescribeLogDirsResult::default()
    };
    DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() }
}
