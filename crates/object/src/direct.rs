//! Large bodies read from the socket into the buffers in which they stay.
//!
//! A general client reads a body into memory of its own and hands it on in pieces of its choice, so that whoever wants it in
//! pieces of theirs copies each byte once more: a sixth of a replay's CPU. A request that carries a [`BodyPlan`] goes another way.
//! hyper writes the request and reads the answer's head; then its connection is taken apart and the body is read from the
//! socket, each piece of the plan into one buffer, in as few system calls as it takes. Behind the body the connection is kept for
//! the next request.
//!
//! **Owns** connections that are at rest, up to a bound. **Does not own** tries, limits of time and what an answer means. An
//! answer of another form than a part of known length, such as an error, is read by hyper to its end.

use std::{
    collections::VecDeque,
    fmt, io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http_body_util::BodyExt;
use hyper::{
    StatusCode, Uri,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::http1::{self, Connection},
    header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, USER_AGENT},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
};
use tidelog_runtime::{Buffer, Buffers};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::TcpStream,
    time::{Instant, timeout},
};
use tower_service::Service;

use crate::http::{AGENT, Exchange};

/// How long a connection may rest: as long as those of the general client.
pub(crate) const REST_MAX: Duration = Duration::from_secs(30);

/// The size of pieces behind the end of a plan.
const PIECE_BYTES: u64 = 64 * 1024;

/// What is put into the environment where requests go through a proxy: the general client knows how.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

type Io = MaybeHttpsStream<TokioIo<TcpStream>>;

/// How a body is to be cut, and whose buffers its pieces are read into.
#[derive(Debug, Clone)]
pub struct BodyPlan {
    /// The length of each piece in bytes.
    pub pieces: Arc<[u64]>,
    /// Where their memory comes from and goes back to.
    pub buffers: Arc<Buffers>,
}

/// A connection could not be opened.
#[derive(Debug)]
pub(crate) struct ConnectFailed {
    pub(crate) timed_out: bool,
    cause: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Display for ConnectFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connect")
    }
}

impl std::error::Error for ConnectFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DirectClient {
    connector: HttpsConnector<HttpConnector>,
    connect_timeout: Duration,
    resting: Arc<Resting>,
}

impl DirectClient {
    /// None where the environment names a proxy, or the system's certificates cannot be read: the general client says why.
    pub(crate) fn new(allow_http: bool, connect_timeout: Duration, connections_max: usize) -> Option<Self> {
        if PROXIES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
            return None;
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect_timeout));
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let tls = HttpsConnectorBuilder::new().with_provider_and_platform_verifier(provider).ok()?;
        let tls = if allow_http { tls.https_or_http() } else { tls.https_only() };
        let connector = tls.enable_http1().wrap_connector(tcp);
        Some(Self { connector, connect_timeout, resting: Arc::new(Resting::new(connections_max)) })
    }

    /// Sends a request without a body.
    pub(crate) async fn get(
        &self,
        request: &HttpRequest,
        plan: &BodyPlan,
        exchange: Option<Exchange>,
    ) -> Result<HttpResponse, HttpError> {
        let home = Home::of(request.uri())?;
        while let Some(io) = self.resting.take(&home) {
            // Its other end may have closed it as this was written: then nothing came, and nothing happened by it.
            if let Ok(answer) = ask(io, request, &home).await {
                return Ok(self.received(answer, home, plan, exchange));
            }
        }
        let answer = ask(self.connect(request.uri()).await?, request, &home).await?;
        Ok(self.received(answer, home, plan, exchange))
    }

    async fn connect(&self, to: &Uri) -> Result<Io, HttpError> {
        let failed =
            |timed_out, cause| HttpError::new(HttpErrorKind::Connect, ConnectFailed { timed_out, cause });
        let mut connector = self.connector.clone();
        let connecting = async {
            std::future::poll_fn(|context| connector.poll_ready(context)).await?;
            connector.call(to.clone()).await
        };
        match timeout(self.connect_timeout, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(cause)) => Err(failed(false, cause)),
            Err(elapsed) => Err(failed(true, elapsed.into())),
        }
    }

    fn received(
        &self,
        answer: Answer,
        home: Home,
        plan: &BodyPlan,
        exchange: Option<Exchange>,
    ) -> HttpResponse {
        let Answer { head, body, connection } = answer;
        let body = match (plain_length(&head), body) {
            (Some(length), body) => {
                let (first, rest) = taken_apart(connection, body);
                let keeps = head.headers.get(CONNECTION).is_none_or(|value| value != "close");
                HttpResponseBody::new(PlannedBody {
                    rest: Some(rest),
                    first,
                    left: length,
                    pieces: plan.pieces.iter().copied().collect(),
                    buffer: None,
                    buffers: Arc::clone(&plan.buffers),
                    home: keeps.then(|| (Arc::clone(&self.resting), home)),
                    exchange,
                    failed: None,
                })
            }
            (None, body) => {
                HttpResponseBody::new(DrivenBody { connection: Some(connection), body, exchange })
            }
        };
        let mut response = HttpResponse::new(body);
        (*response.status_mut(), *response.headers_mut()) = (head.status, head.headers);
        response
    }
}

