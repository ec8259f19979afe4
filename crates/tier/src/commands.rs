//! The seam to the controllers: what tiering proposes and reads.

use std::sync::Arc;

use futures::future::BoxFuture;
use tidelog_controller::{Controller, LinearizeError};
use tidelog_core::cluster::{Command, LogIndex, MetadataImage, Outcome};
use tidelog_replica::{Metadata, ProposeFailure};

/// Metadata with linearizable reads. The controller's client, or a state machine in a test's memory.
pub trait ClusterCommands: Metadata {
    /// Waits until the image here holds everything that was committed when this was called; its index.
    fn linearize(&self) -> BoxFuture<'static, Result<LogIndex, LinearizeError>>;
}

impl ClusterCommands for Controller {
    fn linearize(&self) -> BoxFuture<'static, Result<LogIndex, LinearizeError>> {
        let controller = self.clone();
        Box::pin(async move { Self::linearize(&controller).await })
    }
}

/// A linearizable image.
pub(crate) async fn linearizable_image(
    commands: &dyn ClusterCommands,
) -> Result<Arc<MetadataImage>, LinearizeError> {
    let index = commands.linearize().await?;
    let image = commands.image();
    if image.index < index {
        let why = format!("the image is at {}, the read at {index}", image.index);
        return Err(LinearizeError { why });
    }
    Ok(image)
}

/// Proposes a command that may be proposed again: once more where the outcome of the first is not known.
pub(crate) async fn propose_again(
    commands: &dyn ClusterCommands,
    command: Command,
) -> Result<Outcome, ProposeFailure> {
    match commands.propose(command.clone()).await {
        Err(ProposeFailure::Unknown(_)) => commands.propose(command).await,
        settled => settled,
    }
}
