//! `cargo xtask faults bucket`: the shipped program on a real S3 server behind a proxy that misbehaves in every known way.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{
    clients, local, process,
    stores::{self, StoreKind},
};

/// What `faults bucket` takes.
#[derive(Debug, Clone, Args)]
pub struct Bucket {
    /// How long faults come; below 120 every kind comes once, for a moment.
    #[arg(long, default_value_t = VERIFY_SECONDS)]
    seconds: u32,
    /// What decides their order and lengths.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Records per second that are produced.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// What limits of time are multiplied by, on a machine that has other work: the node's threads for the bucket give way to it.
    #[arg(long, default_value_t = 1.0)]
    patience: f32,
    /// Where the node's and the server's files go; kept where something was found.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// In `cargo xtask verify`: every kind once.
const VERIFY_SECONDS: u32 = 30;

/// The bucket's name.
const BUCKET: &str = "tidelog-faults";

/// The stage of `cargo xtask verify`.
///
/// # Errors
/// When something was found.
pub(super) fn verify() -> Result<()> {
    run(&Bucket { seconds: VERIFY_SECONDS, seed: 1, rate: 1000, patience: 1.0, folder: None })
}

/// Builds what is needed, starts the server and runs the campaign.
///
/// # Errors
/// When something was found.
pub(super) fn run(options: &Bucket) -> Result<()> {
    let (node, proxy) = (["--package", "tidelog"], ["--package", "tidelog-tests", "--bin", "bucket-proxy"]);
    for package in [&node[..], &proxy[..]] {
        process::run(process::cargo().args(["build", "--release", "--quiet"]).args(package))?;
    }
    let folder = options.folder.clone().unwrap_or_else(|| super::scratch("bucket"));
    let server = folder.join("server");
    let store = stores::start(StoreKind::Versitygw, &server, BUCKET)?;
    local::init_bucket(&store)?;
    let endpoint = store.endpoint.as_deref().context("a server has an endpoint")?;
    let mut campaign = Command::new(clients::python()?);
    campaign.env("PYTHONDONTWRITEBYTECODE", "1").arg("tests/faults/bucket.py");
    campaign.arg("--binary").arg(process::tidelog_binary());
    campaign.arg("--proxy").arg(process::target().join("release/bucket-proxy"));
    campaign.args(["--endpoint", endpoint, "--store", &store.url]);
    // The server keeps an object under its bucket and key.
    campaign.arg("--objects").arg(server.join("objects").join(BUCKET).join(StoreKind::Versitygw.name()));
    campaign.arg("--folder").arg(folder.join("campaign"));
    campaign.args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()]);
    campaign.args(["--rate", &options.rate.to_string(), "--patience", &options.patience.to_string()]);
    campaign.envs(store.environment.iter().map(|(name, value)| (name, value)));
    process::run(&mut campaign).with_context(|| format!("the files are in {}", folder.display()))?;
    drop(store);
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))
}