fn broken(error: hyper::Error) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}

/// The length of a body that is a part of an object, and nothing but its bytes.
fn plain_length(head: &hyper::http::response::Parts) -> Option<u64> {
    let plain = head.status == StatusCode::PARTIAL_CONTENT && !head.headers.contains_key(TRANSFER_ENCODING);
    let length = head.headers.get(CONTENT_LENGTH).filter(|_| plain)?;
    length.to_str().ok()?.parse().ok()
}

/// Whom a connection is to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Home {
    is_tls: bool,
    authority: String,
    host: HeaderValue,
}

impl Home {
    fn of(uri: &Uri) -> Result<Self, HttpError> {
        let unusable = |what: &'static str| HttpError::new(HttpErrorKind::Request, io::Error::other(what));
        let authority = uri.authority().ok_or_else(|| unusable("an address without a host"))?;
        let is_tls = uri.scheme_str() == Some("https");
        let host = match authority.port_u16() {
            Some(port) if port != if is_tls { 443 } else { 80 } => format!("{}:{port}", authority.host()),
            _ => authority.host().to_owned(),
        };
        let host = HeaderValue::from_str(&host).map_err(|_| unusable("a host that is no header"))?;
        Ok(Self { is_tls, authority: authority.as_str().to_owned(), host })
    }
}

/// An answer whose body is still to be read.
struct Answer {
    head: hyper::http::response::Parts,
    body: Incoming,
    connection: Connection<Io, HttpRequestBody>,
}

/// Writes a request and reads the head of its answer.
async fn ask(io: Io, request: &HttpRequest, home: &Home) -> Result<Answer, HttpError> {
    let (mut sender, mut connection) = http1::handshake(io).await.map_err(broken)?;
    let mut sent = hyper::Request::new(HttpRequestBody::empty());
    *sent.method_mut() = request.method().clone();
    *sent.uri_mut() =
        request.uri().path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
    let headers = sent.headers_mut();
    headers.clone_from(request.headers());
    headers.entry(HOST).or_insert_with(|| home.host.clone());
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    let mut answered = std::pin::pin!(sender.send_request(sent));
    let answer = std::future::poll_fn(|context| {
        let ended = connection.poll_without_shutdown(context);
        match (answered.as_mut().poll(context), ended) {
            (Poll::Ready(answer), _) => Poll::Ready(answer.map_err(broken)),
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(broken(error))),
            (Poll::Pending, Poll::Ready(Ok(()))) => Poll::Ready(Err(HttpError::new(
                HttpErrorKind::Interrupted,
                io::Error::from(io::ErrorKind::UnexpectedEof),
            ))),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        }
    });
    let (head, body) = answer.await?.into_parts();
    Ok(Answer { head, body, connection })
}

/// The bytes of a body that hyper has read so far, and where the others come from.
fn taken_apart(connection: Connection<Io, HttpRequestBody>, mut body: Incoming) -> (VecDeque<Bytes>, Io) {
    let mut first = VecDeque::new();
    while let Some(Some(Ok(frame))) = body.frame().now_or_never() {
        first.extend(frame.into_data());
    }
    let parts = connection.into_parts();
    first.push_back(parts.read_buf);
    first.retain(|bytes| !bytes.is_empty());
    (first, parts.io)
}

/// A body that is read as planned.
struct PlannedBody {
    /// None once the body is whole, or failed.
    rest: Option<Io>,
    /// What came with the head.
    first: VecDeque<Bytes>,
    /// Bytes that are still to come, those in `first` included.
    left: u64,
    pieces: VecDeque<u64>,
    /// The piece that is being read.
    buffer: Option<Piece>,
    buffers: Arc<Buffers>,
    /// Where the connection goes behind the body.
    home: Option<(Arc<Resting>, Home)>,
    exchange: Option<Exchange>,
    /// How it failed, behind what came of a piece.
    failed: Option<io::Error>,
}

