//! Key 3: `MetadataRequest.json` and `MetadataResponse.json`.

use crate::{Str, Uuid};

messages! {
    request MetadataRequest: Metadata, versions [0-13], flexible [9+] {
        topics:                                Option<Vec<MetadataRequestTopic>> [0+]   nullable[1+];
        allow_auto_topic_creation:             bool                              [4+]   = true;
        include_cluster_authorized_operations: bool                              [8-10];
        include_topic_authorized_operations:   bool                              [8+];
    }
    struct MetadataRequestTopic {
        topic_id: Uuid        [10+], ignorable;
        name:     Option<Str> [0+]  nullable[10+];
    }
    response MetadataResponse: Metadata, versions [0-13], flexible [9+] {
        throttle_time_ms:              i32                         [3+], ignorable;
        brokers:                       Vec<MetadataResponseBroker> [0+];
        cluster_id:                    Option<Str>                 [2+]   nullable[2+] = None, ignorable;
        controller_id:                 i32                         [1+]   = -1, ignorable;
        topics:                        Vec<MetadataResponseTopic>  [0+];
        cluster_authorized_operations: i32                         [8-10] = -2147483648;
        error_code:                    i16                         [13+], ignorable;
    }
    struct MetadataResponseBroker {
        node_id: i32         [0+];
        host:    Str         [0+];
        port:    i32         [0+];
        rack:    Option<Str> [1+] nullable[1+] = None, ignorable;
    }
    struct MetadataResponseTopic {
        error_code:                  i16                            [0+];
        name:                        Option<Str>                    [0+]  nullable[12+];
        topic_id:                    Uuid                           [10+], ignorable;
        is_internal:                 bool                           [1+], ignorable;
        partitions:                  Vec<MetadataResponsePartition> [0+];
        topic_authorized_operations: i32                            [8+]  = -2147483648;
    }
    struct MetadataResponsePartition {
        error_code:       i16      [0+];
        partition_index:  i32      [0+];
        leader_id:        i32      [0+];
        leader_epoch:     i32      [7+] = -1, ignorable;
        replica_nodes:    Vec<i32> [0+];
        isr_nodes:        Vec<i32> [0+];
        offline_replicas: Vec<i32> [5+], ignorable;
    }
}
