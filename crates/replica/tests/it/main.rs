//! A node's log, its controller of one voter and its partitions, in one process on a simulated disk.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod appends;
mod bucket;
mod idempotence;
mod look_ups;
mod node;
mod reads;
mod starts;
mod topics;
mod uploads;
