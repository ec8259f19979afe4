//! What this crate sees of HTTP below `object_store`: progress, statuses, dates, and errors dressed as successes.
//!
//! `object_store` hides statuses and headers behind its errors and results. A request that carries an [`Exchange`] in
//! its extensions has them recorded here, on the way to and from the real client:
//!
//! ```text
//! ObjectClient -> object_store (signs, parses) -> WatchedService -> reqwest
//!                                    |             records status, Date, progress
//!                                    +---------> direct connections, for bodies with a plan
//! ```
//!
//! Redirects are not followed: a signature covers the host, and a bucket of another region is a person's to set right.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU16, AtomicU64, Ordering},
    },
    task::{self, Poll},
    time::Duration,
};

use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::BodyExt;
use object_store::{
    ClientConfigKey, ClientOptions, PutPayload,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use tidelog_types::Timestamp;
use tokio::runtime::Handle;

use crate::{
    direct::{BodyPlan, DirectClient, REST_MAX},
    limits::{ERROR_TEXT_MAX, LIST_ANSWER_BYTES_MAX, PUT_ANSWER_BYTES_MAX, UPLOAD_SLICE_BYTES},
};

/// What requests say they are of.
pub(crate) const AGENT: &str = concat!("tidelog/", env!("CARGO_PKG_VERSION"));

/// No date was seen.
const NO_DATE: i64 = i64::MIN;

/// What was seen of one try. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Exchange(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    status: AtomicU16,
    date_ms: AtomicI64,
    moved_bytes: AtomicU64,
}

impl Exchange {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Seen {
            status: AtomicU16::new(0),
            date_ms: AtomicI64::new(NO_DATE),
            moved_bytes: AtomicU64::new(0),
        }))
    }

    /// The status of the answer, if there was one.
    pub(crate) fn status(&self) -> Option<u16> {
        match self.0.status.load(Ordering::Relaxed) {
            0 => None,
            status => Some(status),
        }
    }

    /// The `Date` of the answer, if it had one.
    pub(crate) fn date(&self) -> Option<Timestamp> {
        match self.0.date_ms.load(Ordering::Relaxed) {
            NO_DATE => None,
            millis => Timestamp::from_wire(millis),
        }
    }

    /// Bytes that moved so far, in both directions.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.0.moved_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_moved(&self, bytes: usize) {
        self.0.moved_bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The store's clock, as the last answer told it.
#[derive(Debug, Clone)]
pub(crate) struct StoreDate(Arc<AtomicI64>);

impl StoreDate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(NO_DATE)))
    }

    /// The `Date` of the last answer: at most as late as the store's clock now.
    pub(crate) fn last(&self) -> Option<Timestamp> {
        match self.0.load(Ordering::Relaxed) {
            NO_DATE => None,
            millis => Timestamp::from_wire(millis),
        }
    }
}

/// Makes HTTP clients that watch.
#[derive(Debug)]
pub(crate) struct WatchedConnector {
    pub(crate) date: StoreDate,
    /// Where connections are driven; none: where the request is made that opens one.
    pub(crate) runtime: Option<Handle>,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections_max: usize,
}

impl HttpConnector for WatchedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Services of instance metadata are plain HTTP; `object_store` says so for their clients alone.
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        // There is no limit on a whole request: one would kill large transfers over slow links. What is silent or below
        // the floor rate is ended above.
        let client = reqwest::Client::builder()
            .user_agent(AGENT)
            .https_only(!allow_http)
            .http1_only()
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(REST_MAX)
            .pool_max_idle_per_host(self.connections_max)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| object_store::Error::Generic { store: "HTTP", source: Box::new(error) })?;
        let direct = DirectClient::new(allow_http, self.connect_timeout, self.connections_max);
        let (date, runtime) = (self.date.clone(), self.runtime.clone());
        Ok(HttpClient::new(WatchedService { client, direct, date, runtime }))
    }
}

#[derive(Debug)]
struct WatchedService {
    client: reqwest::Client,
    /// For bodies with a plan.
    direct: Option<DirectClient>,
    date: StoreDate,
    runtime: Option<Handle>,
}

/// A request whose connection, where it opens one, is driven on a runtime of its choice, whoever makes it: pooled connections
/// outlive the request that opened them, and a start's first would have the bucket's bytes received where produces are served.
struct DrivenOn<'a, T> {
    runtime: Option<Handle>,
    request: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
}

impl<T> Future for DrivenOn<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let _entered = this.runtime.as_ref().map(Handle::enter);
        this.request.as_mut().poll(context)
    }
}

impl HttpService for WatchedService {
    fn call<'this, 'call>(
        &'this self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'this: 'call,
        Self: 'call,
    {
        let request = Box::pin(self.call_watched(request));
        Box::pin(DrivenOn { runtime: self.runtime.clone(), request })
    }
}

impl WatchedService {
    async fn call_watched(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let exchange = request.extensions().get::<Exchange>().cloned();
        let is_put = request.method().as_str() == "PUT";
        let is_list = request.method().as_str() == "GET"
            && request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "list-type=2"));
        let response = match (request.extensions().get::<BodyPlan>(), &self.direct) {
            (Some(plan), Some(direct)) => direct.get(&request, plan, exchange.clone()).await?,
            _ => self.send(request, exchange.as_ref()).await?,
        };
        let date = response.headers().get("date").and_then(|date| date.to_str().ok()).and_then(http_date_ms);
        if let Some(date) = date {
            self.date.0.store(date, Ordering::Relaxed);
        }
        if let Some(exchange) = &exchange {
            exchange.0.status.store(response.status().as_u16(), Ordering::Relaxed);
            exchange.0.date_ms.store(date.unwrap_or(NO_DATE), Ordering::Relaxed);
        }
        match response.status().is_success() {
            true if is_put => refuse_error_in_put(response).await,
            true if is_list => refuse_other_than_list(response).await,
            _ => Ok(response),
        }
    }
}

