//! Key 55: `DescribeQuorumRequest.json` and `DescribeQuorumResponse.json`.

use crate::{Str, Uuid};

messages! {
    request DescribeQuorumRequest: DescribeQuorum, versions [0-2], flexible [0+] {
        topics: Vec<RequestTopicData> [0+];
    }
    struct RequestTopicData {
        topic_name: Str                [0+];
        partitions: Vec<RequestPartitionData> [0+];
    }
    struct RequestPartitionData {
        partition_index: i32 [0+];
    }
    response DescribeQuorumResponse: DescribeQuorum, versions [0-2], flexible [0+] {
        error_code:    i16            [0+];
        error_message: Option<Str>    [2+] nullable[2+], ignorable;
        topics:        Vec<TopicData> [0+];
        nodes:         Vec<Node>      [2+];
    }
    struct TopicData {
        topic_name: Str                [0+];
        partitions: Vec<PartitionData> [0+];
    }
    struct PartitionData {
        partition_index: i32               [0+];
        error_code:      i16               [0+];
        error_message:   Option<Str>       [2+] nullable[2+], ignorable;
        leader_id:       i32               [0+];
        leader_epoch:    i32               [0+];
        high_watermark:  i64               [0+];
        current_voters:  Vec<ReplicaState> [0+];
        observers:       Vec<ReplicaState> [0+];
    }
    struct ReplicaState {
        replica_id:               i32  [0+];
        replica_directory_id:     Uuid [2+];
        log_end_offset:           i64  [0+];
        last_fetch_timestamp:     i64  [1+] = -1, ignorable;
        last_caught_up_timestamp: i64  [1+] = -1, ignorable;
    }
    struct Node {
        node_id:   i32           [2+];
        listeners: Vec<Listener> [2+];
    }
    struct Listener {
        name: Str [2+];
        host: Str [2+];
        port: u16 [2+];
    }
}
