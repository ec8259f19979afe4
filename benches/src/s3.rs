//! A stand-in for S3 that is not what is measured: in memory, one blocking thread for a connection, bodies sent from where they
//! lie.
//!
//! **Owns** objects with ETags, conditional puts and gets, exact ranges, multipart uploads, listings, bulk deletes, and
//! knobs for time, rate and faults. **Does not** verify signatures, keep versions, or store a byte on disk.
//!
//! `testkit` has one of its own, for tests: it is on tokio, whose timer ticks at 1 ms (64 KiB pieces at 90 MB/s are 0.7 ms
//! apart), copies puts as they grow and checks their CRC, and knows no multipart. Here a thread sleeps to the microsecond,
//! a GET is one `write` from the object's memory, and a PUT is read straight into its final allocation.
//!
//! It also says what was asked of it: `GET /_bench/gets` lists every ranged GET since the last `POST /_bench/reset`, so that the raw
//! loop can ask for exactly the ranges that a node asked for; `GET /_bench/stats` counts requests, bytes and the most GETs at
//! once; `POST /_bench/config` with lines `knob=value` changes knobs.

mod faults;
mod http;
mod list;
mod objects;
mod requests;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use objects::Objects;

/// Connections at once; a node has some tens.
const CONNECTIONS_MAX: u64 = 1024;

/// What a connection's thread may use of stack.
const STACK_BYTES: usize = 256 * 1024;

/// The knobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Knobs {
    /// Time to the first byte of every answer.
    pub first_byte: Duration,
    /// Bytes per second of one connection, in each direction; none is as fast as it goes.
    pub connection_rate: Option<u64>,
    /// Bytes per second of all connections together, towards the clients.
    pub total_rate: Option<u64>,
    /// How many requests of a thousand are answered with 503.
    pub busy_per_mille: u32,
    /// How many requests of a thousand are never answered.
    pub hang_per_mille: u32,
    /// How many GETs of a thousand end after half of the body.
    pub cut_per_mille: u32,
}

impl Knobs {
    /// As S3 answers: 90 MB/s for a connection, 500 MB/s in all, and this time to the first byte.
    #[must_use]
    pub fn shaped(first_byte: Duration) -> Self {
        Self {
            first_byte,
            connection_rate: Some(90_000_000),
            total_rate: Some(500_000_000),
            ..Self::default()
        }
    }

    /// Sets a knob by its name.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number: u64 = value.trim().parse().map_err(|_| format!("{name}: `{value}` is not a number"))?;
        let rate = Some(number).filter(|rate| *rate > 0);
        let per_mille = u32::try_from(number.min(1000)).unwrap_or(1000);
        match name.trim() {
            "first_byte_us" => self.first_byte = Duration::from_micros(number),
            "connection_rate" => self.connection_rate = rate,
            "total_rate" => self.total_rate = rate,
            "busy_per_mille" => self.busy_per_mille = per_mille,
            "hang_per_mille" => self.hang_per_mille = per_mille,
            "cut_per_mille" => self.cut_per_mille = per_mille,
            other => return Err(format!("there is no knob `{other}`")),
        }
        Ok(())
    }
}

/// One ranged read that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    /// Bucket and key.
    pub path: String,
    /// The first byte.
    pub start: u64,
    /// How many.
    pub length: u64,
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    puts: AtomicU64,
    get_requests: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    faults: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    gets_now: AtomicU64,
    gets_at_once_max: AtomicU64,
    /// The time that all GETs took together.
    gets_busy_us: AtomicU64,
    connections: AtomicU64,
}

struct State {
    knobs: Mutex<Knobs>,
    objects: Mutex<Objects>,
    gets: Mutex<Vec<Get>>,
    counts: Counts,
    chance: AtomicU64,
    started: Instant,
    /// When the line that all connections share is free again.
    line_free: Mutex<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running stand-in; it ends with the process.
#[derive(Clone)]
pub struct Server {
    address: SocketAddr,
    state: Arc<State>,
}

impl Server {
    /// Starts one on a port of the loopback address (0 is any), with the buckets named.
    ///
    /// # Errors
    /// Where the port or a thread cannot be had.
    pub fn start(port: u16, knobs: Knobs, buckets: &[String]) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let address = listener.local_addr()?;
        let now = Instant::now();
        let state = Arc::new(State {
            knobs: Mutex::new(knobs),
            objects: Mutex::new(Objects::with_buckets(buckets)),
            gets: Mutex::default(),
            counts: Counts::default(),
            chance: AtomicU64::new(0),
            started: now,
            line_free: Mutex::new(now),
        });
        let accepting = Arc::clone(&state);
        thread::Builder::new().name("accept".to_owned()).spawn(move || {
            for socket in listener.incoming().flatten() {
                let state = Arc::clone(&accepting);
                if state.counts.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                    state.counts.connections.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let serve = move || {
                    // A client that goes away is no error of the stand-in.
                    let _ = requests::serve(&state, socket);
                    state.counts.connections.fetch_sub(1, Ordering::Relaxed);
                };
                let started =
                    thread::Builder::new().name("connection".to_owned()).stack_size(STACK_BYTES).spawn(serve);
                if started.is_err() {
                    accepting.counts.connections.fetch_sub(1, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Self { address, state })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts an object past the protocol.
    pub fn put(&self, bucket: &str, key: &str, bytes: bytes::Bytes) {
        lock(&self.state.objects).put(bucket, key, bytes, self.state.wall_seconds());
    }

    /// The ranged reads since the start or the last reset.
    #[must_use]
    pub fn gets(&self) -> Vec<Get> {
        lock(&self.state.gets).clone()
    }
}

impl State {
    fn wall_seconds(&self) -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Takes the shared line for a time; answers when that time is over.
    fn take_line(&self, time: Duration) -> Instant {
        let mut free = lock(&self.line_free);
        let end = (*free).max(Instant::now()) + time;
        *free = end;
        end
    }

    fn stats(&self) -> String {
        let counts = &self.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        serde_json::json!({
            "requests": read(&counts.requests),
            "puts": read(&counts.puts),
            "gets": read(&counts.get_requests),
            "lists": read(&counts.lists),
            "deletes": read(&counts.deletes),
            "faults": read(&counts.faults),
            "bytes_in": read(&counts.bytes_in),
            "bytes_out": read(&counts.bytes_out),
            "gets_at_once_max": read(&counts.gets_at_once_max),
            "gets_busy_us": read(&counts.gets_busy_us),
            "objects": lock(&self.objects).count(),
            "object_bytes": lock(&self.objects).bytes(),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
        .to_string()
    }

    fn reset(&self) {
        lock(&self.gets).clear();
        let counts = &self.counts;
        for counter in [
            &counts.requests,
            &counts.puts,
            &counts.get_requests,
            &counts.lists,
            &counts.deletes,
            &counts.faults,
            &counts.bytes_in,
            &counts.bytes_out,
            &counts.gets_at_once_max,
            &counts.gets_busy_us,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// How long `bytes` take at `rate` bytes per second.
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

fn sleep_until(time: Instant) {
    let left = time.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}

#[cfg(test)]
mod tests;
