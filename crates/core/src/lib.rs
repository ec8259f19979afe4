//! Every state machine of the system, pure.
//!
//! **Owns** what a partition, its producers and the cluster's metadata decide: events in, effects and new state out.
//!
//! **Never** does IO, reads a clock, draws a random number, locks or waits: the shells around it do.
//!
//! Start reading at [`partition`] for the log's rules, at [`producers`] for idempotence, and at [`groups`] for consumer groups.

pub mod cluster;
pub mod give_way;
pub mod groups;
pub mod partition;
pub mod producers;
pub mod read_plan;
pub mod readahead;
pub mod retention;
pub mod sweep;
pub mod topic_config;
pub mod upload;
