//! The controller against openraft's own suite, a disk that crashes, and others of its kind.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends the test")]

mod crash;
mod full_disk;
mod group;
mod single;
mod suite;
mod support;
