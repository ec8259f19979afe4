//! The command line: verbs, their flags, exit codes.
//!
//! Every verb prints a table for a person and, with `--json`, one JSON document on standard output; what it does besides
//! goes to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage.

mod bucket;
mod cluster;
mod consume;
mod http;
mod produce;
mod serve;
mod table;
mod tier;
mod topic;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::{
    config::{LogFormat, Overrides},
    demo, telemetry,
};

pub(crate) use serve::{STOP_DEADLINE, wait_for_signal};
pub(crate) use table::{Table, print_json};

/// A Kafka-compatible log broker that keeps the hot end of each partition on local disk and everything else in a bucket.
#[derive(Debug, Parser)]
#[command(name = "tidelog", version, propagate_version = true)]
pub struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs a node.
    Serve(serve::Options),
    /// The whole story in one command: real flights in, tiered, replayed from offset 0, every record compared.
    Demo(demo::Options),
    /// Topics: create, list, describe, alter, delete.
    #[command(subcommand)]
    Topic(topic::Verb),
    /// Writes the lines of standard input as records.
    Produce(produce::Options),
    /// Reads records.
    Consume(consume::Options),
    /// What is in the bucket and what is not yet.
    #[command(subcommand)]
    Tier(tier::Verb),
    /// The bucket itself: make it, check what its store can do.
    #[command(subcommand)]
    Bucket(bucket::Verb),
    /// The cluster's nodes.
    #[command(subcommand)]
    Cluster(cluster::Verb),
}

/// Where a client verb connects.
#[derive(Debug, Clone, Args)]
pub(crate) struct Bootstrap {
    /// A node's Kafka listener.
    #[arg(long, global = true, default_value = crate::config::LISTEN_DEFAULT)]
    pub(crate) bootstrap: String,
    /// One JSON document on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Where a verb that asks the admin HTTP listener connects.
#[derive(Debug, Clone, Args)]
pub(crate) struct AdminAddress {
    /// A node's admin HTTP listener.
    #[arg(long, global = true, default_value = crate::config::ADMIN_LISTEN_DEFAULT)]
    pub(crate) admin: String,
    /// One JSON document on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Flags that every verb with a node's configuration takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NodeFlags {
    /// The TOML file.
    #[arg(long, env = "TIDELOG_CONFIG")]
    config: Option<PathBuf>,
    /// Where the node keeps its files [default: ./tidelog-data].
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// The Kafka listener, host:port [default: 127.0.0.1:9092].
    #[arg(long)]
    listen: Option<String>,
    /// What clients are told to connect to, host:port [default: where it listens].
    #[arg(long)]
    advertise: Option<String>,
    /// The admin HTTP listener, host:port [default: 127.0.0.1:9644].
    #[arg(long)]
    admin_listen: Option<String>,
    /// The bucket: file:///path, s3://bucket/prefix, gs://…, az://…, memory:// [default: a folder in the data directory].
    #[arg(long)]
    store: Option<String>,
    /// Where an S3-compatible store listens, such as http://127.0.0.1:9000.
    #[arg(long)]
    store_endpoint: Option<String>,
    /// The checksum that goes with uploads: crc64nvme, sha256 or none [default: crc64nvme at Amazon, none elsewhere].
    #[arg(long)]
    store_checksum: Option<String>,
    /// How log lines are written [default: text].
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// This node's number [default: 1].
    #[arg(long)]
    node_id: Option<i32>,
    /// A broker setting by Kafka's name, key=value; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
}

impl NodeFlags {
    /// The file that is named.
    pub(crate) fn config_file(&self) -> Option<&std::path::Path> {
        self.config.as_deref()
    }

    /// The flags as overrides of the file.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            data_dir: self.data_dir.clone(),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            admin_listen: self.admin_listen.clone(),
            store: self.store.clone(),
            store_endpoint: self.store_endpoint.clone(),
            store_checksum: self.store_checksum.clone(),
            log_format: self.log_format,
            node_id: self.node_id,
            settings: self.settings.iter().cloned().collect(),
        }
    }
}

/// Reads `key=value`.
fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not key=value"))?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

/// Runs a verb to its end.
#[must_use]
pub fn run(command_line: CommandLine) -> ExitCode {
    let outcome = match command_line.verb {
        Verb::Serve(options) => serve::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Topic(verb) => client_verb(topic::run(verb)),
        Verb::Produce(options) => client_verb(produce::run(options)),
        Verb::Consume(options) => client_verb(consume::run(options)),
        Verb::Tier(verb) => client_verb(tier::run(verb)),
        Verb::Bucket(verb) => client_verb(bucket::run(verb)),
        Verb::Cluster(verb) => client_verb(cluster::run(verb)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            telemetry::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Runs a verb that only talks to a node: one thread is enough.
fn client_verb(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
