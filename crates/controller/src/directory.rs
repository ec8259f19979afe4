//! The controller's directory: taken into use once, recognised ever after.

use std::{io, path::Path, sync::Arc};

use tidelog_runtime::{Clock, Disk, Rng};
use tidelog_types::ClusterId;

use crate::{
    codec::StoreError, config::ControllerConfig, error::StartError, identity::Identity, log_store::LogStore,
    metrics::ControllerMetrics,
};

/// The log of the directory and the cluster it belongs to; both are made where it is empty and may be.
pub(crate) async fn open_directory(
    config: &ControllerConfig,
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    rng: &dyn Rng,
    metrics: &ControllerMetrics,
) -> Result<(LogStore, ClusterId), StartError> {
    let directory = &config.directory;
    make_directory(disk, directory).await?;
    remove_unnamed(disk, directory).await?;
    let identity = Identity::read(disk, directory).await?;
    let log_exists = LogStore::exists(disk, directory).await?;
    let missing = || StartError::StateMissing { directory: directory.clone() };
    if let Some(found) = identity {
        if let Some(expected) = config.cluster_id.filter(|expected| *expected != found.cluster_id) {
            return Err(StartError::AnotherCluster { found: found.cluster_id, expected });
        }
        if found.node_id != config.node_id {
            return Err(StartError::AnotherNode { found: found.node_id, expected: config.node_id });
        }
        if !log_exists {
            return Err(missing());
        }
    } else if !config.may_create {
        return Err(missing());
    }
    let log = LogStore::open(Arc::clone(disk), Arc::clone(clock), directory, metrics.clone()).await?;
    if let Some(found) = identity {
        return Ok((log, found.cluster_id));
    }
    if !log.is_pristine() {
        return Err(StoreError::damaged(directory, "it holds a log, but does not say whose").into());
    }
    let cluster_id = config.cluster_id.unwrap_or_else(|| new_cluster_id(rng));
    Identity { cluster_id, node_id: config.node_id }.write(disk, directory).await?;
    Ok((log, cluster_id))
}

/// Makes the directory and what leads to it durable: each may be new.
async fn make_directory(disk: &Arc<dyn Disk>, directory: &Path) -> Result<(), StoreError> {
    disk.create_dir_all(directory).await.map_err(StoreError::io("create", directory))?;
    for (height, ancestor) in directory.ancestors().skip(1).enumerate() {
        let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        match disk.sync_dir(ancestor).await {
            Ok(()) => {}
            // Far above may be directories of others, which were there before and cannot be opened.
            Err(why) if height > 0 && why.kind() == io::ErrorKind::PermissionDenied => break,
            Err(why) => return Err(StoreError::io("sync", ancestor)(why)),
        }
    }
    Ok(())
}

/// Removes what a crash left before it got its name.
async fn remove_unnamed(disk: &Arc<dyn Disk>, directory: &Path) -> Result<(), StoreError> {
    let entries = disk.list_dir(directory).await.map_err(StoreError::io("list", directory))?;
    for entry in entries.into_iter().filter(|entry| !entry.is_dir && entry.name.ends_with(".new")) {
        let path = directory.join(entry.name);
        disk.remove_file(&path).await.map_err(StoreError::io("remove", path))?;
    }
    Ok(())
}

fn new_cluster_id(rng: &dyn Rng) -> ClusterId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
    bytes[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    ClusterId::from_bytes(bytes)
}
