//! `tidelog cluster`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use super::{Bootstrap, Table, print_json};
use crate::client::Admin;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// The cluster's id, its nodes and its controller.
    Status {
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
}

impl Verb {
    pub(super) fn wants_json(&self) -> bool {
        let Self::Status { bootstrap } = self;
        bootstrap.json
    }
}

pub(crate) async fn run(verb: Verb) -> Result<ExitCode> {
    let Verb::Status { bootstrap } = verb;
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
