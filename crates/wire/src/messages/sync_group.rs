//! Key 14: `SyncGroupRequest.json` and `SyncGroupResponse.json`.

use bytes::Bytes;

use crate::Str;

messages! {
    request SyncGroupRequest: SyncGroup, versions [0-5], flexible [4+] {
        group_id:          Str                             [0+];
        generation_id:     i32                             [0+];
        member_id:         Str                             [0+];
        group_instance_id: Option<Str>                     [3+] nullable[3+] = None;
        protocol_type:     Option<Str>                     [5+] nullable[5+] = None, ignorable;
        protocol_name:     Option<Str>                     [5+] nullable[5+] = None, ignorable;
        assignments:       Vec<SyncGroupRequestAssignment> [0+];
    }
    struct SyncGroupRequestAssignment {
        member_id:  Str   [0+];
        assignment: Bytes [0+];
    }
    response SyncGroupResponse: SyncGroup, versions [0-5], flexible [4+] {
        throttle_time_ms: i32         [1+], ignorable;
        error_code:       i16         [0+];
        protocol_type:    Option<Str> [5+] nullable[5+] = None, ignorable;
        protocol_name:    Option<Str> [5+] nullable[5+] = None, ignorable;
        assignment:       Bytes       [0+];
    }
}
