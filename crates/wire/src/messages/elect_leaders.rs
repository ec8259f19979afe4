//! Key 43: `ElectLeadersRequest.json` and `ElectLeadersResponse.json`.

use crate::Str;

messages! {
    request ElectLeadersRequest: ElectLeaders, versions [0-2], flexible [2+] {
        election_type:    i8                           [1+];
        topic_partitions: Option<Vec<TopicPartitions>> [0+] nullable[0+];
        timeout_ms:       i32                          [0+] = 60000;
    }
    struct TopicPartitions {
        topic:      Str      [0+];
        partitions: Vec<i32> [0+];
    }
    response ElectLeadersResponse: ElectLeaders, versions [0-2], flexible [2+] {
        throttle_time_ms:         i32                        [0+];
        error_code:               i16                        [1+];
        replica_election_results: Vec<ReplicaElectionResult> [0+];
    }
    struct ReplicaElectionResult {
        topic:            Str                  [0+];
        partition_result: Vec<PartitionResult> [0+];
    }
    struct PartitionResult {
        partition_id:  i32         [0+];
        error_code:    i16         [0+];
        error_message: Option<Str> [0+] nullable[0+];
    }
}
