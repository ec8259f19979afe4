//! The broker over sockets, on a real log in a folder of its own.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends it, and says where")]

mod admin;
mod administration;
mod api_versions;
mod asks;
mod bad_input;
mod cold;
mod configs;
mod connections;
mod consumer_groups;
mod fetches;
mod group_limits;
mod groups;
mod hostile;
mod large_groups;
mod listing;
mod long_texts;
mod mixed_tiers;
mod node;
mod produce;
mod producer_epochs;
mod session_news;
mod sessions;
mod slow_readers;
mod topics;
