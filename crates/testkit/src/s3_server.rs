//! A stand-in for S3 in memory: for unit tests, and for benches whose subject is not the store.
//!
//! **Owns** whole objects with ETags, conditional puts and gets, exact ranges, listings in pages, lifecycle documents,
//! and knobs for time, rate and manners. **Does not** verify signatures, and speaks no multipart: tests of correctness
//! against a real store use one.
//!
//! Shaped, it answers as Amazon's does: a first byte after 0, 30 or 100 ms, 90 MB/s for a connection, 500 MB/s in all.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::HeaderMap,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tidelog_runtime::{Clock, Supervisor, SystemClock, Task};
use tokio::{net::TcpListener, time::Instant};

use crate::{
    http_date::http_date,
    key_issuer::{KeyIssuer, KeyState},
    s3_answers::{
        ListedObject, crc64_nvme_header, error_document, list_document, percent_decode, query_value,
    },
};

/// A body is paced in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;

/// What the stand-in does with conditional puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conditions {
    /// As S3 does.
    Honoured,
    /// It answers 200 and overwrites.
    Ignored,
    /// It answers 501.
    Unsupported,
}

/// How listings go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListQuirk {
    /// They do not.
    None,
    /// The key to start after comes again.
    InclusiveStartAfter,
    /// Every page is the first one, and says that more follow.
    NeverAdvances,
    /// Pages are in descending order.
    Descending,
}

/// The knobs.
#[derive(Debug, Clone)]
pub struct S3Config {
    /// Time to the first byte of every answer.
    pub first_byte: Duration,
    /// Bytes per second of one connection, in each direction.
    pub connection_rate_bytes: Option<u64>,
    /// Bytes per second of all connections together, towards the clients.
    pub total_rate_bytes: Option<u64>,
    /// Conditional puts.
    pub conditions: Conditions,
    /// Whether there are lifecycle rules.
    pub has_lifecycle: bool,
    /// Refuses what newer SDKs add to puts: checksum headers, trailers, chunked signing.
    pub refuses_checksums: bool,
    /// Listings.
    pub list_quirk: ListQuirk,
    /// How far its clock is ahead of the machine's.
    pub clock_ahead: Duration,
    /// The only access key that is accepted, if any is named.
    pub access_key: Option<String>,
    /// Who issued the keys that are accepted, while they live and with their token, if anybody is named.
    pub issuer: Option<KeyIssuer>,
    /// The status and code that others get.
    pub access_refusal: (u16, &'static str),
}

impl Default for S3Config {
    fn default() -> Self {
        Self {
            first_byte: Duration::ZERO,
            connection_rate_bytes: None,
            total_rate_bytes: None,
            conditions: Conditions::Honoured,
            has_lifecycle: true,
            refuses_checksums: false,
            list_quirk: ListQuirk::None,
            clock_ahead: Duration::ZERO,
            access_key: None,
            issuer: None,
            access_refusal: (400, "ExpiredToken"),
        }
    }
}

impl S3Config {
    /// As S3 answers, with this time to the first byte.
    #[must_use]
    pub fn shaped(first_byte: Duration) -> Self {
        Self {
            first_byte,
            connection_rate_bytes: Some(90_000_000),
            total_rate_bytes: Some(500_000_000),
            ..Self::default()
        }
    }
}

#[derive(Clone)]
struct Object {
    bytes: Bytes,
    etag: String,
    modified_ms: u64,
}

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Object>,
    lifecycle: Option<Bytes>,
}

struct State {
    config: Mutex<S3Config>,
    buckets: Mutex<BTreeMap<String, Bucket>>,
    puts: AtomicU64,
    requests: AtomicU64,
    clock: SystemClock,
    /// When the line that all connections share is free again.
    line_free: Mutex<Option<Instant>>,
}

