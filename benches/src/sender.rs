//! Sending bytes over loopback, from memory or from a file: the least that answering a fetch can cost.
//!
//! Only the sending thread's CPU time counts; the receiver is the client's side. Slices are sent as a broker sends them: several in
//! one vectored write.

use std::{
    fs::File,
    io::{IoSlice, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    path::Path,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;

use crate::{cpu, get_loop::float};

/// The memory that is sent again and again: larger than the processor's caches.
const MEMORY_BYTES: usize = 128 * 1024 * 1024;

/// What was sent, and at what cost.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Bytes sent.
    pub bytes: u64,
    /// Until the receiver had all of them.
    pub seconds: f64,
    /// Megabytes (10⁶) in a second.
    pub mb_per_s: f64,
    /// CPU seconds of the sending thread for each 10⁹ bytes.
    pub cpu_s_per_gb: f64,
}

/// Sends `bytes` in vectored writes of `slices` slices of `slice_bytes`.
///
/// # Errors
/// Where the loopback interface refuses.
pub fn run(bytes: u64, slice_bytes: usize, slices: usize) -> Result<Outcome> {
    let memory = vec![0x5a_u8; MEMORY_BYTES];
    let slice_bytes = slice_bytes.clamp(1, MEMORY_BYTES);
    to_a_receiver(|socket| {
        let (mut sent, mut at) = (0_u64, 0_usize);
        while sent < bytes {
            let mut write = Vec::with_capacity(slices);
            for _ in 0..slices.max(1) {
                if at + slice_bytes > MEMORY_BYTES {
                    at = 0;
                }
                write.push(IoSlice::new(&memory[at..at + slice_bytes]));
                at += slice_bytes;
            }
            let mut left = write.as_mut_slice();
            while !left.is_empty() {
                let count = socket.write_vectored(left).context("send")?;
                sent += count as u64;
                IoSlice::advance_slices(&mut left, count);
            }
        }
        Ok(sent)
    })
}

/// Bytes that [`run_file`] reads at once.
const FILE_READ_BYTES: usize = 1024 * 1024;

/// Sends a file that lies in the page cache, one read and one write after the other, nothing looked at.
///
/// # Errors
/// Where the file cannot be read, or the loopback interface refuses.
pub fn run_file(path: &Path) -> Result<Outcome> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut buffer = vec![0; FILE_READ_BYTES];
    // The page cache has it from here on.
    let mut at = 0;
    while at < length {
        at += file.read_at(&mut buffer, at)? as u64;
    }
    to_a_receiver(|socket| {
        let mut sent = 0_u64;
        while sent < length {
            let count = file.read_at(&mut buffer, sent).context("read")?;
            anyhow::ensure!(count > 0, "the file became shorter");
            socket.write_all(&buffer[..count]).context("send")?;
            sent += count as u64;
        }
        Ok(sent)
    })
}

/// Measures what `send` does on a connection whose other end discards everything; it answers how much it sent.
fn to_a_receiver(send: impl FnOnce(&mut TcpStream) -> Result<u64>) -> Result<Outcome> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let receiver = thread::Builder::new().name("receive".to_owned()).spawn(move || -> Result<u64> {
        let mut socket = TcpStream::connect(address)?;
        let mut buffer = vec![0; 1024 * 1024];
        let mut received = 0;
        loop {
            match socket.read(&mut buffer)? {
                0 => return Ok(received),
                count => received += count as u64,
            }
        }
    })?;
    let (mut socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let cpu_before = cpu::thread_seconds()?;
    let begun = Instant::now();
    let sent = send(&mut socket)?;
    let cpu = cpu::thread_seconds()? - cpu_before;
    drop(socket);
    let received = receiver.join().map_err(|_| anyhow!("the receiver ended"))??;
    let seconds = begun.elapsed().as_secs_f64();
    anyhow::ensure!(received == sent, "{received} of {sent} bytes were received");
    Ok(Outcome {
        bytes: sent,
        seconds,
        mb_per_s: float(sent) / seconds / 1e6,
        cpu_s_per_gb: cpu / (float(sent) / 1e9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_what_was_asked_for_is_sent_in_whole_writes() {
        let outcome = run(10_000_000, 65_536, 4).unwrap();
        assert_eq!(outcome.bytes, 10_000_000_u64.div_ceil(4 * 65_536) * 4 * 65_536);
        assert!(outcome.cpu_s_per_gb > 0.0);
    }

    #[test]
    fn a_file_is_sent_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, vec![1; 5_000_003]).unwrap();
        assert_eq!(run_file(&path).unwrap().bytes, 5_000_003);
    }
}
