//! The codec from outside: equal to kafka-protocol and to Apache Kafka's own bytes, and safe against any bytes.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the report")]

mod allocation;
mod coordinator;
mod frames;
mod golden;
mod hostile;
mod oracle;
mod walk;
