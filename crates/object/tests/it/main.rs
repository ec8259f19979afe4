//! Tests of the store's client against stores: memory, folders, a stand-in for S3, a faulty proxy, and a real server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod cache;
mod cache_sizes;
mod contract;
mod faults;
mod plain_admin;
mod planned;
mod proxy;
mod real_server;
mod roles;
mod stand_in;
mod support;
