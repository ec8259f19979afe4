//! What this crate sees of HTTP below `object_store`: progress, statuses, dates, and errors dressed as successes.
//!
//! `object_store` hides statuses and headers behind its errors and results. A request that carries an [`Exchange`] in
//! its extensions has them recorded here, on the way to and from the real client:
//!
//! ```text
//! ObjectClient -> object_store (signs, parses) -> WatchedService -> reqwest
//!                                                  records status, Date, progress
//! ```

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU16, AtomicU64, Ordering},
    },
};

use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::BodyExt;
use object_store::{
    ClientOptions, PutPayload,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService, ReqwestConnector,
    },
};
use tidelog_types::Timestamp;

use crate::limits::{PUT_ANSWER_BYTES_MAX, UPLOAD_SLICE_BYTES};

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
}

impl HttpConnector for WatchedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(WatchedService { inner, date: self.date.clone() }))
    }
}

#[derive(Debug)]
struct WatchedService {
    inner: HttpClient,
    date: StoreDate,
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
        Box::pin(self.call_watched(request))
    }
}

impl WatchedService {
    async fn call_watched(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let exchange = request.extensions().get::<Exchange>().cloned();
        let is_put = request.method().as_str() == "PUT";
        let request = match &exchange {
            Some(exchange) if request.body().content_length() > 0 => watch_upload(request, exchange).await?,
            _ => request,
        };
        let response = self.inner.execute(request).await?;
        let date = response.headers().get("date").and_then(|date| date.to_str().ok()).and_then(http_date_ms);
        if let Some(date) = date {
            self.date.0.store(date, Ordering::Relaxed);
        }
        if let Some(exchange) = &exchange {
            exchange.0.status.store(response.status().as_u16(), Ordering::Relaxed);
            exchange.0.date_ms.store(date.unwrap_or(NO_DATE), Ordering::Relaxed);
        }
        let response = if is_put && response.status().is_success() {
            refuse_error_in_success(response).await?
        } else {
            response
        };
        Ok(match exchange {
            Some(exchange) => watch_download(response, exchange),
            None => response,
        })
    }
}

/// A slice of a body that reports when the socket took it: the client drops it then.
struct Slice {
    bytes: Bytes,
    exchange: Exchange,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.exchange.note_moved(self.bytes.len());
    }
}

/// Cuts the body into slices that report their progress; no byte is copied.
async fn watch_upload(request: HttpRequest, exchange: &Exchange) -> Result<HttpRequest, HttpError> {
    let (parts, mut body) = request.into_parts();
    let mut slices = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(mut chunk) = frame?.into_data() else { continue };
        while !chunk.is_empty() {
            let bytes = chunk.split_to(chunk.len().min(UPLOAD_SLICE_BYTES));
            slices.push(Bytes::from_owner(Slice { bytes, exchange: exchange.clone() }));
        }
    }
    let payload: PutPayload = slices.into_iter().collect();
    Ok(HttpRequest::from_parts(parts, HttpRequestBody::from(payload)))
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
async fn refuse_error_in_success(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let mut stream = body.bytes_stream();
    let mut text = Vec::new();
    while let Some(chunk) = stream.next().await {
        text.extend_from_slice(&chunk?);
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > PUT_ANSWER_BYTES_MAX {
            return Err(HttpError::new(
                HttpErrorKind::Decode,
                ErrorInSuccess("an answer without end".to_owned()),
            ));
        }
    }
    if text.windows(6).any(|window| window == b"<Error") {
        let text = String::from_utf8_lossy(&text).into_owned();
        return Err(HttpError::new(HttpErrorKind::Interrupted, ErrorInSuccess(text)));
    }
    Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(text)))
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

    #[test]
    fn a_slice_counts_once_it_is_dropped() {
        let exchange = Exchange::new();
        let slice =
            Bytes::from_owner(Slice { bytes: Bytes::from_static(b"abc"), exchange: exchange.clone() });
        assert_eq!((slice.as_ref(), exchange.moved_bytes()), (&b"abc"[..], 0));
        drop(slice);
        assert_eq!(exchange.moved_bytes(), 3);
    }
}
