//! The raw PUT loop: what a server takes at best.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    cpu,
    get_loop::{Outcome, float},
};

/// Puts objects `object-0`, `object-1`, … of `object_bytes` each into a bucket until `bytes` are sent.
///
/// # Errors
/// The first that a connection met.
pub fn run(
    address: SocketAddr,
    bucket: &str,
    object_bytes: usize,
    bytes: u64,
    concurrency: usize,
) -> Result<Outcome> {
    let count = bytes.div_ceil(object_bytes.max(1) as u64);
    let body = vec![0x5a_u8; object_bytes];
    let (next, answer_ns) = (AtomicU64::new(0), AtomicU64::new(0));
    let cpu_before = cpu::process_seconds()?;
    let begun = Instant::now();
    let work = || -> Result<()> {
        let mut socket = TcpStream::connect(address).context("connect to the server")?;
        socket.set_nodelay(true)?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            let head = format!(
                "PUT /{bucket}/object-{number} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {object_bytes}\r\n\r\n"
            );
            socket.write_all(head.as_bytes())?;
            socket.write_all(&body)?;
            let sent = Instant::now();
            let mut answer = [0; 4096];
            let filled = socket.read(&mut answer)?;
            if !answer[..filled].starts_with(b"HTTP/1.1 200") {
                bail!("the server answered {}", String::from_utf8_lossy(&answer[..filled]));
            }
            let waited = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
            answer_ns.fetch_add(waited, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a connection's thread ended"))?)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = cpu::process_seconds()? - cpu_before;
    let bytes = count * object_bytes as u64;
    Ok(Outcome {
        requests: count,
        bytes,
        seconds,
        mb_per_s: float(bytes) / seconds / 1e6,
        cpu_s_per_gb: cpu / (float(bytes) / 1e9),
        first_byte_ms: float(answer_ns.into_inner()) / 1e6 / float(count.max(1)),
        concurrency,
    })
}
