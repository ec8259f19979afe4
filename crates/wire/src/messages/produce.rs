//! Key 0: `ProduceRequest.json` and `ProduceResponse.json`.

use crate::{Records, Str, Uuid};

messages! {
    request ProduceRequest: Produce, versions [3-13], flexible [9+] {
        transactional_id: Option<Str>           [3+] nullable[3+] = None;
        acks:             i16                   [0+];
        timeout_ms:       i32                   [0+];
        topic_data:       Vec<TopicProduceData> [0+];
    }
    struct TopicProduceData {
        name:           Str                       [0-12], ignorable;
        topic_id:       Uuid                      [13+], ignorable;
        partition_data: Vec<PartitionProduceData> [0+];
    }
    struct PartitionProduceData {
        index:   i32             [0+];
        records: Option<Records> [0+] nullable[0+] = None;
    }
    response ProduceResponse: Produce, versions [3-13], flexible [9+] {
        responses:        Vec<TopicProduceResponse> [0+];
        throttle_time_ms: i32                       [1+], ignorable;
        node_endpoints:   Vec<NodeEndpoint>         [10+] tag 0;
    }
    struct TopicProduceResponse {
        name:                Str                           [0-12], ignorable;
        topic_id:            Uuid                          [13+], ignorable;
        partition_responses: Vec<PartitionProduceResponse> [0+];
    }
    struct PartitionProduceResponse {
        index:              i32                            [0+];
        error_code:         i16                            [0+];
        base_offset:        i64                            [0+];
        log_append_time_ms: i64                            [2+]  = -1, ignorable;
        log_start_offset:   i64                            [5+]  = -1, ignorable;
        record_errors:      Vec<BatchIndexAndErrorMessage> [8+], ignorable;
        error_message:      Option<Str>                    [8+]  nullable[8+] = None, ignorable;
        current_leader:     LeaderIdAndEpoch               [10+] tag 0;
    }
    struct BatchIndexAndErrorMessage {
        batch_index:               i32         [8+];
        batch_index_error_message: Option<Str> [8+] nullable[8+] = None;
    }
    struct LeaderIdAndEpoch {
        leader_id:    i32 [10+] = -1;
        leader_epoch: i32 [10+] = -1;
    }
    struct NodeEndpoint {
        node_id: i32         [10+];
        host:    Str         [10+];
        port:    i32         [10+];
        rack:    Option<Str> [10+] nullable[10+] = None;
    }
}
