//! Measurements of speed and memory, as ratios against a limit or a peer in the same run.
//!
//! **Never** asserts: a figure is a figure, and a test that waits for a clock is red on a busy machine.
