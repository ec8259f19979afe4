//! A proxy that misbehaves on demand, before any server that speaks HTTP/1.1 in plain text.
//!
//! **Owns** the faults between a client and a store: statuses, delays, silence, bodies cut short, lost answers, headers
//! stripped or changed, ranges ignored or moved, bytes changed. It forwards heads as they come, so that signatures, which cover `Host`, hold
//! wherever a fault does not change what is signed. Every request is logged. **Does not** know S3.
//!
//! ```text
//! client -- request --> [first rule that matches, if any left] --> server
//!        <-- answer --- [its fault]                            <--
//! ```

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidelog_runtime::{Supervisor, Task};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::s3_answers::error_document;

/// The longest head of a request or answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bodies are forwarded in pieces of this size.
const PIECE_BYTES: usize = 16 * 1024;

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is not forwarded; this status and an S3 error of this code answer it.
    Status(u16, &'static str),
    /// It is forwarded after this time.
    Delay(Duration),
    /// It is read, and nothing answers it.
    Silence,
    /// Its connection is closed before an answer.
    Reset,
    /// The answer's body ends after this many bytes, and the connection with it.
    CutBody(u64),
    /// The answer's body stops after this many bytes; the connection stays open.
    FreezeBody(u64),
    /// It is forwarded and done, and the answer is lost with the connection.
    ForwardThenDrop,
    /// It is forwarded and done, and nothing answers it.
    ForwardThenSilence,
    /// Headers that begin with one of these are not forwarded.
    StripHeaders(Vec<&'static str>),
    /// It is answered with 400 if it has a header that begins with one of these, else forwarded.
    RejectHeaders(Vec<&'static str>),
    /// The `Range` header is not forwarded: the whole object comes with 200.
    IgnoreRange,
    /// The `Range` is forwarded with both ends moved on by this many bytes, and the answer says so.
    OtherRange(u64),
    /// The same, and the answer claims the range that was asked for.
    LyingRange(u64),
    /// A header of the answer has another value.
    AnswerHeader(&'static str, String),
    /// 200 with an error document, and nothing is forwarded.
    ErrorInSuccess,
    /// One byte of the answer's body, at this position, is changed.
    WrongByte(u64),
    /// Bodies pass at this rate in bytes per second, in both directions.
    Rate(u64),
    /// The request's body is read up to this many bytes, and then nothing more.
    FreezeUpload(u64),
}

/// A fault, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The method; any if none.
    pub method: Option<&'static str>,
    /// What the target, path and query, must contain.
    pub target: String,
    /// Matching requests that pass before the first is hit.
    pub skip: u32,
    /// How many are hit.
    pub count: u32,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// Hits every request of a method.
    #[must_use]
    pub fn always(method: &'static str, fault: Fault) -> Self {
        Self { method: Some(method), target: String::new(), skip: 0, count: u32::MAX, fault }
    }

    /// Hits the next `count` requests of a method.
    #[must_use]
    pub fn next(method: &'static str, count: u32, fault: Fault) -> Self {
        Self { count, ..Self::always(method, fault) }
    }

    /// Only targets that contain a text.
    #[must_use]
    pub fn on(self, target: &str) -> Self {
        Self { target: target.to_owned(), ..self }
    }
}

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Its method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names in lower case, in the order in which they came.
    pub headers: Vec<(String, String)>,
    /// The fault that hit it.
    pub fault: Option<Fault>,
    /// The status that answered it, where one did.
    pub status: Option<u16>,
}

impl LoggedRequest {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Vec<Rule>>,
    log: Mutex<Vec<LoggedRequest>>,
}

/// A running proxy. It ends with its supervisor, or when it is dropped.
pub struct S3Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: Task<()>,
}

impl Drop for S3Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl S3Proxy {
    /// Starts one on a free port of the loopback address, before the server at `upstream`.
    ///
    /// # Errors
    /// Where no port can be had.
    pub async fn start(supervisor: &Supervisor, upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (accepting, spawner) = (Arc::clone(&shared), supervisor.clone());
        let task = supervisor.spawn("s3-proxy", async move {
            while let Ok((socket, _)) = listener.accept().await {
                // Delays are the rules' alone.
                let _ = socket.set_nodelay(true);
                let shared = Arc::clone(&accepting);
                let serve = async move {
                    // Connections end in every way here; none of them is the proxy's error.
                    let _ = serve(&shared, socket, upstream).await;
                };
                spawner.spawn("s3-proxy-connection", serve).detach();
            }
        });
        Ok(Self { address, shared, task })
    }

