//! Heads of requests and answers, and how faults change them.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest head of a request or answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The head of a message: its first line and its headers.
pub(super) struct Head {
    pub(super) first: String,
    pub(super) headers: Vec<(String, String)>,
}

impl Head {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text.into_bytes()
    }

    /// With another value in place of a header's.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        for (header, old) in &mut self.headers {
            if header.eq_ignore_ascii_case(name) {
                value.clone_into(old);
            }
        }
        self
    }

    /// A range, its ends moved on.
    pub(super) fn with_range_moved(self, by: u64) -> Self {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        let ends = range.and_then(|range| range.split_once('-'));
        let moved = |end: &str| end.parse::<u64>().ok()?.checked_add(by);
        match ends.and_then(|(from, to)| moved(from).zip(moved(to))) {
            Some((from, to)) => self.with("range", &format!("bytes={from}-{to}")),
            None => self,
        }
    }

    /// An answer to a range as if it were one from `by` bytes further on: with that name, and shorter.
    pub(super) fn with_answer_moved(self, by: u64) -> Self {
        let named = self.header("content-range").and_then(|range| range.strip_prefix("bytes "));
        let parts = named
            .and_then(|range| range.split_once('-'))
            .and_then(|(from, rest)| Some((from.parse::<u64>().ok()?.checked_add(by)?, rest.to_owned())));
        let left = self.content_length().and_then(|length| length.checked_sub(by));
        match (parts, left) {
            (Some((from, rest)), Some(left)) => self
                .with("content-range", &format!("bytes {from}-{rest}"))
                .with("content-length", &left.to_string()),
            _ => self,
        }
    }

    /// An answer to a range as if it were the whole object.
    pub(super) fn into_whole(mut self) -> Self {
        "HTTP/1.1 200 OK".clone_into(&mut self.first);
        self.without(&["content-range"])
    }

    /// The status of an answer.
    pub(super) fn status(&self) -> Option<u16> {
        self.first.split(' ').nth(1)?.parse().ok()
    }

    pub(super) fn without(mut self, prefixes: &[&str]) -> Self {
        self.headers.retain(|(name, _)| !begins_with_any(name, prefixes));
        self
    }
}

pub(super) fn begins_with_any(name: &str, prefixes: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Reads a head; `None` where the connection ended before one.
pub(super) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Head>> {
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