impl WatchedService {
    async fn send(
        &self,
        request: HttpRequest,
        exchange: Option<&Exchange>,
    ) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url =
            parts.uri.to_string().parse().map_err(|error: <reqwest::Url as FromStr>::Err| {
                HttpError::new(HttpErrorKind::Decode, error)
            })?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = match exchange {
            _ if body.content_length() == 0 => None,
            Some(exchange) => Some(watch_upload(body, exchange.clone()).await?),
            None => Some(reqwest::Body::wrap(body)),
        };
        let mut response = self.client.execute(request).await.map_err(network_error)?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let body = reqwest::Body::from(response).map_err(network_error);
        let mut answer = HttpResponse::new(HttpResponseBody::new(body));
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        // Counted before anything is read of it: an answer that is read whole here moves, too.
        Ok(match exchange {
            Some(exchange) => watch_download(answer, exchange.clone()),
            None => answer,
        })
    }
}

fn network_error(error: reqwest::Error) -> HttpError {
    let kind = match error.is_connect() {
        true => HttpErrorKind::Connect,
        false => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error.without_url())
}

/// Cuts the body into slices that are counted when the connection takes them; no byte is copied.
async fn watch_upload(mut body: HttpRequestBody, exchange: Exchange) -> Result<reqwest::Body, HttpError> {
    let mut slices = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(mut chunk) = frame?.into_data() else { continue };
        while !chunk.is_empty() {
            slices.push(chunk.split_to(chunk.len().min(UPLOAD_SLICE_BYTES)));
        }
    }
    let payload: PutPayload = slices.into_iter().collect();
    let counted = HttpRequestBody::from(payload).map_frame(move |frame| {
        if let Some(bytes) = frame.data_ref() {
            exchange.note_moved(bytes.len());
        }
        frame
    });
    Ok(reqwest::Body::wrap(counted))
}

fn watch_download(response: HttpResponse, exchange: Exchange) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let body = body.map_frame(move |frame| {
        if let Some(bytes) = frame.data_ref() {
            exchange.note_moved(bytes.len());
        }
        frame
    });
    HttpResponse::from_parts(parts, HttpResponseBody::new(body))
}

/// A put that is answered with 200 and an `<Error>` document was not done.
async fn refuse_error_in_put(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (response, text) = with_text(response, PUT_ANSWER_BYTES_MAX).await?;
    match contains(&text, b"<Error") {
        true => Err(error_in_success(&text)),
        false => Ok(response),
    }
}

/// A listing that is answered with 200 and another document, or with half of one, would be read as an empty one.
async fn refuse_other_than_list(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (response, text) = with_text(response, LIST_ANSWER_BYTES_MAX).await?;
    match contains(&text, b"<ListBucketResult") && contains(&text, b"</ListBucketResult>") {
        true => Ok(response),
        false => Err(error_in_success(&text)),
    }
}

/// Reads a small answer whole.
async fn with_text(response: HttpResponse, bytes_max: u64) -> Result<(HttpResponse, Bytes), HttpError> {
    let (parts, body) = response.into_parts();
    let mut stream = body.bytes_stream();
    let mut text = Vec::new();
    while let Some(chunk) = stream.next().await {
        text.extend_from_slice(&chunk?);
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > bytes_max {
            return Err(error_in_success(b"an answer without end"));
        }
    }
    let text = Bytes::from(text);
    Ok((HttpResponse::from_parts(parts, HttpResponseBody::from(text.clone())), text))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

fn error_in_success(text: &[u8]) -> HttpError {
    let text = &text[..text.len().min(ERROR_TEXT_MAX)];
    HttpError::new(HttpErrorKind::Interrupted, ErrorInSuccess(String::from_utf8_lossy(text).into_owned()))
}

#[derive(Debug)]
struct ErrorInSuccess(String);

impl fmt::Display for ErrorInSuccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a success that carries an error: {}", self.0)
    }
}

impl std::error::Error for ErrorInSuccess {}

/// The milliseconds since 1970 of an HTTP date.
fn http_date_ms(text: &str) -> Option<i64> {
    DateTime::from_str(text, DateTimeFormat::HttpDate).ok()?.to_millis().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_date_is_read_to_the_second() {
        assert_eq!(http_date_ms("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777_000));
        assert_eq!(http_date_ms("yesterday"), None);
    }

    #[tokio::test]
    async fn an_upload_is_counted_slice_by_slice_as_it_is_taken() {
        let exchange = Exchange::new();
        let payload: PutPayload =
            [Bytes::from(vec![0; UPLOAD_SLICE_BYTES + 1]), Bytes::from_static(b"abc")].into_iter().collect();
        let mut body = watch_upload(HttpRequestBody::from(payload), exchange.clone()).await.unwrap();
        let mut seen = Vec::new();
        while let Some(frame) = body.frame().await {
            seen.push((frame.unwrap().into_data().unwrap().len(), exchange.moved_bytes()));
        }
        let slice = u64::try_from(UPLOAD_SLICE_BYTES).unwrap();
        assert_eq!(seen, [(UPLOAD_SLICE_BYTES, slice), (1, slice + 1), (3, slice + 4)]);
    }
}
