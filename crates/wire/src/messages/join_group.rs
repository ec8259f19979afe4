//! Key 11: `JoinGroupRequest.json` and `JoinGroupResponse.json`.

use bytes::Bytes;

use crate::Str;

messages! {
    request JoinGroupRequest: JoinGroup, versions [0-9], flexible [6+] {
        group_id:             Str                           [0+];
        session_timeout_ms:   i32                           [0+];
        rebalance_timeout_ms: i32                           [1+] = -1, ignorable;
        member_id:            Str                           [0+];
        group_instance_id:    Option<Str>                   [5+] nullable[5+] = None;
        protocol_type:        Str                           [0+];
        protocols:            Vec<JoinGroupRequestProtocol> [0+];
        reason:               Option<Str>                   [8+] nullable[8+] = None, ignorable;
    }
    struct JoinGroupRequestProtocol {
        name:     Str   [0+];
        metadata: Bytes [0+];
    }
    response JoinGroupResponse: JoinGroup, versions [0-9], flexible [6+] {
        throttle_time_ms: i32                          [2+], ignorable;
        error_code:       i16                          [0+];
        generation_id:    i32                          [0+] = -1;
        protocol_type:    Option<Str>                  [7+] nullable[7+] = None, ignorable;
        protocol_name:    Option<Str>                  [0+] nullable[7+];
        leader:           Str                          [0+];
        skip_assignment:  bool                         [9+];
        member_id:        Str                          [0+];
        members:          Vec<JoinGroupResponseMember> [0+];
    }
    struct JoinGroupResponseMember {
        member_id:         Str         [0+];
        group_instance_id: Option<Str> [5+] nullable[5+] = None, ignorable;
        metadata:          Bytes       [0+];
    }
}
