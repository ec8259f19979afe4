//! Key 15: `DescribeGroupsRequest.json` and `DescribeGroupsResponse.json`.

use bytes::Bytes;

use crate::Str;

messages! {
    request DescribeGroupsRequest: DescribeGroups, versions [0-6], flexible [5+] {
        groups:                        Vec<Str> [0+];
        include_authorized_operations: bool     [3+];
    }
    response DescribeGroupsResponse: DescribeGroups, versions [0-6], flexible [5+] {
        throttle_time_ms: i32                 [1+], ignorable;
        groups:           Vec<DescribedGroup> [0+];
    }
    struct DescribedGroup {
        error_code:            i16                       [0+];
        error_message:         Option<Str>               [6+] nullable[6+] = None;
        group_id:              Str                       [0+];
        group_state:           Str                       [0+];
        protocol_type:         Str                       [0+];
        protocol_data:         Str                       [0+];
        members:               Vec<DescribedGroupMember> [0+];
        authorized_operations: i32                       [3+] = -2147483648;
    }
    struct DescribedGroupMember {
        member_id:         Str         [0+];
        group_instance_id: Option<Str> [4+] nullable[4+] = None, ignorable;
        client_id:         Str         [0+];
        client_host:       Str         [0+];
        member_metadata:   Bytes       [0+];
        member_assignment: Bytes       [0+];
    }
}
