//! Key 47: `OffsetDeleteRequest.json` and `OffsetDeleteResponse.json`.

use crate::Str;

messages! {
    request OffsetDeleteRequest: OffsetDelete, versions [0], flexible [none] {
        group_id: Str                           [0+];
        topics:   Vec<OffsetDeleteRequestTopic> [0+];
    }
    struct OffsetDeleteRequestTopic {
        name:       Str                               [0+];
        partitions: Vec<OffsetDeleteRequestPartition> [0+];
    }
    struct OffsetDeleteRequestPartition {
        partition_index: i32 [0+];
    }
    response OffsetDeleteResponse: OffsetDelete, versions [0], flexible [none] {
        error_code:       i16                            [0+];
        throttle_time_ms: i32                            [0+], ignorable;
        topics:           Vec<OffsetDeleteResponseTopic> [0+];
    }
    struct OffsetDeleteResponseTopic {
        name:       Str                                [0+];
        partitions: Vec<OffsetDeleteResponsePartition> [0+];
    }
    struct OffsetDeleteResponsePartition {
        partition_index: i32 [0+];
        error_code:      i16 [0+];
    }
}
