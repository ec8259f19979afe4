//! What the hot path allocates, counted, with batches of 16 KiB.
//!
//! | path | bound | what it is |
//! | --- | --- | --- |
//! | produced, one batch a request | 1.10 | the frame once, and about 1.4 KiB of bookkeeping for request, append, journal and tail |
//! | produced, sixteen partitions a request | 2.20 | the frame, and each batch once more: the tail does not keep a frame alive for a sixteenth of it |
//! | fetched from the tail, 64 KiB and more | 0.05 | the answer's own bytes |
//!
//! A copy of the records anywhere would add a whole 1.00. Where a bound breaks, [`sites`] tells who allocates.
//!
//! A binary of its own, since the allocator is the process's. The whole node is in it: socket, codec, partition, journal and
//! tail are counted together. The client's buffers are made before counting begins.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends it, and says where")]

#[path = "../it/node.rs"]
#[allow(dead_code, reason = "the harness is shared with the other binary, which uses all of it")]
mod node;

mod sites;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::BytesMut;
use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{batch, fetch_request};
use tidelog_types::ByteSize;
use tidelog_wire::{
    Records, Str, encode_request_frame,
    messages::{
        FetchRequest, ProduceRequest,
        produce::{PartitionProduceData, TopicProduceData},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Counts the bytes that are asked for; a reallocation counts with what it adds.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Bytes by the size of the allocation, in powers of two: what a failure is looked for with.
static BY_SIZE: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];

fn count(size: usize) {
    if sites::noting() {
        return;
    }
    ALLOCATED.fetch_add(size, Ordering::Relaxed);
    if let Some(bucket) = size.checked_ilog2().and_then(|log| BY_SIZE.get(usize::try_from(log).unwrap_or(0)))
    {
        bucket.fetch_add(size, Ordering::Relaxed);
    }
    sites::note(size);
}

#[allow(clippy::print_stdout, reason = "shown when the test fails, or is asked to")]
fn report(what: &str, divisor: usize) {
    for (log, bytes) in BY_SIZE.iter().enumerate() {
        let bytes = bytes.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            println!(
                "{what}: {} bytes per request in allocations of {} bytes and more",
                bytes / divisor,
                1_usize << log
            );
        }
    }
}

#[allow(unsafe_code, reason = "a global allocator is unsafe by its trait; it only counts and passes on")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.saturating_sub(layout.size()));
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BATCH_BYTES: usize = 16 * 1024;
const REQUESTS: usize = 400;
const IN_FLIGHT: usize = 16;
const CONNECTIONS: usize = 4;
/// Batches before anything is counted. Lists that double, of the tail and of a segment's index, have done so at 1,024 and
/// do again at 2,048: what is counted lies between.
const WARM_BATCHES: usize = 1_440;

/// A frame of one batch for each of these partitions.
fn produce_frame(partitions: i32) -> Vec<u8> {
    let records = batch(Codec::None, 1_000, &[&[7; BATCH_BYTES]]).to_bytes();
    let partition_data = (0..partitions)
        .map(|index| PartitionProduceData { index, records: Some(Records::from(records.clone())) })
        .collect();
    let topic =
        TopicProduceData { name: Str::from_static("t"), partition_data, ..TopicProduceData::default() };
    let request =
        ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], ..ProduceRequest::default() };
    joined(&encode_request_frame(9, 1, None, &request).unwrap())
}

fn joined(slices: &[bytes::Bytes]) -> Vec<u8> {
    slices.iter().flatten().copied().collect()
}

/// Sends a frame and reads its answer into a buffer that is there already.
async fn exchange(stream: &mut TcpStream, frame: &[u8], answer: &mut BytesMut) -> usize {
    stream.write_all(frame).await.unwrap();
    receive(stream, answer).await
}

async fn receive(stream: &mut TcpStream, answer: &mut BytesMut) -> usize {
    let size = usize::try_from(stream.read_i32().await.unwrap()).unwrap();
    answer.resize(size, 0);
    stream.read_exact(answer).await.unwrap();
    size
}

fn hundredths(allocated: usize, bytes: usize) -> usize {
    allocated * 100 / bytes
}

async fn per_byte_produced(streams: &mut [TcpStream], partitions: i32, answer: &mut BytesMut) -> usize {
    let frame = produce_frame(partitions);
    let batches = usize::try_from(partitions).unwrap();
    produce(streams, &frame, WARM_BATCHES / batches, answer).await;
    report("before", 1);
    sites::begin();
    let before = ALLOCATED.load(Ordering::Relaxed);
    produce(streams, &frame, REQUESTS, answer).await;
    let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
    sites::end(REQUESTS);
    report("produce", REQUESTS);
    hundredths(allocated, REQUESTS * BATCH_BYTES * batches)
}

/// Produces over several connections with as many in flight as one may have: they share the journal's rounds.
async fn produce(streams: &mut [TcpStream], frame: &[u8], requests: usize, answer: &mut BytesMut) {
    for stream in &mut *streams {
        for _ in 0..IN_FLIGHT {
            stream.write_all(frame).await.unwrap();
        }
    }
    let in_flight = IN_FLIGHT * streams.len();
    for sent in in_flight..requests + in_flight {
        let stream = &mut streams[sent % streams.len()];
        receive(stream, answer).await;
        if sent < requests {
            stream.write_all(frame).await.unwrap();
        }
    }
}

async fn per_byte_fetched(stream: &mut TcpStream, answer: &mut BytesMut) -> usize {
    let mut request: FetchRequest = fetch_request(&[("t", 0, 0)]);
    request.topics[0].partitions[0].partition_max_bytes = 128 * 1024;
    let frames: Vec<Vec<u8>> = (WARM_BATCHES..WARM_BATCHES + REQUESTS - 20)
        .map(|offset| {
            request.topics[0].partitions[0].fetch_offset = i64::try_from(offset).unwrap();
            joined(&encode_request_frame(12, 1, None, &request).unwrap())
        })
        .collect();
    for frame in &frames[..20] {
        exchange(stream, frame, answer).await;
    }
    report("before", 1);
    let (before, mut fetched) = (ALLOCATED.load(Ordering::Relaxed), 0);
    for frame in &frames {
        let size = exchange(stream, frame, answer).await;
        assert!(size >= 64 * 1024, "a fetch of {size} bytes");
        fetched += size;
    }
    let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
    report("fetch", frames.len());
    hundredths(allocated, fetched)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hot_path_allocates_little_more_than_the_records() {
    // No checkpoint begins while one batch a request is counted: it encodes the index of the segment.
    let journal_bytes_max = ByteSize::mib(256);
    let node = node::Node::start_with(node::Options { journal_bytes_max, ..node::Options::default() }).await;
    let mut client = node.client().await;
    client.create_topic("t", 16, &[]).await;
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(node.address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        streams.push(stream);
    }
    let mut answer = BytesMut::with_capacity(4 * 1024 * 1024);
    let one = per_byte_produced(&mut streams, 1, &mut answer).await;
    let fetched = per_byte_fetched(&mut streams[0], &mut answer).await;
    let many = per_byte_produced(&mut streams, 16, &mut answer).await;
    println!(
        "allocated per byte, in hundredths: produced {one}, to sixteen partitions {many}, fetched {fetched}"
    );
    assert!(one <= 110, "{one} hundredths of a byte for each record byte produced");
    assert!(many <= 220, "{many} hundredths of a byte for each record byte produced to many partitions");
    assert!(fetched <= 5, "{fetched} hundredths of a byte for each byte fetched");
    node.stop().await;
}
