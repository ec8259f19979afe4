//! The client of one store.
//!
//! **Owns** tries and deadlines, the exactness of what is read, the settling of puts whose answer was lost, the limit
//! on concurrent requests, and the count of requests as they are billed. **Does not own** what keys mean.
//!
//! A body that was read is whole: its length, the object's length and its ETag are what the caller knows or what the
//! first answer said. A body that is cut short is resumed from the break, under the same ETag; nothing partial is ever
//! returned, and a sink that takes bytes as they come is told where the read failed. Dropping a future ends its request; no permit outlives it.

use std::{fmt, ops::Range, sync::Arc, sync::atomic::AtomicBool, time::Duration};

use bytes::Bytes;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    path::Path,
};
use tidelog_runtime::{Clock, Registry, Rng};
use tidelog_types::Timestamp;
use tokio::sync::Semaphore;

use crate::{
    Corruption, DeleteError, Failure, GetError, OpenError, OutageCause, Refusal, StoreHealth, StoreKind,
    StoreOptions, StoreUrl,
    backing::{self, Backing},
    http::Exchange,
    limits::SOCKET_BYTES_MAX,
    metrics::{RequestKind, StoreMetrics},
    transfer::{Ended, TimeLimits, Tries, TryError, classify, is_wordless, within},
};

mod read;

pub use read::BodySink;
use read::{Body, Wanted};

/// The version of an object's content, as the store names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ETag(Arc<str>);

impl ETag {
    /// Takes it as the store wrote it, quotes included.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// As the store wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts a store between a client and its own one; how faults get into a whole node.
pub type StoreLayer = Arc<dyn Fn(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> + Send + Sync>;

/// A put that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutReceipt {
    /// The new object's ETag.
    pub etag: ETag,
}

/// What a reader of a range knows of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The length of the whole object in bytes.
    pub object_bytes: u64,
    /// Its ETag, once one was seen.
    pub etag: Option<ETag>,
}

/// A whole object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// All of it.
    pub bytes: Bytes,
    /// Its ETag.
    pub etag: ETag,
}

/// A range of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeFetched {
    /// Its bytes, in order and exactly as many as were asked for, in the pieces in which they came.
    pub chunks: Vec<Bytes>,
    /// The object's ETag; to be given along with the next range.
    pub etag: ETag,
}

/// What is known of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadFound {
    /// Its length in bytes.
    pub bytes: u64,
    /// Its ETag.
    pub etag: ETag,
    /// When it was written, by the store's clock.
    pub modified: Timestamp,
}

/// Requests and bytes of a client since it was opened, retries included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Usage {
    /// GETs.
    pub get_count: u64,
    /// PUTs.
    pub put_count: u64,
    /// HEADs.
    pub head_count: u64,
    /// LISTs.
    pub list_count: u64,
    /// DELETEs.
    pub delete_count: u64,
    /// Those of all kinds that failed.
    pub failure_count: u64,
    /// Bytes of bodies sent.
    pub sent_bytes: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
}

/// A client of one store, below one prefix. Clones are the same client.
#[derive(Clone)]
pub struct ObjectClient {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) url: StoreUrl,
    pub(crate) backing: Backing,
    pub(crate) options: StoreOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) metrics: Arc<StoreMetrics>,
    pub(crate) health: StoreHealth,
    requests: Semaphore,
    /// The store said that it has no conditional create.
    pub(crate) creates_blindly: AtomicBool,
    /// One replacement at a time where the store has no conditions of its own.
    pub(crate) replacing: tokio::sync::Mutex<()>,
}

impl fmt::Debug for ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectClient").field("url", &self.inner.url).finish_non_exhaustive()
    }
}

impl ObjectClient {
    /// Opens a store. No request is made: a store that is away is no error here.
    ///
    /// # Errors
    /// Where the settings do not fit together or a folder cannot be made.
    pub async fn open(
        url: &StoreUrl,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        registry: &Registry,
    ) -> Result<Self, OpenError> {
        Self::open_under(None, url, options, clock, rng, registry).await
    }

