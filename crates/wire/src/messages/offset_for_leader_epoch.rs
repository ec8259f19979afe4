//! Key 23: `OffsetForLeaderEpochRequest.json` and `OffsetForLeaderEpochResponse.json`.

use crate::Str;

messages! {
    request OffsetForLeaderEpochRequest: OffsetForLeaderEpoch, versions [2-4], flexible [4+] {
        replica_id: i32                       [3+] = -2, ignorable;
        topics:     Vec<OffsetForLeaderTopic> [0+];
    }
    struct OffsetForLeaderTopic {
        topic:      Str                           [0+];
        partitions: Vec<OffsetForLeaderPartition> [0+];
    }
    struct OffsetForLeaderPartition {
        partition:            i32 [0+];
        current_leader_epoch: i32 [2+] = -1, ignorable;
        leader_epoch:         i32 [0+];
    }
    response OffsetForLeaderEpochResponse: OffsetForLeaderEpoch, versions [2-4], flexible [4+] {
        throttle_time_ms: i32                             [2+], ignorable;
        topics:           Vec<OffsetForLeaderTopicResult> [0+];
    }
    struct OffsetForLeaderTopicResult {
        topic:      Str                 [0+];
        partitions: Vec<EpochEndOffset> [0+];
    }
    struct EpochEndOffset {
        error_code:   i16 [0+];
        partition:    i32 [0+];
        leader_epoch: i32 [1+] = -1, ignorable;
        end_offset:   i64 [0+] = -1;
    }
}
