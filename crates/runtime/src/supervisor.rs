//! Every task of the process: started here, known by name, joined at shutdown.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{AbortHandle, JoinHandle},
};
use tokio_util::sync::CancellationToken;

use crate::metrics::{Counter, Gauge, Registry};

/// Starts tasks and ends them. Clones are the same group of tasks.
///
/// Groups form a tree ([`Supervisor::child`]): shutting a group down asks its tasks and those of every group below it
/// to end, and waits for them. Tasks end by watching [`Supervisor::shutdown_token`].
#[derive(Clone)]
pub struct Supervisor {
    group: Arc<Group>,
}

struct Group {
    name: &'static str,
    parent: Option<Arc<Group>>,
    token: CancellationToken,
    /// The tasks of this group and of all groups below it.
    tasks: Mutex<BTreeMap<u64, Entry>>,
    idle: Notify,
    process: Arc<Process>,
}

struct Entry {
    name: &'static str,
    abort: Option<AbortHandle>,
}

/// What all groups share.
struct Process {
    front: Handle,
    back: Handle,
    /// Blocking work runs as a task of the one runtime there is, so that a simulation stays deterministic.
    blocking_inline: bool,
    next_task: AtomicU64,
    started: Counter,
    panics: Counter,
    running: Gauge,
}

impl Supervisor {
    /// The root group of a node: tasks run on `front` unless they are spawned to the back.
    #[must_use]
    pub fn new(front: Handle, back: Handle, registry: &Registry) -> Self {
        Self::build(front, back, registry, false)
    }

    /// A root group on the runtime of the caller, for tests and simulation. Blocking work runs inline, as a task.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn for_test() -> Self {
        let here = Handle::current();
        Self::build(here.clone(), here, &Registry::new(), true)
    }

    fn build(front: Handle, back: Handle, registry: &Registry, blocking_inline: bool) -> Self {
        let process = Process {
            front,
            back,
            blocking_inline,
            next_task: AtomicU64::new(0),
            started: registry
                .counter("runtime_tasks_started_total", "Tasks started since the process began."),
            panics: registry.counter(
                "runtime_task_panics_total",
                "Tasks that ended in a panic, which is always a defect.",
            ),
            running: registry.gauge("runtime_tasks_running", "Tasks that run now."),
        };
        Self { group: Arc::new(Group::new("node", None, CancellationToken::new(), Arc::new(process))) }
    }

    /// A group below this one, which can be shut down on its own and ends with this one.
    #[must_use]
    pub fn child(&self, name: &'static str) -> Self {
        let token = self.group.token.child_token();
        let group = Group::new(name, Some(Arc::clone(&self.group)), token, Arc::clone(&self.group.process));
        Self { group: Arc::new(group) }
    }

    /// Starts a task on the front runtime. Dropping the returned [`Task`] detaches it.
    ///
    /// A panic inside is logged with the task's name and counted; it does not reach any other task.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_on(&self.group.process.front, name, future)
    }

    /// Starts a task on the back runtime.
    pub fn spawn_back<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_on(&self.group.process.back, name, future)
    }

    /// Where [`Supervisor::spawn_back`] runs tasks, for libraries that start their own.
    #[must_use]
    pub fn back_runtime(&self) -> Handle {
        self.group.process.back.clone()
    }

    /// Runs work that blocks or computes on a thread of lower priority. It cannot be aborted once it runs.
    pub fn spawn_blocking<F, T>(&self, name: &'static str, work: F) -> Task<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        if self.group.process.blocking_inline {
            return self.spawn_back(name, async move { work() });
        }
        let running = Running::enter(&self.group, name);
        let panics = self.group.process.panics.clone();
        #[allow(clippy::disallowed_methods, reason = "the supervisor is where blocking work is sent from")]
        let handle = self.group.process.back.spawn_blocking(move || {
            let _running = running;
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(work));
            outcome.map_err(|panic| report_panic(name, &panics, panic.as_ref()))
        });
        Task { name, handle }
    }

    fn spawn_on<F>(&self, runtime: &Handle, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let running = Running::enter(&self.group, name);
        let id = running.id;
        let panics = self.group.process.panics.clone();
        let handle = runtime.spawn(async move {
            let _running = running;
            let outcome = AssertUnwindSafe(future).catch_unwind().await;
            outcome.map_err(|panic| report_panic(name, &panics, panic.as_ref()))
        });
        for group in self.group.up() {
            if let Some(entry) = group.lock().get_mut(&id) {
                entry.abort = Some(handle.abort_handle());
            }
        }
        Task { name, handle }
    }

    /// Cancelled once this group, or one above it, shuts down.
    #[must_use]
    pub fn shutdown_token(&self) -> CancellationToken {
        self.group.token.clone()
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.group.name
    }

    /// Names of the tasks that run now, of this group and those below it, in the order of their start.
    #[must_use]
    pub fn running(&self) -> Vec<&'static str> {
        self.group.lock().values().map(|entry| entry.name).collect()
    }

    /// Cancels the group's token and waits until its tasks have ended, at most until `deadline` from now. Returns the
    /// names of those that had not; they are aborted, except blocking work, which cannot be.
    ///
    /// Not to be called by a task of the group, which would wait for itself.
    pub async fn shutdown(&self, deadline: Duration) -> Vec<&'static str> {
        self.group.token.cancel();
        let ended = tokio::time::timeout(deadline, async {
            loop {
                // Made before the look: from then on it misses no task that ends.
                let idle = self.group.idle.notified();
                if self.group.lock().is_empty() {
                    return;
                }
                idle.await;
            }
        });
        if ended.await.is_ok() {
            return Vec::new();
        }
        self.abort_all()
    }

    /// Ends every task of this group and those below it at its next await, without asking; returns their names. Blocking
    /// work that runs is named too, but not ended.
    pub fn abort_all(&self) -> Vec<&'static str> {
        let left: Vec<(&'static str, Option<AbortHandle>)> =
            self.group.lock().values().map(|entry| (entry.name, entry.abort.clone())).collect();
        // Outside the lock, which a task that goes at once takes.
        for abort in left.iter().filter_map(|(_, abort)| abort.as_ref()) {
            abort.abort();
        }
        left.into_iter().map(|(name, _)| name).collect()
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("name", &self.name()).field("running", &self.running()).finish()
    }
}

