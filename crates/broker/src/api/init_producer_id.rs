//! InitProducerId (key 22): ids for idempotent producers, from blocks that the controller gives out.

use std::sync::Arc;

use tidelog_core::cluster::{Command, Outcome};
use tidelog_types::ProducerId;
use tidelog_wire::{
    ErrorCode,
    messages::{InitProducerIdRequest, InitProducerIdResponse},
};

use crate::{connection::Caller, error_code, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let failed = |code: ErrorCode| InitProducerIdResponse {
        error_code: code.code(),
        producer_epoch: -1,
        ..InitProducerIdResponse::default()
    };
    match request.transactional_id.as_deref() {
        None => {}
        Some("") => return failed(ErrorCode::InvalidRequest),
        // There is no coordinator of transactions here, as FindCoordinator says too.
        Some(_) => return failed(ErrorCode::CoordinatorNotAvailable),
    }
    // Kafka's -1 for none: of both or of neither.
    if (request.producer_id == -1) != (request.producer_epoch == -1) {
        return failed(ErrorCode::InvalidRequest);
    }
    match next(node).await {
        Ok(id) => InitProducerIdResponse {
            producer_id: id.0,
            producer_epoch: 0,
            ..InitProducerIdResponse::default()
        },
        Err(code) => failed(code),
    }
}

/// The next id of this broker's block; a new block where it is used up. An id that was given out is never given again:
/// what is left of a block is lost with the process.
async fn next(node: &Node) -> Result<ProducerId, ErrorCode> {
    let mut block = node.producer_ids.lock().await;
    let (id, end) = match *block {
        Some((id, end)) if id < end => (id, end),
        _ => {
            let image = node.metadata.image();
            let incarnation = image
                .broker(node.id)
                .map(|broker| broker.incarnation)
                .ok_or(ErrorCode::CoordinatorLoadInProgress)?;
            let command = Command::AllocateProducerIds { broker: node.id, incarnation };
            let outcome = node.metadata.propose(command).await.map_err(|failure| {
                let error = error_code::propose(&failure);
                // The code that clients ask again for.
                if error.code == ErrorCode::NotController {
                    ErrorCode::CoordinatorLoadInProgress
                } else {
                    error.code
                }
            })?;
            let Outcome::ProducerIds { first, count } = outcome else {
                tracing::error!(?outcome, "an allocation of producer ids had an unexpected outcome");
                return Err(ErrorCode::UnknownServerError);
            };
            (first, ProducerId(first.0.saturating_add(count)))
        }
    };
    *block = Some((ProducerId(id.0.saturating_add(1)), end));
    Ok(id)
}