/// A running stand-in. It ends with its supervisor, or when it is dropped.
pub struct S3Server {
    address: SocketAddr,
    state: Arc<State>,
    task: Task<()>,
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Body = BoxBody<Bytes, Infallible>;

impl S3Server {
    /// Starts one on a free port of the loopback address, with the buckets named.
    ///
    /// # Errors
    /// Where no port can be had.
    pub async fn start(supervisor: &Supervisor, config: S3Config, buckets: &[&str]) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let named = buckets.iter().map(|name| ((*name).to_owned(), Bucket::default())).collect();
        let state = Arc::new(State {
            config: Mutex::new(config),
            buckets: Mutex::new(named),
            puts: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            clock: SystemClock::new(),
            line_free: Mutex::new(None),
        });
        let (accepting, spawner) = (Arc::clone(&state), supervisor.clone());
        let task = supervisor.spawn("s3-stand-in", async move {
            while let Ok((socket, _)) = listener.accept().await {
                // A slow start of small answers would be measured otherwise.
                let _ = socket.set_nodelay(true);
                let state = Arc::clone(&accepting);
                let serve = async move {
                    let service = service_fn(move |request| {
                        let state = Arc::clone(&state);
                        async move { Ok::<_, Infallible>(answer(&state, request).await) }
                    });
                    // A client that goes away is no error of the stand-in.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
                };
                spawner.spawn("s3-stand-in-connection", serve).detach();
            }
        });
        Ok(Self { address, state, task })
    }

    /// Where it listens, as an endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the knobs for the requests to come.
    pub fn configure(&self, change: impl FnOnce(&mut S3Config)) {
        change(&mut lock(&self.state.config));
    }

