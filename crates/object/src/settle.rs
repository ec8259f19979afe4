//! Puts that are done once: creates and replacements whose lost answers are settled by looking.
//!
//! ```text
//!   put --- 200 ------------------------------> done
//!    |---- 409, 503, timeout, reset ----------> pause, again
//!    |---- 412, 304 --- look --- ours --------> done (an earlier answer was lost)
//!    |                    |----- another's ---> Exists
//!    |---- deadline --- nothing was sent -----> Retriable
//!                    |--- sent: look ---------> done, Exists, Retriable, or Unknown if looking fails too
//! ```

use std::sync::atomic::Ordering;

use bytes::Bytes;
use object_store::{PutMode, UpdateVersion};

use crate::{
    Corruption, ETag, Expected, Failure, GetError, ObjectClient, PutError, PutMatchError, PutReceipt,
    StoreKind,
    client::one_try,
    http::Exchange,
    metrics::RequestKind,
    transfer::{Ended, TryError},
};

/// Bytes that are read back at once to compare an object with ours.
const COMPARE_BYTES: u64 = 8 * 1024 * 1024;

/// What a look at the key found.
enum Look {
    Ours(ETag),
    Others { bytes: u64, etag: ETag },
    Absent,
}

impl ObjectClient {
    /// Creates an object under a key that was never written. A conflict with a write in flight is tried again; a lost
    /// answer is settled by looking: an object of our length and content is our own success.
    ///
    /// A store that says it has no conditional create is asked whether the key exists first; keys are unique, so that
    /// nothing rests on the condition.
    ///
    /// # Errors
    /// See [`PutError`]; after [`PutError::Unknown`] the object may exist.
    pub async fn put_new(&self, key: &str, payload: Vec<Bytes>) -> Result<PutReceipt, PutError> {
        let inner = &*self.inner;
        let length = length_of(&payload);
        let mut tries = inner.tries(key, length);
        loop {
            let blindly = inner.creates_blindly.load(Ordering::Relaxed);
            if blindly {
                match self.look(key, &payload).await.map_err(look_failed)? {
                    Look::Ours(etag) => return Ok(PutReceipt { etag }),
                    Look::Others { bytes, .. } => {
                        return Err(PutError::Exists { key: key.to_owned(), bytes });
                    }
                    Look::Absent => {}
                }
            }
            let mode = if blindly { PutMode::Overwrite } else { PutMode::Create };
            let exchange = Exchange::new();
            let work = inner.put_once(key, &payload, mode, &exchange);
            let error = match inner.attempt(RequestKind::Put, length, 0, &exchange, work).await {
                Ok(etag) => return Ok(PutReceipt { etag }),
                Err(error) => error,
            };
            let error = match error {
                TryError::Exists | TryError::Precondition => {
                    match self.look(key, &payload).await.map_err(look_failed)? {
                        Look::Ours(etag) => {
                            inner.metrics.settled.inc();
                            return Ok(PutReceipt { etag });
                        }
                        Look::Others { bytes, .. } => {
                            return Err(PutError::Exists { key: key.to_owned(), bytes });
                        }
                        // The store answered; what it answered changes from moment to moment.
                        Look::Absent => {
                            TryError::Conflict("it was refused for an object that is gone".to_owned())
                        }
                    }
                }
                TryError::Unsupported(reason) if !blindly => {
                    tracing::warn!(store = %inner.url, %reason, "the store has no conditional create, keys alone keep writers apart");
                    inner.creates_blindly.store(true, Ordering::Relaxed);
                    continue;
                }
                error => error,
            };
            if let Err(ended) = tries.after(error).await {
                return self.settle(key, &payload, ended, tries.may_have_happened).await;
            }
        }
    }

    async fn settle(
        &self,
        key: &str,
        payload: &[Bytes],
        ended: Ended,
        may_have_happened: bool,
    ) -> Result<PutReceipt, PutError> {
        let failure = match ended {
            Ended::Refused(refusal) => return Err(PutError::Refused(refusal)),
            Ended::Gave(failure) | Ended::WrongAnswer(failure) => failure,
        };
        if !may_have_happened {
            return Err(PutError::Retriable(failure));
        }
        match self.look(key, payload).await {
            Ok(Look::Ours(etag)) => {
                self.inner.metrics.settled.inc();
                Ok(PutReceipt { etag })
            }
            Ok(Look::Others { bytes, .. }) => Err(PutError::Exists { key: key.to_owned(), bytes }),
            // A put that hangs may still arrive.
            Ok(Look::Absent) | Err(_) => Err(PutError::Unknown(failure)),
        }
    }

