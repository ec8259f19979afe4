//! What a developer runs beside the product: the gate, the stores for tests, a local node.
//!
//! **Owns** the stages of `cargo xtask verify`, the starter of S3 servers that `local`, the tests and CI share, and the
//! checks of the repository itself: the table of dependencies, the map of cases, spelling.
//!
//! **Never** is part of the shipped binary.
//!
//! Start reading at [`verify`].

#![allow(clippy::print_stdout, reason = "a command for people and CI speaks on standard output")]

pub mod bench;
pub mod brokers;
pub mod checks;
pub mod clients;
pub mod faults;
pub mod fuzz;
pub mod local;
pub mod parity;
pub mod preflight;
pub mod process;
pub mod stores;
pub mod suites;
pub mod verify;
