//! The claim of a prefix by one cluster: `cluster.json`, created once.
//!
//! Two clusters under one prefix would sweep each other's objects, so the first to create the file has it for good. The
//! file is read back after it was written: a store that ignores conditions and let two writers through is noticed by
//! the one that lost.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidelog_types::ClusterId;

use crate::{Failure, GetError, ObjectClient, PutError, Refusal};

/// The key below the prefix.
const CLUSTER_KEY: &str = "cluster.json";
/// The file has less than 200 bytes.
const CLUSTER_BYTES_MAX: u64 = 64 * 1024;
/// The format of everything below the prefix.
const FORMAT_VERSION: u32 = 1;

/// A prefix that is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterClaim {
    /// It was nobody's until now.
    Taken,
    /// It has been ours.
    Held,
}

/// Why a prefix is not ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another cluster has it.
    #[error("{prefix} belongs to cluster {owner}: use another prefix, or the data directory of that cluster")]
    OtherCluster {
        /// The store and prefix.
        prefix: String,
        /// Whose it is.
        owner: ClusterId,
    },
    /// Its format is of a later version of the product.
    #[error("{prefix} has format version {found}, this version reads {known}")]
    NewerFormat {
        /// The store and prefix.
        prefix: String,
        /// What the file says.
        found: u32,
        /// What is known here.
        known: u32,
    },
    /// The file is there but is not one of ours.
    #[error("{prefix}/cluster.json cannot be read: {reason}")]
    Unreadable {
        /// The store and prefix.
        prefix: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store refuses.
    #[error("the store refuses {0}")]
    Refused(Refusal),
    /// The deadline passed; try again later.
    #[error("could not claim {0}")]
    Retriable(Failure),
}

#[derive(Debug, Serialize, Deserialize)]
struct ClusterFile {
    format_version: u32,
    cluster_id: ClusterId,
}

/// Claims the client's prefix for a cluster.
///
/// # Errors
/// See [`ClaimError`]: only [`ClaimError::Retriable`] is worth another try.
pub async fn claim_prefix(client: &ObjectClient, cluster_id: ClusterId) -> Result<ClusterClaim, ClaimError> {
    if let Some(claim) = read_claim(client, cluster_id).await? {
        return Ok(claim);
    }
    let file = ClusterFile { format_version: FORMAT_VERSION, cluster_id };
    let text = serde_json::to_vec(&file).map_err(|error| unreadable(client, error.to_string()))?;
    match client.put_new(CLUSTER_KEY, vec![Bytes::from(text)]).await {
        Ok(_) | Err(PutError::Exists { .. }) => {}
        Err(PutError::Refused(refusal)) => return Err(ClaimError::Refused(refusal)),
        Err(PutError::Retriable(failure) | PutError::Unknown(failure)) => {
            return Err(ClaimError::Retriable(failure));
        }
    }
    match read_claim(client, cluster_id).await? {
        Some(_) => Ok(ClusterClaim::Taken),
        None => Err(ClaimError::Refused(client.refusal(
            "cluster.json is absent right after it was written".to_owned(),
            "the store does not keep what it acknowledges",
        ))),
    }
}

/// Reads whose prefix it is: `None` where nobody's.
async fn read_claim(
    client: &ObjectClient,
    cluster_id: ClusterId,
) -> Result<Option<ClusterClaim>, ClaimError> {
    let found = match client.get(CLUSTER_KEY, CLUSTER_BYTES_MAX).await {
        Ok(found) => found,
        Err(GetError::NotFound { .. }) => return Ok(None),
        Err(GetError::Retriable(failure)) => return Err(ClaimError::Retriable(failure)),
        Err(GetError::Refused(refusal)) => return Err(ClaimError::Refused(refusal)),
        Err(GetError::Corrupt { what, .. }) => return Err(unreadable(client, what.to_string())),
    };
    let file: ClusterFile =
        serde_json::from_slice(&found.bytes).map_err(|error| unreadable(client, error.to_string()))?;
    let prefix = client.url().to_string();
    if file.cluster_id != cluster_id {
        return Err(ClaimError::OtherCluster { prefix, owner: file.cluster_id });
    }
    if file.format_version > FORMAT_VERSION {
        return Err(ClaimError::NewerFormat { prefix, found: file.format_version, known: FORMAT_VERSION });
    }
    Ok(Some(ClusterClaim::Held))
}

fn unreadable(client: &ObjectClient, reason: String) -> ClaimError {
    ClaimError::Unreadable { prefix: client.url().to_string(), reason }
}
