//! Key 37: `CreatePartitionsRequest.json` and `CreatePartitionsResponse.json`.

use crate::Str;

messages! {
    request CreatePartitionsRequest: CreatePartitions, versions [0-3], flexible [2+] {
        topics:        Vec<CreatePartitionsTopic> [0+];
        timeout_ms:    i32                        [0+];
        validate_only: bool                       [0+];
    }
    struct CreatePartitionsTopic {
        name:        Str                                     [0+];
        count:       i32                                     [0+];
        assignments: Option<Vec<CreatePartitionsAssignment>> [0+] nullable[0+];
    }
    struct CreatePartitionsAssignment {
        broker_ids: Vec<i32> [0+];
    }
    response CreatePartitionsResponse: CreatePartitions, versions [0-3], flexible [2+] {
        throttle_time_ms: i32                              [0+];
        results:          Vec<CreatePartitionsTopicResult> [0+];
    }
    struct CreatePartitionsTopicResult {
        name:          Str         [0+];
        error_code:    i16         [0+];
        error_message: Option<Str> [0+] nullable[0+] = None;
    }
}