    /// Opens a store under a layer, which sees every request.
    ///
    /// # Errors
    /// As [`ObjectClient::open`].
    pub async fn open_under(
        layer: Option<&StoreLayer>,
        url: &StoreUrl,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        registry: &Registry,
    ) -> Result<Self, OpenError> {
        let mut backing = backing::open(url, &options, &clock, registry).await?;
        if let Some(layer) = layer {
            backing.store = layer(backing.store);
            // Pages of a listing would go past it.
            backing.paged = None;
        }
        Ok(Self::over(url, backing, options, clock, rng, registry))
    }

    /// A client of a store made elsewhere, such as one that injects faults. Its kind is taken to be memory.
    #[must_use]
    pub fn with_store(
        store: Arc<dyn ObjectStore>,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        registry: &Registry,
    ) -> Self {
        let backing = Backing::of(StoreKind::Memory, store);
        Self::over(&StoreUrl::memory(), backing, options, clock, rng, registry)
    }

    fn over(
        url: &StoreUrl,
        backing: Backing,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        registry: &Registry,
    ) -> Self {
        let requests = Semaphore::new(options.requests_max.clamp(1, Semaphore::MAX_PERMITS));
        let metrics = Arc::new(StoreMetrics::new(registry));
        let (creates_blindly, replacing) = (AtomicBool::new(false), tokio::sync::Mutex::new(()));
        let url = url.clone();
        let health = StoreHealth::new(url.to_string(), Arc::clone(&clock), registry);
        let inner = Inner {
            url,
            backing,
            options,
            clock,
            rng,
            metrics,
            health,
            requests,
            creates_blindly,
            replacing,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The address that it was opened with.
    #[must_use]
    pub fn url(&self) -> &StoreUrl {
        &self.inner.url
    }

    /// The settings that it was opened with.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.inner.options
    }

    /// What its requests tell of the store.
    #[must_use]
    pub fn health(&self) -> &StoreHealth {
        &self.inner.health
    }

    /// Requests and bytes so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.metrics.usage()
    }

    /// Requests that may still begin before others end: all of [`StoreOptions::requests_max`] at rest.
    #[must_use]
    pub fn free_requests(&self) -> usize {
        self.inner.requests.available_permits()
    }

    /// Reads a whole object of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// See [`GetError`].
    pub async fn get(&self, key: &str, bytes_max: u64) -> Result<Fetched, GetError> {
        let wanted = Wanted { range: None, bytes_max };
        let mut chunks = Vec::new();
        let etag = self.inner.fetch(key, &wanted, Body::new(&mut chunks, None, None)).await?;
        Ok(Fetched { bytes: concat(chunks), etag })
    }

