//! Key 9: `OffsetFetchRequest.json` and `OffsetFetchResponse.json`.

use crate::{Str, Uuid};

messages! {
    request OffsetFetchRequest: OffsetFetch, versions [1-10], flexible [6+] {
        group_id:       Str                                  [0-7];
        topics:         Option<Vec<OffsetFetchRequestTopic>> [0-7] nullable[2-7];
        groups:         Vec<OffsetFetchRequestGroup>         [8+];
        require_stable: bool                                 [7+];
    }
    struct OffsetFetchRequestTopic {
        name:              Str      [0-7];
        partition_indexes: Vec<i32> [0-7];
    }
    struct OffsetFetchRequestGroup {
        group_id:     Str                                   [8+];
        member_id:    Option<Str>                           [9+] nullable[9+] = None, ignorable;
        member_epoch: i32                                   [9+] = -1, ignorable;
        topics:       Option<Vec<OffsetFetchRequestTopics>> [8+] nullable[8+];
    }
    struct OffsetFetchRequestTopics {
        name:              Str      [8-9], ignorable;
        topic_id:          Uuid     [10+], ignorable;
        partition_indexes: Vec<i32> [8+];
    }
    response OffsetFetchResponse: OffsetFetch, versions [1-10], flexible [6+] {
        throttle_time_ms: i32                           [3+], ignorable;
        topics:           Vec<OffsetFetchResponseTopic> [0-7];
        error_code:       i16                           [2-7], ignorable;
        groups:           Vec<OffsetFetchResponseGroup> [8+];
    }
    struct OffsetFetchResponseTopic {
        name:       Str                               [0-7];
        partitions: Vec<OffsetFetchResponsePartition> [0-7];
    }
    struct OffsetFetchResponsePartition {
        partition_index:        i32         [0-7];
        committed_offset:       i64         [0-7];
        committed_leader_epoch: i32         [5-7] = -1, ignorable;
        metadata:               Option<Str> [0-7] nullable[0-7];
        error_code:             i16         [0-7];
    }
    struct OffsetFetchResponseGroup {
        group_id:   Str                            [8+];
        topics:     Vec<OffsetFetchResponseTopics> [8+];
        error_code: i16                            [8+];
    }
    struct OffsetFetchResponseTopics {
        name:       Str                                [8-9], ignorable;
        topic_id:   Uuid                               [10+], ignorable;
        partitions: Vec<OffsetFetchResponsePartitions> [8+];
    }
    struct OffsetFetchResponsePartitions {
        partition_index:        i32         [8+];
        committed_offset:       i64         [8+];
        committed_leader_epoch: i32         [8+] = -1, ignorable;
        metadata:               Option<Str> [8+] nullable[8+];
        error_code:             i16         [8+];
    }
}
