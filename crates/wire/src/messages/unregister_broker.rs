//! Key 64: `UnregisterBrokerRequest.json` and `UnregisterBrokerResponse.json`.

use crate::Str;

messages! {
    request UnregisterBrokerRequest: UnregisterBroker, versions [0], flexible [0+] {
        broker_id: i32 [0+];
    }
    response UnregisterBrokerResponse: UnregisterBroker, versions [0], flexible [0+] {
        throttle_time_ms: i32         [0+];
        error_code:       i16         [0+];
        error_message:    Option<Str> [0+] nullable[0+];
    }
}
