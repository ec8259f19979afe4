//! `SaslHandshake` (key 17) and `SaslAuthenticate` (key 36): what a client that wants to authenticate is told by a listener
//! where nobody has to. As Kafka does, so that its user reads that the listener is a plaintext one instead of waiting.

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
    },
};

use crate::{connection::Caller, node::Node};

/// There is no mechanism to choose from.
pub(crate) async fn handshake(
    _: &Arc<Node>,
    _: &Caller,
    _: i16,
    _: SaslHandshakeRequest,
) -> SaslHandshakeResponse {
    SaslHandshakeResponse {
        error_code: ErrorCode::IllegalSaslState.code(),
        ..SaslHandshakeResponse::default()
    }
}

/// Nothing was agreed on before.
pub(crate) async fn authenticate(
    _: &Arc<Node>,
    _: &Caller,
    _: i16,
    _: SaslAuthenticateRequest,
) -> SaslAuthenticateResponse {
    SaslAuthenticateResponse {
        error_code: ErrorCode::IllegalSaslState.code(),
        error_message: Some(Str::from_static(
            "SaslAuthenticate request received after successful authentication",
        )),
        ..SaslAuthenticateResponse::default()
    }
}
