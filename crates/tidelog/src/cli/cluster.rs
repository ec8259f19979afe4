//! `tidelog cluster`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::{Value, json};
use tidelog_types::TopicName;

use super::{
    AdminAddress, Bootstrap, Table, http, print_json,
    table::{elements, text},
    topic::topic_name,
};
use crate::client::Admin;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// The cluster's id, its nodes and its controller.
    Status {
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
    /// A node's partitions that take no appends, since records that were durable are missing or damaged.
    Fences {
        #[command(flatten)]
        admin: AdminAddress,
    },
    /// Lets a fenced partition take appends again: what was acknowledged from an offset on is given up.
    LiftFence {
        /// The topic.
        #[arg(value_parser = topic_name)]
        topic: TopicName,
        /// The partition.
        #[arg(value_parser = clap::value_parser!(i32).range(0..))]
        partition: i32,
        /// Where what is lost begins, as `tidelog cluster fences` shows it. Nothing takes this back.
        #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
        accept_loss_from: i64,
        #[command(flatten)]
        admin: AdminAddress,
    },
}

impl Verb {
    pub(super) fn wants_json(&self) -> bool {
        match self {
            Self::Status { bootstrap } => bootstrap.json,
            Self::Fences { admin } | Self::LiftFence { admin, .. } => admin.json,
        }
    }
}

pub(crate) async fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Status { bootstrap } => status(&bootstrap).await,
        Verb::Fences { admin } => {
            let found = http::get_json(&admin.admin, "/v1/fences").await?;
            if admin.json {
                print_json(&found)?
            } else {
                show_fences(&found)?
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::LiftFence { topic, partition, accept_loss_from, admin } => {
            let path = format!(
                "/v1/fences/lift?topic={topic}&partition={partition}&accept_loss_from={accept_loss_from}"
            );
            let lifted = http::post_json(&admin.admin, &path).await?;
            if admin.json {
                print_json(&lifted)?;
            } else {
                super::print(&format!(
                    "{topic} {partition} takes appends again, from offset {accept_loss_from} on\n"
                ))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn show_fences(found: &Value) -> Result<()> {
    let mut table = Table::new(&["TOPIC", "PARTITION", "LOCAL START", "LOST FROM", "LOST TO", "WHY"]);
    for fence in elements(&found["fences"]) {
        table.row([
            text(&fence["topic"]),
            text(&fence["partition"]),
            text(&fence["local_log_start"]),
            text(&fence["lost_from"]),
            text(&fence["lost_to"]),
            text(&fence["why"]),
        ]);
    }
    table.print()
}

async fn status(bootstrap: &Bootstrap) -> Result<ExitCode> {
    let mut admin = Admin::connect(&bootstrap.bootstrap).await?;
    let cluster = admin.cluster().await?;
    let topics = admin.topics().await?.topics;
    let partitions: usize = topics.iter().map(|topic| topic.partitions.len()).sum();
    if bootstrap.json {
        let nodes: Vec<_> = cluster
            .brokers
            .iter()
            .map(|broker| {
                json!({
                    "node_id": broker.broker_id, "host": broker.host.as_str(), "port": broker.port,
                    "rack": broker.rack.as_ref().map(ToString::to_string), "fenced": broker.is_fenced,
                    "controller": broker.broker_id == cluster.controller_id,
                })
            })
            .collect();
        print_json(&json!({
            "cluster_id": cluster.cluster_id.as_str(), "controller_id": cluster.controller_id, "nodes": nodes,
            "topics": topics.len(), "partitions": partitions,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NODE", "ADDRESS", "RACK", "ROLE", "STATE"]);
    for broker in &cluster.brokers {
        let role = if broker.broker_id == cluster.controller_id { "broker, controller" } else { "broker" };
        let state = if broker.is_fenced { "fenced" } else { "live" };
        let rack = broker.rack.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        table.row([
            broker.broker_id.to_string(),
            format!("{}:{}", broker.host, broker.port),
            rack,
            role.to_owned(),
            state.to_owned(),
        ]);
    }
    table.print()?;
    let mut totals = Table::new(&["CLUSTER", "TOPICS", "PARTITIONS"]);
    totals.row([cluster.cluster_id.to_string(), topics.len().to_string(), partitions.to_string()]);
    totals.print()?;
    Ok(ExitCode::SUCCESS)
}
