//! Key 33: `AlterConfigsRequest.json` and `AlterConfigsResponse.json`.

use crate::Str;

messages! {
    request AlterConfigsRequest: AlterConfigs, versions [0-2], flexible [2+] {
        resources:     Vec<AlterConfigsResource> [0+];
        validate_only: bool                      [0+];
    }
    struct AlterConfigsResource {
        resource_type: i8                   [0+];
        resource_name: Str                  [0+];
        configs:       Vec<AlterableConfig> [0+];
    }
    struct AlterableConfig {
        name:  Str         [0+];
        value: Option<Str> [0+] nullable[0+];
    }
    response AlterConfigsResponse: AlterConfigs, versions [0-2], flexible [2+] {
        throttle_time_ms: i32                               [0+];
        responses:        Vec<AlterConfigsResourceResponse> [0+];
    }
    struct AlterConfigsResourceResponse {
        error_code:    i16         [0+];
        error_message: Option<Str> [0+] nullable[0+];
        resource_type: i8          [0+];
        resource_name: Str         [0+];
    }
}
