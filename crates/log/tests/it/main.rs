//! Tests of the log over simulated and real disks.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod behaviour;
mod crash;
mod faults;
mod full;
mod losses;
mod mistakes;
mod real;
mod shares;
mod support;
mod workload;
