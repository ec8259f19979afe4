//! Key 21: `DeleteRecordsRequest.json` and `DeleteRecordsResponse.json`.

use crate::Str;

messages! {
    request DeleteRecordsRequest: DeleteRecords, versions [0-2], flexible [2+] {
        topics:     Vec<DeleteRecordsTopic> [0+];
        timeout_ms: i32                     [0+];
    }
    struct DeleteRecordsTopic {
        name:       Str                         [0+];
        partitions: Vec<DeleteRecordsPartition> [0+];
    }
    struct DeleteRecordsPartition {
        partition_index: i32 [0+];
        offset:          i64 [0+];
    }
    response DeleteRecordsResponse: DeleteRecords, versions [0-2], flexible [2+] {
        throttle_time_ms: i32                           [0+];
        topics:           Vec<DeleteRecordsTopicResult> [0+];
    }
    struct DeleteRecordsTopicResult {
        name:       Str                               [0+];
        partitions: Vec<DeleteRecordsPartitionResult> [0+];
    }
    struct DeleteRecordsPartitionResult {
        partition_index: i32 [0+];
        low_watermark:   i64 [0+];
        error_code:      i16 [0+];
    }
}
