//! Commits of uploaded objects: those of many partitions in one proposal.
//!
//! **Owns** the batching and what to do when an outcome is not known. **Does not own** what is accepted: the cluster's state
//! machine decides each entry alone.

use std::sync::Arc;

use tidelog_core::cluster::{Command, CommitRefusal, Outcome, SegmentCommit};
use tidelog_replica::ProposeFailure;
use tidelog_types::Offset;
use tokio::sync::{mpsc, oneshot};

use crate::context::Context;

/// Entries of one proposal: far below what one command may hold.
const COMMITS_PER_PROPOSAL_MAX: usize = 256;

/// Commits that wait for the proposal before them; one more waits with its upload's slot.
const COMMITS_WAITING_MAX: usize = 256;

/// How often a proposal whose outcome is not known is made again. Each is safe: an equal entry counts as accepted.
const TRIES_MAX: u32 = 3;

/// Why a commit has no answer. The object may be in the manifest: the next look at the manifest says.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CommitError {
    #[error(transparent)]
    Propose(#[from] ProposeFailure),
    #[error("the controller answered something else")]
    WrongAnswer,
    #[error("the node shuts down")]
    ShuttingDown,
}

type Answer = Result<Result<Offset, CommitRefusal>, CommitError>;

/// Hands commits over.
#[derive(Clone)]
pub(crate) struct Committer {
    queue: mpsc::Sender<(SegmentCommit, oneshot::Sender<Answer>)>,
}

/// Where commits arrive.
pub(crate) struct Commits {
    queue: mpsc::Receiver<(SegmentCommit, oneshot::Sender<Answer>)>,
}

pub(crate) fn channel() -> (Committer, Commits) {
    let (sender, receiver) = mpsc::channel(COMMITS_WAITING_MAX);
    (Committer { queue: sender }, Commits { queue: receiver })
}

impl Committer {
    /// Commits one entry; `Ok(Err(_))` is the state machine's refusal.
    pub(crate) async fn commit(&self, commit: SegmentCommit) -> Answer {
        let (sender, receiver) = oneshot::channel();
        self.queue.send((commit, sender)).await.map_err(|_| CommitError::ShuttingDown)?;
        receiver.await.map_err(|_| CommitError::ShuttingDown)?
    }
}

impl Commits {
    /// Proposes what waits, all of it at once, until every [`Committer`] is gone.
    pub(crate) async fn run(mut self, context: Arc<Context>) {
        let mut waiting = Vec::new();
        while self.queue.recv_many(&mut waiting, COMMITS_PER_PROPOSAL_MAX).await > 0 {
            let (commits, senders): (Vec<_>, Vec<_>) = waiting.drain(..).unzip();
            let count = commits.len();
            let answers = propose(&context, commits).await;
            let failed = |error: CommitError| vec![Err(error); count];
            for (sender, answer) in senders.into_iter().zip(answers.unwrap_or_else(failed)) {
                // Nobody waits any more where the upload was aborted.
                drop(sender.send(answer));
            }
        }
    }
}

async fn propose(context: &Context, commits: Vec<SegmentCommit>) -> Result<Vec<Answer>, CommitError> {
    let count = commits.len();
    let mut tries = 0;
    loop {
        tries += 1;
        let command = Command::CommitSegments { commits: commits.clone() };
        match context.commands.propose(command).await {
            Ok(Outcome::Committed { results }) if results.len() == count => {
                return Ok(results.into_iter().map(Ok).collect());
            }
            Ok(_) => return Err(CommitError::WrongAnswer),
            Err(ProposeFailure::Unknown(_)) if tries < TRIES_MAX => {}
            Err(failure) => return Err(failure.into()),
        }
    }
}
