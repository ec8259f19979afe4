//! The simulated world: a disk that crashes, a clock that jumps, and a runner in which a seed determines everything.
//!
//! **Owns** [`SimDisk`], [`SimClock`], the runner [`run`], the [`Trace`] by which runs are compared, the one file
//! [`MemoryFile`], and the contract suite that every [`Disk`](tidelog_runtime::Disk) passes ([`disk_contract`]).
//!
//! **Never** is part of the product, and knows nothing of what the files mean.
//!
//! Start reading at [`SimDisk`]; a test of recovery looks like the example of [`Context::life`].

mod clock;
mod contract;
mod disk;
mod memory_file;
mod run;
mod trace;

pub use clock::SimClock;
pub use contract::disk_contract;
pub use disk::{Fault, FaultEffect, Halt, OperationKind, SimDisk, SimDiskConfig};
pub use memory_file::MemoryFile;
pub use run::{Context, run, seeds};
pub use trace::{Trace, digest};
