//! Key 12: `HeartbeatRequest.json` and `HeartbeatResponse.json`.

use crate::Str;

messages! {
    request HeartbeatRequest: Heartbeat, versions [0-4], flexible [4+] {
        group_id:          Str         [0+];
        generation_id:     i32         [0+];
        member_id:         Str         [0+];
        group_instance_id: Option<Str> [3+] nullable[3+] = None;
    }
    response HeartbeatResponse: Heartbeat, versions [0-4], flexible [4+] {
        throttle_time_ms: i32 [1+], ignorable;
        error_code:       i16 [0+];
    }
}
