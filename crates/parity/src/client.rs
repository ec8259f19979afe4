//! One connection, with requests that nobody checks before they are sent.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tidelog_wire::ApiKey;

use crate::{codec, value::Tree};

/// How long an answer may take: above every wait that a script asks for.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(20);
/// How long nothing must come after a request that is not a request, for "nothing" to be what came.
const SILENCE: Duration = Duration::from_secs(3);
/// What a client calls itself; a broker makes member ids of it.
pub const CLIENT_ID: &str = "parity";

/// The time now.
#[expect(clippy::disallowed_methods, reason = "this measures other programs and is never simulated")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits for some milliseconds.
#[expect(clippy::disallowed_methods, reason = "this waits for other programs and is never simulated")]
pub fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// An answer that is still to come.
#[derive(Debug, Clone, Copy)]
struct Pending {
    api: ApiKey,
    version: i16,
    correlation_id: i32,
}

/// A connection; it is made anew where the broker closed it.
#[derive(Debug)]
pub struct Connection {
    address: String,
    stream: Option<TcpStream>,
    correlation_id: i32,
    pending: VecDeque<Pending>,
}

impl Connection {
    /// Connects with the first request.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), stream: None, correlation_id: 0, pending: VecDeque::new() }
    }

    /// Closes it; answers that are to come are not received.
    pub fn close(&mut self) {
        self.stream = None;
        self.pending.clear();
    }

    fn stream(&mut self) -> Result<&mut TcpStream> {
        if self.stream.is_none() {
            let stream =
                TcpStream::connect(&self.address).with_context(|| format!("connect to {}", self.address))?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        self.stream.as_mut().context("it was made just now")
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        // A broker that closes it meanwhile is found out by whoever receives.
        let _ = self.stream()?.write_all(bytes);
        Ok(())
    }

    /// Sends a request of which an answer may come.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn send(&mut self, api: ApiKey, version: i16, body: &[u8], is_answered: bool) -> Result<()> {
        self.correlation_id += 1;
        let frame = codec::request_frame(api, version, self.correlation_id, CLIENT_ID, body);
        let mut bytes = i32::try_from(frame.len())?.to_be_bytes().to_vec();
        bytes.extend_from_slice(&frame);
        self.send_bytes(&bytes)?;
        if is_answered {
            self.pending.push_back(Pending { api, version, correlation_id: self.correlation_id });
        }
        Ok(())
    }

    /// What comes next: an answer, the end of the connection, or nothing.
    ///
    /// # Errors
    /// Nothing was sent before it.
    pub fn receive(&mut self) -> Result<Tree> {
        let pending = self.pending.pop_front().context("nothing was sent")?;
        let Some(frame) = self.frame(ANSWER_WAIT_MAX)? else { return Ok(self.ended()) };
        let Ok((correlation_id, body)) = codec::response_header(pending.api, pending.version, &frame) else {
            return Ok(Tree::text("<an answer without a header>"));
        };
        if correlation_id != i64::from(pending.correlation_id) {
            self.close();
            return Ok(Tree::text("<the answer to another request>"));
        }
        // An ApiVersions of a version that the broker does not have is answered in version 0.
        let version = match (pending.api, body) {
            (ApiKey::ApiVersions, [0, 35, ..]) => 0,
            _ => pending.version,
        };
        Ok(codec::decode(pending.api, version, body))
    }

    /// What comes after bytes that need not be a request: a frame as it is, the end, or nothing.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn receive_anything(&mut self) -> Result<Tree> {
        match self.frame(SILENCE)? {
            Some(frame) => Ok(Tree::Bytes(frame)),
            None => Ok(self.ended()),
        }
    }

    fn ended(&mut self) -> Tree {
        let was_closed = self.stream.is_none();
        self.close();
        Tree::text(if was_closed { "<the connection is closed>" } else { "<no answer>" })
    }

    /// A frame; `None` where none comes, with the stream gone if the broker closed it.
    fn frame(&mut self, wait: Duration) -> Result<Option<Vec<u8>>> {
        let begun = now();
        let stream = self.stream()?;
        let mut size = [0; 4];
        let mut outcome = read_all(stream, &mut size, begun, wait);
        let mut frame = Vec::new();
        if matches!(outcome, Outcome::Whole) {
            frame = vec![0; usize::try_from(i32::from_be_bytes(size)).unwrap_or(0)];
            outcome = read_all(stream, &mut frame, begun, wait);
        }
        match outcome {
            Outcome::Whole => Ok(Some(frame)),
            Outcome::Silent => Ok(None),
            Outcome::Closed => {
                self.stream = None;
                Ok(None)
            }
        }
    }
}

enum Outcome {
    Whole,
    Closed,
    Silent,
}

fn read_all(stream: &mut TcpStream, mut bytes: &mut [u8], begun: Instant, wait: Duration) -> Outcome {
    while !bytes.is_empty() {
        let left = wait.saturating_sub(begun.elapsed());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Outcome::Silent;
        }
        match stream.read(bytes) {
            Ok(0) => return Outcome::Closed,
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Outcome::Silent;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A reset is as closed as an end.
            Err(_) => return Outcome::Closed,
        }
    }
    Outcome::Whole
}
