//! An ordinary client for campaigns that measure what others notice: records with acks=all at a fixed rate, and a consumer at
//! their tail.
//!
//! It shares the processors with what it measures, so it computes next to nothing and waits in the kernel. The rate is open: a
//! record is due when it is due, however slow those before it were, and its latency counts from then. Record *n* goes to partition
//! *n* modulo their count, which begins empty and has no other producer: so offset and number tell of each other, and whatever is
//! missing, twice there or out of order is seen.
//!
//! Its first line says that it begins; then, a few times a second, it prints what took how long since it was due, in seconds since
//! the first line. It ends when its standard input does, once all that it sent is acknowledged and read.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::scope,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use clap::Parser;
use serde_json::json;
use tidelog::client::fetched;
use tidelog_format::batch::{BatchBuilder, NewRecord};
use tidelog_types::{Offset, TopicName};
use tidelog_wire::{
    FRAME_PREFIX_BYTES, Message as _, Reader, Records, Request, ResponseHeader, Str, encode_request_frame,
    frame_size,
    messages::{FetchRequest, FetchResponse, ProduceRequest, ProduceResponse, fetch, produce},
};

const PRODUCE_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 12;

/// The largest answer: that of a fetch which was not asked for long.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How long an answer may take before nobody would wait for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a fetch waits at the tail.
const FETCH_WAIT_MS: i32 = 500;

/// How often what was seen is told.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// A producer and a consumer whose latencies are told.
#[derive(Debug, Parser)]
struct Options {
    /// The node.
    #[arg(long)]
    address: String,
    /// A topic that nobody else writes to.
    #[arg(long)]
    topic: String,
    #[arg(long)]
    partitions: u64,
    /// Records a second.
    #[arg(long)]
    rate: u64,
    /// Bytes of a record's value.
    #[arg(long, default_value_t = 1024)]
    value_bytes: usize,
}

/// One thing that was due and came: both in seconds.
type Sample = (f64, f64);

#[derive(Debug)]
struct Client {
    options: Options,
    topic: TopicName,
    begun: Instant,
    stopped: AtomicBool,
    /// Records that were sent, or are on their way.
    sent: AtomicU64,
    /// `sent` is the last word.
    sender_ended: AtomicBool,
    produced: Mutex<Vec<Sample>>,
    tailed: Mutex<Vec<Sample>>,
    failure: Mutex<Option<String>>,
}

#[allow(clippy::print_stderr, reason = "there is nobody else to tell")]
fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let topic = TopicName::new(&options.topic)?;
    ensure!(options.partitions > 0 && options.rate > 0, "partitions and a rate are needed");
    let (mut sending, mut reading) = (connect(&options.address)?, connect(&options.address)?);
    let mut answers = sending.try_clone()?;
    tell(&json!({ "begun": true }))?;
    let client = Arc::new(Client {
        topic,
        options,
        begun: now(),
        stopped: AtomicBool::new(false),
        sent: AtomicU64::new(0),
        sender_ended: AtomicBool::new(false),
        produced: Mutex::default(),
        tailed: Mutex::default(),
        failure: Mutex::default(),
    });
    scope(|threads| {
        let acknowledged = threads.spawn(|| client.or_fail(client.take_acks(&mut answers)));
        let read = threads.spawn(|| client.or_fail(client.read_tail(&mut reading)));
        threads.spawn(|| client.or_fail(client.send(&mut sending)));
        // Nobody waits for it: where all ends with a failure it is ended with the process.
        let waiter = Arc::clone(&client);
        let input = std::thread::Builder::new().spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            waiter.stopped.store(true, Ordering::Release);
        });
        input.context("start a thread")?;
        while !(acknowledged.is_finished() && read.is_finished()) {
            pause(TELL_EVERY);
            client.tell_samples()?;
        }
        client.tell_samples()
    })?;
    match lock(&client.failure).take() {
        Some(failure) => bail!(failure),
        None => tell(&json!({ "ended": { "records": client.sent.load(Ordering::Acquire) } })),
    }
}