    /// Where it listens, as an endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule after those that are there.
    pub fn add(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
    }

    /// The requests so far.
    #[must_use]
    pub fn log(&self) -> Vec<LoggedRequest> {
        lock(&self.shared.log).clone()
    }

    /// How many requests of a method came whose target contains a text.
    #[must_use]
    pub fn count(&self, method: &str, target: &str) -> usize {
        let log = lock(&self.shared.log);
        log.iter().filter(|request| request.method == method && request.target.contains(target)).count()
    }

    /// Forgets the requests so far.
    pub fn clear_log(&self) {
        lock(&self.shared.log).clear();
    }
}

/// The head of a message: its first line and its headers.
struct Head {
    first: String,
    headers: Vec<(String, String)>,
}

impl Head {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text.into_bytes()
    }

    /// With another value in place of a header's.
    fn with(mut self, name: &str, value: &str) -> Self {
        for (header, old) in &mut self.headers {
            if header.eq_ignore_ascii_case(name) {
                value.clone_into(old);
            }
        }
        self
    }

    /// A range, its ends moved on.
    fn with_range_moved(self, by: u64) -> Self {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        let ends = range.and_then(|range| range.split_once('-'));
        let moved = |end: &str| end.parse::<u64>().ok()?.checked_add(by);
        match ends.and_then(|(from, to)| moved(from).zip(moved(to))) {
            Some((from, to)) => self.with("range", &format!("bytes={from}-{to}")),
            None => self,
        }
    }

    /// The status of an answer.
    fn status(&self) -> Option<u16> {
        self.first.split(' ').nth(1)?.parse().ok()
    }

    fn without(mut self, prefixes: &[&str]) -> Self {
        self.headers.retain(|(name, _)| !begins_with_any(name, prefixes));
        self
    }
}

fn begins_with_any(name: &str, prefixes: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Reads a head; `None` where the connection ended before one.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Head>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if bytes.len() >= HEAD_BYTES_MAX {
            return Err(io::Error::other("a head without end"));
        }
        match stream.read_u8().await {
            Ok(byte) => bytes.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && bytes.is_empty() => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let first = lines.next().unwrap_or("").to_owned();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    Ok(Some(Head { first, headers: headers.collect() }))
}

async fn serve(shared: &Shared, client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
    let (client_read, mut client_write) = client.into_split();
    let mut client_read = BufReader::with_capacity(PIECE_BYTES, client_read);
    let mut server: Option<Server> = None;
    while let Some(head) = read_head(&mut client_read).await? {
        let (at, fault) = shared.note(&head);
        let exchange = Exchange { shared, at, fault: fault.as_ref() };
        match exchange.run(head, &mut client_read, &mut client_write, &mut server, upstream).await? {
            Next::Continue => {}
            Next::Close => return Ok(()),
        }
    }
    Ok(())
}

struct Server {
    read: BufReader<tokio::net::tcp::OwnedReadHalf>,
    write: tokio::net::tcp::OwnedWriteHalf,
}

impl Server {
    async fn connect(upstream: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(upstream).await?;
        socket.set_nodelay(true)?;
        let (read, write) = socket.into_split();
        Ok(Self { read: BufReader::with_capacity(PIECE_BYTES, read), write })
    }
}

#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Close,
}

