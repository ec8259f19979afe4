//! Measurements of speed and memory, as ratios against a limit or a peer in the same run.
//!
//! **Owns** the parts of a bench that are programs of their own, so that their CPU time is counted apart: the [`s3`]
//! stand-in, the raw GET and PUT loops ([`get_loop`], [`put_loop`]), the raw sender ([`sender`]), a broker
//! of [`canned`] answers, journal rounds ([`journal`]), the [`probe`] that
//! waits until a broker takes appends, the members of consumer [`groups`]. `cargo xtask bench` starts them, alternates them, and prints the page.
//!
//! **Never** asserts: a figure is a figure, and a test that waits for a clock is red on a busy machine.

#![allow(
    clippy::disallowed_methods,
    reason = "benches measure real time with plain threads and are never simulated"
)]

pub mod canned;
pub mod cpu;
pub mod get_loop;
pub mod groups;
pub mod journal;
pub mod probe;
pub mod put_loop;
pub mod s3;
pub mod sender;
