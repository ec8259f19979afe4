//! The one writer of a shard.

use std::sync::Arc;

use tidelog_core::groups::Now;
use tidelog_format::batch::{BatchBuilder, NewRecord};
use tidelog_replica::{Acks, AppendError, AppendRequest};
use tidelog_types::Offset;
use tidelog_wire::ErrorCode;

use super::{shard::Shard, topic::shown_place, write::Entry};
use crate::node::Node;

/// Appends what waits until the shard ends.
pub(super) async fn run(node: Arc<Node>, shard: Arc<Shard>) {
    loop {
        tokio::select! {
            biased;
            () = shard.closed.cancelled() => return,
            () = shard.work.notified() => {}
        }
        loop {
            let Some(entries) = shard.take() else { break };
            let began = node.clock.monotonic();
            // Who only waits for what is before him brings none.
            let outcome = if entries.is_empty() {
                Ok(())
            } else {
                tokio::select! {
                    biased;
                    () = shard.closed.cancelled() => return,
                    outcome = append(&node, &shard, &entries) => outcome,
                }
            };
            let metrics = &node.groups.metrics;
            metrics.write_seconds.observe_duration(node.clock.monotonic().saturating_sub(began));
            match outcome {
                Ok(()) => metrics.records.add(entries.len() as u64),
                Err(_) => metrics.failed_writes.inc(),
            }
            if shard.written(now(&node), outcome) {
                tracing::warn!(partition = %shown_place(&shard.handle), "groups are ahead of their log and are loaded anew");
                super::follow::restart(&node, &shard);
                return;
            }
        }
    }
}

/// The time, for a group's machine.
pub(super) fn now(node: &Node) -> Now {
    Now { monotonic: node.clock.monotonic(), wall: node.clock.wall() }
}

/// Appends records as one batch and waits until it is durable.
async fn append(node: &Node, shard: &Shard, entries: &[Entry]) -> Result<(), ErrorCode> {
    let time = Some(node.clock.wall());
    let mut builder = BatchBuilder::new(Offset::ZERO).codec(node.groups.settings().codec);
    for entry in entries {
        builder = builder.record(&NewRecord {
            timestamp: time,
            key: Some(&entry.key),
            value: entry.value.as_deref(),
            headers: &[],
        });
    }
    let batch = builder.build().map_err(|error| {
        tracing::error!(partition = %shown_place(&shard.handle), %error, "records of groups cannot be written");
        ErrorCode::UnknownServerError
    })?;
    let request =
        AppendRequest { records: batch.to_bytes(), frame_bytes: 0, acks: Acks::All, internal: true };
    let appended = shard.handle.append(request).await.map_err(|error| {
        if let Some(suppressed) = node.connection_lines.pass("records of groups not written") {
            let partition = shown_place(&shard.handle);
            tracing::warn!(suppressed, %partition, %error, "records of groups were not written");
        }
        refused(&error)
    })?;
    appended.ack.wait().await.map_err(|error| {
        if let Some(suppressed) = node.connection_lines.pass("records of groups may not stay") {
            let partition = shown_place(&shard.handle);
            tracing::warn!(suppressed, %partition, %error, "records of groups may not stay");
        }
        ErrorCode::NotCoordinator
    })
}

/// Kafka's translation of why nothing was appended to what a member is told.
fn refused(error: &AppendError) -> ErrorCode {
    match error {
        AppendError::NoSpace => ErrorCode::CoordinatorNotAvailable,
        AppendError::Storage(_) | AppendError::Deleted => ErrorCode::NotCoordinator,
        AppendError::Refused(_) => match crate::error_code::append(error) {
            ErrorCode::NotEnoughReplicas => ErrorCode::CoordinatorNotAvailable,
            ErrorCode::NotLeaderOrFollower => ErrorCode::NotCoordinator,
            ErrorCode::MessageTooLarge => ErrorCode::MessageTooLarge,
            _ => ErrorCode::UnknownServerError,
        },
        AppendError::Batch(_)
        | AppendError::WithoutKey { .. }
        | AppendError::OutOfTime { .. }
        | AppendError::Records(_) => ErrorCode::UnknownServerError,
    }
}
