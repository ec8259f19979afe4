//! The program as a process: how it refuses to start, what an idle node costs, how it stops, what its verbs print.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends it, and says where")]

mod copies;
mod failing;
mod fences;
mod groups;
mod hanging;
mod idle;
mod leftovers;
mod process;
mod refusals;
mod starting;
mod stopping;
mod topics;
mod verbs;