impl Group {
    fn new(
        name: &'static str,
        parent: Option<Arc<Group>>,
        token: CancellationToken,
        process: Arc<Process>,
    ) -> Self {
        Self { name, parent, token, tasks: Mutex::default(), idle: Notify::new(), process }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This group and all above it.
    fn up(&self) -> impl Iterator<Item = &Group> {
        std::iter::successors(Some(self), |group| group.parent.as_deref())
    }
}

/// A task's entry in its group and those above; leaves them when the task ends, is aborted, or its runtime goes.
struct Running {
    group: Arc<Group>,
    id: u64,
}

impl Running {
    fn enter(group: &Arc<Group>, name: &'static str) -> Self {
        let process = &group.process;
        let id = process.next_task.fetch_add(1, Ordering::Relaxed);
        for group in group.up() {
            group.lock().insert(id, Entry { name, abort: None });
        }
        process.started.inc();
        process.running.add(1);
        Self { group: Arc::clone(group), id }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.group.process.running.sub(1);
        for group in self.group.up() {
            let mut tasks = group.lock();
            // The entry's abort handle may be the task's last reference: dropped after the lock.
            let entry = tasks.remove(&self.id);
            let idle = tasks.is_empty();
            drop(tasks);
            drop(entry);
            if idle {
                group.idle.notify_waiters();
            }
        }
    }
}

struct Panicked;

fn report_panic(name: &'static str, panics: &Counter, panic: &(dyn Any + Send)) -> Panicked {
    panics.inc();
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    tracing::error!(task = name, message, "task panicked");
    Panicked
}

/// Why a task has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TaskFailure {
    /// It panicked; the panic was logged and counted.
    #[error("task {name} panicked")]
    Panicked {
        /// The task's name.
        name: &'static str,
    },
    /// It was aborted, or its runtime ended.
    #[error("task {name} was aborted")]
    Aborted {
        /// The task's name.
        name: &'static str,
    },
}

