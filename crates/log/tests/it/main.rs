//! Tests of the log over simulated and real disks.

mod behaviour;
mod crash;
mod faults;
mod mistakes;
mod real;
mod support;
mod workload;
