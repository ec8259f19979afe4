//! The seams to the outside world, and what every shell shares.
//!
//! **Owns** files ([`Disk`], really [`FileDisk`]), time ([`Clock`]), chance ([`Rng`], [`IdGen`]), the tasks of the
//! process ([`Supervisor`], alone in the workspace allowed to spawn), budgets of memory ([`Budget`]),
//! limits of log lines ([`LogLimit`]), small files ([`write_aside`]), values that many follow ([`watch`]) and [`metrics`].
//!
//! **Never** knows what a file, a task or a metric is for, and never retries on its own.
//!
//! Start reading at [`Disk`] and [`Supervisor`].

mod backoff;
mod budget;
mod buffers;
mod chance;
mod clock;
mod direct;
mod disk;
mod file_disk;
mod log_limit;
pub mod metrics;
mod small_file;
mod supervisor;
mod threads;
pub mod watch;

pub use backoff::{Backoff, BackoffConfig};
pub use budget::{Budget, Permit};
pub use buffers::{Buffer, Buffers};
pub use chance::{IdGen, RandomIds, Rng, SeededRng, SystemRng};
pub use clock::{Clock, SystemClock};
pub use direct::DirectIo;
pub use disk::{DirEntry, Disk, DiskFile, DiskSpace, IoFuture, Lane, OpenMode, is_disk_full, sync_error};
pub use file_disk::{FileDisk, FileDiskConfig};
pub use log_limit::LogLimit;
pub use metrics::Registry;
pub use small_file::{ASIDE_SUFFIX, read_small, write_aside};
pub use supervisor::{Supervisor, Task, TaskFailure};
pub use threads::{BLOCKING_THREADS_MAX, Runtimes, RuntimesConfig};
pub use tokio_util::sync::CancellationToken;
