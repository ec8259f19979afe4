//! `tidelog bucket`.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use tidelog_object::{
    BucketReport, CheckStatus, ChecksumMode, InitReport, ObjectClient, StoreOptions, StoreUrl, bucket_check,
    bucket_init,
};
use tidelog_runtime::{Registry, SystemClock, SystemRng};

use super::{Table, print_json};
use crate::config::check_endpoint;

/// How long a request is tried again: a person waits, and can ask again.
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Makes the bucket where it is missing, and the rule that aborts stale multipart uploads.
    Init(Store),
    /// Tries everything that is needed of a store: conditional puts, checksums, ranges, lists.
    Check(Store),
}

#[derive(Debug, Args)]
pub(crate) struct Store {
    /// The bucket: file:///path, s3://bucket/prefix, gs://…, az://….
    #[arg(long, env = "TIDELOG_STORE")]
    store: StoreUrl,
    /// Where an S3-compatible store listens.
    #[arg(long, env = "TIDELOG_STORE_ENDPOINT", value_parser = endpoint)]
    store_endpoint: Option<String>,
    /// The checksum that goes with uploads: crc64nvme, sha256 or none.
    #[arg(long, env = "TIDELOG_STORE_CHECKSUM")]
    store_checksum: Option<ChecksumMode>,
    /// One JSON document on standard output.
    #[arg(long)]
    json: bool,
}

impl Verb {
    pub(super) fn wants_json(&self) -> bool {
        let (Self::Init(store) | Self::Check(store)) = self;
        store.json
    }
}

/// An endpoint; an empty one is none.
fn endpoint(text: &str) -> Result<String, String> {
    if !text.is_empty() {
        check_endpoint(text)?;
    }
    Ok(text.to_owned())
}

impl Store {
    fn options(&self) -> StoreOptions {
        let endpoint = self.store_endpoint.clone().filter(|endpoint| !endpoint.is_empty());
        StoreOptions {
            endpoint,
            checksum: self.store_checksum,
            retry_deadline: PATIENCE,
            ..StoreOptions::default()
        }
    }
}

pub(crate) async fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Init(store) => {
            let report = bucket_init(&store.store, &store.options()).await?;
            show_init(&report, store.json)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Check(store) => {
            let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(SystemRng));
            let client =
                ObjectClient::open(&store.store, store.options(), clock, rng, &Registry::new()).await;
            let report = bucket_check(&client.context("open the store")?).await;
            show_check(&report, store.json)?;
            Ok(if report.status() == CheckStatus::Failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

fn show_init(report: &InitReport, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(report);
    }
    let mut table = Table::new(&["STORE", "BUCKET", "LIFECYCLE"]);
    let bucket = if report.created { "created" } else { "was there" };
    table.row([report.store.clone(), bucket.to_owned(), report.lifecycle.detail.clone()]);
    table.print()
}

fn show_check(report: &BucketReport, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(report);
    }
    let mut table = Table::new(&["CHECK", "RESULT", "DETAIL"]);
    for check in &report.checks {
        let result = match check.status {
            CheckStatus::Ok => "ok",
            CheckStatus::Advice => "advice",
            CheckStatus::Failed => "FAILED",
        };
        table.row([check.name.to_owned(), result.to_owned(), check.detail.clone()]);
    }
    table.print()
}
