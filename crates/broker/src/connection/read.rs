//! Reading frames: each into one buffer of its own, of which records stay slices. The buffer grows with what came. Large ones come
//! in turns. With a small one comes what is here of the next one's first bytes.

use std::{
    future::{Future as _, poll_fn},
    io::{self, IoSliceMut},
    pin::pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes};
use thiserror::Error;
use tidelog_wire::{ApiKey, DecodeError, FRAME_PREFIX_BYTES, frame_size};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::tcp::ReadHalf,
    sync::Semaphore,
    time::{error::Elapsed, timeout, timeout_at},
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

/// What frames are read from.
pub(crate) trait Source: AsyncRead + Unpin {
    /// Reads into `frame`, and what comes behind that into `behind`; answers how many bytes both got.
    fn poll_read_both(
        &mut self,
        cx: &mut Context<'_>,
        frame: &mut [u8],
        behind: &mut [u8],
    ) -> Poll<io::Result<usize>>;
}

impl Source for ReadHalf<'_> {
    fn poll_read_both(
        &mut self,
        cx: &mut Context<'_>,
        frame: &mut [u8],
        behind: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut both = [IoSliceMut::new(frame), IoSliceMut::new(behind)];
        loop {
            ready!(self.as_ref().poll_read_ready(cx))?;
            match self.try_read_vectored(&mut both) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }
}

/// The first bytes of the next frame, as far as they came with the last ones of the frame before.
#[derive(Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD_BYTES],
    filled: usize,
}

impl Head {
    /// Nothing came yet.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; HEAD_BYTES], filled: 0 }
    }

    /// Reads until the size, which is answered, and the API's key and version are here.
    async fn read_size<R: Source>(
        &mut self,
        reader: &mut R,
        limits: ReadLimits<'_>,
        in_work: &InWork,
    ) -> Result<usize, ReadEnd> {
        loop {
            // Checked as soon as it is here: whoever speaks another protocol may wait for us after few bytes.
            if self.filled >= FRAME_PREFIX_BYTES {
                let start = [self.bytes[0], self.bytes[1], self.bytes[2], self.bytes[3]];
                let size = checked_size(start, limits.request_bytes_max)?;
                if self.filled >= PREFIX_BYTES {
                    return Ok(size);
                }
            }
            let wait = if self.filled == 0 { limits.idle } else { limits.silence };
            match self.read(reader, wait).await {
                Err(ReadEnd::Stalled(_)) if self.filled == 0 && in_work.any() => {}
                Err(ReadEnd::Stalled(_)) if self.filled == 0 => return Err(ReadEnd::Idle),
                Err(ReadEnd::Lost(error))
                    if self.filled == 0 && error.kind() == io::ErrorKind::UnexpectedEof =>
                {
                    return Err(ReadEnd::Closed);
                }
                read => read?,
            }
        }
    }

    /// Reads at least one byte.
    async fn read<R: Source>(&mut self, reader: &mut R, wait: Duration) -> Result<(), ReadEnd> {
        match timeout(wait, reader.read(&mut self.bytes[self.filled..])).await {
            Err(_) => return Err(ReadEnd::Stalled(wait)),
            Ok(Err(error)) => return Err(ReadEnd::Lost(error)),
            Ok(Ok(0)) => return Err(ReadEnd::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(Ok(count)) => self.filled += count,
        }
        Ok(())
    }

    /// Gives what is here of a frame of this size, without the size itself, and keeps what is of the next one. Answers how
    /// many bytes were given.
    fn give(&mut self, size: usize, take: impl FnOnce(&[u8])) -> usize {
        let end = self.filled.min(size.saturating_add(FRAME_PREFIX_BYTES));
        take(&self.bytes[FRAME_PREFIX_BYTES..end]);
        self.bytes.copy_within(end..self.filled, 0);
        self.filled -= end;
        end - FRAME_PREFIX_BYTES
    }
}

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
pub(crate) async fn read_frame<R: Source>(
    reader: &mut R,
    head: &mut Head,
    limits: ReadLimits<'_>,
    in_work: &InWork,
) -> Result<Frame, ReadEnd> {
    let size = head.read_size(reader, limits, in_work).await?;
    let api = i16::from_be_bytes([head.bytes[FRAME_PREFIX_BYTES], head.bytes[FRAME_PREFIX_BYTES + 1]]);
    let hurried = in_work.announce(api);
    let budget = if api == ApiKey::Produce.key() { limits.produce } else { limits.reserve };
    if head.filled == PREFIX_BYTES && size + FRAME_PREFIX_BYTES > PREFIX_BYTES {
        head.read(reader, limits.silence).await?;
    }
    let permit = budget.begin(size, in_work).await;
    let first = usize::try_from(permit.bytes()).unwrap_or(size).min(size);
    let memory = Memory { budget, permit, size, silence: limits.silence };
    if first == size && size <= LARGE_COPY {
        let (bytes, permit) = read_small(reader, head, memory).await?;
        return Ok(Frame { bytes, permit, hurried });
    }
    let turns = (size > LARGE_COPY).then_some(limits.turns);
    let (bytes, permit) = read_large(reader, head, memory, first, turns).await?;
    Ok(Frame { bytes, permit, hurried })
}

