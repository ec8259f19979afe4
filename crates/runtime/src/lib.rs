//! The seams to the outside world, and what every shell shares.
//!
//! **Owns** files ([`Disk`]), time ([`Clock`]), chance, spawning, budgets and metrics.

mod clock;
mod disk;

pub use clock::Clock;
pub use disk::{DirEntry, Disk, DiskFile, DiskSpace, IoFuture, Lane, OpenMode};