struct Piece {
    buffer: Buffer,
    length: usize,
}

impl PlannedBody {
    fn next_piece(&mut self) -> Piece {
        let length =
            self.pieces.pop_front().filter(|length| *length > 0).unwrap_or(PIECE_BYTES).min(self.left);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Piece { buffer: self.buffers.take(length), length }
    }

    fn count(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        if let Some(exchange) = &self.exchange {
            exchange.note_moved(bytes);
        }
    }

    /// Fills a piece from what came with the head, then from the socket.
    fn poll_fill(&mut self, context: &mut Context<'_>, piece: &mut Piece) -> Poll<io::Result<()>> {
        while piece.buffer.len() < piece.length {
            let wanted = piece.length - piece.buffer.len();
            let came = if let Some(first) = self.first.front_mut() {
                let part = first.split_to(wanted.min(first.len()));
                piece.buffer.add(&part);
                if first.is_empty() {
                    self.first.pop_front();
                }
                part.len()
            } else {
                let Some(io) = &mut self.rest else {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                };
                let mut room = ReadBuf::new(piece.buffer.room(piece.length));
                ready!(Pin::new(&mut TokioIo::new(io)).poll_read(context, &mut room))?;
                let came = room.filled().len();
                piece.buffer.advance(came);
                came
            };
            if came == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.count(came);
        }
        Poll::Ready(Ok(()))
    }

    /// The body is whole: the connection rests, unless more came than the answer said.
    fn finish(&mut self) {
        let (rest, home) = (self.rest.take(), self.home.take());
        if let (Some(io), Some((resting, home)), true) = (rest, home, self.first.is_empty()) {
            resting.keep(io, home);
        }
    }
}

impl Body for PlannedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Interrupted, error))));
        }
        if self.left == 0 && self.buffer.is_none() {
            self.finish();
        }
        if self.rest.is_none() {
            return Poll::Ready(None);
        }
        let mut piece = match self.buffer.take() {
            Some(piece) => piece,
            None => self.next_piece(),
        };
        match self.poll_fill(context, &mut piece) {
            Poll::Pending => {
                self.buffer = Some(piece);
                return Poll::Pending;
            }
            Poll::Ready(Ok(())) if self.left == 0 => self.finish(),
            Poll::Ready(Ok(())) => {}
            // What came of the piece goes before the failure: a read goes on from where it broke.
            Poll::Ready(Err(error)) => (self.rest, self.failed) = (None, Some(error)),
        }
        Poll::Ready(Some(Ok(Frame::data(piece.buffer.freeze()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A body that hyper reads.
struct DrivenBody {
    connection: Option<Connection<Io, HttpRequestBody>>,
    body: Incoming,
    exchange: Option<Exchange>,
}

impl Body for DrivenBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        if let Some(connection) = &mut this.connection
            && connection.poll_without_shutdown(context).is_ready()
        {
            // How it ended is what the body ends with.
            this.connection = None;
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let (Some(exchange), Some(Ok(frame))) = (&this.exchange, &frame) {
            exchange.note_moved(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(broken)))
    }
}

/// Connections that nobody uses now.
#[derive(Debug)]
struct Resting {
    connections: Mutex<Vec<(Home, Instant, Io)>>,
    max: usize,
}

impl Resting {
    fn new(max: usize) -> Self {
        Self { connections: Mutex::default(), max }
    }

    /// The one that rested for the shortest time and seems to be open.
    fn take(&self, home: &Home) -> Option<Io> {
        loop {
            let mut io = {
                let mut connections = self.lock();
                connections.retain(|(_, since, _)| since.elapsed() < REST_MAX);
                let at = connections.iter().rposition(|(other, ..)| other == home)?;
                connections.remove(at).2
            };
            if is_silent(&mut io) {
                return Some(io);
            }
        }
    }

    fn keep(&self, io: Io, home: Home) {
        let mut connections = self.lock();
        connections.retain(|(_, since, _)| since.elapsed() < REST_MAX);
        if connections.len() < self.max {
            connections.push((home, Instant::now(), io));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Home, Instant, Io)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nothing came on a connection on which nothing is due: neither an end nor bytes.
fn is_silent(io: &mut Io) -> bool {
    let mut byte = [0];
    let read = std::future::poll_fn(|context| {
        Pin::new(&mut TokioIo::new(&mut *io)).poll_read(context, &mut ReadBuf::new(&mut byte))
    });
    read.now_or_never().is_none()
}
