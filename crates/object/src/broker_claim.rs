//! The claim of a prefix by one data directory of a broker: `brokers/<id>.json`, replaced at each start.
//!
//! `cluster.json` keeps other clusters out, and not a copy of the cluster's own data directory: an older one gives out again
//! what the newer one gave out, and of two that run each sweeps what the other wrote. So each start writes an id of its own
//! here, on top of one that its directory knows, and looks again before it deletes anything.
//!
//! The file is read back after it was written, as `cluster.json` is, for stores that ignore conditions.

use bytes::Bytes;
use object_store::PutMode;
use tidelog_format::{
    DecodeError,
    broker_json::{BROKER_JSON_BYTES_MAX, BrokerJson, KnownClaims},
    keys::ObjectKey,
};
use tidelog_runtime::watch;
use tidelog_types::{BrokerId, BrokerIncarnation, ClaimId};

use crate::{
    ETag, Failure, GetError, ObjectClient, PutError, PutMatchError, Refusal, cache::bytes_of, http::Exchange,
    metrics::RequestKind,
};

/// Why a start must not write to a prefix, or does not know yet whether it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerClaimError {
    /// The bucket knows a start that this data directory does not go on from.
    #[error(
        "{prefix} was last used by broker {broker} with another data directory (incarnation {found}, this is {own}): this directory \
         is an older copy, or a second copy of one that runs. Start the other one, or restore the newest copy; to go on with this \
         one, stop the other for good and delete {prefix}/{key}: what only the other one knows is lost then"
    )]
    OtherDirectory {
        /// The store and prefix.
        prefix: String,
        /// The key below it.
        key: String,
        /// The broker.
        broker: BrokerId,
        /// What the bucket knows.
        found: BrokerIncarnation,
        /// What this start registered.
        own: BrokerIncarnation,
    },
    /// The file is there but is not one of ours.
    #[error(
        "{prefix}/{key} cannot be read: {reason}: restore it from a copy; where no other copy of this data directory was started \
         since, delete it"
    )]
    Unreadable {
        /// The store and prefix.
        prefix: String,
        /// The key below it.
        key: String,
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

/// A claim that may be taken: what there is now is nobody's, or one that the data directory knows.
#[derive(Debug)]
pub struct FreeBrokerClaim {
    client: ObjectClient,
    own: BrokerJson,
    found: Option<(BrokerJson, ETag)>,
}

/// Looks whether a start may write to the prefix. `known`: what its data directory says, where it says anything; else it must
/// be of a newer incarnation.
///
/// # Errors
/// See [`BrokerClaimError`]: only [`BrokerClaimError::Retriable`] is worth another try.
pub async fn find_broker_claim(
    client: &ObjectClient,
    own: BrokerJson,
    known: Option<KnownClaims>,
) -> Result<FreeBrokerClaim, BrokerClaimError> {
    let found = read(client, own.broker).await?;
    if let Some((found, _)) = &found {
        let is_known = found.claim == own.claim
            || match known {
                Some(known) => known.knows(found.claim) && found.incarnation <= own.incarnation,
                None => found.incarnation < own.incarnation,
            };
        if found.broker != own.broker || !is_known {
            return Err(other_directory(client, &own, found));
        }
    }
    Ok(FreeBrokerClaim { client: client.clone(), own, found })
}

impl FreeBrokerClaim {
    /// The claim that this one follows; `None` where there is none, or where it is our own by now.
    #[must_use]
    pub fn former(&self) -> Option<ClaimId> {
        self.found.as_ref().map(|(found, _)| found.claim).filter(|claim| *claim != self.own.claim)
    }

    /// Whether it is ours already: an earlier try was done.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.found.as_ref().is_some_and(|(found, _)| found.claim == self.own.claim)
    }

    /// Takes it. Whoever takes it knows both ids durably before, or its next start is refused.
    ///
    /// # Errors
    /// See [`BrokerClaimError`]: after [`BrokerClaimError::Retriable`] it may be taken, which the next look tells.
    pub async fn take(self) -> Result<BrokerClaim, BrokerClaimError> {
        let Self { client, own, found } = self;
        let key = ObjectKey::BrokerJson { broker: own.broker }.to_string();
        let file = Bytes::from(own.encode());
        match found {
            Some((found, _)) if found.claim == own.claim => {}
            Some((_, etag)) => match client.put_match(&key, vec![file.clone()], &etag).await {
                // Who was faster is read below.
                Ok(_) | Err(PutMatchError::Changed { .. } | PutMatchError::Absent { .. }) => {}
                Err(PutMatchError::Retriable(failure) | PutMatchError::Unknown(failure)) => {
                    return Err(BrokerClaimError::Retriable(failure));
                }
                Err(PutMatchError::Refused(refusal)) => overwrite(&client, &key, file, refusal).await?,
            },
            None => match client.put_new(&key, vec![file]).await {
                Ok(_) | Err(PutError::Exists { .. }) => {}
                Err(PutError::Retriable(failure) | PutError::Unknown(failure)) => {
                    return Err(BrokerClaimError::Retriable(failure));
                }
                Err(PutError::Refused(refusal)) => return Err(BrokerClaimError::Refused(refusal)),
            },
        }
        match read(&client, own.broker).await? {
            Some((found, _)) if found.claim == own.claim => Ok(BrokerClaim { client, own }),
            Some((found, _)) => Err(other_directory(&client, &own, &found)),
            None => Err(BrokerClaimError::Retriable(Failure {
                key,
                tries: 1,
                reason: "it is absent right after it was written".to_owned(),
            })),
        }
    }
}

