//! `tidelog tier`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::Value;
use tidelog_types::{ByteSize, TopicName};

use super::{
    AdminAddress, Table, http, print_json,
    table::{elements, text},
    topic::topic_name,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Each partition's offsets in both tiers, and what is not yet in the bucket.
    Status {
        #[command(flatten)]
        admin: AdminAddress,
    },
    /// A topic's objects in the bucket.
    Segments {
        /// The topic.
        #[arg(value_parser = topic_name)]
        topic: TopicName,
        #[command(flatten)]
        admin: AdminAddress,
    },
}

impl Verb {
    pub(super) fn wants_json(&self) -> bool {
        let (Self::Status { admin } | Self::Segments { admin, .. }) = self;
        admin.json
    }
}

pub(crate) async fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Status { admin } => {
            let status = http::get_json(&admin.admin, "/v1/tier/status").await?;
            if admin.json { print_json(&status)? } else { show_status(&status)? }
        }
        Verb::Segments { topic, admin } => {
            let found = http::get_json(&admin.admin, &format!("/v1/tier/segments?topic={topic}")).await?;
            if admin.json { print_json(&found)? } else { show_segments(&found)? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_status(status: &Value) -> Result<()> {
    let mut table = Table::new(&[
        "TOPIC",
        "PARTITION",
        "LOG START",
        "LOCAL START",
        "TIERED END",
        "HIGH WATERMARK",
        "LOCAL",
        "BUCKET",
        "OBJECTS",
        "LAG",
        "LAG SECONDS",
    ]);
    for topic in elements(&status["topics"]) {
        for part in elements(&topic["partitions"]) {
            table.row([
                text(&topic["topic"]),
                text(&part["partition"]),
                text(&part["log_start"]),
                text(&part["local_log_start"]),
                text(&part["tiered_end"]),
                text(&part["high_watermark"]),
                bytes(&part["local_bytes"]),
                bytes(&part["bucket_bytes"]),
                text(&part["bucket_objects"]),
                bytes(&part["lag_bytes"]),
                text(&part["lag_seconds"]),
            ]);
        }
    }
    table.print()?;
    let mut totals = Table::new(&["BUCKET", "OBJECTS", "CACHE MEMORY", "CACHE DISK"]);
    totals.row([
        bytes(&status["bucket_bytes"]),
        text(&status["bucket_objects"]),
        bytes(&status["cache_memory_bytes"]),
        bytes(&status["cache_disk_bytes"]),
    ]);
    totals.print()
}

fn show_segments(found: &Value) -> Result<()> {
    let mut table = Table::new(&["PARTITION", "BASE", "END", "BYTES", "EPOCH", "KEY"]);
    for segment in elements(&found["segments"]) {
        table.row([
            text(&segment["partition"]),
            text(&segment["base_offset"]),
            text(&segment["end_offset"]),
            bytes(&segment["object_bytes"]),
            text(&segment["leader_epoch"]),
            text(&segment["key"]),
        ]);
    }
    table.print()
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |count| ByteSize::bytes(count).to_string())
}
