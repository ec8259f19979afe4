//! Tiering on a whole node without its network: log and controller on a simulated disk, a bucket that fails on demand.

mod bucket;
mod deletions;
mod faults;
mod local;
mod manifests;
mod node;
mod retention;
mod sweeps;
mod uploads;
