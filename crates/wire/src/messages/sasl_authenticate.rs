//! Key 36: `SaslAuthenticateRequest.json` and `SaslAuthenticateResponse.json`.

use bytes::Bytes;

use crate::Str;

messages! {
    request SaslAuthenticateRequest: SaslAuthenticate, versions [0-2], flexible [2+] {
        auth_bytes: Bytes [0+];
    }
    response SaslAuthenticateResponse: SaslAuthenticate, versions [0-2], flexible [2+] {
        error_code:          i16         [0+];
        error_message:       Option<Str> [0+] nullable[0+];
        auth_bytes:          Bytes       [0+];
        session_lifetime_ms: i64         [1+], ignorable;
    }
}
