//! Key 68: `ConsumerGroupHeartbeatRequest.json` and `ConsumerGroupHeartbeatResponse.json`.

use crate::{Str, Uuid};

messages! {
    request ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeat, versions [0-1], flexible [0+] {
        group_id:               Str                          [0+];
        member_id:              Str                          [0+];
        member_epoch:           i32                          [0+];
        instance_id:            Option<Str>                  [0+] nullable[0+] = None;
        rack_id:                Option<Str>                  [0+] nullable[0+] = None;
        rebalance_timeout_ms:   i32                          [0+] = -1;
        subscribed_topic_names: Option<Vec<Str>>             [0+] nullable[0+] = None;
        subscribed_topic_regex: Option<Str>                  [1+] nullable[1+] = None;
        server_assignor:        Option<Str>                  [0+] nullable[0+] = None;
        topic_partitions:       Option<Vec<TopicPartitions>> [0+] nullable[0+] = None;
    }
    struct TopicPartitions {
        topic_id:   Uuid     [0+];
        partitions: Vec<i32> [0+];
    }
    response ConsumerGroupHeartbeatResponse: ConsumerGroupHeartbeat, versions [0-1], flexible [0+] {
        throttle_time_ms:      i32                [0+];
        error_code:            i16                [0+];
        error_message:         Option<Str>        [0+] nullable[0+] = None;
        member_id:             Option<Str>        [0+] nullable[0+] = None;
        member_epoch:          i32                [0+];
        heartbeat_interval_ms: i32                [0+];
        assignment:            Option<Assignment> [0+] nullable[0+] = None;
    }
    struct Assignment {
        topic_partitions: Vec<TopicPartitions> [0+];
    }
}
