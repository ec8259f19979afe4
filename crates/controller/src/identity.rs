//! Whose directory this is: the cluster and the node, written once.
//!
//! It is the last thing that a first start writes, so a directory without it was never used.

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;
use tidelog_core::cluster::persist::{Persist, Reader};
use tidelog_runtime::{Disk, read_small, write_aside};
use tidelog_types::{ClusterId, limits};

use crate::codec::{StoreError, seal, unseal};

const MAGIC: &[u8; 8] = b"TIDECTLI";
const VERSION: u16 = 1;
const NAME: &str = "identity";

/// The cluster and the node that a controller's directory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) cluster_id: ClusterId,
    pub(crate) node_id: u64,
}

impl Identity {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut payload = Vec::new();
        self.cluster_id.put(&mut payload);
        self.node_id.put(&mut payload);
        seal(MAGIC, VERSION, &payload)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, tidelog_core::cluster::persist::DecodeError> {
        let mut reader = Reader::new(unseal(MAGIC, VERSION, bytes)?);
        let identity = Self { cluster_id: Persist::take(&mut reader)?, node_id: Persist::take(&mut reader)? };
        reader.finish()?;
        Ok(identity)
    }

    /// Reads the directory's identity; `None` where it has none.
    pub(crate) async fn read(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Option<Self>, StoreError> {
        let path = directory.join(NAME);
        let names = disk.list_dir(directory).await.map_err(StoreError::io("list", directory))?;
        if !names.iter().any(|entry| entry.name == NAME) {
            return Ok(None);
        }
        let bytes = read_file(disk, &path).await?;
        Self::decode(&bytes).map(Some).map_err(|why| StoreError::damaged(path, why))
    }

    /// Makes the identity durable.
    pub(crate) async fn write(self, disk: &Arc<dyn Disk>, directory: &Path) -> Result<(), StoreError> {
        let written = write_aside(&**disk, directory, NAME, self.encode().into()).await;
        written.map_err(StoreError::io("write", directory.join(NAME)))?;
        disk.sync_dir(directory).await.map_err(StoreError::io("sync", directory))
    }
}

/// A whole file.
pub(crate) async fn read_file(disk: &Arc<dyn Disk>, path: &Path) -> Result<Bytes, StoreError> {
    // One byte more than is allowed, so that a file that was cut is told from one of just that size.
    let bytes_max = limits::RAFT_FILE_BYTES_MAX.saturating_add(1);
    let bytes = read_small(&**disk, path, bytes_max).await.map_err(StoreError::io("read", path))?;
    let bytes = bytes.ok_or(io::ErrorKind::NotFound.into()).map_err(StoreError::io("open", path))?;
    if bytes.len() > limits::RAFT_FILE_BYTES_MAX {
        return Err(StoreError::damaged(
            path,
            format!("it has more than {} bytes", limits::RAFT_FILE_BYTES_MAX),
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored bytes of version 1. They never change: a later version gets bytes of its own.
    const GOLDEN: &str =
        "5449444543544c4900010000000000000000001207070707070707070707070707070707ac02e4c04a66";

    #[test]
    fn the_bytes_of_an_identity_file_and_any_flipped_bit_of_it() {
        let identity = Identity { cluster_id: ClusterId::from_bytes([7; 16]), node_id: 300 };
        let bytes = identity.encode();
        assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), GOLDEN);
        assert_eq!(Identity::decode(&bytes), Ok(identity));
        for position in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[position] ^= 1 << bit;
                assert!(Identity::decode(&damaged).is_err(), "bit {bit} at {position}");
            }
        }
    }
}
