//! Key 75: `DescribeTopicPartitionsRequest.json` and `DescribeTopicPartitionsResponse.json`.

use crate::{Str, Uuid};

messages! {
    request DescribeTopicPartitionsRequest: DescribeTopicPartitions, versions [0], flexible [0+] {
        topics:                   Vec<TopicRequest> [0+];
        response_partition_limit: i32               [0+] = 2000;
        cursor:                   Option<Cursor>    [0+] nullable[0+] = None;
    }
    struct TopicRequest {
        name: Str [0+];
    }
    struct Cursor {
        topic_name:      Str [0+];
        partition_index: i32 [0+];
    }
    response DescribeTopicPartitionsResponse: DescribeTopicPartitions, versions [0], flexible [0+] {
        throttle_time_ms: i32                                       [0+], ignorable;
        topics:           Vec<DescribeTopicPartitionsResponseTopic> [0+];
        next_cursor:      Option<Cursor>                            [0+] nullable[0+] = None;
    }
    struct DescribeTopicPartitionsResponseTopic {
        error_code:                  i16                                           [0+];
        name:                        Option<Str>                                   [0+] nullable[0+];
        topic_id:                    Uuid                                          [0+], ignorable;
        is_internal:                 bool                                          [0+], ignorable;
        partitions:                  Vec<DescribeTopicPartitionsResponsePartition> [0+];
        topic_authorized_operations: i32                                           [0+] = -2147483648;
    }
    struct DescribeTopicPartitionsResponsePartition {
        error_code:               i16              [0+];
        partition_index:          i32              [0+];
        leader_id:                i32              [0+];
        leader_epoch:             i32              [0+] = -1, ignorable;
        replica_nodes:            Vec<i32>         [0+];
        isr_nodes:                Vec<i32>         [0+];
        eligible_leader_replicas: Option<Vec<i32>> [0+] nullable[0+] = None;
        last_known_elr:           Option<Vec<i32>> [0+] nullable[0+] = None;
        offline_replicas:         Vec<i32>         [0+], ignorable;
    }
}
