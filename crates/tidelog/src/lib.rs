//! Tidelog as one program: configuration, the wiring of a node, the command line, the demo.
//!
//! **Owns** which part is given to which ([`node`]), what a user types ([`cli`]) and what is set where ([`config`]).
//!
//! **Never** holds a rule of the log, the tiers or the protocol: those are in the crates below.
//!
//! Start reading at [`node`].

pub mod cli;
pub mod client;
pub mod config;
pub mod demo;
pub mod node;
mod printable;
pub mod telemetry;
