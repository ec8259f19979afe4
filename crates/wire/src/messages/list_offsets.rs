//! Key 2: `ListOffsetsRequest.json` and `ListOffsetsResponse.json`.

use crate::Str;

messages! {
    request ListOffsetsRequest: ListOffsets, versions [1-11], flexible [6+] {
        replica_id:      i32                   [0+];
        isolation_level: i8                    [2+];
        topics:          Vec<ListOffsetsTopic> [0+];
        timeout_ms:      i32                   [10+], ignorable;
    }
    struct ListOffsetsTopic {
        name:       Str                       [0+];
        partitions: Vec<ListOffsetsPartition> [0+];
    }
    struct ListOffsetsPartition {
        partition_index:      i32 [0+];
        current_leader_epoch: i32 [4+] = -1, ignorable;
        timestamp:            i64 [0+];
    }
    response ListOffsetsResponse: ListOffsets, versions [1-11], flexible [6+] {
        throttle_time_ms: i32                           [2+], ignorable;
        topics:           Vec<ListOffsetsTopicResponse> [0+];
    }
    struct ListOffsetsTopicResponse {
        name:       Str                               [0+];
        partitions: Vec<ListOffsetsPartitionResponse> [0+];
    }
    struct ListOffsetsPartitionResponse {
        partition_index: i32 [0+];
        error_code:      i16 [0+];
        timestamp:       i64 [1+] = -1;
        offset:          i64 [1+] = -1;
        leader_epoch:    i32 [4+] = -1;
    }
}
