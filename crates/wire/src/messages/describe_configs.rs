//! Key 32: `DescribeConfigsRequest.json` and `DescribeConfigsResponse.json`.

use crate::Str;

messages! {
    request DescribeConfigsRequest: DescribeConfigs, versions [1-4], flexible [4+] {
        resources:             Vec<DescribeConfigsResource> [0+];
        include_synonyms:      bool                         [1+];
        include_documentation: bool                         [3+];
    }
    struct DescribeConfigsResource {
        resource_type:      i8               [0+];
        resource_name:      Str              [0+];
        configuration_keys: Option<Vec<Str>> [0+] nullable[0+];
    }
    response DescribeConfigsResponse: DescribeConfigs, versions [1-4], flexible [4+] {
        throttle_time_ms: i32                        [0+];
        results:          Vec<DescribeConfigsResult> [0+];
    }
    struct DescribeConfigsResult {
        error_code:    i16                                [0+];
        error_message: Option<Str>                        [0+] nullable[0+];
        resource_type: i8                                 [0+];
        resource_name: Str                                [0+];
        configs:       Vec<DescribeConfigsResourceResult> [0+];
    }
    struct DescribeConfigsResourceResult {
        name:          Str                         [0+];
        value:         Option<Str>                 [0+] nullable[0+];
        read_only:     bool                        [0+];
        config_source: i8                          [1+] = -1, ignorable;
        is_sensitive:  bool                        [0+];
        synonyms:      Vec<DescribeConfigsSynonym> [1+], ignorable;
        config_type:   i8                          [3+], ignorable;
        documentation: Option<Str>                 [3+] nullable[0+], ignorable;
    }
    struct DescribeConfigsSynonym {
        name:   Str         [1+];
        value:  Option<Str> [1+] nullable[0+];
        source: i8          [1+];
    }
}
