//! Key 28: `TxnOffsetCommitRequest.json` and `TxnOffsetCommitResponse.json`.

use crate::Str;

messages! {
    request TxnOffsetCommitRequest: TxnOffsetCommit, versions [0-5], flexible [3+] {
        transactional_id:  Str                              [0+];
        group_id:          Str                              [0+];
        producer_id:       i64                              [0+];
        producer_epoch:    i16                              [0+];
        generation_id:     i32                              [3+] = -1;
        member_id:         Str                              [3+];
        group_instance_id: Option<Str>                      [3+] nullable[3+] = None;
        topics:            Vec<TxnOffsetCommitRequestTopic> [0+];
    }
    struct TxnOffsetCommitRequestTopic {
        name:       Str                                  [0+];
        partitions: Vec<TxnOffsetCommitRequestPartition> [0+];
    }
    struct TxnOffsetCommitRequestPartition {
        partition_index:        i32         [0+];
        committed_offset:       i64         [0+];
        committed_leader_epoch: i32         [2+] = -1, ignorable;
        committed_metadata:     Option<Str> [0+] nullable[0+];
    }
    response TxnOffsetCommitResponse: TxnOffsetCommit, versions [0-5], flexible [3+] {
        throttle_time_ms: i32                               [0+];
        topics:           Vec<TxnOffsetCommitResponseTopic> [0+];
    }
    struct TxnOffsetCommitResponseTopic {
        name:       Str                                   [0+];
        partitions: Vec<TxnOffsetCommitResponsePartition> [0+];
    }
    struct TxnOffsetCommitResponsePartition {
        partition_index: i32 [0+];
        error_code:      i16 [0+];
    }
}