impl Client {
    /// Ends all where one failed.
    fn or_fail(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            lock(&self.failure).get_or_insert_with(|| format!("{error:#}"));
            self.stopped.store(true, Ordering::Release);
        }
    }

    fn has_failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// When record `number` is due, in seconds since the beginning.
    #[allow(clippy::cast_precision_loss, reason = "no campaign sends 2^52 records")]
    fn due(&self, number: u64) -> f64 {
        number as f64 / self.options.rate as f64
    }

    fn note(&self, samples: &Mutex<Vec<Sample>>, number: u64) {
        let due = self.due(number);
        lock(samples).push((due, self.begun.elapsed().as_secs_f64() - due));
    }

    fn tell_samples(&self) -> Result<()> {
        let take = |samples: &Mutex<Vec<Sample>>| std::mem::take(&mut *lock(samples));
        let (produced, tailed) = (take(&self.produced), take(&self.tailed));
        if produced.is_empty() && tailed.is_empty() {
            return Ok(());
        }
        tell(&json!({ "produce": produced, "tail": tailed }))
    }

    fn send(&self, stream: &mut TcpStream) -> Result<()> {
        let mut number = 0;
        let mut last = false;
        while !last {
            let wait = Duration::from_secs_f64(self.due(number)).saturating_sub(self.begun.elapsed());
            if !wait.is_zero() {
                pause(wait);
            }
            let frame = frame(PRODUCE_VERSION, i32::try_from(number)?, &self.produce(number)?)?;
            number += 1;
            // Before the last one is sent: whoever waits for its answer must know then that it is the last.
            last = self.stopped.load(Ordering::Acquire);
            self.sent.store(number, Ordering::Release);
            self.sender_ended.store(last, Ordering::Release);
            stream.write_all(&frame).context("send a record")?;
        }
        Ok(())
    }

    fn produce(&self, number: u64) -> Result<ProduceRequest> {
        let mut value = vec![0xA5; self.options.value_bytes.max(8)];
        value[..8].copy_from_slice(&number.to_be_bytes());
        let record = NewRecord { timestamp: None, key: None, value: Some(&value), headers: &[] };
        let batch = BatchBuilder::new(Offset::ZERO).record(&record).build()?;
        Ok(ProduceRequest {
            acks: -1,
            timeout_ms: i32::try_from(PATIENCE.as_millis())?,
            topic_data: vec![produce::TopicProduceData {
                name: Str::from(self.topic.as_str()),
                partition_data: vec![produce::PartitionProduceData {
                    index: i32::try_from(number % self.options.partitions)?,
                    records: Some(Records::from(batch.to_bytes())),
                }],
                ..Default::default()
            }],
            ..Default::default()
        })
    }

    /// Whether everything is sent that ever will be, and so much of it is done.
    fn is_all(&self, done: u64) -> bool {
        self.has_failed()
            || (self.sender_ended.load(Ordering::Acquire) && done >= self.sent.load(Ordering::Acquire))
    }

    fn take_acks(&self, stream: &mut TcpStream) -> Result<()> {
        let mut number = 0;
        while !self.is_all(number) {
            let answer: ProduceResponse =
                receive::<ProduceRequest>(stream, PRODUCE_VERSION, i32::try_from(number)?)
                    .with_context(|| format!("record {number} was not acknowledged"))?;
            let partition = answer.responses.iter().flat_map(|topic| &topic.partition_responses).next();
            let partition = partition.context("an answer without its partition")?;
            let (code, offset) = (partition.error_code, partition.base_offset);
            ensure!(code == 0, "record {number} was refused with error {code}");
            let wanted = i64::try_from(number / self.options.partitions)?;
            ensure!(
                offset == wanted,
                "record {number} was acknowledged at offset {offset}, {wanted} was due"
            );
            self.note(&self.produced, number);
            number += 1;
        }
        Ok(())
    }

    fn read_tail(&self, stream: &mut TcpStream) -> Result<()> {
        let mut next = vec![0_i64; usize::try_from(self.options.partitions)?];
        let (mut read, mut correlation) = (0, 0);
        while !self.is_all(read) {
            stream
                .write_all(&frame(FETCH_VERSION, correlation, &self.fetch(&next)?)?)
                .context("ask for records")?;
            let answer: FetchResponse = receive::<FetchRequest>(stream, FETCH_VERSION, correlation)
                .context("a fetch was not answered")?;
            correlation = correlation.wrapping_add(1) & i32::MAX;
            ensure!(answer.error_code == 0, "a fetch was refused with error {}", answer.error_code);
            for data in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
                let (partition, code) = (data.partition_index, data.error_code);
                ensure!(code == 0, "partition {partition} was refused with error {code}");
                let Some(records) = data.records else { continue };
                read += self.take_records(partition, &mut next, records.to_bytes())?;
            }
        }
        Ok(())
    }

    fn take_records(&self, partition: i32, next: &mut [i64], records: Bytes) -> Result<u64> {
        let index = usize::try_from(partition)?;
        let next = next.get_mut(index).context("a partition that nobody asked for")?;
        let mut count = 0;
        for record in fetched(&self.topic, records)? {
            let value = record.value.context("a record without its value")?;
            let number = value.first_chunk().map_or(u64::MAX, |number| u64::from_be_bytes(*number));
            let wanted = u64::try_from(*next)? * self.options.partitions + u64::try_from(partition)?;
            ensure!(
                record.offset == *next && number == wanted,
                "offset {} of partition {partition} has record {number}: offset {next} with record {wanted} was due",
                record.offset,
            );
            self.note(&self.tailed, number);
            (*next, count) = (*next + 1, count + 1);
        }
        Ok(count)
    }

    fn fetch(&self, next: &[i64]) -> Result<FetchRequest> {
        let partitions = next.iter().zip(0..).map(|(offset, partition)| fetch::FetchPartition {
            partition,
            fetch_offset: *offset,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        });
        Ok(FetchRequest {
            max_wait_ms: FETCH_WAIT_MS,
            min_bytes: 1,
            max_bytes: i32::try_from(ANSWER_BYTES_MAX / 2)?,
            session_epoch: -1,
            topics: vec![fetch::FetchTopic {
                topic: Str::from(self.topic.as_str()),
                partitions: partitions.collect(),
                ..Default::default()
            }],
            ..Default::default()
        })
    }
}

fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn frame<R: Request>(version: i16, correlation: i32, request: &R) -> Result<Vec<u8>> {
    let slices = encode_request_frame(version, correlation, Some(Str::from_static("ordinary")), request)?;
    Ok(slices.concat())
}

fn receive<R: Request>(stream: &mut TcpStream, version: i16, correlation: i32) -> Result<R::Response> {
    let mut prefix = [0; FRAME_PREFIX_BYTES];
    stream.read_exact(&mut prefix)?;
    let mut body = vec![0; frame_size(prefix, ANSWER_BYTES_MAX)?];
    stream.read_exact(&mut body)?;
    let mut reader = Reader::new(Bytes::from(body));
    let header = ResponseHeader::decode(&mut reader, R::API, version)?;
    let found = header.correlation_id;
    ensure!(found == correlation, "the answer is of request {found}, {correlation} was asked");
    Ok(R::Response::decode(&mut reader, version)?)
}

fn tell(document: &serde_json::Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{document}").and_then(|()| out.flush()).context("tell what was seen")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(clippy::disallowed_methods, reason = "a client's own time, of which nothing of the product is made")]
fn now() -> Instant {
    Instant::now()
}

#[allow(
    clippy::disallowed_methods,
    reason = "a client's own threads wait in the kernel, and no runtime is measured with them"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
