//! Key 19: `CreateTopicsRequest.json` and `CreateTopicsResponse.json`.

use crate::{Str, Uuid};

messages! {
    request CreateTopicsRequest: CreateTopics, versions [2-7], flexible [5+] {
        topics:        Vec<CreatableTopic> [0+];
        timeout_ms:    i32                 [0+] = 60000;
        validate_only: bool                [1+];
    }
    struct CreatableTopic {
        name:               Str                             [0+];
        num_partitions:     i32                             [0+];
        replication_factor: i16                             [0+];
        assignments:        Vec<CreatableReplicaAssignment> [0+];
        configs:            Vec<CreatableTopicConfig>       [0+];
    }
    struct CreatableReplicaAssignment {
        partition_index: i32      [0+];
        broker_ids:      Vec<i32> [0+];
    }
    struct CreatableTopicConfig {
        name:  Str         [0+];
        value: Option<Str> [0+] nullable[0+];
    }
    response CreateTopicsResponse: CreateTopics, versions [2-7], flexible [5+] {
        throttle_time_ms: i32                       [2+], ignorable;
        topics:           Vec<CreatableTopicResult> [0+];
    }
    struct CreatableTopicResult {
        name:                    Str                                [0+];
        topic_id:                Uuid                               [7+], ignorable;
        error_code:              i16                                [0+];
        error_message:           Option<Str>                        [1+] nullable[0+], ignorable;
        topic_config_error_code: i16                                [5+] tag 0, ignorable;
        num_partitions:          i32                                [5+] = -1, ignorable;
        replication_factor:      i16                                [5+] = -1, ignorable;
        configs:                 Option<Vec<CreatableTopicConfigs>> [5+] nullable[5+], ignorable;
    }
    struct CreatableTopicConfigs {
        name:          Str         [5+];
        value:         Option<Str> [5+] nullable[5+];
        read_only:     bool        [5+];
        config_source: i8          [5+] = -1, ignorable;
        is_sensitive:  bool        [5+];
    }
}
