//! Key 74: `ListConfigResourcesRequest.json` and `ListConfigResourcesResponse.json`.

use crate::Str;

messages! {
    request ListConfigResourcesRequest: ListConfigResources, versions [0-1], flexible [0+] {
        resource_types: Vec<i8> [1+];
    }
    response ListConfigResourcesResponse: ListConfigResources, versions [0-1], flexible [0+] {
        throttle_time_ms: i32                 [0+];
        error_code:       i16                 [0+];
        config_resources: Vec<ConfigResource> [0+];
    }
    struct ConfigResource {
        resource_name: Str [0+];
        resource_type: i8  [1+] = 16, ignorable;
    }
}