impl Shared {
    /// Logs a request and finds the fault that hits it.
    fn note(&self, head: &Head) -> (usize, Option<Fault>) {
        let mut words = head.first.split(' ');
        let (method, target) = (words.next().unwrap_or("").to_owned(), words.next().unwrap_or("").to_owned());
        let mut fault = None;
        for rule in lock(&self.rules).iter_mut() {
            let matches = rule.method.is_none_or(|wanted| wanted == method) && target.contains(&rule.target);
            if !matches {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if rule.count > 0 {
                rule.count -= 1;
                fault = Some(rule.fault.clone());
                break;
            }
        }
        let headers =
            head.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        let mut log = lock(&self.log);
        log.push(LoggedRequest { method, target, headers, fault: fault.clone(), status: None });
        (log.len() - 1, fault)
    }

    fn note_status(&self, at: usize, status: Option<u16>) {
        // The log may have been cleared meanwhile.
        if let Some(request) = lock(&self.log).get_mut(at) {
            request.status = status;
        }
    }
}

/// One request on its way.
struct Exchange<'a> {
    shared: &'a Shared,
    at: usize,
    fault: Option<&'a Fault>,
}

impl Exchange<'_> {
    async fn run(
        &self,
        mut head: Head,
        client_read: &mut (impl AsyncRead + Unpin),
        client_write: &mut (impl AsyncWrite + Unpin),
        server: &mut Option<Server>,
        upstream: SocketAddr,
    ) -> io::Result<Next> {
        let is_head = head.first.starts_with("HEAD ");
        let length = head.content_length().unwrap_or(0);
        if head.header("expect").is_some() {
            client_write.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            head = head.without(&["expect"]);
        }
        match self.fault {
            Some(Fault::Status(status, code)) => {
                discard(client_read, length).await?;
                return self.refuse(client_write, *status, code, is_head).await;
            }
            Some(Fault::RejectHeaders(prefixes))
                if head.headers.iter().any(|(name, value)| {
                    begins_with_any(name, prefixes) || value.starts_with("STREAMING-")
                }) =>
            {
                discard(client_read, length).await?;
                return self.refuse(client_write, 400, "InvalidRequest", is_head).await;
            }
            Some(Fault::ErrorInSuccess) => {
                discard(client_read, length).await?;
                return self.refuse(client_write, 200, "InternalError", is_head).await;
            }
            Some(Fault::Reset) => return Ok(Next::Close),
            Some(Fault::Silence) => {
                discard(client_read, length).await?;
                return wait_for_end(client_read).await;
            }
            Some(Fault::FreezeUpload(bytes)) => {
                discard(client_read, length.min(*bytes)).await?;
                std::future::pending::<()>().await;
            }
            Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
            _ => {}
        }
        let asked = head.header("range").and_then(|range| range.strip_prefix("bytes=")).map(str::to_owned);
        head = match self.fault {
            Some(Fault::OtherRange(by) | Fault::LyingRange(by)) => head.with_range_moved(*by),
            Some(Fault::StripHeaders(prefixes)) => head.without(prefixes),
            Some(Fault::IgnoreRange) => head.without(&["range"]),
            _ => head,
        };
        let mut connection = match server.take() {
            Some(connection) => connection,
            None => Server::connect(upstream).await?,
        };
        connection.write.write_all(&head.bytes()).await?;
        copy(client_read, &mut connection.write, length, self.rate()).await?;
        if self.fault == Some(&Fault::ForwardThenSilence) {
            let status = read_head(&mut connection.read).await?.and_then(|head| head.status());
            self.shared.note_status(self.at, status);
            return wait_for_end(client_read).await;
        }
        let next = self.answer(&mut connection, client_write, is_head, asked.as_deref()).await?;
        *server = (next == Next::Continue).then_some(connection);
        Ok(next)
    }

    fn rate(&self) -> Option<u64> {
        match self.fault {
            Some(Fault::Rate(rate)) => Some(*rate),
            _ => None,
        }
    }

    async fn refuse(
        &self,
        client: &mut (impl AsyncWrite + Unpin),
        status: u16,
        code: &str,
        is_head: bool,
    ) -> io::Result<Next> {
        self.shared.note_status(self.at, Some(status));
        let body = error_document(code, "injected");
        let head = format!(
            "HTTP/1.1 {status} Injected\r\ncontent-type: application/xml\r\ncontent-length: {}\r\netag: \"injected\"\r\n\r\n",
            body.len()
        );
        client.write_all(head.as_bytes()).await?;
        if !is_head && status != 304 {
            client.write_all(body.as_bytes()).await?;
        }
        client.flush().await?;
        Ok(Next::Continue)
    }

    /// Takes the server's answer to the client, with the fault.
    async fn answer(
        &self,
        server: &mut Server,
        client: &mut (impl AsyncWrite + Unpin),
        is_head: bool,
        asked: Option<&str>,
    ) -> io::Result<Next> {
        let Some(mut head) = read_head(&mut server.read).await? else { return Ok(Next::Close) };
        let status = head.status();
        let length = head.content_length();
        self.shared.note_status(self.at, status);
        if self.fault == Some(&Fault::ForwardThenDrop) {
            return Ok(Next::Close);
        }
        head = match (self.fault, asked) {
            (Some(Fault::AnswerHeader(name, value)), _) => head.with(name, value),
            (Some(Fault::LyingRange(_)), Some(asked)) => {
                let total = head.header("content-range").and_then(|range| range.rsplit_once('/'));
                match total.map(|(_, total)| format!("bytes {asked}/{total}")) {
                    Some(claimed) => head.with("content-range", &claimed),
                    None => head,
                }
            }
            _ => head,
        };
        client.write_all(&head.bytes()).await?;
        if is_head || matches!(status, Some(204 | 304)) {
            client.flush().await?;
            return Ok(Next::Continue);
        }
        let Some(length) = length else {
            // Chunked, or ended by the connection: everything until its end, and no other request on it.
            copy_to_end(server, client, head.header("transfer-encoding").is_some()).await?;
            return Ok(Next::Close);
        };
        match self.fault {
            Some(Fault::CutBody(bytes)) if *bytes < length => {
                copy(&mut server.read, client, *bytes, None).await?;
                client.flush().await?;
                Ok(Next::Close)
            }
            Some(Fault::FreezeBody(bytes)) if *bytes < length => {
                copy(&mut server.read, client, *bytes, None).await?;
                client.flush().await?;
                std::future::pending().await
            }
            Some(Fault::WrongByte(at)) if *at < length => {
                copy(&mut server.read, client, *at, None).await?;
                let byte = server.read.read_u8().await?;
                client.write_u8(byte ^ 0x40).await?;
                copy(&mut server.read, client, length - at - 1, None).await?;
                Ok(Next::Continue)
            }
            _ => {
                copy(&mut server.read, client, length, self.rate()).await?;
                // A client that was told another length than it gets cannot tell where the next answer begins.
                let is_told = head.content_length() == Some(length);
                Ok(if is_told { Next::Continue } else { Next::Close })
            }
        }
    }
}

