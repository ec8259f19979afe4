//! The claim of the bucket by this data directory: what the directory knows of it, and the order in which both are written.
//!
//! `bucket.claims` has the id that this start claims by, and the one before it, before the bucket has the former. So a process
//! that is killed in between goes on from either; and a copy that was made before a start of another copy knows neither.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use tidelog_format::broker_json::{BROKER_JSON_BYTES_MAX, BrokerJson, KnownClaims};
use tidelog_object::{BrokerClaim, BrokerClaimError, Failure, ObjectClient, find_broker_claim};
use tidelog_runtime::{Disk, read_small, write_aside};
use tidelog_types::{BrokerIncarnation, ClaimId};

use super::parts::Parts;
use crate::config::NodeConfig;

/// The file in the data directory.
const FILE: &str = "bucket.claims";

/// Who claims.
#[derive(Clone)]
pub(super) struct Claimant {
    pub(super) own: BrokerJson,
    pub(super) data_dir: PathBuf,
    pub(super) disk: Arc<dyn Disk>,
}

impl Claimant {
    /// This start, under an id that no other has.
    pub(super) fn new(config: &NodeConfig, parts: &Parts, incarnation: BrokerIncarnation) -> Self {
        let claim = ClaimId::from_bytes(parts.ids.uuid());
        Self {
            own: BrokerJson { broker: config.node_id, incarnation, claim },
            data_dir: config.data_dir.clone(),
            disk: Arc::clone(&parts.disk),
        }
    }

    /// Claims the client's prefix for this data directory. May be tried again, until it is refused.
    pub(super) async fn claim(&self, client: &ObjectClient) -> Result<BrokerClaim, BrokerClaimError> {
        let known = self.known().await?;
        let free = find_broker_claim(client, self.own, known).await?;
        if !free.is_ours() {
            self.write(KnownClaims { former: free.former(), newest: self.own.claim }).await?;
        }
        free.take().await
    }

    /// What the directory says. One that is damaged says nothing: then the incarnation alone decides.
    async fn known(&self) -> Result<Option<KnownClaims>, BrokerClaimError> {
        let path = self.data_dir.join(FILE);
        let found = read_small(&*self.disk, &path, BROKER_JSON_BYTES_MAX).await;
        let Some(bytes) = found.map_err(|error| failed("read", &error))? else { return Ok(None) };
        match KnownClaims::decode(&bytes) {
            Ok(known) => Ok(Some(known)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the file is damaged, and is written anew");
                Ok(None)
            }
        }
    }

    async fn write(&self, known: KnownClaims) -> Result<(), BrokerClaimError> {
        let written = async {
            write_aside(&*self.disk, &self.data_dir, FILE, Bytes::from(known.encode())).await?;
            self.disk.sync_dir(&self.data_dir).await
        };
        written.await.map_err(|error| failed("write", &error))
    }
}

fn failed(operation: &str, error: &std::io::Error) -> BrokerClaimError {
    let (key, reason) = (FILE.to_owned(), format!("{operation}: {error}"));
    BrokerClaimError::Retriable(Failure { key, tries: 1, reason })
}
