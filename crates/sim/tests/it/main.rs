//! The simulated world against what it promises.

#![allow(clippy::unwrap_used, reason = "the helpers of tests, which clippy does not recognise as tests")]

mod contract;
mod crashes;
mod faults;
mod runner;