    /// Replaces an object whose ETag is `etag`, in one step where the store has conditional puts. A folder has none:
    /// there the step is one among the tasks of this process only.
    ///
    /// # Errors
    /// See [`PutMatchError`]; after [`PutMatchError::Unknown`] it may have been replaced.
    pub async fn put_match(
        &self,
        key: &str,
        payload: Vec<Bytes>,
        etag: &ETag,
    ) -> Result<PutReceipt, PutMatchError> {
        let inner = &*self.inner;
        let length = length_of(&payload);
        let mut tries = inner.tries(key, length);
        let is_folder = inner.backing.kind == StoreKind::File;
        let _alone = if is_folder { Some(inner.replacing.lock().await) } else { None };
        loop {
            let mode = if is_folder {
                self.check_current(key, etag).await?;
                PutMode::Overwrite
            } else {
                PutMode::Update(UpdateVersion { e_tag: Some(etag.as_str().to_owned()), version: None })
            };
            let exchange = Exchange::new();
            let work = inner.put_once(key, &payload, mode, &exchange);
            let error = match inner.attempt(RequestKind::Put, length, 0, &exchange, work).await {
                Ok(etag) => return Ok(PutReceipt { etag }),
                Err(error) => error,
            };
            let ended = match error {
                TryError::Precondition | TryError::Exists | TryError::NotFound => {
                    return self.settle_match(key, &payload, tries.may_have_happened).await;
                }
                error => tries.after(error).await,
            };
            match ended {
                Ok(()) => {}
                Err(Ended::Refused(refusal)) => return Err(PutMatchError::Refused(refusal)),
                Err(Ended::Gave(failure)) if !tries.may_have_happened => {
                    return Err(PutMatchError::Retriable(failure));
                }
                Err(Ended::Gave(failure)) => return Err(PutMatchError::Unknown(failure)),
                Err(Ended::WrongAnswer(failure)) => return Err(PutMatchError::Unknown(failure)),
            }
        }
    }

    async fn check_current(&self, key: &str, etag: &ETag) -> Result<(), PutMatchError> {
        match self.head(key).await {
            Ok(found) if found.etag == *etag => Ok(()),
            Ok(found) => Err(PutMatchError::Changed { key: key.to_owned(), current: found.etag }),
            Err(error) => Err(match_look_failed(key, error, false)),
        }
    }

    /// The condition did not hold: because another was faster, or because our own earlier try was done.
    async fn settle_match(
        &self,
        key: &str,
        payload: &[Bytes],
        may_have_happened: bool,
    ) -> Result<PutReceipt, PutMatchError> {
        match self.look(key, payload).await {
            Ok(Look::Ours(etag)) if may_have_happened => {
                self.inner.metrics.settled.inc();
                Ok(PutReceipt { etag })
            }
            Ok(Look::Ours(etag) | Look::Others { etag, .. }) => {
                Err(PutMatchError::Changed { key: key.to_owned(), current: etag })
            }
            Ok(Look::Absent) => Err(PutMatchError::Absent { key: key.to_owned() }),
            Err(error) => Err(match_look_failed(key, error, may_have_happened)),
        }
    }

    /// Compares the object with our payload: its length, then its bytes.
    async fn look(&self, key: &str, payload: &[Bytes]) -> Result<Look, GetError> {
        let found = match self.head(key).await {
            Ok(found) => found,
            Err(GetError::NotFound { .. }) => return Ok(Look::Absent),
            Err(error) => return Err(error),
        };
        let others = Look::Others { bytes: found.bytes, etag: found.etag.clone() };
        if found.bytes != length_of(payload) {
            return Ok(others);
        }
        let mut ours = payload.iter().flat_map(|chunk| chunk.chunks(64 * 1024));
        let mut left: &[u8] = &[];
        let mut from = 0;
        while from < found.bytes {
            let to = from.saturating_add(COMPARE_BYTES).min(found.bytes);
            let expect = Expected { object_bytes: found.bytes, etag: Some(found.etag.clone()) };
            let theirs = match self.get_range(key, from..to, expect).await {
                Ok(theirs) => theirs,
                Err(GetError::NotFound { .. }) => return Ok(Look::Absent),
                Err(GetError::Corrupt {
                    what: Corruption::ETag { .. } | Corruption::Length { .. }, ..
                }) => {
                    return Ok(others);
                }
                Err(error) => return Err(error),
            };
            for mut chunk in theirs.chunks.iter().map(|chunk| &chunk[..]) {
                while !chunk.is_empty() {
                    if left.is_empty() {
                        left = ours.next().unwrap_or(&[]);
                    }
                    let shared = left.len().min(chunk.len());
                    if shared == 0 || left[..shared] != chunk[..shared] {
                        return Ok(others);
                    }
                    (left, chunk) = (&left[shared..], &chunk[shared..]);
                }
            }
            from = to;
        }
        Ok(Look::Ours(found.etag))
    }
}

fn length_of(payload: &[Bytes]) -> u64 {
    payload
        .iter()
        .fold(0, |sum: u64, chunk| sum.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX)))
}

fn look_failed(error: GetError) -> PutError {
    match error {
        GetError::Refused(refusal) => PutError::Refused(refusal),
        GetError::Retriable(failure) => PutError::Unknown(failure),
        GetError::NotFound { key } => PutError::Unknown(one_try(&key, "it is gone".to_owned())),
        GetError::Corrupt { key, what } => {
            PutError::Unknown(Failure { key, tries: 1, reason: what.to_string() })
        }
    }
}

fn match_look_failed(key: &str, error: GetError, may_have_happened: bool) -> PutMatchError {
    let failure = match error {
        GetError::Refused(refusal) => return PutMatchError::Refused(refusal),
        GetError::NotFound { key } => return PutMatchError::Absent { key },
        GetError::Retriable(failure) => failure,
        GetError::Corrupt { what, .. } => one_try(key, what.to_string()),
    };
    match may_have_happened {
        true => PutMatchError::Unknown(failure),
        false => PutMatchError::Retriable(failure),
    }
}
