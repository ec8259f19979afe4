//! Tiering on a whole node without its network: log and controller on a simulated disk, a bucket that fails on demand.

#![allow(clippy::unwrap_used, reason = "the helpers of tests, which clippy does not recognise as tests")]

mod bucket;
mod cold_faults;
mod cold_look_ups;
mod cold_reads;
mod cold_rig;
mod deletions;
mod faults;
mod local;
mod manifests;
mod node;
mod retention;
mod room;
mod s3;
mod sweeps;
mod uploads;
