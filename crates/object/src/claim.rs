//! The claim of a prefix by one cluster: `cluster.json`, created once.
//!
//! Two clusters under one prefix would sweep each other's objects, so the first to create the file has it for good. The
//! file is read back after it was written: a store that ignores conditions and let two writers through is noticed by
//! the one that lost.

use bytes::Bytes;
use object_store::PutMode;
use tidelog_format::{
    DecodeError,
    cluster_json::{CLUSTER_JSON_BYTES_MAX, ClusterJson},
    keys::ObjectKey,
};
use tidelog_types::ClusterId;

use crate::{
    Failure, GetError, ObjectClient, PutError, Refusal, cache::bytes_of, http::Exchange, metrics::RequestKind,
};

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
    /// Nobody has it, and who asked has a prefix already: it would not be this one.
    #[error(
        "{prefix} is nobody's prefix until now, but this cluster has data in a bucket: give the store that it was started with"
    )]
    Nobodys {
        /// The store and prefix.
        prefix: String,
    },
    /// Its format is of a later version of the product.
    #[error("{prefix} has format version {found}, this version reads {known}")]
    NewerFormat {
        /// The store and prefix.
        prefix: String,
        /// What the file says.
        found: u16,
        /// What is known here.
        known: u16,
    },
    /// The file is there but is not one of ours.
    #[error(
        "{prefix}/cluster.json cannot be read: {reason}: restore it from a copy; where the prefix is this cluster's, it holds \
         {content}"
    )]
    Unreadable {
        /// The store and prefix.
        prefix: String,
        /// What is wrong with it.
        reason: String,
        /// What it would hold if the prefix were ours.
        content: String,
    },
    /// The store refuses.
    #[error("the store refuses {0}")]
    Refused(Refusal),
    /// The deadline passed; try again later.
    #[error("could not claim {0}")]
    Retriable(Failure),
}

/// Makes sure that the client's prefix is the cluster's. One that is nobody's is taken where it `may_take` one, and else nothing
/// is written: a claim that was only half made would be believed the next time.
///
/// # Errors
/// See [`ClaimError`]: only [`ClaimError::Retriable`] is worth another try.
pub async fn claim_prefix(
    client: &ObjectClient,
    cluster_id: ClusterId,
    may_take: bool,
) -> Result<(), ClaimError> {
    if is_ours(client, cluster_id).await? {
        return Ok(());
    }
    if !may_take {
        return Err(ClaimError::Nobodys { prefix: client.url().to_string() });
    }
    let file = Bytes::from(ClusterJson::new(cluster_id).encode());
    match client.put_new(&ObjectKey::ClusterJson.to_string(), vec![file.clone()]).await {
        Ok(_) | Err(PutError::Exists { .. }) => {}
        Err(PutError::Refused(refusal)) => return Err(ClaimError::Refused(refusal)),
        Err(PutError::Retriable(failure) | PutError::Unknown(failure)) => {
            return Err(ClaimError::Retriable(failure));
        }
    }
    if !is_ours(client, cluster_id).await? {
        return Err(ClaimError::Refused(client.refusal(
            "cluster.json is absent right after it was written".to_owned(),
            "the store does not keep what it acknowledges",
        )));
    }
    warn_where_conditions_are_ignored(client, file).await;
    Ok(())
}

/// Reads whose prefix it is: false where nobody's.
async fn is_ours(client: &ObjectClient, cluster_id: ClusterId) -> Result<bool, ClaimError> {
    let bytes_max = u64::try_from(CLUSTER_JSON_BYTES_MAX).unwrap_or(u64::MAX);
    let found = match client.get(&ObjectKey::ClusterJson.to_string(), bytes_max).await {
        Ok(found) => found,
        Err(GetError::NotFound { .. }) => return Ok(false),
        Err(GetError::Retriable(failure)) => return Err(ClaimError::Retriable(failure)),
        Err(GetError::Refused(refusal)) => return Err(ClaimError::Refused(refusal)),
        Err(GetError::Corrupt { what, .. }) => return Err(unreadable(client, cluster_id, what.to_string())),
    };
    let prefix = client.url().to_string();
    match ClusterJson::decode(&found.bytes) {
        Ok(file) if file.cluster_id == cluster_id => Ok(true),
        Ok(file) => Err(ClaimError::OtherCluster { prefix, owner: file.cluster_id }),
        Err(DecodeError::Version { version, version_max, .. }) => {
            Err(ClaimError::NewerFormat { prefix, found: version, known: version_max })
        }
        Err(error) => Err(unreadable(client, cluster_id, error.to_string())),
    }
}

/// Creates the file again, with the same bytes: a store that accepts this keeps nobody out. Nothing else rests on
/// conditions, since keys are unique and the controller decides what counts; so this is for a person to know.
async fn warn_where_conditions_are_ignored(client: &ObjectClient, file: Bytes) {
    let exchange = Exchange::new();
    let length = bytes_of(&file);
    let (key, payload) = (ObjectKey::ClusterJson.to_string(), [file]);
    let work = client.inner.put_once(&key, &payload, PutMode::Create, &exchange);
    if client.inner.attempt(RequestKind::Put, length, 0, &exchange, work).await.is_ok() {
        tracing::warn!(
            store = %client.url(),
            "the store overwrites whatever the condition: nothing here keeps a second cluster out of this prefix"
        );
    }
}

fn unreadable(client: &ObjectClient, cluster_id: ClusterId, reason: String) -> ClaimError {
    let content = ClusterJson::new(cluster_id).encode();
    // On one line, for a person to copy.
    let content = String::from_utf8_lossy(&content).split_whitespace().collect::<Vec<_>>().join(" ");
    ClaimError::Unreadable { prefix: client.url().to_string(), reason, content }
}
