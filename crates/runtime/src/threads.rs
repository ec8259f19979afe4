//! The two tokio runtimes of a node.

use std::{io, time::Duration};

use tokio::runtime::{Builder, Handle, Runtime};

/// How many threads each runtime has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimesConfig {
    /// Workers for sockets, APIs and partition writers.
    pub front_threads: usize,
    /// Workers for the bucket, uploads, cleaning, codecs and export.
    pub back_threads: usize,
}

impl Default for RuntimesConfig {
    /// A front worker per core, and half as many behind.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { front_threads: cores, back_threads: cores.div_ceil(2) }
    }
}

/// The front runtime, on which nothing blocks or computes for more than 200 µs, and the back runtime on threads of
/// lower priority.
#[derive(Debug)]
pub struct Runtimes {
    front: Runtime,
    back: Runtime,
}

/// How much nicer the back threads are: they get about a ninth of a core that a front thread also wants.
const BACK_NICE: i32 = 10;

/// Threads for blocking work on each runtime. The back one runs codecs and the like, which are bound by cores; more
/// threads than this would only share them.
const BLOCKING_THREADS_MAX: usize = 16;

impl Runtimes {
    /// Starts both.
    ///
    /// # Errors
    /// Where threads cannot be started.
    pub fn start(config: RuntimesConfig) -> io::Result<Self> {
        let front = builder("tidelog-front", config.front_threads).build()?;
        let back = builder("tidelog-back", config.back_threads).on_thread_start(lower_priority).build()?;
        Ok(Self { front, back })
    }

    /// Where front tasks run.
    #[must_use]
    pub fn front(&self) -> &Handle {
        self.front.handle()
    }

    /// Where back tasks run.
    #[must_use]
    pub fn back(&self) -> &Handle {
        self.back.handle()
    }

    /// Ends both, after their tasks did: what still runs has until `deadline`, then it is left behind.
    pub fn shutdown(self, deadline: Duration) {
        self.front.shutdown_timeout(deadline);
        self.back.shutdown_timeout(deadline);
    }
}

fn builder(name: &str, threads: usize) -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(threads.max(1))
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name(name)
        .enable_all();
    builder
}

/// Lowers the priority of the calling thread. On Linux `nice` acts on the thread, not on the process.
pub(crate) fn lower_priority() {
    if let Err(error) = rustix::process::nice(BACK_NICE) {
        tracing::warn!(%error, "a background thread keeps the priority of the front");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_threads_are_nicer_than_front_threads() {
        let runtimes = Runtimes::start(RuntimesConfig { front_threads: 1, back_threads: 1 }).unwrap();
        let nice_of = |handle: &Handle| {
            let supervisor = crate::Supervisor::new(handle.clone(), handle.clone(), &crate::Registry::new());
            let task =
                supervisor.spawn("nice", async { rustix::process::getpriority_process(None).unwrap() });
            handle.block_on(task).unwrap()
        };
        let (front, back) = (nice_of(runtimes.front()), nice_of(runtimes.back()));
        assert_eq!(back, (front + BACK_NICE).min(19));
        runtimes.shutdown(Duration::from_secs(5));
    }
}
