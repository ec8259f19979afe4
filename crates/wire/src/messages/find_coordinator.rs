//! Key 10: `FindCoordinatorRequest.json` and `FindCoordinatorResponse.json`.

use crate::Str;

messages! {
    request FindCoordinatorRequest: FindCoordinator, versions [0-6], flexible [3+] {
        key:              Str      [0-3];
        key_type:         i8       [1+];
        coordinator_keys: Vec<Str> [4+];
    }
    response FindCoordinatorResponse: FindCoordinator, versions [0-6], flexible [3+] {
        throttle_time_ms: i32              [1+], ignorable;
        error_code:       i16              [0-3];
        error_message:    Option<Str>      [1-3] nullable[1-3], ignorable;
        node_id:          i32              [0-3];
        host:             Str              [0-3];
        port:             i32              [0-3];
        coordinators:     Vec<Coordinator> [4+];
    }
    struct Coordinator {
        key:           Str         [4+];
        node_id:       i32         [4+];
        host:          Str         [4+];
        port:          i32         [4+];
        error_code:    i16         [4+];
        error_message: Option<Str> [4+] nullable[4+], ignorable;
    }
}