/// What a frame has of a budget, and how fast it must come for it.
struct Memory<'a> {
    budget: &'a FrameBudget,
    permit: FramePermit,
    size: usize,
    silence: Duration,
}

impl Memory<'_> {
    /// Takes a read of the frame's bytes, or the end of the wait for one, to account.
    fn account(&self, pace: &mut Pace, read: Result<io::Result<usize>, Elapsed>) -> Result<usize, ReadEnd> {
        let count = match read {
            Err(_) => 0,
            Ok(Err(error)) => return Err(ReadEnd::Lost(error)),
            Ok(Ok(0)) => return Err(ReadEnd::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(Ok(count)) => {
                pace.got(count);
                count
            }
        };
        let look = pace.look(|| self.budget.pace(&self.permit, self.size), count > 0, self.silence);
        look.map_err(|out| match out {
            OutOfPace::Silent => ReadEnd::Stalled(self.silence),
            OutOfPace::Slow(least) => ReadEnd::Slow { size: self.size, least },
        })?;
        Ok(count)
    }
}

/// Reads a frame that has all of its memory, and what came of the next one's head: a system call for each frame of many.
async fn read_small<R: Source>(
    reader: &mut R,
    head: &mut Head,
    memory: Memory<'_>,
) -> Result<(Bytes, FramePermit), ReadEnd> {
    let size = memory.size;
    let mut buffer = vec![0; size];
    let mut filled = head.give(size, |bytes| buffer[..bytes.len()].copy_from_slice(bytes));
    let mut pace = Pace::new();
    while filled < size {
        let read = poll_fn(|cx| reader.poll_read_both(cx, &mut buffer[filled..], &mut head.bytes));
        let read = timeout_at(pace.next_look(), read).await;
        let count = memory.account(&mut pace, read)?;
        filled += count;
        head.filled = filled.saturating_sub(size);
    }
    Ok((Bytes::from(buffer), memory.permit))
}

/// Reads a frame into memory that grows with what came.
async fn read_large<R: Source>(
    reader: &mut R,
    head: &mut Head,
    mut memory: Memory<'_>,
    first: usize,
    turns: Option<&Semaphore>,
) -> Result<(Bytes, FramePermit), ReadEnd> {
    let size = memory.size;
    let mut buffer = Vec::with_capacity(first.max(head.filled));
    head.give(size, |bytes| buffer.extend_from_slice(bytes));
    let mut pace = Pace::new();
    while buffer.len() < size {
        if buffer.len() == buffer.capacity() {
            let target = memory.budget.grow(&mut memory.permit, buffer.capacity(), size).await;
            buffer.reserve_exact(target.saturating_sub(buffer.len()));
            pace = memory.permit.pace_of_bytes();
        }
        let room = (buffer.capacity().min(size) - buffer.len()).min(BYTES_PER_TURN);
        let read = once_in_turn(turns, |cx| {
            let mut free = (&mut buffer).limit(room);
            pin!(reader.read_buf(&mut free)).poll(cx)
        });
        let read = timeout_at(pace.next_look(), read).await;
        memory.account(&mut pace, read)?;
    }
    Ok((Bytes::from(buffer), memory.permit))
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
