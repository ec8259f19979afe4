//! What several crates must hold together, without a running node.

#![allow(clippy::print_stdout, reason = "an input that makes a target fail is shown with the failure")]

use tidelog_tests::fuzz::allocation::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

mod fuzz;
mod model;