    /// Requests so far.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// The keys of a bucket, in order.
    #[must_use]
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        lock(&self.state.buckets)
            .get(bucket)
            .map(|bucket| bucket.objects.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// An object's bytes.
    #[must_use]
    pub fn object(&self, bucket: &str, key: &str) -> Option<Bytes> {
        lock(&self.state.buckets).get(bucket)?.objects.get(key).map(|object| object.bytes.clone())
    }

    /// Puts an object past the protocol, over what is there.
    pub fn put_object(&self, bucket: &str, key: &str, bytes: Bytes) {
        self.state.store(bucket, key, bytes);
    }

    /// The names of its buckets.
    #[must_use]
    pub fn buckets(&self) -> Vec<String> {
        lock(&self.state.buckets).keys().cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request, taken apart.
struct Asked {
    method: Method,
    bucket: String,
    key: String,
    query: String,
    headers: HeaderMap,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn has_query(&self, name: &str) -> bool {
        query_value(&self.query, name).is_some()
    }
}

async fn answer(state: &Arc<State>, request: Request<Incoming>) -> Response<Body> {
    state.requests.fetch_add(1, Ordering::Relaxed);
    let config = lock(&state.config).clone();
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let asked = Asked {
        method: parts.method,
        bucket: percent_decode(bucket, false),
        key: percent_decode(key, false),
        query: parts.uri.query().unwrap_or("").to_owned(),
        headers: parts.headers,
    };
    let Some(body) = collect(body, config.connection_rate_bytes).await else {
        return error(400, "IncompleteBody", "the body ended early");
    };
    if !config.first_byte.is_zero() {
        tokio::time::sleep(config.first_byte).await;
    }
    let mut response = state.answer(&config, &asked, body);
    if asked.method == Method::HEAD {
        *response.body_mut() = Full::new(Bytes::new()).boxed();
    }
    let date = http_date(state.now_ms(&config)).parse();
    if let Ok(date) = date {
        response.headers_mut().insert("date", date);
    }
    response
}

async fn collect(mut body: Incoming, rate: Option<u64>) -> Option<Bytes> {
    let begun = Instant::now();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(chunk) = frame.ok()?.into_data() {
            bytes.extend_from_slice(&chunk);
            if let Some(rate) = rate {
                tokio::time::sleep_until(begun + time_of(bytes.len(), rate)).await;
            }
        }
    }
    Some(Bytes::from(bytes))
}

fn time_of(bytes: usize, rate: u64) -> Duration {
    Duration::from_nanos(u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(1_000_000_000) / rate.max(1))
}

impl State {
    fn now_ms(&self, config: &S3Config) -> u64 {
        let ahead = u64::try_from(config.clock_ahead.as_millis()).unwrap_or(0);
        self.clock.wall().as_millis().saturating_add(ahead)
    }

    fn store(&self, bucket: &str, key: &str, bytes: Bytes) -> String {
        let number = self.puts.fetch_add(1, Ordering::Relaxed);
        let etag = format!("\"{number:016x}\"");
        let modified_ms = self.now_ms(&lock(&self.config).clone());
        let object = Object { bytes, etag: etag.clone(), modified_ms };
        lock(&self.buckets).entry(bucket.to_owned()).or_default().objects.insert(key.to_owned(), object);
        etag
    }

    fn answer(self: &Arc<Self>, config: &S3Config, asked: &Asked, body: Bytes) -> Response<Body> {
        if let Some(refusal) = refuse(config, asked) {
            return refusal;
        }
        if asked.key.is_empty() {
            return self.answer_bucket(config, asked, body);
        }
        if !lock(&self.buckets).contains_key(&asked.bucket) {
            return error(404, "NoSuchBucket", "the bucket does not exist");
        }
        match asked.method {
            Method::PUT => self.put(config, asked, body),
            Method::GET | Method::HEAD => self.get(config, asked),
            Method::DELETE => {
                if let Some(bucket) = lock(&self.buckets).get_mut(&asked.bucket) {
                    bucket.objects.remove(&asked.key);
                }
                empty(204)
            }
            _ => error(501, "NotImplemented", "the stand-in does not know this method"),
        }
    }

    fn answer_bucket(&self, config: &S3Config, asked: &Asked, body: Bytes) -> Response<Body> {
        let mut buckets = lock(&self.buckets);
        let found = buckets.get_mut(&asked.bucket);
        if asked.has_query("lifecycle") {
            if !config.has_lifecycle {
                return error(501, "NotImplemented", "there is no lifecycle here");
            }
            return match (found, &asked.method) {
                (None, _) => error(404, "NoSuchBucket", "the bucket does not exist"),
                (Some(bucket), &Method::PUT) => {
                    bucket.lifecycle = Some(body);
                    empty(200)
                }
                (Some(Bucket { lifecycle: Some(text), .. }), _) => document(200, text.clone()),
                (Some(_), _) => error(404, "NoSuchLifecycleConfiguration", "there are no rules"),
            };
        }
        match (found, &asked.method) {
            (None, &Method::PUT) => {
                buckets.insert(asked.bucket.clone(), Bucket::default());
                empty(200)
            }
            (Some(_), &Method::PUT) => error(409, "BucketAlreadyOwnedByYou", "it is yours"),
            (None, _) => error(404, "NoSuchBucket", "the bucket does not exist"),
            (Some(_), &Method::HEAD) => empty(200),
            (Some(bucket), &Method::GET) => list(config, asked, bucket),
            _ => error(501, "NotImplemented", "the stand-in does not know this method"),
        }
    }

    fn put(&self, config: &S3Config, asked: &Asked, body: Bytes) -> Response<Body> {
        if let Some(checksum) = asked.header("x-amz-checksum-crc64nvme")
            && checksum != crc64_nvme_header(&body)
        {
            return error(400, "BadDigest", "the CRC64NVME does not match the body");
        }
        let (create, replace) = (asked.header("if-none-match"), asked.header("if-match"));
        if create.is_some() || replace.is_some() {
            match config.conditions {
                Conditions::Unsupported => {
                    return error(
                        501,
                        "NotImplemented",
                        "a header implies functionality that is not implemented",
                    );
                }
                Conditions::Ignored => {}
                Conditions::Honoured => {
                    let current = self.find(asked).map(|object| object.etag);
                    match (create, replace, current) {
                        (Some(_), _, Some(_)) => return error(412, "PreconditionFailed", "it exists"),
                        (_, Some(_), None) => return error(404, "NoSuchKey", "it does not exist"),
                        (_, Some(asked), Some(current)) if asked != current => {
                            return error(412, "PreconditionFailed", "it changed");
                        }
                        _ => {}
                    }
                }
            }
        }
        let etag = self.store(&asked.bucket, &asked.key, body);
        with_header(empty(200), "etag", &etag)
    }

    fn find(&self, asked: &Asked) -> Option<Object> {
        lock(&self.buckets).get(&asked.bucket)?.objects.get(&asked.key).cloned()
    }

    fn get(self: &Arc<Self>, config: &S3Config, asked: &Asked) -> Response<Body> {
        let Some(object) = self.find(asked) else {
            return error(404, "NoSuchKey", "the key does not exist");
        };
        if asked.header("if-match").is_some_and(|etag| etag != object.etag) {
            return error(412, "PreconditionFailed", "it changed");
        }
        let length = object.bytes.len();
        let range = asked.header("range").map(|range| parse_range(range, length));
        let (status, range) = match range {
            None => (200, 0..length),
            Some(Some(range)) => (206, range),
            Some(None) => {
                let refusal = error(416, "InvalidRange", "the range is not satisfiable");
                return with_header(refusal, "content-range", &format!("bytes */{length}"));
            }
        };
        let bytes = object.bytes.slice(range.clone());
        let mut response = Response::new(self.paced(config, bytes));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let response = with_header(response, "etag", &object.etag);
        let response = with_header(response, "last-modified", &http_date(object.modified_ms));
        let response = with_header(response, "accept-ranges", "bytes");
        let response = with_header(response, "content-length", &range.len().to_string());
        match status {
            206 => {
                let last = range.end.saturating_sub(1);
                with_header(response, "content-range", &format!("bytes {}-{last}/{length}", range.start))
            }
            _ => response,
        }
    }

    /// A body at the connection's rate and the line's.
    fn paced(self: &Arc<Self>, config: &S3Config, bytes: Bytes) -> Body {
        let (own, total) = (config.connection_rate_bytes, config.total_rate_bytes);
        if own.is_none() && total.is_none() {
            return Full::new(bytes).boxed();
        }
        let state = Arc::clone(self);
        let begun = Instant::now();
        let pieces = stream::unfold((bytes, 0), move |(mut bytes, sent)| {
            let state = Arc::clone(&state);
            async move {
                if bytes.is_empty() {
                    return None;
                }
                let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
                let sent = sent + piece.len();
                let own_turn = own.map(|rate| begun + time_of(sent, rate));
                let line_turn = total.map(|rate| state.take_line(time_of(piece.len(), rate)));
                if let Some(turn) = own_turn.max(line_turn) {
                    tokio::time::sleep_until(turn).await;
                }
                Some((Ok(Frame::data(piece)), (bytes, sent)))
            }
        });
        // The stream is not Sync by itself: each poll has it alone.
        BodyExt::boxed(SyncBody(Mutex::new(Box::pin(StreamBody::new(pieces)))))
    }

    /// Takes the shared line for a time; returns when that time is over.
    fn take_line(&self, time: Duration) -> Instant {
        let mut free = lock(&self.line_free);
        let now = Instant::now();
        let end = free.map_or(now, |free| free.max(now)) + time;
        *free = Some(end);
        end
    }
}

type Paced = std::pin::Pin<Box<dyn hyper::body::Body<Data = Bytes, Error = Infallible> + Send>>;

/// Makes a body `Sync`, which hyper's box asks for and nobody uses.
struct SyncBody(Mutex<Paced>);

impl hyper::body::Body for SyncBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        lock(&self.0).as_mut().poll_frame(context)
    }
}

