//! `tidelog topic`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use tidelog_core::topic_config::topic_key;
use tidelog_types::TopicName;

use super::{Bootstrap, Changes, Table, parse_setting, print_json, wrong_settings};
use crate::client::{Admin, Configured, NewTopic, TopicMetadata};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Creates a topic.
    Create {
        /// Its name.
        #[arg(value_parser = topic_name)]
        name: TopicName,
        /// How many partitions [default: the broker's num.partitions].
        #[arg(long, allow_negative_numbers = true)]
        partitions: Option<u32>,
        /// A setting by Kafka's name, key=value; may be repeated.
        #[arg(long = "set", alias = "config", value_name = "KEY=VALUE", value_parser = parse_setting)]
        configs: Vec<(String, String)>,
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
    /// Lists topics.
    List {
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
    /// Shows a topic's partitions and settings.
    Describe {
        /// Its name.
        #[arg(value_parser = topic_name)]
        name: TopicName,
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
    /// Changes a topic's settings.
    Alter(Alter),
    /// Deletes a topic and everything in it.
    Delete {
        /// Its name.
        #[arg(value_parser = topic_name)]
        name: TopicName,
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Alter {
    /// The topic's name.
    #[arg(value_parser = topic_name)]
    name: TopicName,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    bootstrap: Bootstrap,
}

impl Verb {
    pub(super) fn wrong(&self) -> Option<String> {
        match self {
            Self::Create { configs, .. } => wrong_settings(configs, topic_key),
            Self::Alter(alter) => alter.changes.wrong(topic_key),
            Self::List { .. } | Self::Describe { .. } | Self::Delete { .. } => None,
        }
    }

    pub(super) fn wants_json(&self) -> bool {
        match self {
            Self::Create { bootstrap, .. }
            | Self::List { bootstrap }
            | Self::Describe { bootstrap, .. }
            | Self::Delete { bootstrap, .. } => bootstrap.json,
            Self::Alter(alter) => alter.bootstrap.json,
        }
    }
}

/// Checks a topic's name on the command line.
pub(crate) fn topic_name(text: &str) -> Result<TopicName, String> {
    TopicName::new(text).map_err(|error| error.to_string())
}

pub(crate) async fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Create { name, partitions, configs, bootstrap } => {
            let mut admin = Admin::connect(&bootstrap.bootstrap).await?;
            let topic = admin.create_topic(&NewTopic { name, partitions, configs }).await?;
            show_created(&topic, bootstrap.json)?;
        }
        Verb::List { bootstrap } => list(&bootstrap).await?,
        Verb::Describe { name, bootstrap } => describe(&name, &bootstrap).await?,
        Verb::Alter(alter) => {
            let mut admin = Admin::connect(&alter.bootstrap.bootstrap).await?;
            admin.alter(Configured::Topic(&alter.name), &alter.changes.into_pairs()).await?;
            show_done(&alter.name, "altered", alter.bootstrap.json)?;
        }
        Verb::Delete { name, bootstrap } => {
            Admin::connect(&bootstrap.bootstrap).await?.delete_topic(&name).await?;
            show_done(&name, "deleted", bootstrap.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_created(topic: &TopicMetadata, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&json!({
            "topic": topic.name, "topic_id": topic.topic_id, "partitions": topic.leaders.len(),
        }));
    }
    let mut table = Table::new(&["TOPIC", "ID", "PARTITIONS"]);
    table.row([topic.name.to_string(), topic.topic_id.to_string(), topic.leaders.len().to_string()]);
    table.print()
}

fn show_done(name: &TopicName, done: &str, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&json!({ "topic": name, "result": done }));
    }
    let mut table = Table::new(&["TOPIC", "RESULT"]);
    table.row([name.to_string(), done.to_owned()]);
    table.print()
}

async fn list(bootstrap: &Bootstrap) -> Result<()> {
    let answer = Admin::connect(&bootstrap.bootstrap).await?.topics().await?;
    let mut topics: Vec<_> = answer
        .topics
        .iter()
        .map(|topic| {
            let name = topic.name.as_ref().map(ToString::to_string).unwrap_or_default();
            (name, tidelog_types::TopicId::from(topic.topic_id), topic.partitions.len(), topic.is_internal)
        })
        .collect();
    topics.sort();
    if bootstrap.json {
        let rows: Vec<_> = topics
            .iter()
            .map(|(name, id, partitions, internal)| {
                json!({ "topic": name, "topic_id": id, "partitions": partitions, "internal": internal })
            })
            .collect();
        return print_json(&json!({ "topics": rows }));
    }
    let mut table = Table::new(&["TOPIC", "ID", "PARTITIONS"]);
    for (name, id, partitions, _) in topics {
        table.row([name, id.to_string(), partitions.to_string()]);
    }
    table.print()
}

async fn describe(name: &TopicName, bootstrap: &Bootstrap) -> Result<()> {
    let mut admin = Admin::connect(&bootstrap.bootstrap).await?;
    let topic = admin.topic(name).await?;
    let configs =
        admin.describe_configs(Configured::Topic(name)).await.context("read the topic's settings")?;
    if bootstrap.json {
        let partitions: Vec<_> = topic
            .leaders
            .iter()
            .zip(&topic.leader_epochs)
            .enumerate()
            .map(|(index, (leader, epoch))| json!({ "partition": index, "leader": leader, "leader_epoch": epoch }))
            .collect();
        return print_json(&json!({
            "topic": name, "topic_id": topic.topic_id, "partitions": partitions, "configs": configs,
        }));
    }
    let mut partitions = Table::new(&["PARTITION", "LEADER", "EPOCH"]);
    for (index, (leader, epoch)) in topic.leaders.iter().zip(&topic.leader_epochs).enumerate() {
        partitions.row([index.to_string(), leader.clone(), epoch.to_string()]);
    }
    partitions.print()?;
    let mut settings = Table::new(&["SETTING", "VALUE", "SET BY"]);
    for config in configs {
        let by = if config.overridden { "topic" } else { "broker or default" };
        settings.row([config.name, config.value.unwrap_or_default(), by.to_owned()]);
    }
    settings.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alteration_sets_or_unsets() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(subcommand)]
            verb: Verb,
        }
        let parse = |words: &[&str]| {
            let line: Result<Line, clap::Error> =
                clap::Parser::try_parse_from([&["x", "alter", "t"], words].concat());
            line.map(|line| drop(line.verb)).map_err(|error| error.to_string())
        };
        let told = parse(&[]).unwrap_err();
        assert!(told.contains("--set <KEY=VALUE>") && told.contains("--unset <KEY>"), "{told}");
        assert_eq!(parse(&["--unset", "retention.ms"]), Ok(()));
        assert_eq!(parse(&["--config", "retention.ms=1", "--unset", "segment.ms"]), Ok(()));
    }
}