/// A claim that is held. Clones are the same.
#[derive(Debug, Clone)]
pub struct BrokerClaim {
    client: ObjectClient,
    own: BrokerJson,
}

impl BrokerClaim {
    /// Looks whether it still is ours. One that a person deleted is nobody else's.
    ///
    /// # Errors
    /// [`BrokerClaimError::OtherDirectory`]: the node must not go on. Everything else may pass, and says nothing.
    pub async fn check(&self) -> Result<(), BrokerClaimError> {
        match read(&self.client, self.own.broker).await? {
            Some((found, _)) if found.claim != self.own.claim => {
                Err(other_directory(&self.client, &self.own, &found))
            }
            _ => Ok(()),
        }
    }
}

/// A claim that is looked at before anything is deleted, and told about once it is lost.
#[derive(Debug, Clone)]
pub struct GuardedClaim {
    claim: BrokerClaim,
    lost: watch::Sender<Option<String>>,
}

impl GuardedClaim {
    /// Guards a claim; `lost` is told why the node must not go on.
    #[must_use]
    pub const fn new(claim: BrokerClaim, lost: watch::Sender<Option<String>>) -> Self {
        Self { claim, lost }
    }

    /// Looks whether it still is ours, and says so loudly where it is not.
    ///
    /// # Errors
    /// As [`BrokerClaim::check`]: nothing may be deleted now.
    pub async fn check(&self) -> Result<(), BrokerClaimError> {
        let checked = self.claim.check().await;
        if let Err(error @ BrokerClaimError::OtherDirectory { .. }) = &checked {
            tracing::error!(%error, "another copy of this data directory took the bucket: nothing is deleted, and this node ends");
            self.lost.send_replace(Some(error.to_string()));
        }
        checked
    }
}

async fn read(
    client: &ObjectClient,
    broker: BrokerId,
) -> Result<Option<(BrokerJson, ETag)>, BrokerClaimError> {
    let key = ObjectKey::BrokerJson { broker }.to_string();
    let unreadable = |reason: String| BrokerClaimError::Unreadable {
        prefix: client.url().to_string(),
        key: key.clone(),
        reason,
    };
    let bytes_max = u64::try_from(BROKER_JSON_BYTES_MAX).unwrap_or(u64::MAX);
    let found = match client.get(&key, bytes_max).await {
        Ok(found) => found,
        Err(GetError::NotFound { .. }) => return Ok(None),
        Err(GetError::Retriable(failure)) => return Err(BrokerClaimError::Retriable(failure)),
        Err(GetError::Refused(refusal)) => return Err(BrokerClaimError::Refused(refusal)),
        Err(GetError::Corrupt { what, .. }) => return Err(unreadable(what.to_string())),
    };
    match BrokerJson::decode(&found.bytes) {
        Ok(file) => Ok(Some((file, found.etag))),
        Err(DecodeError::Version { version, version_max, .. }) => {
            Err(unreadable(format!("it has format version {version}, this version reads {version_max}")))
        }
        Err(error) => Err(unreadable(error.to_string())),
    }
}

/// Replaces the file without a condition, for a store that has none: the look behind it tells who was last.
async fn overwrite(
    client: &ObjectClient,
    key: &str,
    file: Bytes,
    refusal: Refusal,
) -> Result<(), BrokerClaimError> {
    let exchange = Exchange::new();
    let (length, payload) = (bytes_of(&file), [file]);
    let work = client.inner.put_once(key, &payload, PutMode::Overwrite, &exchange);
    if client.inner.attempt(RequestKind::Put, length, 0, &exchange, work).await.is_err() {
        return Err(BrokerClaimError::Refused(refusal));
    }
    tracing::warn!(
        store = %client.url(), %refusal,
        "the store has no conditional replace: two copies of a data directory that start at once may both be let in"
    );
    Ok(())
}

fn other_directory(client: &ObjectClient, own: &BrokerJson, found: &BrokerJson) -> BrokerClaimError {
    BrokerClaimError::OtherDirectory {
        prefix: client.url().to_string(),
        key: ObjectKey::BrokerJson { broker: own.broker }.to_string(),
        broker: own.broker,
        found: found.incarnation,
        own: own.incarnation,
    }
}
