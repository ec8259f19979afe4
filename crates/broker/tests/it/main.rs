//! The broker over sockets, on a real log in a folder of its own.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends it, and says where")]

mod admin;
mod administration;
mod api_versions;
mod asks;
mod bad_input;
mod cold;
mod committed_offsets;
mod compacted_groups;
mod configs;
mod connections;
mod consumer_groups;
mod fetches;
mod group_expiry;
mod group_limits;
mod group_racks;
mod group_shards;
mod groups;
mod held_disk;
mod hostile;
mod keys;
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
