//! The seam to the cluster's metadata: the controller's client, or a state machine in a test's memory.

use std::{future::Future, pin::Pin, sync::Arc};

use thiserror::Error;
use tidelog_controller::{Controller, ProposeError};
use tidelog_core::cluster::{Command, MetadataImage, Outcome, Refusal};
use tidelog_runtime::watch;

/// Why a proposal has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProposeFailure {
    /// It was applied, and refused; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It never reached the cluster's log; it may be proposed again.
    #[error("the controller is not available: {0}")]
    Unavailable(String),
    /// Nobody knows yet whether it was applied.
    #[error("the outcome of a proposal is not known: {0}")]
    Unknown(String),
}

/// The outcome of a proposal.
pub type ProposeFuture = Pin<Box<dyn Future<Output = Result<Outcome, ProposeFailure>> + Send>>;

/// The cluster's metadata, as one broker follows it.
pub trait Metadata: Send + Sync + 'static {
    /// The newest image known here.
    fn image(&self) -> Arc<MetadataImage>;
    /// Every image from now on; intermediate ones may be skipped.
    fn watch(&self) -> watch::Receiver<Arc<MetadataImage>>;
    /// Proposes a change. A refusal by the state machine is [`ProposeFailure::Refused`].
    fn propose(&self, command: Command) -> ProposeFuture;
}

impl Metadata for Controller {
    fn image(&self) -> Arc<MetadataImage> {
        Self::image(self)
    }

    fn watch(&self) -> watch::Receiver<Arc<MetadataImage>> {
        Self::watch(self)
    }

    fn propose(&self, command: Command) -> ProposeFuture {
        let controller = self.clone();
        Box::pin(async move {
            match Self::propose(&controller, command).await {
                Ok(outcome) => Ok(outcome.into_result()?),
                Err(
                    error @ (ProposeError::Busy
                    | ProposeError::TooLarge { .. }
                    | ProposeError::NoSpace { .. }
                    | ProposeError::NoLeader),
                ) => Err(ProposeFailure::Unavailable(error.to_string())),
                Err(ProposeError::Unknown { why }) => Err(ProposeFailure::Unknown(why)),
            }
        })
    }
}
