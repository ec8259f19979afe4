//! The command line: verbs, their flags, exit codes.
//!
//! Every verb prints a table for a person and, with `--json`, one JSON document on standard output, also where it fails; what
//! it does besides goes to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage (which is told on standard error alone,
//! before anything else is looked at). A reader that goes away (`| head`) ends a verb quietly, with 0.

mod bucket;
mod cluster;
mod consume;
mod group;
mod http;
mod output;
mod produce;
mod serve;
mod table;
mod tier;
mod topic;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Result;
use clap::{ArgGroup, Args, CommandFactory as _, Parser, Subcommand, ValueEnum as _, error::ErrorKind};
use tidelog_core::topic_config::{Key, take_without_effect};

use crate::{
    config::{Address, LogFormat, Overrides},
    demo,
    printable::printable,
    telemetry,
};

#[doc(hidden)]
pub use http::admin_answer;
pub(crate) use output::print;
pub(crate) use serve::{STOP_DEADLINE, Signals, stop};
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
    /// Consumer groups: list, describe, show and alter their settings, reset their offsets, delete.
    #[command(subcommand)]
    Group(group::Verb),
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
    #[arg(long, global = true, default_value = crate::config::LISTEN_DEFAULT, value_parser = address)]
    pub(crate) bootstrap: String,
    /// One JSON document on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What a verb changes of the settings of a topic or a group.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["set", "unset"])))]
pub(crate) struct Changes {
    /// A setting by Kafka's name, key=value; may be repeated.
    #[arg(long = "set", alias = "config", value_name = "KEY=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,
    /// A setting to go back to the broker's; may be repeated.
    #[arg(long, value_name = "KEY")]
    unset: Vec<String>,
}

impl Changes {
    /// What is wrong with them together: a key has one value, or none, and something acts on it.
    fn wrong(&self, key_of: KeyOf) -> Option<String> {
        let both = self.unset.iter().find(|unset| self.set.iter().any(|(key, _)| key == unset.trim()));
        both.map(|key| format!("{key} is both set and unset")).or_else(|| wrong_settings(&self.set, key_of))
    }

    /// The keys, with their values where they are set. To unset one twice is to unset it.
    fn into_pairs(self) -> Vec<(String, Option<String>)> {
        let set = self.set.into_iter().map(|(key, value)| (key, Some(value)));
        let unset: BTreeSet<String> = self.unset.into_iter().map(|key| key.trim().to_owned()).collect();
        set.chain(unset.into_iter().map(|key| (key, None))).collect()
    }
}

/// Finds a key of a topic or of a group.
type KeyOf = fn(&str) -> Option<&'static Key>;

/// Which key has two values, or one that would not be kept: who types it means it.
fn wrong_settings(set: &[(String, String)], key_of: KeyOf) -> Option<String> {
    let mut keys = BTreeSet::new();
    let twice = set.iter().find(|(key, _)| !keys.insert(key));
    twice.map(|twice| format!("{} is set twice", twice.0)).or_else(|| {
        let mut set = set.iter().cloned().collect();
        take_without_effect(&mut set, key_of).first().map(ToString::to_string)
    })
}

/// Where a verb that asks the admin HTTP listener connects.
#[derive(Debug, Clone, Args)]
pub(crate) struct AdminAddress {
    /// A node's admin HTTP listener.
    #[arg(long, global = true, default_value = crate::config::ADMIN_LISTEN_DEFAULT, value_parser = address)]
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
    /// How log lines are written: text or json [default: text].
    // Text, as all of these: what is wrong is told at once with every other wrong setting, and not before them.
    #[arg(long)]
    log_format: Option<String>,
    /// This node's number [default: 1].
    #[arg(long)]
    node_id: Option<String>,
    /// The rack of this node [default: none].
    #[arg(long)]
    rack: Option<String>,
    /// A broker setting by Kafka's name, key=value; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl NodeFlags {
    /// The file that is named.
    pub(crate) fn config_file(&self) -> Option<&std::path::Path> {
        self.config.as_deref()
    }

    /// The flags as overrides of the file.
    pub(crate) fn overrides(&self) -> Overrides {
        let mut wrong = Vec::new();
        let log_format = self.log_format.as_deref().and_then(|text| {
            let read = LogFormat::from_str(text, true);
            read.map_err(|_| wrong.push(format!("--log-format: `{text}` is no log format: use text or json")))
                .ok()
        });
        let node_id = self.node_id.as_deref().and_then(|text| {
            text.parse().map_err(|_| wrong.push(format!("--node-id: `{text}` is not a number"))).ok()
        });
        let mut settings = BTreeMap::new();
        for text in &self.settings {
            match parse_setting(text) {
                Ok((key, value)) => drop(settings.insert(key, value)),
                Err(error) => wrong.push(format!("--set: {error}")),
            }
        }
        Overrides {
            data_dir: self.data_dir.clone(),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            admin_listen: self.admin_listen.clone(),
            store: self.store.clone(),
            store_endpoint: self.store_endpoint.clone().filter(|endpoint| !endpoint.is_empty()),
            store_checksum: self.store_checksum.clone(),
            log_format,
            node_id,
            rack: self.rack.clone(),
            settings,
            wrong,
        }
    }
}

/// Checks that an address is `host:port`.
fn address(text: &str) -> Result<String, String> {
    text.parse::<Address>().map(|address| address.to_string()).map_err(|error| error.to_string())
}

/// Reads `key=value`.
fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not key=value"))?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

/// What a program ends with whose usage is wrong, as the parser of flags has it.
const WRONG_USAGE: u8 = 2;

impl Verb {
    /// What is wrong with flags that are right each by itself.
    fn wrong(&self) -> Option<String> {
        match self {
            Self::Topic(verb) => verb.wrong(),
            Self::Group(verb) => verb.wrong(),
            _ => None,
        }
    }

    /// Whether one JSON document is asked for.
    fn wants_json(&self) -> bool {
        match self {
            Self::Serve(options) => options.json,
            Self::Demo(options) => options.wants_json(),
            Self::Topic(verb) => verb.wants_json(),
            Self::Group(verb) => verb.wants_json(),
            Self::Produce(options) => options.bootstrap.json,
            Self::Consume(options) => options.bootstrap.json,
            Self::Tier(verb) => verb.wants_json(),
            Self::Bucket(verb) => verb.wants_json(),
            Self::Cluster(verb) => verb.wants_json(),
        }
    }
}

/// Runs a verb to its end.
#[must_use]
pub fn run(command_line: CommandLine) -> ExitCode {
    if let Some(wrong) = command_line.verb.wrong() {
        let usage = CommandLine::command().error(ErrorKind::ArgumentConflict, printable(&wrong));
        // Where standard error is closed there is nobody to tell.
        let _ = usage.print();
        return ExitCode::from(WRONG_USAGE);
    }
    let as_json = command_line.verb.wants_json();
    let outcome = match command_line.verb {
        Verb::Serve(options) => serve::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Topic(verb) => client_verb(topic::run(verb)),
        Verb::Group(verb) => client_verb(group::run(verb)),
        Verb::Produce(options) => client_verb(produce::run(options)),
        Verb::Consume(options) => client_verb(consume::run(options)),
        Verb::Tier(verb) => client_verb(tier::run(verb)),
        Verb::Bucket(verb) => client_verb(bucket::run(verb)),
        Verb::Cluster(verb) => client_verb(cluster::run(verb)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if error.is::<output::OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::complain(&error);
            if as_json {
                // Where standard output is closed the words above have to do.
                let _ = print(&format!("{}\n", output::error_fields(&error)));
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs a verb that only talks to a node: one thread is enough.
fn client_verb(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
