//! The broker over sockets, on a real log in a folder of its own.

mod admin;
mod api_versions;
mod bad_input;
mod cold;
mod configs;
mod connections;
mod fetches;
mod listing;
mod node;
mod produce;
mod sessions;
mod topics;
