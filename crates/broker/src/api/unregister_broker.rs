//! UnregisterBroker (key 64): forgets a broker that is gone for good.
//!
//! A broker that is registered stays so: the one that is asked serves, and the cluster's metadata would name nobody without it.

use std::sync::Arc;

use tidelog_types::BrokerId;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{UnregisterBrokerRequest, UnregisterBrokerResponse},
};

use crate::{connection::Caller, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: UnregisterBrokerRequest,
) -> UnregisterBrokerResponse {
    let id = request.broker_id;
    let (code, message) = if node.metadata.image().broker(BrokerId(id)).is_none() {
        (ErrorCode::BrokerIdNotRegistered, format!("Broker ID {id} is not currently registered"))
    } else {
        (
            ErrorCode::InvalidRequest,
            format!("Broker ID {id} stays registered: this version does not forget a broker"),
        )
    };
    UnregisterBrokerResponse {
        error_code: code.code(),
        error_message: Some(Str::from(message)),
        ..UnregisterBrokerResponse::default()
    }
}