/// Waits until the client goes away.
async fn wait_for_end(client: &mut (impl AsyncRead + Unpin)) -> io::Result<Next> {
    let mut byte = [0; 1];
    while client.read(&mut byte).await? > 0 {}
    Ok(Next::Close)
}

async fn discard(from: &mut (impl AsyncRead + Unpin), length: u64) -> io::Result<()> {
    copy(from, &mut tokio::io::sink(), length, None).await
}

/// Takes exactly `length` bytes over, at a rate.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    length: u64,
    rate: Option<u64>,
) -> io::Result<()> {
    let begun = Instant::now();
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    while done < length {
        let room = usize::try_from(length - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let count = from.read(&mut piece[..room]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += u64::try_from(count).unwrap_or(u64::MAX);
        to.write_all(&piece[..count]).await?;
        if let Some(rate) = rate {
            let due = Duration::from_nanos(done.saturating_mul(1_000_000_000) / rate.max(1));
            tokio::time::sleep_until(begun + due).await;
        }
    }
    to.flush().await
}

/// Takes the rest of an answer without a length over.
async fn copy_to_end(
    server: &mut Server,
    client: &mut (impl AsyncWrite + Unpin),
    is_chunked: bool,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut tail = Vec::new();
    loop {
        let count = server.read.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        client.write_all(&piece[..count]).await?;
        client.flush().await?;
        tail.extend_from_slice(&piece[..count]);
        if is_chunked && tail.ends_with(b"0\r\n\r\n") {
            return Ok(());
        }
        let keep = tail.len().saturating_sub(16);
        tail.drain(..keep);
    }
}
