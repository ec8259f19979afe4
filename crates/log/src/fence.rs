//! Fences that outlive a restart: `<topic id>-<partition>.fence` in the data directory, with the reason as text.
//!
//! A partition whose durable records are missing or damaged takes no appends, or their offsets would be used again. The
//! next start sees nothing wrong any more, since it begins at a new checkpoint: so the fence is a file of its own, written
//! before that checkpoint and removed when the owner cuts the log.

use std::{io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use tidelog_runtime::{read_small, write_aside};
use tidelog_types::TopicPartition;

use crate::engine::Engine;

/// More than any reason.
const REASON_BYTES_MAX: usize = 4096;

fn name(place: TopicPartition) -> String {
    format!("{place}.fence")
}

fn path(engine: &Engine, place: TopicPartition) -> PathBuf {
    engine.config.directory.join(name(place))
}

/// Why an earlier start fenced the partition; `None` where none did. A damaged reason is a fence all the same.
pub(crate) async fn read(engine: &Engine, place: TopicPartition) -> io::Result<Option<Arc<str>>> {
    let found = read_small(&*engine.disk, &path(engine, place), REASON_BYTES_MAX).await?;
    Ok(found.map(|bytes| Arc::from(String::from_utf8_lossy(&bytes).as_ref())))
}

/// Makes a fence durable.
pub(crate) async fn write(engine: &Engine, place: TopicPartition, why: &str) -> io::Result<()> {
    let directory = &engine.config.directory;
    write_aside(&*engine.disk, directory, &name(place), Bytes::copy_from_slice(why.as_bytes())).await?;
    engine.disk.sync_dir(directory).await
}

/// Lifts a fence, durably. Absence is success.
pub(crate) async fn lift(engine: &Engine, place: TopicPartition) -> io::Result<()> {
    match engine.disk.remove_file(&path(engine, place)).await {
        Ok(()) => engine.disk.sync_dir(&engine.config.directory).await,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
