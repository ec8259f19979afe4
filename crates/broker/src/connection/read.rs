//! Reading frames: each into one buffer of its own, of which records stay slices. The buffer grows with what came. Large ones come
//! in turns.

use std::{future::Future as _, io, pin::pin, time::Duration};

use bytes::{BufMut, Bytes};
use thiserror::Error;
use tidelog_wire::{ApiKey, DecodeError, FRAME_PREFIX_BYTES, frame_size};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::Semaphore,
    time::{timeout, timeout_at},
};

use super::{
    admission::{FrameBudget, FramePermit, OutOfPace, Pace},
    in_work::InWork,
    turns::{BYTES_PER_TURN, LARGE_COPY, once_in_turn},
};

/// The shortest request: key, version and correlation id.
const REQUEST_BYTES_MIN: usize = 8;

/// What is read before the buffer: the size, the API's key and the version.
const PREFIX_BYTES: usize = FRAME_PREFIX_BYTES + 4;

/// What is read at most before memory is asked for: a frame that no byte follows gets none.
const HEAD_BYTES: usize = 64;

/// A request frame without its size prefix, and its share of a budget.
#[derive(Debug)]
pub(crate) struct Frame {
    pub bytes: Bytes,
    pub permit: FramePermit,
    /// It was announced as one that a Fetch in work makes way for.
    pub hurried: bool,
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
    /// A frame came so slowly that others could not have its memory.
    #[error(
        "a request of {size} bytes came at less than {least} bytes a second while others waited for memory"
    )]
    Slow { size: usize, least: usize },
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
    pub produce: &'a FrameBudget,
    pub reserve: &'a FrameBudget,
    /// Of large copies.
    pub turns: &'a Semaphore,
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
/// While requests are in work the connection is not idle, however long they take.
pub(crate) async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut R,
    limits: ReadLimits<'_>,
    in_work: &InWork,
) -> Result<Frame, ReadEnd> {
    let mut head = [0; HEAD_BYTES];
    let size = read_prefix(reader, &mut head, limits, in_work).await?;
    let api = i16::from_be_bytes([head[FRAME_PREFIX_BYTES], head[FRAME_PREFIX_BYTES + 1]]);
    let hurried = in_work.announce(api);
    let budget = if api == ApiKey::Produce.key() { limits.produce } else { limits.reserve };
    let head_end = HEAD_BYTES.min(size.saturating_add(FRAME_PREFIX_BYTES));
    let filled = PREFIX_BYTES + read_some(reader, &mut head[PREFIX_BYTES..head_end], limits.silence).await?;
    let mut permit = budget.begin(size, in_work).await;
    let first = usize::try_from(permit.bytes()).unwrap_or(size).min(size);
    let mut buffer = Vec::with_capacity(first.max(filled - FRAME_PREFIX_BYTES));
    buffer.extend_from_slice(&head[FRAME_PREFIX_BYTES..filled]);
    let mut pace = Pace::new();
    let turns = (size > LARGE_COPY).then_some(limits.turns);
    while buffer.len() < size {
        if buffer.len() == buffer.capacity() {
            let target = budget.grow(&mut permit, buffer.capacity(), size).await;
            buffer.reserve_exact(target.saturating_sub(buffer.len()));
            pace = permit.pace_of_bytes();
        }
        let room = (buffer.capacity().min(size) - buffer.len()).min(BYTES_PER_TURN);
        let read = once_in_turn(turns, |cx| {
            let mut free = (&mut buffer).limit(room);
            pin!(reader.read_buf(&mut free)).poll(cx)
        });
        let came = match timeout_at(pace.next_look(), read).await {
            Err(_) => false,
            Ok(Err(error)) => return Err(ReadEnd::Lost(error)),
            Ok(Ok(0)) => return Err(ReadEnd::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(Ok(count)) => {
                pace.got(count);
                true
            }
        };
        pace.look(|| budget.pace(&permit, size), came, limits.silence).map_err(|out| match out {
            OutOfPace::Silent => ReadEnd::Stalled(limits.silence),
            OutOfPace::Slow(least) => ReadEnd::Slow { size, least },
        })?;
    }
    Ok(Frame { bytes: Bytes::from(buffer), permit, hurried })
}

/// Reads the size, which is answered, and the API's key and version.
async fn read_prefix<R: AsyncRead + Unpin>(
    reader: &mut R,
    head: &mut [u8; HEAD_BYTES],
    limits: ReadLimits<'_>,
    in_work: &InWork,
) -> Result<usize, ReadEnd> {
    let (mut filled, mut size) = (0, 0);
    while filled < PREFIX_BYTES {
        let wait = if filled == 0 { limits.idle } else { limits.silence };
        match timeout(wait, reader.read(&mut head[filled..PREFIX_BYTES])).await {
            Err(_) if filled > 0 => return Err(ReadEnd::Stalled(limits.silence)),
            Err(_) if in_work.any() => continue,
            Err(_) => return Err(ReadEnd::Idle),
            Ok(Err(error)) => return Err(ReadEnd::Lost(error)),
            Ok(Ok(0)) if filled == 0 => return Err(ReadEnd::Closed),
            Ok(Ok(0)) => return Err(ReadEnd::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(Ok(count)) => filled += count,
        }
        // Checked as soon as it is here: whoever speaks another protocol may wait for us after few bytes.
        if filled >= FRAME_PREFIX_BYTES && size == 0 {
            size = checked_size([head[0], head[1], head[2], head[3]], limits.request_bytes_max)?;
        }
    }
    Ok(size)
}

/// Reads at least one byte.
async fn read_some<R: AsyncRead + Unpin>(
    reader: &mut R,
    into: &mut [u8],
    silence: Duration,
) -> Result<usize, ReadEnd> {
    match timeout(silence, reader.read(into)).await {
        Err(_) => Err(ReadEnd::Stalled(silence)),
        Ok(Err(error)) => Err(ReadEnd::Lost(error)),
        Ok(Ok(0)) => Err(ReadEnd::Lost(io::ErrorKind::UnexpectedEof.into())),
        Ok(Ok(count)) => Ok(count),
    }
}

fn checked_size(start: [u8; FRAME_PREFIX_BYTES], max: usize) -> Result<usize, ReadEnd> {
    match frame_size(start, max) {
        Ok(size) if size < REQUEST_BYTES_MIN => Err(ReadEnd::TooShort(size)),
        Ok(size) => Ok(size),
        Err(error) => Err(other_protocol(start).map_or(ReadEnd::Size(error), ReadEnd::NotKafka)),
    }
}

#[cfg(test)]
mod tests;
