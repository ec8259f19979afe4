//! The formats against an independent implementation, against stored bytes of every version, and against damage.

#![allow(clippy::unwrap_used, reason = "the whole binary is a test, its helpers included")]

mod golden;
mod kafka_protocol_agrees;
mod samples;
mod small_files;
