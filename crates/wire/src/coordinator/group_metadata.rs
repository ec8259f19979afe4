//! Type 2: `GroupMetadataKey.json` and `GroupMetadataValue.json`.

use bytes::Bytes;

use crate::Str;

messages! {
    key GroupMetadataKey: GroupMetadata {
        group: Str [0];
    }
    value GroupMetadataValue: GroupMetadata, versions [0-4], flexible [4+] {
        protocol_type:           Str                 [0+];
        generation:              i32                 [0+];
        protocol:                Option<Str>         [0+] nullable[0+];
        leader:                  Option<Str>         [0+] nullable[0+];
        current_state_timestamp: i64                 [2+] = -1, ignorable;
        members:                 Vec<MemberMetadata> [0+];
    }
    struct MemberMetadata {
        member_id:         Str         [0+];
        group_instance_id: Option<Str> [3+] nullable[3+] = None, ignorable;
        client_id:         Str         [0+];
        client_host:       Str         [0+];
        rebalance_timeout: i32         [1+] = -1, ignorable;
        session_timeout:   i32         [0+];
        subscription:      Bytes       [0+];
        assignment:        Bytes       [0+];
    }
}
