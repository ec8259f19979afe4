//! Clients for tests.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_object::{ObjectClient, StaticCredentials, StoreOptions, StoreUrl};
use tidelog_runtime::{Registry, SeededRng, SystemClock};

/// Options that find out fast.
pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        silence_timeout: Duration::from_secs(2),
        retry_deadline: Duration::from_secs(20),
        region: Some("us-east-1".to_owned()),
        credentials: Some(StaticCredentials {
            access_key_id: "test".to_owned(),
            secret_access_key: "test-secret".to_owned(),
        }),
        ..StoreOptions::default()
    }
}

pub(crate) async fn open(url: &StoreUrl, options: StoreOptions) -> ObjectClient {
    let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(SeededRng::new(1)));
    ObjectClient::open(url, options, clock, rng, &Registry::new()).await.unwrap()
}

pub(crate) async fn memory() -> ObjectClient {
    open(&StoreUrl::memory(), options()).await
}

pub(crate) async fn folder(path: &Path) -> ObjectClient {
    open(&StoreUrl::file(path).unwrap(), options()).await
}

/// A client of a store that speaks S3 at `endpoint`.
pub(crate) async fn s3(endpoint: &str, place: &str, options: StoreOptions) -> ObjectClient {
    let options = StoreOptions { endpoint: Some(endpoint.to_owned()), ..options };
    open(&format!("s3://{place}").parse().unwrap(), options).await
}

/// Bytes that differ everywhere, in pieces of different lengths.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 31 + at / 251) % 256).unwrap()).collect()
}

pub(crate) fn payload(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}
