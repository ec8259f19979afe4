//! Deleting the logs of partitions that are not hosted here any more, beside everything else that follows the metadata.
//!
//! **Owns** their queue. The files of a large topic, or of ten thousand partitions, take minutes to go. Topic ids are never
//! given twice and replicas do not move, so no partition that waits here comes back.
//!
//! What a stop leaves in the queue is in the log and not in the image: the next start deletes it.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use tidelog_runtime::CancellationToken;
use tidelog_types::limits;
use tokio::sync::Notify;
use tracing::error;

use super::ReplicaManager;
use crate::PartitionHandle;

/// Partitions whose logs are to be deleted, in the order in which they went: as many at most as were hosted.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    waiting: Mutex<VecDeque<PartitionHandle>>,
    added: Notify,
}

impl Deletions {
    pub(super) fn add(&self, gone: Vec<PartitionHandle>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).extend(gone);
        self.added.notify_waiters();
        // For one that just looked and does not wait yet: it has them all, if nobody else takes them.
        self.added.notify_one();
    }

    fn next(&self) -> Option<PartitionHandle> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl ReplicaManager {
    pub(super) fn spawn_deletions(&self) {
        let supervisor = &self.shared.supervisor;
        for _ in 0..limits::PARTITION_DELETIONS_IN_FLIGHT {
            let (deleting, token) = (self.clone(), supervisor.shutdown_token());
            supervisor
                .spawn_back("delete partitions", async move { deleting.run_deletions(&token).await })
                .detach();
        }
    }

    /// Ends between two deletions: one that is begun is finished.
    async fn run_deletions(&self, token: &CancellationToken) {
        while !token.is_cancelled() {
            let Some(gone) = self.deletions.next() else {
                tokio::select! {
                    biased;
                    () = token.cancelled() => return,
                    () = self.deletions.added.notified() => {}
                }
                continue;
            };
            if let Err(error) = self.shared.log.delete(gone.place()).await {
                error!(partition = %gone.place(), %error, "could not delete the log of a topic that is gone");
            }
        }
    }
}
