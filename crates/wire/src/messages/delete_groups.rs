//! Key 42: `DeleteGroupsRequest.json` and `DeleteGroupsResponse.json`.

use crate::Str;

messages! {
    request DeleteGroupsRequest: DeleteGroups, versions [0-2], flexible [2+] {
        groups_names: Vec<Str> [0+];
    }
    response DeleteGroupsResponse: DeleteGroups, versions [0-2], flexible [2+] {
        throttle_time_ms: i32                       [0+];
        results:          Vec<DeletableGroupResult> [0+];
    }
    struct DeletableGroupResult {
        group_id:   Str [0+];
        error_code: i16 [0+];
    }
}
