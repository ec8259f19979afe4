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

/// How far the agreement on the cluster's metadata is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quorum {
    /// Whether this node leads it.
    pub leads: bool,
    /// Grows with every election.
    pub term: u64,
    /// The end of its log here, exclusive.
    pub log_end: u64,
    /// What is applied of it here, exclusive.
    pub high_watermark: u64,
}

/// The cluster's metadata, as one broker follows it.
pub trait Metadata: Send + Sync + 'static {
    /// The newest image known here.
    fn image(&self) -> Arc<MetadataImage>;
    /// Every image from now on; intermediate ones may be skipped.
    fn watch(&self) -> watch::Receiver<Arc<MetadataImage>>;
    /// Proposes a change. A refusal by the state machine is [`ProposeFailure::Refused`].
    fn propose(&self, command: Command) -> ProposeFuture;
    /// How far the agreement is. Where nobody needs to agree: as far as the image.
    fn quorum(&self) -> Quorum {
        let end = self.image().index.0.saturating_add(1);
        Quorum { leads: true, term: 0, log_end: end, high_watermark: end }
    }
}

impl Metadata for Controller {
    fn image(&self) -> Arc<MetadataImage> {
        Self::image(self)
    }

    fn watch(&self) -> watch::Receiver<Arc<MetadataImage>> {
        Self::watch(self)
    }

    fn quorum(&self) -> Quorum {
        let status = self.status();
        let end = |last: Option<u64>| last.map_or(0, |last| last.saturating_add(1));
        Quorum {
            leads: status.leader == Some(status.node_id),
            term: status.term,
            log_end: end(status.last_log_index),
            high_watermark: end(status.applied_index),
        }
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
