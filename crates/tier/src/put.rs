//! Puts of objects that the manifest is to name.
//!
//! **Owns** the look behind each: a store that answers a put has not always all of it (B86).

use bytes::Bytes;
use tidelog_object::{GetError, ObjectClient, PutError};

/// Why nothing may name an object yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PutWholeError {
    #[error(transparent)]
    Put(#[from] PutError),
    #[error("the written object cannot be looked at: {0}")]
    Look(#[from] GetError),
    #[error("the store holds {actual} bytes of {key}, {expected} were sent")]
    Truncated { key: String, expected: u64, actual: u64 },
}

/// Writes an object and verifies that the store has all of it before anything may name it.
pub(crate) async fn put_whole(
    store: &ObjectClient,
    key: &str,
    payload: Vec<Bytes>,
) -> Result<(), PutWholeError> {
    let expected: u64 = payload.iter().map(|chunk| chunk.len() as u64).sum();
    store.put_new(key, payload).await?;
    let actual = store.head(key).await?.bytes;
    if actual == expected {
        Ok(())
    } else {
        Err(PutWholeError::Truncated { key: key.to_owned(), expected, actual })
    }
}
