//! Key 17: `SaslHandshakeRequest.json` and `SaslHandshakeResponse.json`.

use crate::Str;

messages! {
    request SaslHandshakeRequest: SaslHandshake, versions [0-1], flexible [none] {
        mechanism: Str [0+];
    }
    response SaslHandshakeResponse: SaslHandshake, versions [0-1], flexible [none] {
        error_code: i16      [0+];
        mechanisms: Vec<Str> [0+];
    }
}
