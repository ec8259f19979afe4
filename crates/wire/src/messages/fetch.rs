//! Key 1: `FetchRequest.json` and `FetchResponse.json`.

use crate::{Records, Str, Uuid};

messages! {
    request FetchRequest: Fetch, versions [4-18], flexible [12+] {
        cluster_id:            Option<Str>         [12+]  nullable[12+] tag 0 = None, ignorable;
        replica_id:            i32                 [0-14] = -1;
        replica_state:         ReplicaState        [15+]  tag 1;
        max_wait_ms:           i32                 [0+];
        min_bytes:             i32                 [0+];
        max_bytes:             i32                 [3+]   = 0x7fffffff, ignorable;
        isolation_level:       i8                  [4+], ignorable;
        session_id:            i32                 [7+], ignorable;
        session_epoch:         i32                 [7+]   = -1, ignorable;
        topics:                Vec<FetchTopic>     [0+];
        forgotten_topics_data: Vec<ForgottenTopic> [7+];
        rack_id:               Str                 [11+], ignorable;
    }
    struct ReplicaState {
        replica_id:    i32 [15+] = -1;
        replica_epoch: i64 [15+] = -1;
    }
    struct FetchTopic {
        topic:      Str                 [0-12], ignorable;
        topic_id:   Uuid                [13+], ignorable;
        partitions: Vec<FetchPartition> [0+];
    }
    struct FetchPartition {
        partition:            i32  [0+];
        current_leader_epoch: i32  [9+]  = -1, ignorable;
        fetch_offset:         i64  [0+];
        last_fetched_epoch:   i32  [12+] = -1;
        log_start_offset:     i64  [5+]  = -1, ignorable;
        partition_max_bytes:  i32  [0+];
        replica_directory_id: Uuid [17+] tag 0, ignorable;
        high_watermark:       i64  [18+] tag 1 = 9223372036854775807, ignorable;
    }
    struct ForgottenTopic {
        topic:      Str      [7-12], ignorable;
        topic_id:   Uuid     [13+], ignorable;
        partitions: Vec<i32> [7+];
    }
    response FetchResponse: Fetch, versions [4-18], flexible [12+] {
        throttle_time_ms: i32                         [1+], ignorable;
        error_code:       i16                         [7+], ignorable;
        session_id:       i32                         [7+];
        responses:        Vec<FetchableTopicResponse> [0+];
        node_endpoints:   Vec<NodeEndpoint>           [16+] tag 0;
    }
    struct FetchableTopicResponse {
        topic:      Str                [0-12], ignorable;
        topic_id:   Uuid               [13+], ignorable;
        partitions: Vec<PartitionData> [0+];
    }
    struct PartitionData {
        partition_index:        i32                             [0+];
        error_code:             i16                             [0+];
        high_watermark:         i64                             [0+];
        last_stable_offset:     i64                             [4+]  = -1, ignorable;
        log_start_offset:       i64                             [5+]  = -1, ignorable;
        diverging_epoch:        EpochEndOffset                  [12+] tag 0;
        current_leader:         LeaderIdAndEpoch                [12+] tag 1;
        snapshot_id:            SnapshotId                      [12+] tag 2;
        aborted_transactions:   Option<Vec<AbortedTransaction>> [4+]  nullable[4+], ignorable;
        preferred_read_replica: i32                             [11+] = -1;
        records:                Option<Records>                 [0+]  nullable[0+] = None;
    }
    struct EpochEndOffset {
        epoch:      i32 [12+] = -1;
        end_offset: i64 [12+] = -1;
    }
    struct LeaderIdAndEpoch {
        leader_id:    i32 [12+] = -1;
        leader_epoch: i32 [12+] = -1;
    }
    struct SnapshotId {
        end_offset: i64 [0+] = -1;
        epoch:      i32 [0+] = -1;
    }
    struct AbortedTransaction {
        producer_id:  i64 [4+];
        first_offset: i64 [4+];
    }
    struct NodeEndpoint {
        node_id: i32         [16+];
        host:    Str         [16+];
        port:    i32         [16+];
        rack:    Option<Str> [16+] nullable[16+] = None;
    }
}
