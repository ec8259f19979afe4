//! A node on a real store on this machine, without containers, until Ctrl-C.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{
    process,
    stores::{self, RunningStore, StoreKind},
};

/// What `cargo xtask local` takes.
#[derive(Debug, Args)]
pub struct Options {
    /// The store to start.
    #[arg(long, value_enum, default_value = "versitygw")]
    store: StoreKind,
    /// Where the node and the store keep their files.
    #[arg(long, default_value = ".local")]
    folder: PathBuf,
    /// The Kafka listener.
    #[arg(long, default_value = "127.0.0.1:9092")]
    listen: String,
    /// The admin HTTP listener.
    #[arg(long, default_value = "127.0.0.1:9644")]
    admin_listen: String,
}

/// The arguments and environment that make `tidelog` use a store.
pub fn with_store(command: &mut Command, store: &RunningStore) {
    command.args(["--store", &store.url]);
    if let Some(endpoint) = &store.endpoint {
        command.args(["--store-endpoint", endpoint]);
    }
    command.envs(store.environment.iter().map(|(name, value)| (name, value)));
}

/// Creates the bucket through the product's own command, as a user would.
///
/// # Errors
/// When `tidelog bucket init` fails.
pub fn init_bucket(store: &RunningStore) -> Result<()> {
    let mut init = Command::new(process::tidelog_binary());
    init.args(["bucket", "init"]);
    with_store(&mut init, store);
    process::run(&mut init)
}

/// Builds the program, starts the store, makes the bucket and becomes a node in the foreground.
///
/// # Errors
/// With the step that failed.
pub fn run(options: &Options) -> Result<()> {
    process::run(process::cargo().args(["build", "--release", "--package", "tidelog"]))?;
    let folder = process::repository().join(&options.folder).join(options.store.name());
    let data = folder.join("data");
    if options.store == StoreKind::Localstack && data.exists() {
        // A node refuses a bucket that lost what is in it, and rightly so.
        println!("LocalStack keeps nothing over a restart: the node begins anew, without {}", data.display());
        fs::remove_dir_all(&data).with_context(|| format!("remove {}", data.display()))?;
    }
    let store = stores::start(options.store, &folder, "tidelog")?;
    println!("store {} at {}", store.url, store.endpoint.as_deref().unwrap_or("a folder"));
    init_bucket(&store)?;
    let mut node = Command::new(process::tidelog_binary());
    node.arg("serve").arg("--data-dir").arg(&data);
    node.args(["--listen", &options.listen, "--admin-listen", &options.admin_listen]);
    with_store(&mut node, &store);
    // This process becomes the node, which takes Ctrl-C and stops in its own order; the store ends behind it.
    store.leave_to_successor()?;
    process::become_program(&mut node)
}
