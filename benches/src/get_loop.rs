//! The raw GET loop: the least that reading ranges from an S3 server can cost on this machine.
//!
//! **Owns** one blocking connection for each of its threads and one buffer into which bodies are received and forgotten. **Does not**
//! sign, retry, check or keep a byte. Its rate is the limit of a replay with the same ranges and concurrency, its CPU time a part
//! of the limit of a replay's.

use std::{
    io::{self, Read, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;

use crate::{cpu, s3::Get};

/// Bytes are received in pieces of up to this size.
const BUFFER_BYTES: usize = 1024 * 1024;

/// The head of an answer is at most this long.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// What a loop did.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Ranges read.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the first request to the last byte.
    pub seconds: f64,
    /// Megabytes (10⁶) in a second.
    pub mb_per_s: f64,
    /// CPU seconds of this process for each 10⁹ bytes.
    pub cpu_s_per_gb: f64,
    /// Mean time from a request to its first byte.
    pub first_byte_ms: f64,
    /// Connections.
    pub concurrency: usize,
}

/// Reads lines of `bucket/key start length`.
///
/// # Errors
/// With the line that is none.
pub fn parse_gets(text: &str) -> Result<Vec<Get>> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut words = line.rsplitn(3, ' ');
            let (length, start, path) = (words.next(), words.next(), words.next());
            match (path, start.map(str::parse), length.map(str::parse)) {
                (Some(path), Some(Ok(start)), Some(Ok(length))) => {
                    Ok(Get { path: path.to_owned(), start, length })
                }
                _ => Err(anyhow!("`{line}` is not `bucket/key start length`")),
            }
        })
        .collect()
}

/// Reads all ranges, in order, over `concurrency` connections.
///
/// # Errors
/// The first that a connection met.
pub fn run(address: SocketAddr, gets: &[Get], concurrency: usize) -> Result<Outcome> {
    let next = AtomicUsize::new(0);
    let (bytes, first_byte_ns) = (AtomicU64::new(0), AtomicU64::new(0));
    let cpu_before = cpu::process_seconds()?;
    let begun = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency.max(1))
            .map(|_| scope.spawn(|| work(address, gets, &next, &bytes, &first_byte_ns)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a connection's thread ended"))?)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let bytes = bytes.into_inner();
    let cpu = cpu::process_seconds()? - cpu_before;
    Ok(Outcome {
        requests: gets.len() as u64,
        bytes,
        seconds,
        mb_per_s: float(bytes) / seconds / 1e6,
        cpu_s_per_gb: cpu / (float(bytes) / 1e9),
        first_byte_ms: float(first_byte_ns.into_inner()) / 1e6 / float(gets.len().max(1) as u64),
        concurrency,
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures of a bench have fewer digits than a double")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

fn work(
    address: SocketAddr,
    gets: &[Get],
    next: &AtomicUsize,
    bytes: &AtomicU64,
    first_byte_ns: &AtomicU64,
) -> Result<()> {
    let mut socket = TcpStream::connect(address).context("connect to the server")?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Some(get) = gets.get(next.fetch_add(1, Ordering::Relaxed)) {
        let last = get.start + get.length.saturating_sub(1);
        let request = format!(
            "GET /{} HTTP/1.1\r\nHost: {address}\r\nRange: bytes={}-{last}\r\n\r\n",
            get.path, get.start
        );
        let asked = Instant::now();
        socket.write_all(request.as_bytes())?;
        let (head, filled) = head(&mut socket, &mut buffer)?;
        let waited = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
        first_byte_ns.fetch_add(waited, Ordering::Relaxed);
        let length = body_bytes(&buffer[..head])?;
        let mut received = (filled - head) as u64;
        while received < length {
            let room = usize::try_from(length - received).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            match socket.read(&mut buffer[..room])? {
                0 => bail!("{} ended after {received} of {length} bytes", get.path),
                count => received += count as u64,
            }
        }
        bytes.fetch_add(received, Ordering::Relaxed);
    }
    Ok(())
}

/// Receives until the head is whole; answers its length and how much of the buffer is filled.
fn head(socket: &mut TcpStream, buffer: &mut [u8]) -> Result<(usize, usize)> {
    let mut filled = 0;
    loop {
        // At first little is asked for: what comes with the head must fit behind it.
        match socket.read(&mut buffer[filled..])? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => filled += count,
        }
        if let Some(end) =
            buffer[..filled].windows(4).take(HEAD_BYTES_MAX).position(|four| four == b"\r\n\r\n")
        {
            return Ok((end + 4, filled));
        }
        if filled >= HEAD_BYTES_MAX {
            bail!("the answer's head has no end");
        }
    }
}

fn body_bytes(head: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(head).context("the answer's head is no text")?;
    if !text.starts_with("HTTP/1.1 206") && !text.starts_with("HTTP/1.1 200") {
        bail!("the server answered {}", text.lines().next().unwrap_or(""));
    }
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .context("the answer has no length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::{Knobs, Server};

    #[test]
    fn the_loop_reads_exactly_the_ranges_it_was_given() {
        let server = Server::start(0, Knobs::default(), &["b".to_owned()]).unwrap();
        server.put("b", "k", bytes::Bytes::from(vec![1; 3_000_000]));
        let gets = parse_gets("b/k 0 1000000\nb/k 1000000 2000000\n").unwrap();
        let outcome = run(server.address(), &gets, 2).unwrap();
        assert_eq!((outcome.requests, outcome.bytes), (2, 3_000_000));
        let mut asked = server.gets();
        asked.sort_by_key(|get| get.start);
        assert_eq!(asked, gets);
        assert!(parse_gets("b/k 0").is_err());
        assert!(run(server.address(), &parse_gets("b/none 0 1").unwrap(), 1).is_err());
    }
}
