//! The same scripted exchanges with Apache Kafka and with Tidelog, answers compared field by field.
//!
//! **Owns** the language of `tests/parity/*.parity` ([`script`]), requests and answers by the table of the wire
//! ([`codec`]), the rules of what is a broker's own ([`normalise`]), recorded answers ([`recorded`]) and the list of known
//! differences ([`differences`]).
//!
//! **Never** starts a broker (`cargo xtask e2e parity` does) and uses nothing of the product but its table of messages,
//! its compression and its checksum: batches, encoding and decoding are written here a second time.
//!
//! Start reading at `tests/parity/README.md`, then [`run`].

#![allow(clippy::print_stdout, reason = "a command for people and CI speaks on standard output")]

pub mod client;
pub mod codec;
pub mod differences;
pub mod evaluate;
pub mod lexer;
pub mod normalise;
pub mod recorded;
pub mod records;
pub mod run;
pub mod script;
pub mod value;
