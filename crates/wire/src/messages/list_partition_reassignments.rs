//! Key 46: `ListPartitionReassignmentsRequest.json` and `ListPartitionReassignmentsResponse.json`.

use crate::Str;

messages! {
    request ListPartitionReassignmentsRequest: ListPartitionReassignments, versions [0], flexible [0+] {
        timeout_ms: i32                                           [0+] = 60000;
        topics:     Option<Vec<ListPartitionReassignmentsTopics>> [0+] nullable[0+] = None;
    }
    struct ListPartitionReassignmentsTopics {
        name:              Str      [0+];
        partition_indexes: Vec<i32> [0+];
    }
    response ListPartitionReassignmentsResponse: ListPartitionReassignments, versions [0], flexible [0+] {
        throttle_time_ms: i32                           [0+];
        error_code:       i16                           [0+];
        error_message:    Option<Str>                   [0+] nullable[0+];
        topics:           Vec<OngoingTopicReassignment> [0+];
    }
    struct OngoingTopicReassignment {
        name:       Str                               [0+];
        partitions: Vec<OngoingPartitionReassignment> [0+];
    }
    struct OngoingPartitionReassignment {
        partition_index:   i32      [0+];
        replicas:          Vec<i32> [0+];
        adding_replicas:   Vec<i32> [0+];
        removing_replicas: Vec<i32> [0+];
    }
}