fn refuse(config: &S3Config, asked: &Asked) -> Option<Response<Body>> {
    let content = asked.header("x-amz-content-sha256").unwrap_or("");
    if content.starts_with("STREAMING-") {
        return Some(error(501, "NotImplemented", "the stand-in does not read chunked signing"));
    }
    let is_new = |name: &str| {
        name == "x-amz-trailer"
            || name == "x-amz-sdk-checksum-algorithm"
            || name.starts_with("x-amz-checksum-")
    };
    if config.refuses_checksums && asked.headers.keys().any(|name| is_new(name.as_str())) {
        return Some(error(400, "InvalidRequest", "trailing checksum is not supported"));
    }
    let key = asked.header("authorization").unwrap_or("");
    if let Some(issuer) = &config.issuer {
        let id = key.split_once("Credential=").and_then(|(_, rest)| rest.split_once('/')).map(|(id, _)| id);
        let token = asked.header("x-amz-security-token").unwrap_or("");
        match id.map_or(KeyState::Unknown, |id| issuer.state_of(id, token)) {
            KeyState::Alive => {}
            KeyState::Expired => {
                return Some(error(400, "ExpiredToken", "The provided token has expired."));
            }
            KeyState::Unknown => {
                return Some(error(403, "InvalidAccessKeyId", "the key was never issued"));
            }
        }
    }
    match &config.access_key {
        Some(accepted) if !key.contains(&format!("Credential={accepted}/")) => {
            let (status, code) = config.access_refusal;
            Some(error(status, code, "the key is not accepted"))
        }
        _ => None,
    }
}

