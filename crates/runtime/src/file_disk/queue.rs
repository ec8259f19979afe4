//! The threads of one lane, and the operations that wait for them.

use std::{
    collections::VecDeque,
    fmt, io,
    panic::AssertUnwindSafe,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use tidelog_types::limits::{DISK_QUEUE_OPERATIONS_MAX, DISK_READS_QUEUED_MAX};
use tokio::sync::{Semaphore, oneshot};

use crate::disk::IoFuture;

type Operation = Box<dyn FnOnce() + Send>;

/// Operations in the order of their submission, and the threads that perform them: in that order where there is one.
///
/// Dropping the queue ends its threads after what was submitted.
pub(super) struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    waiting: Mutex<Waiting>,
    ready: Condvar,
    reads: Arc<Semaphore>,
}

#[derive(Default)]
struct Waiting {
    operations: VecDeque<Operation>,
    /// Operations taken and not ended.
    running: usize,
    closed: bool,
}

impl Queue {
    pub(super) fn start(name: &'static str, threads: usize, on_start: fn()) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            name,
            waiting: Mutex::default(),
            ready: Condvar::new(),
            reads: Arc::new(Semaphore::new(DISK_READS_QUEUED_MAX)),
        });
        let queue = Self { shared };
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&queue.shared);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                on_start();
                shared.perform();
            })?;
        }
        Ok(queue)
    }

    /// Submits an operation now; the future is its completion.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        self.shared.submit(work)
    }

    /// Submits a read: now, or where many wait, once fewer do.
    pub(super) fn submit_read<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let reads = Arc::clone(&self.shared.reads);
        if let Ok(place) = Arc::clone(&reads).try_acquire_owned() {
            return self.shared.submit(move || {
                let _place = place;
                work()
            });
        }
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let place = reads.acquire_owned().await.map_err(io::Error::other)?;
            let submitted = shared.submit(move || {
                let _place = place;
                work()
            });
            submitted.await
        })
    }

    /// Submits an operation that waits for its turn here and is then performed by `second`.
    pub(super) fn submit_through<T: Send + 'static>(
        &self,
        second: &Queue,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (answer, answered) = oneshot::channel();
        // Its place was counted in the first queue: the second takes it in any case.
        let perform: Operation = Box::new(move || drop(answer.send(work())));
        let waiting = self.shared.lock();
        if waiting.operations.is_empty() && waiting.running == 0 {
            // Nothing comes before it. The lock is held, so that the next one through stays behind it.
            second.shared.push(perform, usize::MAX);
        } else {
            drop(waiting);
            let second = Arc::clone(&second.shared);
            self.shared.push(Box::new(move || second.push(perform, usize::MAX)), DISK_QUEUE_OPERATIONS_MAX);
        }
        completion(self.shared.name, answered)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.ready.notify_all();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({}: {} waiting)", self.shared.name, self.shared.lock().operations.len())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (answer, answered) = oneshot::channel();
        self.push(Box::new(move || drop(answer.send(work()))), DISK_QUEUE_OPERATIONS_MAX);
        completion(self.name, answered)
    }

    /// Queues an operation. Where `limit` wait already it is dropped, which its completion reports.
    fn push(&self, operation: Operation, limit: usize) {
        let mut waiting = self.lock();
        if waiting.operations.len() < limit {
            waiting.operations.push_back(operation);
            drop(waiting);
            self.ready.notify_one();
        } else {
            drop(waiting);
            tracing::error!(lane = self.name, limit, "disk operation refused, its queue is full");
        }
    }

    /// What every thread does: operations until the queue is closed and empty.
    fn perform(&self) {
        let mut waiting = self.lock();
        loop {
            if let Some(operation) = waiting.operations.pop_front() {
                waiting.running += 1;
                drop(waiting);
                if std::panic::catch_unwind(AssertUnwindSafe(operation)).is_err() {
                    tracing::error!(lane = self.name, "disk operation panicked");
                }
                waiting = self.lock();
                waiting.running -= 1;
            } else if waiting.closed {
                return;
            } else {
                waiting = self.ready.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

fn completion<T: Send + 'static>(
    name: &'static str,
    answered: oneshot::Receiver<io::Result<T>>,
) -> IoFuture<T> {
    Box::pin(async move {
        answered
            .await
            .unwrap_or_else(|_| Err(io::Error::other(format!("{name} did not perform the operation"))))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_full_queue_is_an_error_and_loses_nothing_else() {
        let queue = Queue::start("test", 1, || ()).unwrap();
        let (release, blocked) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel::<()>();
        let first = queue.submit(move || {
            started.send(()).unwrap();
            let _ = blocked.recv();
            Ok(0)
        });
        running.recv().unwrap();
        let waiting: Vec<_> = (0..DISK_QUEUE_OPERATIONS_MAX).map(|n| queue.submit(move || Ok(n))).collect();
        let refused = queue.submit(|| Ok(()));
        assert_eq!(refused.await.unwrap_err().to_string(), "test did not perform the operation");
        drop(release);
        assert_eq!(first.await.unwrap(), 0);
        for (n, answer) in waiting.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap(), n);
        }
    }

    #[tokio::test]
    async fn reads_beyond_the_limit_wait_and_are_served() {
        let queue = Queue::start("test", 2, || ()).unwrap();
        let reads: Vec<_> =
            (0..3 * DISK_READS_QUEUED_MAX).map(|n| queue.submit_read(move || Ok(n))).collect();
        for (n, answer) in reads.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap(), n);
        }
    }

    #[tokio::test]
    async fn a_sync_begins_after_what_was_submitted_before_and_holds_up_nothing_behind_it() {
        let (writes, syncs) =
            (Queue::start("writes", 1, || ()).unwrap(), Queue::start("syncs", 1, || ()).unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        // Performed once its sender is dropped.
        let held = |what: &'static str| {
            let order = Arc::clone(&order);
            let (release, held) = mpsc::channel::<()>();
            let perform = move || {
                let _ = held.recv();
                order.lock().unwrap().push(what);
                Ok(())
            };
            (release, perform)
        };
        let ((release_before, before), (release_sync, sync)) = (held("before"), held("sync"));
        let before = writes.submit(before);
        let sync = writes.submit_through(&syncs, sync);
        // The sync's thread is idle: the sync has not been handed to it.
        syncs.submit(|| Ok(())).await.unwrap();
        drop(release_before);
        before.await.unwrap();
        let (release_after, after) = held("after");
        drop(release_after);
        writes.submit(after).await.unwrap();
        drop(release_sync);
        sync.await.unwrap();
        let second = writes.submit_through(&syncs, || Ok("nothing comes before it"));
        assert_eq!(second.await.unwrap(), "nothing comes before it");
        assert_eq!(*order.lock().unwrap(), ["before", "after", "sync"]);
    }

    #[tokio::test]
    async fn a_panic_fails_its_operation_alone() {
        let queue = Queue::start("test", 1, || ()).unwrap();
        let careless = queue.submit::<()>(|| panic!("on purpose"));
        assert_eq!(careless.await.unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(queue.submit(|| Ok(1)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_dropped_queue_performs_what_was_submitted() {
        let queue = Queue::start("test", 1, || ()).unwrap();
        let answers: Vec<_> = (0..100).map(|n| queue.submit(move || Ok(n))).collect();
        drop(queue);
        for (n, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap(), n);
        }
    }
}
