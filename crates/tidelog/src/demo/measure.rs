//! Where the bytes are, and the wait until they are there.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use tidelog_runtime::{Clock as _, SystemClock};

use super::{
    load::{AIRCRAFT_TOPIC, FLIGHTS_TOPIC},
    progress::Progress,
};
use crate::node::Node;

/// How long uploads and evictions may take.
const TIER_PATIENCE: Duration = Duration::from_secs(300);
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// What `stat` counts blocks in.
const BLOCK_BYTES: u64 = 512;

/// How the wait ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waited {
    /// Bytes of batches that only the bucket holds.
    pub(super) cold_bytes: u64,
    /// How long it took.
    pub(super) seconds: f64,
}

/// Waits until everything sealed is in the bucket, and no more than the local retention is on local disk.
pub(super) async fn wait_until_tiered(
    node: &Node,
    progress: &Progress,
    clock: &SystemClock,
) -> Result<Waited> {
    let begun = clock.monotonic();
    let bar = progress.step("move to bucket", 100);
    let mut lowest = u64::MAX;
    let mut lowest_since = clock.monotonic();
    loop {
        let status = node.store().tier_status().await.context("the tier has not begun")?;
        let mut lag = 0;
        let (mut local, mut below, mut ends) = (0, 0, 0);
        for topic in status
            .topics
            .iter()
            .filter(|topic| [FLIGHTS_TOPIC, AIRCRAFT_TOPIC].contains(&topic.topic.as_str()))
        {
            for part in &topic.partitions {
                lag += part.lag_bytes;
                local += part.local_bytes;
                below += part.local_log_start.get().min(part.tiered_end.get());
                ends += part.log_end.get();
            }
        }
        bar.set((below * 100).checked_div(ends).unwrap_or(0));
        if local < lowest {
            (lowest, lowest_since) = (local, clock.monotonic());
        }
        // Everything is in the bucket, and eviction has had its turns: local bytes do not shrink any more.
        let is_settled = clock.monotonic() - lowest_since > Duration::from_secs(2);
        if lag == 0 && below > 0 && is_settled {
            bar.done();
            let cold_bytes = status.bucket_bytes.saturating_sub(local);
            return Ok(Waited { cold_bytes, seconds: (clock.monotonic() - begun).as_secs_f64() });
        }
        if clock.monotonic() - begun > TIER_PATIENCE {
            bail!("{lag} bytes were not in the bucket after {} s", TIER_PATIENCE.as_secs());
        }
        clock.sleep(LOOK_INTERVAL).await;
    }
}

/// Everything allocated under the data directory except bucket and cache: journal, segments, metadata, reserve.
pub(super) fn local_bytes(data_dir: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(data_dir).context("look into the data directory")? {
        let entry = entry?;
        if !["bucket", "cache"].iter().any(|other| entry.file_name() == *other) {
            total += allocated(&entry.path())?;
        }
    }
    Ok(total)
}

/// Bytes and objects in the embedded bucket.
pub(super) fn bucket(data_dir: &Path) -> Result<(u64, u64)> {
    let mut found = (0, 0);
    visit(&data_dir.join("bucket"), &mut |metadata| {
        if metadata.is_file() {
            found = (found.0 + metadata.len(), found.1 + 1);
        }
    })?;
    Ok(found)
}

/// Bytes that a file, or everything in a folder, takes on the device.
pub(super) fn allocated(path: &Path) -> Result<u64> {
    let mut total = 0;
    visit(path, &mut |metadata| total += metadata.blocks() * BLOCK_BYTES)?;
    Ok(total)
}

/// Visits a file, or a folder and everything in it. What goes away meanwhile counts nothing.
fn visit(path: &Path, visitor: &mut impl FnMut(&fs::Metadata)) -> Result<()> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if gone(&error) => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("look at {}", path.display())),
    };
    visitor(&metadata);
    if metadata.is_dir() {
        match fs::read_dir(path) {
            Ok(entries) => {
                for entry in entries {
                    visit(&entry?.path(), visitor)?;
                }
            }
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error).with_context(|| format!("look into {}", path.display())),
        }
    }
    Ok(())
}
