//! One request and its answer on their way, with the fault that hits them.

use std::{io, net::SocketAddr, sync::Mutex, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::Instant,
};

use super::{
    Fault, Shared,
    head::{Head, begins_with_any, read_head},
    lock,
};
use crate::s3_answers::error_document;

/// Bodies are forwarded in pieces of this size.
pub(super) const PIECE_BYTES: usize = 16 * 1024;

/// A connection to the server.
pub(super) struct Server {
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
pub(super) enum Next {
    Continue,
    Close,
}

/// One request on its way.
pub(super) struct Exchange<'a> {
    pub(super) shared: &'a Shared,
    pub(super) at: usize,
    pub(super) fault: Option<&'a Fault>,
}

impl Exchange<'_> {
    pub(super) async fn run(
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
        copy(client_read, &mut connection.write, length, self.pace()).await?;
        if self.fault == Some(&Fault::ForwardThenSilence) {
            let status = read_head(&mut connection.read).await?.and_then(|head| head.status());
            self.shared.note_status(self.at, status);
            return wait_for_end(client_read).await;
        }
        let next = self.answer(&mut connection, client_write, is_head, asked.as_deref()).await?;
        *server = (next == Next::Continue).then_some(connection);
        Ok(next)
    }

    fn pace(&self) -> Option<Pace<'_>> {
        match self.fault {
            Some(Fault::Rate(rate)) => Some(Pace::Own(*rate)),
            Some(Fault::SharedRate(rate)) => Some(Pace::Shared(*rate, &self.shared.link)),
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
            (Some(Fault::MovedAnswer(by)), Some(_)) if status == Some(206) => head.with_answer_moved(*by),
            (Some(Fault::WholeAnswer), Some(_)) if status == Some(206) => head.into_whole(),
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
            Some(Fault::MovedAnswer(by)) if status == Some(206) && *by <= length => {
                discard(&mut server.read, *by).await?;
                copy(&mut server.read, client, length - by, None).await?;
                Ok(Next::Continue)
            }
            Some(Fault::LyingAnswer(by)) if status == Some(206) && *by <= length => {
                let mut first = Vec::new();
                copy(&mut server.read, &mut first, *by, None).await?;
                copy(&mut server.read, client, length - by, None).await?;
                client.write_all(&first).await?;
                client.flush().await?;
                Ok(Next::Continue)
            }
            Some(Fault::WrongByte(at)) if *at < length => {
                copy(&mut server.read, client, *at, None).await?;
                let byte = server.read.read_u8().await?;
                client.write_u8(byte ^ 0x40).await?;
                copy(&mut server.read, client, length - at - 1, None).await?;
                Ok(Next::Continue)
            }
            _ => {
                copy(&mut server.read, client, length, self.pace()).await?;
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

/// How fast bytes go over, in bytes per second.
#[derive(Clone, Copy)]
enum Pace<'a> {
    /// One body's.
    Own(u64),
    /// All bodies' together, with the time when their link is free.
    Shared(u64, &'a Mutex<Option<Instant>>),
}

fn time_of(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1))
}

impl Pace<'_> {
    /// When the next piece may go, once `count` of `done` bytes went.
    fn due(self, begun: Instant, done: u64, count: u64) -> Instant {
        match self {
            Self::Own(rate) => begun + time_of(done, rate),
            Self::Shared(rate, link) => {
                let mut free = lock(link);
                let now = Instant::now();
                let due = free.map_or(now, |free| free.max(now)) + time_of(count, rate);
                *free.insert(due)
            }
        }
    }
}

/// Takes exactly `length` bytes over, at a pace.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    length: u64,
    pace: Option<Pace<'_>>,
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
        to.write_all(&piece[..count]).await?;
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        done += count;
        if let Some(pace) = pace {
            tokio::time::sleep_until(pace.due(begun, done, count)).await;
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
