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
/// threads than this would only share them. Whoever waits there for a device takes a part of them.
pub const BLOCKING_THREADS_MAX: usize = 16;

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

/// How much nicer threads are that read what is not in memory: a hundred consumers of the past would else have most of the
/// processors before appends and those who read the present. They get a fourth of a core that a front thread also wants.
const READ_NICE: i32 = 5;

/// Lowers the priority of the calling thread, for work that nobody waits for.
pub(crate) fn lower_priority() {
    be_nicer_by(BACK_NICE);
}

/// Lowers the priority of the calling thread a little, for reads.
pub(crate) fn lower_priority_of_reads() {
    be_nicer_by(READ_NICE);
}

/// How long the calling thread wants the processor for at one time, from here on: much less than others, so that Linux (from 6.12 on)
/// lets it run at once when it wakes and not when another one's slice is over, of which a request with several wakes would wait
/// for several. Its share of the processors stays what it is. Elsewhere this changes nothing.
pub(crate) fn short_turns() {
    if let Err(error) = set_slice(SHORT_SLICE) {
        tracing::debug!(%error, "a thread keeps its slice");
    }
}

/// The least that the kernel takes.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// The kernel's `struct sched_attr`, of its first version.
#[repr(C)]
#[derive(Debug, Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

#[allow(unsafe_code, reason = "no safe wrapper of sched_setattr is among the dependencies")]
fn set_slice(slice: Duration) -> io::Result<()> {
    let attributes = SchedulingAttributes {
        size: u32::try_from(size_of::<SchedulingAttributes>()).map_err(io::Error::other)?,
        // SCHED_OTHER is 0, and its nice level is set with it.
        nice: rustix::process::nice(0)?,
        runtime: u64::try_from(slice.as_nanos()).map_err(io::Error::other)?,
        ..SchedulingAttributes::default()
    };
    // SAFETY: the kernel reads as many bytes as `size` says, which are there; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// On Linux `nice` acts on the thread, not on the process.
fn be_nicer_by(levels: i32) {
    if let Err(error) = rustix::process::nice(levels) {
        tracing::warn!(%error, "a background thread keeps the priority of the front");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_priority_with_short_turns() {
        let before = rustix::process::nice(0).unwrap();
        set_slice(SHORT_SLICE).unwrap();
        lower_priority_of_reads();
        short_turns();
        assert_eq!(rustix::process::nice(0).unwrap(), (before + READ_NICE).min(19));
    }

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
