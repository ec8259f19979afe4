//! One file in memory, for tests of what reads a file.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use tidelog_runtime::{DiskFile, IoFuture};

/// A file in memory that is read alone, and notes what was asked for. Nothing in it waits; changes are refused.
#[derive(Debug)]
pub struct MemoryFile {
    content: Bytes,
    asked: Mutex<Vec<(u64, usize)>>,
}

impl MemoryFile {
    /// A file that holds `content`.
    #[must_use]
    pub fn new(content: impl Into<Bytes>) -> Self {
        Self { content: content.into(), asked: Mutex::default() }
    }

    /// Position and length of every read so far, as they were asked for.
    #[must_use]
    pub fn asked(&self) -> Vec<(u64, usize)> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn refused<T>() -> IoFuture<T> {
    Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
}

impl DiskFile for MemoryFile {
    fn write_at(&self, _: u64, _: Vec<Bytes>) -> IoFuture<()> {
        refused()
    }

    fn read_at(&self, position: u64, length: usize) -> IoFuture<Bytes> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((position, length));
        let from = usize::try_from(position).unwrap_or(usize::MAX).min(self.content.len());
        let part = self.content.slice(from..from.saturating_add(length).min(self.content.len()));
        Box::pin(async { Ok(part) })
    }

    fn sync_data(&self) -> IoFuture<()> {
        refused()
    }

    fn allocate(&self, _: u64) -> IoFuture<()> {
        refused()
    }

    fn set_len(&self, _: u64) -> IoFuture<()> {
        refused()
    }

    fn len(&self) -> IoFuture<u64> {
        let length = self.content.len() as u64;
        Box::pin(async move { Ok(length) })
    }

    fn push_out(&self, _: u64, _: u64) {}
}