    /// Reads exactly `range` of an object whose length, and perhaps ETag, is known.
    ///
    /// # Errors
    /// See [`GetError`]: [`GetError::Corrupt`] where the object is another than the known one, whatever was read.
    pub async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        expect: Expected,
    ) -> Result<RangeFetched, GetError> {
        let mut chunks = Vec::new();
        let etag = self.get_range_into(key, range, expect, &mut chunks).await?;
        Ok(RangeFetched { chunks, etag })
    }

    /// As [`ObjectClient::get_range`], into a sink that takes the bytes as they come. Answers the object's ETag; after an error
    /// the sink may hold a part.
    ///
    /// # Errors
    /// As [`ObjectClient::get_range`].
    pub async fn get_range_into(
        &self,
        key: &str,
        range: Range<u64>,
        expect: Expected,
        sink: &mut dyn BodySink,
    ) -> Result<ETag, GetError> {
        let outside = range.start > range.end || range.end > expect.object_bytes;
        if outside {
            let what = Corruption::OutOfRange {
                from: range.start,
                to: range.end,
                object_bytes: expect.object_bytes,
            };
            return Err(GetError::Corrupt { key: key.to_owned(), what });
        }
        if range.is_empty() {
            return match expect.etag {
                Some(etag) => Ok(etag),
                None => Ok(self.head(key).await?.etag),
            };
        }
        let wanted = Wanted { bytes_max: range.end - range.start, range: Some(range) };
        let body = Body::new(sink, Some(expect.object_bytes), expect.etag);
        self.inner.fetch(key, &wanted, body).await
    }

    /// Looks an object up.
    ///
    /// # Errors
    /// See [`GetError`]. A 404 without a body may mean anything, so that an absence costs a GET too.
    pub async fn head(&self, key: &str) -> Result<HeadFound, GetError> {
        let inner = &*self.inner;
        let mut tries = inner.tries(key, 0);
        loop {
            let exchange = Exchange::new();
            let work = inner.head_once(key, &exchange);
            let error = match inner.attempt(RequestKind::Head, 0, 0, &exchange, work).await {
                Ok(found) => return Ok(found),
                Err(TryError::NotFound) if inner.backing.kind.is_remote() => {
                    match inner.confirm_absence(key).await {
                        // It came to be between the two.
                        Ok(()) => TryError::Conflict("it was absent a moment ago".to_owned()),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            inner.after_get(&mut tries, key, error).await?;
        }
    }

    /// Deletes an object. Absence is success.
    ///
    /// # Errors
    /// See [`DeleteError`].
    pub async fn delete(&self, key: &str) -> Result<(), DeleteError> {
        let inner = &*self.inner;
        let mut tries = inner.tries(key, 0);
        loop {
            let exchange = Exchange::new();
            let work = async {
                let path = inner.path(key)?;
                inner.backing.store.delete(&path).await.map_err(|error| classify(&error, None))
            };
            let error = match inner.attempt(RequestKind::Delete, 0, 0, &exchange, work).await {
                Ok(()) | Err(TryError::NotFound) => return Ok(()),
                Err(error) => error,
            };
            match tries.after(error).await {
                Ok(()) => {}
                Err(Ended::Gave(failure)) => return Err(DeleteError::Retriable(failure)),
                Err(Ended::Refused(refusal)) => return Err(DeleteError::Refused(refusal)),
                Err(Ended::WrongAnswer(failure)) => return Err(DeleteError::Retriable(failure)),
            }
        }
    }
}

impl Inner {
    pub(crate) fn tries(&self, key: &str, bytes: u64) -> Tries<'_> {
        let at_floor = self.options.transfer_limit(bytes).saturating_sub(self.options.silence_timeout);
        Tries::new(&*self.clock, &*self.rng, key, self.options.retry_deadline.saturating_add(at_floor))
    }

    /// Runs one try: within the limit on requests and on time, metered.
    pub(crate) async fn attempt<T>(
        &self,
        kind: RequestKind,
        sent: u64,
        received_max: u64,
        exchange: &Exchange,
        work: impl Future<Output = Result<T, TryError>>,
    ) -> Result<T, TryError> {
        self.attempt_within(None, kind, sent, received_max, exchange, work).await
    }

    /// As [`Inner::attempt`]; `first`: how long the answer may take to begin.
    async fn attempt_within<T>(
        &self,
        first: Option<Duration>,
        kind: RequestKind,
        sent: u64,
        received_max: u64,
        exchange: &Exchange,
        work: impl Future<Output = Result<T, TryError>>,
    ) -> Result<T, TryError> {
        let Ok(_permit) = self.requests.acquire().await else {
            return Err(TryError::failed(OutageCause::NotConnected, "the client is closed"));
        };
        let _in_flight = self.metrics.begin(kind, sent);
        let begun = self.clock.monotonic();
        let limits = TimeLimits {
            silence: self.options.silence_timeout,
            total: self.options.transfer_limit(sent.saturating_add(received_max)),
            sent_bytes: sent,
            first,
            unseen: self
                .options
                .transfer_limit(sent.min(SOCKET_BYTES_MAX))
                .saturating_sub(self.options.silence_timeout),
        };
        let result = within(&*self.clock, limits, exchange, work).await;
        if let (Err(TryError::Expired(reason)), Some(credentials)) = (&result, &self.backing.credentials) {
            // An answer to HEAD has no words: what looks like expired keys may be a lack of rights.
            credentials.refused(begun, !is_wordless(reason));
        }
        let failed =
            !matches!(result, Ok(_) | Err(TryError::NotFound | TryError::Exists | TryError::Precondition));
        self.health.note(kind, begun, &result);
        self.metrics.end(kind, self.clock.monotonic().saturating_sub(begun), failed);
        result
    }

    /// The store's path of a key.
    pub(crate) fn path(&self, key: &str) -> Result<Path, TryError> {
        Path::parse(self.full_key(key)).map_err(|error| TryError::Refused {
            reason: error.to_string(),
            advice: "keys are segments between single slashes",
        })
    }

    pub(crate) fn full_key(&self, key: &str) -> String {
        match self.url.prefix() {
            "" => key.to_owned(),
            prefix => format!("{prefix}/{key}"),
        }
    }

    async fn head_once(&self, key: &str, exchange: &Exchange) -> Result<HeadFound, TryError> {
        let path = self.path(key)?;
        let mut options = GetOptions { head: true, ..GetOptions::default() };
        options.extensions.insert(exchange.clone());
        let found = self.backing.store.get_opts(&path, options).await;
        let meta = found.map_err(|error| classify(&error, exchange.status()))?.meta;
        let Some(etag) = meta.e_tag.as_deref() else {
            return Err(TryError::WrongAnswer("an answer without an ETag".to_owned()));
        };
        Ok(HeadFound { bytes: meta.size, etag: ETag::new(etag), modified: modified(&meta) })
    }

    /// Asks for a byte of an object that a HEAD called absent, for the words that a HEAD cannot have: a missing bucket and
    /// an unknown access key look like a missing object.
    async fn confirm_absence(&self, key: &str) -> Result<(), TryError> {
        let exchange = Exchange::new();
        let work = async {
            let path = self.path(key)?;
            let mut options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            options.extensions.insert(exchange.clone());
            let found = self.backing.store.get_opts(&path, options).await;
            found.map(drop).map_err(|error| classify(&error, exchange.status()))
        };
        match self.attempt(RequestKind::Get, 0, 1, &exchange, work).await {
            // An empty object is there.
            Err(TryError::OutOfRange) => Ok(()),
            result => result,
        }
    }

    /// Puts once, in the given mode.
    pub(crate) async fn put_once(
        &self,
        key: &str,
        payload: &[Bytes],
        mode: PutMode,
        exchange: &Exchange,
    ) -> Result<ETag, TryError> {
        let path = self.path(key)?;
        let replaces = matches!(mode, PutMode::Update(_));
        let mut options = PutOptions { mode, ..PutOptions::default() };
        options.extensions.insert(exchange.clone());
        let payload: PutPayload = payload.iter().cloned().collect();
        let done = self.backing.store.put_opts(&path, payload, options).await;
        let done = done.map_err(|error| match classify(&error, exchange.status()) {
            // There is nothing that a create could miss.
            TryError::NotFound if !replaces => TryError::Conflict(error.to_string()),
            error => error,
        });
        match done?.e_tag {
            Some(etag) => Ok(ETag::new(&etag)),
            None => Err(TryError::Failed {
                cause: OutageCause::WrongAnswers,
                reason: "the answer to a put has no ETag".to_owned(),
                may_have_happened: true,
            }),
        }
    }
}

pub(crate) fn modified(meta: &ObjectMeta) -> Timestamp {
    Timestamp::from_wire(meta.last_modified.timestamp_millis()).unwrap_or_default()
}

pub(crate) fn one_try(key: &str, reason: String) -> Failure {
    Failure { key: key.to_owned(), tries: 1, reason }
}

fn concat(mut chunks: Vec<Bytes>) -> Bytes {
    match chunks.len() {
        0 => Bytes::new(),
        1 => chunks.swap_remove(0),
        _ => Bytes::from(chunks.concat()),
    }
}

impl ObjectClient {
    /// How long a whole operation on `bytes` may take at most, tries and all.
    #[must_use]
    pub fn operation_limit(&self, bytes: u64) -> Duration {
        self.inner
            .options
            .retry_deadline
            .saturating_add(self.inner.options.transfer_limit(bytes).saturating_mul(2))
    }

    /// What the refusal of an operation on the whole store looks like, for a caller that reports one.
    pub(crate) fn refusal(&self, reason: String, advice: &str) -> Refusal {
        Refusal { key: self.inner.url.to_string(), reason, advice: advice.to_owned() }
    }
}
