//! Key 35: `DescribeLogDirsRequest.json` and `DescribeLogDirsResponse.json`.

use crate::Str;

messages! {
    request DescribeLogDirsRequest: DescribeLogDirs, versions [1-5], flexible [2+] {
        topics: Option<Vec<DescribableLogDirTopic>> [0+] nullable[0+];
    }
    struct DescribableLogDirTopic {
        topic:      Str      [0+];
        partitions: Vec<i32> [0+];
    }
    response DescribeLogDirsResponse: DescribeLogDirs, versions [1-5], flexible [2+] {
        throttle_time_ms: i32                        [0+];
        error_code:       i16                        [3+], ignorable;
        results:          Vec<DescribeLogDirsResult> [0+];
    }
    struct DescribeLogDirsResult {
        error_code:   i16                       [0+];
        log_dir:      Str                       [0+];
        topics:       Vec<DescribeLogDirsTopic> [0+];
        total_bytes:  i64                       [4+] = -1, ignorable;
        usable_bytes: i64                       [4+] = -1, ignorable;
        is_cordoned:  bool                      [5+], ignorable;
    }
    struct DescribeLogDirsTopic {
        name:       Str                           [0+];
        partitions: Vec<DescribeLogDirsPartition> [0+];
    }
    struct DescribeLogDirsPartition {
        partition_index: i32  [0+];
        partition_size:  i64  [0+];
        offset_lag:      i64  [0+];
        is_future_key:   bool [0+];
    }
}
