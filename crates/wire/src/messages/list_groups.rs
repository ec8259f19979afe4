//! Key 16: `ListGroupsRequest.json` and `ListGroupsResponse.json`.

use crate::Str;

messages! {
    request ListGroupsRequest: ListGroups, versions [0-5], flexible [3+] {
        states_filter: Vec<Str> [4+];
        types_filter:  Vec<Str> [5+];
    }
    response ListGroupsResponse: ListGroups, versions [0-5], flexible [3+] {
        throttle_time_ms: i32              [1+], ignorable;
        error_code:       i16              [0+];
        groups:           Vec<ListedGroup> [0+];
    }
    struct ListedGroup {
        group_id:      Str [0+];
        protocol_type: Str [0+];
        group_state:   Str [4+], ignorable;
        group_type:    Str [5+], ignorable;
    }
}
