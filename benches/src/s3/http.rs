//! As much of HTTP/1.1 as S3's clients speak: requests with a length, keep-alive, answers with a length.

use std::io::{self, Read, Write as _};
use std::net::TcpStream;

/// The head of a request may have this many bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A body may have this many bytes: S3's limit of one PUT.
const BODY_BYTES_MAX: u64 = 5 * 1024 * 1024 * 1024;

/// A request's head.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    headers: Vec<(String, String)>,
}

impl Head {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// The value of a query parameter, decoded; empty where it has none.
    pub(super) fn query_value(&self, name: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then(|| percent_decode(value))
        })
    }

    pub(super) fn body_bytes(&self) -> io::Result<u64> {
        let text = self.header("content-length").unwrap_or("0");
        text.parse()
            .ok()
            .filter(|length| *length <= BODY_BYTES_MAX)
            .ok_or_else(|| bad("a length that is none"))
    }

    pub(super) fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A connection and what of the next request was read with the last one.
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, buffer: Vec::with_capacity(8192) }
    }

    /// The next request's head; `None` where the client is done.
    pub(super) fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = parse(&self.buffer[..end])?;
                self.buffer.drain(..end + 4);
                return Ok(Some(head));
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(bad("a head without end"));
            }
            let mut chunk = [0; 8192];
            let count = self.socket.read(&mut chunk)?;
            if count == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(&chunk[..count]);
        }
    }

    /// Reads up to `room.len()` bytes of a body: first what is in the buffer already.
    pub(super) fn read_body(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let buffered = self.buffer.len().min(room.len());
        if buffered > 0 {
            room[..buffered].copy_from_slice(&self.buffer[..buffered]);
            self.buffer.drain(..buffered);
            return Ok(buffered);
        }
        match self.socket.read(room)? {
            0 if !room.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }

    pub(super) fn expect_continue(&mut self) -> io::Result<()> {
        self.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
    }
}

fn parse(head: &[u8]) -> io::Result<Head> {
    let text = std::str::from_utf8(head).map_err(|_| bad("a head that is no text"))?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap_or("").split(' ');
    let (Some(method), Some(target)) = (first.next(), first.next()) else {
        return Err(bad("a request without a target"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Ok(Head { method: method.to_owned(), path: percent_decode(path), query: query.to_owned(), headers })
}

/// Turns `%41` into `A`.
pub(super) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// An answer: a status, headers, and a body that may be a slice of an object.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: bytes::Bytes,
    /// What `Content-Length` says where there is no body to send: a HEAD's.
    pub(super) length: Option<u64>,
}

impl Answer {
    pub(super) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: bytes::Bytes::new(), length: None }
    }

    pub(super) fn document(status: u16, text: String) -> Self {
        Self { body: bytes::Bytes::from(text), ..Self::empty(status) }.with("Content-Type", "application/xml")
    }

    pub(super) fn error(status: u16, code: &str) -> Self {
        let text =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{code}</Message></Error>");
        Self::document(status, text)
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The bytes before the body.
    pub(super) fn head(&self, date: &str) -> Vec<u8> {
        let length = self.length.unwrap_or(self.body.len() as u64);
        let status = self.status;
        let mut head = format!("HTTP/1.1 {status} {}\r\nDate: {date}\r\nServer: bench\r\n", reason(status));
        for (name, value) in &self.headers {
            head.push_str(name);
            head.push_str(": ");
            head.push_str(value);
            head.push_str("\r\n");
        }
        if status != 204 {
            head.push_str(&format!("Content-Length: {length}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        400 => "Bad Request",
        404 => "Not Found",
        409 => "Conflict",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        501 => "Not Implemented",
        503 => "Slow Down",
        // The number says it all.
        _ => "",
    }
}
