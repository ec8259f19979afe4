//! Key 13: `LeaveGroupRequest.json` and `LeaveGroupResponse.json`.

use crate::Str;

messages! {
    request LeaveGroupRequest: LeaveGroup, versions [0-5], flexible [4+] {
        group_id:  Str                 [0+];
        member_id: Str                 [0-2];
        members:   Vec<MemberIdentity> [3+];
    }
    struct MemberIdentity {
        member_id:         Str         [3+];
        group_instance_id: Option<Str> [3+] nullable[3+] = None;
        reason:            Option<Str> [5+] nullable[5+] = None, ignorable;
    }
    response LeaveGroupResponse: LeaveGroup, versions [0-5], flexible [4+] {
        throttle_time_ms: i32                 [1+], ignorable;
        error_code:       i16                 [0+];
        members:          Vec<MemberResponse> [3+];
    }
    struct MemberResponse {
        member_id:         Str         [3+];
        group_instance_id: Option<Str> [3+] nullable[3+];
        error_code:        i16         [3+];
    }
}
