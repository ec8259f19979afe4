//! Key 45: `AlterPartitionReassignmentsRequest.json` and `AlterPartitionReassignmentsResponse.json`.

use crate::Str;

messages! {
    request AlterPartitionReassignmentsRequest: AlterPartitionReassignments, versions [0-1], flexible [0+] {
        timeout_ms:                      i32                    [0+] = 60000;
        allow_replication_factor_change: bool                   [1+] = true;
        topics:                          Vec<ReassignableTopic> [0+];
    }
    struct ReassignableTopic {
        name:       Str                        [0+];
        partitions: Vec<ReassignablePartition> [0+];
    }
    struct ReassignablePartition {
        partition_index: i32              [0+];
        replicas:        Option<Vec<i32>> [0+] nullable[0+] = None;
    }
    response AlterPartitionReassignmentsResponse: AlterPartitionReassignments, versions [0-1], flexible [0+] {
        throttle_time_ms:                i32                            [0+];
        allow_replication_factor_change: bool                           [1+] = true, ignorable;
        error_code:                      i16                            [0+];
        error_message:                   Option<Str>                    [0+] nullable[0+];
        responses:                       Vec<ReassignableTopicResponse> [0+];
    }
    struct ReassignableTopicResponse {
        name:       Str                                [0+];
        partitions: Vec<ReassignablePartitionResponse> [0+];
    }
    struct ReassignablePartitionResponse {
        partition_index: i32         [0+];
        error_code:      i16         [0+];
        error_message:   Option<Str> [0+] nullable[0+];
    }
}