fn list(config: &S3Config, asked: &Asked, bucket: &Bucket) -> Response<Body> {
    let value = |name: &str| query_value(&asked.query, name);
    let prefix = value("prefix").unwrap_or_default();
    let limit = value("max-keys").and_then(|limit| limit.parse().ok()).unwrap_or(1000usize).min(1000);
    let after = value("continuation-token").or_else(|| value("start-after")).unwrap_or_default();
    let is_after = |key: &str| match config.list_quirk {
        ListQuirk::NeverAdvances => true,
        ListQuirk::InclusiveStartAfter => key >= after.as_str(),
        ListQuirk::None | ListQuirk::Descending => key > after.as_str(),
    };
    let found: Vec<(&String, &Object)> = bucket
        .objects
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix) && is_after(key))
        .take(limit + 1)
        .collect();
    let is_cut = found.len() > limit || (config.list_quirk == ListQuirk::NeverAdvances && !found.is_empty());
    let mut objects: Vec<ListedObject> = found
        .into_iter()
        .take(limit)
        .map(|(key, object)| ListedObject {
            key: key.clone(),
            bytes: object.bytes.len(),
            etag: object.etag.clone(),
            modified_ms: object.modified_ms,
        })
        .collect();
    if config.list_quirk == ListQuirk::Descending {
        objects.reverse();
    }
    let next = if is_cut { objects.last().map(|object| object.key.clone()) } else { None };
    document(200, Bytes::from(list_document(&asked.bucket, &prefix, &objects, next.as_deref())))
}

/// `bytes=from-to` of an object; `None` where it is not satisfiable.
fn parse_range(text: &str, length: usize) -> Option<Range<usize>> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    if from.is_empty() {
        let last: usize = to.parse().ok()?;
        return (last > 0 && length > 0).then(|| length.saturating_sub(last)..length);
    }
    let from: usize = from.parse().ok()?;
    let end = if to.is_empty() { length } else { to.parse::<usize>().ok()?.saturating_add(1).min(length) };
    (from < end).then_some(from..end)
}

fn empty(status: u16) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response
}

fn document(status: u16, text: Bytes) -> Response<Body> {
    let mut response = empty(status);
    *response.body_mut() = Full::new(text).boxed();
    with_header(response, "content-type", "application/xml")
}

fn error(status: u16, code: &str, message: &str) -> Response<Body> {
    document(status, Bytes::from(error_document(code, message)))
}

fn with_header(mut response: Response<Body>, name: &'static str, value: &str) -> Response<Body> {
    if let Ok(value) = value.parse() {
        response.headers_mut().insert(name, value);
    }
    response
}
