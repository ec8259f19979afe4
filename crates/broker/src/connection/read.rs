//! Reading frames: each straight into one buffer of its own, of which records stay slices.

use std::{io, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;
use tidelog_runtime::{Budget, Permit};
use tidelog_wire::{ApiKey, DecodeError, FRAME_PREFIX_BYTES, frame_size};
use tokio::{io::AsyncReadExt, net::tcp::ReadHalf, time::timeout};

/// The shortest request: key, version and correlation id.
const REQUEST_BYTES_MIN: usize = 8;

/// What is read before the buffer: the size, the API's key and the version.
const PREFIX_BYTES: usize = FRAME_PREFIX_BYTES + 4;

/// A request frame without its size prefix, and its share of a budget.
#[derive(Debug)]
pub(crate) struct Frame {
    pub bytes: Bytes,
    pub permit: Permit,
}

/// Why no further frame is read from a connection.
#[derive(Debug, Error)]
pub(crate) enum ReadEnd {
    /// The peer closed between two frames.
    #[error("closed by the peer")]
    Closed,
    /// The connection broke, or closed inside a frame.
    #[error("connection lost")]
    Lost(#[source] io::Error),
    /// No request for `connections.max.idle.ms`.
    #[error("no request for longer than connections.max.idle.ms")]
    Idle,
    /// A frame was begun and then nothing came.
    #[error("a request was begun and then no byte came for {0:?}")]
    Stalled(Duration),
    /// The size before the frame makes no sense.
    #[error("{0}")]
    Size(#[source] DecodeError),
    /// A frame too short for a request.
    #[error("a frame of {0} bytes is no request")]
    TooShort(usize),
    /// Another protocol.
    #[error("the peer speaks {0} to a listener of the Kafka protocol")]
    NotKafka(&'static str),
}

/// What a connection reads frames under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLimits<'a> {
    pub request_bytes_max: usize,
    pub idle: Duration,
    /// The longest time in which a frame that was begun may get no byte.
    pub silence: Duration,
    pub produce: &'a Budget,
    pub reserve: &'a Budget,
}

/// The protocol that other software opens a connection with, told from the first four bytes.
fn other_protocol(start: [u8; FRAME_PREFIX_BYTES]) -> Option<&'static str> {
    match &start {
        b"GET " | b"POST" | b"HEAD" | b"PUT " | b"DELE" | b"OPTI" | b"PATC" | b"CONN" | b"TRAC" | b"PRI " => {
            Some("HTTP")
        }
        // A TLS record of type handshake, version 3.x.
        [0x16, 0x03, 0..=4, _] => Some("TLS"),
        _ => None,
    }
}

/// Reads the next frame. Not cancel safe: a connection whose read was dropped is closed.
///
/// `busy` says whether requests are in work: then the connection is not idle, however long they take.
pub(crate) async fn read_frame(
    reader: &mut ReadHalf<'_>,
    limits: ReadLimits<'_>,
    busy: impl Fn() -> bool,
) -> Result<Frame, ReadEnd> {
    let mut prefix = [0; PREFIX_BYTES];
    let mut filled = 0;
    let mut size = 0;
    while filled < PREFIX_BYTES {
        let wait = if filled == 0 { limits.idle } else { limits.silence };
        match timeout(wait, reader.read(&mut prefix[filled..])).await {
            Err(_) if filled > 0 => return Err(ReadEnd::Stalled(limits.silence)),
            Err(_) if busy() => continue,
            Err(_) => return Err(ReadEnd::Idle),
            Ok(Err(error)) => return Err(ReadEnd::Lost(error)),
            Ok(Ok(0)) if filled == 0 => return Err(ReadEnd::Closed),
            Ok(Ok(0)) => return Err(ReadEnd::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(Ok(count)) => filled += count,
        }
        // Checked as soon as it is here: whoever speaks another protocol may wait for us after few bytes.
        if filled >= FRAME_PREFIX_BYTES && size == 0 {
            size = checked_size(prefix, limits.request_bytes_max)?;
        }
    }
    let start: [u8; 4] = [prefix[4], prefix[5], prefix[6], prefix[7]];
    let budget = if i16::from_be_bytes([start[0], start[1]]) == ApiKey::Produce.key() {
        limits.produce
    } else {
        limits.reserve
    };
    // Memory is for those that send: a size alone reserves nothing.
    let mut one = [0; 1];
    match timeout(limits.silence, reader.peek(&mut one)).await {
        Err(_) => return Err(ReadEnd::Stalled(limits.silence)),
        Ok(Err(error)) => return Err(ReadEnd::Lost(error)),
        Ok(Ok(_)) => {}
    }
    let permit = budget.acquire(u64::try_from(size).unwrap_or(u64::MAX)).await;
    let mut buffer = BytesMut::with_capacity(size);
    buffer.put_slice(&start);
    while buffer.len() < size {
        let rest = size - buffer.len();
        match timeout(limits.silence, reader.read_buf(&mut (&mut buffer).limit(rest))).await {
            Err(_) => return Err(ReadEnd::Stalled(limits.silence)),
            Ok(Err(error)) => return Err(ReadEnd::Lost(error)),
            Ok(Ok(0)) => return Err(ReadEnd::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(Ok(_)) => {}
        }
    }
    Ok(Frame { bytes: buffer.freeze(), permit })
}

fn checked_size(prefix: [u8; PREFIX_BYTES], max: usize) -> Result<usize, ReadEnd> {
    let start = [prefix[0], prefix[1], prefix[2], prefix[3]];
    match frame_size(start, max) {
        Ok(size) if size < REQUEST_BYTES_MIN => Err(ReadEnd::TooShort(size)),
        Ok(size) => Ok(size),
        Err(error) => Err(other_protocol(start).map_or(ReadEnd::Size(error), ReadEnd::NotKafka)),
    }
}