/// A running task, and a future of its result. Dropping it detaches the task.
#[must_use = "a task that nobody joins is detached: drop it explicitly"]
pub struct Task<T = ()> {
    name: &'static str,
    handle: JoinHandle<Result<T, Panicked>>,
}

impl<T> Task<T> {
    /// Waits for the task's end. Cancel safe: the task runs on.
    ///
    /// # Errors
    /// Where it panicked or was aborted.
    pub async fn join(self) -> Result<T, TaskFailure> {
        self.await
    }

    /// Ends the task at its next await; blocking work that runs is not ended.
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// Lets the task run on its own.
    pub fn detach(self) {}

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// The task's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskFailure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let name = self.name;
        Pin::new(&mut self.handle).poll(context).map(|outcome| match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Panicked)) => Err(TaskFailure::Panicked { name }),
            Err(_) => Err(TaskFailure::Aborted { name }),
        })
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn counted(registry: &Registry) -> Supervisor {
        let here = Handle::current();
        Supervisor::new(here.clone(), here, registry)
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_for_tasks_that_end() {
        let supervisor = Supervisor::for_test();
        let token = supervisor.shutdown_token();
        let task = supervisor.spawn("slow", async move {
            token.cancelled().await;
            tokio::time::sleep(Duration::from_secs(10)).await;
            7
        });
        assert_eq!(supervisor.running(), ["slow"]);
        assert_eq!(supervisor.shutdown(LONG).await, Vec::<&str>::new());
        assert_eq!(task.await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_names_and_aborts_what_did_not_end() {
        let supervisor = Supervisor::for_test();
        let stuck = supervisor.spawn("stuck", std::future::pending::<()>());
        supervisor.spawn("quick", async {}).detach();
        let before = tokio::time::Instant::now();
        assert_eq!(supervisor.shutdown(LONG).await, ["stuck"]);
        assert_eq!(before.elapsed(), LONG);
        assert_eq!(stuck.await, Err(TaskFailure::Aborted { name: "stuck" }));
        assert_eq!(supervisor.running(), Vec::<&str>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_group_ends_alone_and_with_its_parent() {
        let root = Supervisor::for_test();
        let (one, other) = (root.child("one"), root.child("other"));
        for group in [&one, &other] {
            let token = group.shutdown_token();
            group.spawn("waits", async move { token.cancelled().await }).detach();
        }
        assert_eq!(one.shutdown(LONG).await, Vec::<&str>::new());
        assert_eq!(root.running(), ["waits"], "the other child's task is the root's too");
        assert!(!root.shutdown_token().is_cancelled());
        assert_eq!(root.shutdown(LONG).await, Vec::<&str>::new());
        assert!(other.shutdown_token().is_cancelled());
        assert_eq!(other.running(), Vec::<&str>::new());
    }

    #[tokio::test]
    async fn a_panic_is_counted_and_reaches_the_joiner_only() {
        let registry = Registry::new();
        let supervisor = counted(&registry);
        let task = supervisor.spawn("careless", async { panic!("on purpose") });
        assert_eq!(task.await, Err::<(), _>(TaskFailure::Panicked { name: "careless" }));
        let blocking = supervisor.spawn_blocking("blocking", || panic!("on purpose"));
        assert_eq!(blocking.await, Err::<(), _>(TaskFailure::Panicked { name: "blocking" }));
        assert_eq!(supervisor.spawn_blocking("sum", || 1 + 1).await, Ok(2));
        assert_eq!(supervisor.shutdown(LONG).await, Vec::<&str>::new());
        let text = registry.encode();
        assert!(text.contains("\nruntime_task_panics_total 2\n"), "{text}");
        assert!(text.contains("\nruntime_tasks_started_total 3\n"), "{text}");
        assert!(text.contains("\nruntime_tasks_running 0\n"), "{text}");
    }

    #[tokio::test]
    async fn an_aborted_task_leaves_the_group() {
        let supervisor = Supervisor::for_test();
        let task = supervisor.spawn("pending", std::future::pending::<()>());
        task.abort();
        assert_eq!(task.join().await, Err(TaskFailure::Aborted { name: "pending" }));
        assert_eq!(supervisor.running(), Vec::<&str>::new());
    }
}
