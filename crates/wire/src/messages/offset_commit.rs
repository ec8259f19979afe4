//! Key 8: `OffsetCommitRequest.json` and `OffsetCommitResponse.json`.

use crate::{Str, Uuid};

messages! {
    request OffsetCommitRequest: OffsetCommit, versions [2-10], flexible [8+] {
        group_id:                      Str                           [0+];
        generation_id_or_member_epoch: i32                           [1+]  = -1, ignorable;
        member_id:                     Str                           [1+], ignorable;
        group_instance_id:             Option<Str>                   [7+]  nullable[7+] = None;
        retention_time_ms:             i64                           [2-4] = -1, ignorable;
        topics:                        Vec<OffsetCommitRequestTopic> [0+];
    }
    struct OffsetCommitRequestTopic {
        name:       Str                               [0-9], ignorable;
        topic_id:   Uuid                              [10+], ignorable;
        partitions: Vec<OffsetCommitRequestPartition> [0+];
    }
    struct OffsetCommitRequestPartition {
        partition_index:        i32         [0+];
        committed_offset:       i64         [0+];
        committed_leader_epoch: i32         [6+] = -1, ignorable;
        committed_metadata:     Option<Str> [0+] nullable[0+];
    }
    response OffsetCommitResponse: OffsetCommit, versions [2-10], flexible [8+] {
        throttle_time_ms: i32                            [3+], ignorable;
        topics:           Vec<OffsetCommitResponseTopic> [0+];
    }
    struct OffsetCommitResponseTopic {
        name:       Str                                [0-9], ignorable;
        topic_id:   Uuid                               [10+], ignorable;
        partitions: Vec<OffsetCommitResponsePartition> [0+];
    }
    struct OffsetCommitResponsePartition {
        partition_index: i32 [0+];
        error_code:      i16 [0+];
    }
}
