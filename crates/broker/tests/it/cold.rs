//! Partitions in the bucket beside partitions on local disk: nobody waits for anybody.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidelog_core::cluster::{Command, Outcome, SegmentCommit};
use tidelog_format::{
    batch::{BatchLimits, RawBatch, split_batches},
    codec::Codec,
    manifest::{ManifestEntry, Section, SegmentObjectId},
};
use tidelog_replica::{ColdError, ColdFuture, ColdOutage, ColdPlace, ColdRead, ColdReader, ColdRecords};
use tidelog_runtime::watch;
use tidelog_testkit::raw_client::{batch, fetch_request, partition_data, values};
use tidelog_types::{
    LeaderEpoch, OffsetRange, PartitionIndex, Timestamp, TopicName, TopicPartition, UploadId, UploadSequence,
};
use tidelog_wire::{ErrorCode, messages::FetchRequest};

use crate::node::{Node, Options};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Closed,
    Open,
    Failing,
    /// Silent, and known to be.
    Away,
}

/// A bucket that answers when it is told to.
pub(crate) struct Bucket {
    held: Mutex<Vec<(TopicPartition, RawBatch)>>,
    gate: watch::Sender<Gate>,
    reads: AtomicUsize,
    /// Whether look-ups by time never end.
    look_ups_hang: AtomicBool,
}

impl Bucket {
    pub(crate) fn new(gate: Gate) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::default(),
            gate: watch::Sender::new(gate),
            reads: AtomicUsize::new(0),
            look_ups_hang: AtomicBool::new(false),
        })
    }

    pub(crate) fn open(&self) {
        self.gate.send_replace(Gate::Open);
    }

    pub(crate) fn hang_look_ups(&self, hang: bool) {
        self.look_ups_hang.store(hang, Ordering::Relaxed);
    }

    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// Moves everything of a topic's partition 0 but its last segment into the bucket, and off the disk. Answers the tiered end.
    pub(crate) async fn take(&self, node: &Node, topic: &str, sequence: u64) -> i64 {
        let name = TopicName::new(topic).unwrap();
        let handle = node.replicas.partition_by_name(&name, PartitionIndex(0)).unwrap();
        handle.roll().await.unwrap();
        let state = handle.upload_state().unwrap();
        let read = handle.read_for_upload(state.range, 64 << 20).await.unwrap();
        assert_eq!(read.next, state.range.end);
        let mut uploaded = Vec::new();
        let joined: Vec<u8> = read.chunks.iter().flatten().copied().collect();
        for found in split_batches(Bytes::from(joined), &BatchLimits::log()) {
            uploaded.push(found.unwrap());
        }
        let entry = ManifestEntry {
            range: state.range,
            object: SegmentObjectId {
                base: state.range.base,
                leader_epoch: state.leader_epoch,
                upload: UploadId { incarnation: node.incarnation, sequence: UploadSequence(sequence) },
            },
            position: 0,
            bytes: read.bytes,
            object_bytes: read.bytes + 1_000,
            max_timestamp: uploaded.iter().filter_map(|batch| batch.header.max_timestamp()).max(),
            index: Section { position: read.bytes, bytes: 100, crc: 0 },
            leader_epoch: state.leader_epoch,
        };
        self.held.lock().unwrap().extend(uploaded.into_iter().map(|batch| (handle.place(), batch)));
        let commit = SegmentCommit { place: handle.place(), leader_epoch: state.leader_epoch, entry };
        let outcome = node.propose(Command::CommitSegments { commits: vec![commit] }).await;
        let Outcome::Committed { results } = outcome else { panic!("{outcome:?}") };
        let end = results[0].clone().unwrap();
        handle.set_local_log_start(end).await.unwrap();
        end.to_wire()
    }

    fn answer(&self, read: &ColdRead) -> Result<ColdRecords, ColdError> {
        let held = self.held.lock().unwrap();
        let mut records = ColdRecords { base: read.offset, next: read.offset, chunks: Vec::new() };
        let mut bytes = 0;
        let place = read.place.place;
        let wanted = |(known, batch): &&(TopicPartition, RawBatch)| {
            *known == place && batch.header.end_offset().unwrap() > read.offset
        };
        for (_, batch) in held.iter().filter(wanted) {
            bytes += batch.size();
            if bytes > read.bytes_max && !(read.one_at_least && records.chunks.is_empty()) {
                break;
            }
            records.next = batch.header.end_offset().unwrap();
            records.chunks.push(batch.to_bytes());
        }
        Ok(records)
    }
}

/// The reader of a bucket, as a node gets it.
pub(crate) struct Reader(pub(crate) Arc<Bucket>);

impl ColdReader for Reader {
    fn outage(&self) -> Option<ColdOutage> {
        let away = *self.0.gate.borrow() == Gate::Away;
        away.then(|| ColdOutage { lasts: Duration::from_secs(1), why: "the test says so".into() })
    }

    fn read(&self, read: ColdRead) -> ColdFuture<ColdRecords> {
        let bucket = Arc::clone(&self.0);
        bucket.reads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let mut gate = bucket.gate.subscribe();
            let state = *gate.wait_for(|gate| matches!(gate, Gate::Open | Gate::Failing)).await.unwrap();
            match state {
                Gate::Failing => Err(ColdError::Unavailable { why: "the test says so".into() }),
                Gate::Closed | Gate::Away | Gate::Open => bucket.answer(&read),
            }
        })
    }

    fn first_batch_at_or_after(
        &self,
        place: ColdPlace,
        range: OffsetRange,
        time: Timestamp,
        _: Duration,
    ) -> ColdFuture<Option<Bytes>> {
        if self.0.look_ups_hang.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        let held = self.0.held.lock().unwrap();
        let found = held.iter().find(|(known, batch)| {
            let reaches = batch.header.end_offset().unwrap() > range.base;
            *known == place.place && reaches && batch.header.max_timestamp() >= Some(time)
        });
        Box::pin(std::future::ready(Ok(found.map(|(_, batch)| batch.to_bytes()))))
    }

    fn max_timestamp_batch(&self, _: ColdPlace, _: OffsetRange, _: Duration) -> ColdFuture<Option<Bytes>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn epoch_end(
        &self,
        _: ColdPlace,
        _: LeaderEpoch,
        _: Duration,
    ) -> ColdFuture<Option<(LeaderEpoch, tidelog_types::Offset)>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn epoch_of(
        &self,
        _: ColdPlace,
        _: tidelog_types::Offset,
        _: Duration,
    ) -> ColdFuture<Option<LeaderEpoch>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// A node whose topic `cold` has ten records in the bucket alone, and whose topic `hot` has one on disk.
pub(crate) async fn tiered(gate: Gate) -> (Node, Arc<Bucket>) {
    tiered_with(Options::default(), gate).await
}

/// The same with these options.
pub(crate) async fn tiered_with(options: Options, gate: Gate) -> (Node, Arc<Bucket>) {
    let node = Node::start_with(options).await;
    let bucket = Bucket::new(gate);
    node.replicas.set_cold_reader(Arc::new(Reader(Arc::clone(&bucket))));
    let mut client = node.client().await;
    client.create_topic("cold", 1, &[]).await;
    client.create_topic("hot", 1, &[]).await;
    for number in 0..10_u8 {
        let produced =
            client.produce("cold", 0, batch(Codec::None, 1_000, &[&[number; 100]]).to_bytes()).await;
        assert_eq!(produced.error_code, 0);
    }
    client.produce("hot", 0, batch(Codec::None, 1_000, &[b"hot"]).to_bytes()).await;
    assert_eq!(bucket.take(&node, "cold", 1).await, 10);
    (node, bucket)
}

fn waiting(partitions: &[(&str, i32, i64)], max_wait_ms: i32) -> FetchRequest {
    FetchRequest { min_bytes: 1, max_wait_ms, ..fetch_request(partitions) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_bucket_delays_nobody_and_its_answer_is_kept() {
    let (node, bucket) = tiered(Gate::Closed).await;
    let mut client = node.client().await;
    let (took, response) = client.timed_call(12, &waiting(&[("cold", 0, 0), ("hot", 0, 0)], 20_000)).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let cold = &response.responses[0].partitions[0];
    assert_eq!(
        (cold.error_code, cold.high_watermark, cold.log_start_offset, values(cold).len()),
        (0, 10, 0, 0)
    );
    assert_eq!(values(&response.responses[1].partitions[0]), [(0, b"hot".to_vec())]);
    // Alone, it is waited for as long as the client says.
    let (took, response) = client.timed_call(12, &waiting(&[("cold", 0, 0)], 300)).await;
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert_eq!(values(&partition_data(response)).len(), 0);
    bucket.gate.send_replace(Gate::Open);
    let response = client.call(12, &waiting(&[("cold", 0, 0)], 20_000)).await;
    assert_eq!(values(&partition_data(response)).len(), 10);
    assert_eq!(bucket.reads(), 1, "three fetches shared one read");
    let response = client.call(12, &waiting(&[("cold", 0, 5)], 20_000)).await;
    assert_eq!(values(&partition_data(response))[0].0, 5);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_bucket_spoils_its_own_partition_only_and_heals() {
    let (node, bucket) = tiered(Gate::Failing).await;
    let mut client = node.client().await;
    let response = client.call(12, &waiting(&[("cold", 0, 0)], 20_000)).await;
    let failed = partition_data(response);
    assert_eq!(failed.error_code, ErrorCode::ReplicaNotAvailable.code());
    assert!(ErrorCode::from_code(failed.error_code).unwrap().is_retriable());
    assert_eq!(values(&client.fetch("hot", 0, 0).await), [(0, b"hot".to_vec())]);
    assert_eq!(
        client.produce("cold", 0, batch(Codec::None, 1_000, &[b"more"]).to_bytes()).await.error_code,
        0
    );
    assert_eq!(values(&client.fetch("cold", 0, 10).await), [(10, b"more".to_vec())], "the hot end is served");
    bucket.gate.send_replace(Gate::Open);
    let response = client.call(12, &waiting(&[("cold", 0, 0)], 20_000)).await;
    assert_eq!(values(&partition_data(response)).len(), 10, "it heals by itself");
    node.stop().await;
}

// D4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_fetch_says_that_the_bucket_is_away() {
    let (node, bucket) = tiered(Gate::Away).await;
    let mut client = node.client().await;
    for wait in [0, 100] {
        let response = client.call(12, &waiting(&[("cold", 0, 0), ("hot", 0, 0)], wait)).await;
        let cold = &response.responses[0].partitions[0];
        assert_eq!(cold.error_code, ErrorCode::ReplicaNotAvailable.code());
        assert!(ErrorCode::from_code(cold.error_code).unwrap().is_retriable());
        assert_eq!(values(&response.responses[1].partitions[0]), [(0, b"hot".to_vec())]);
    }
    // Merely slow is no error, and what was begun is taken when it is there.
    bucket.gate.send_replace(Gate::Closed);
    let slow = partition_data(client.call(12, &waiting(&[("cold", 0, 0)], 100)).await);
    assert_eq!((slow.error_code, values(&slow).len()), (0, 0));
    bucket.gate.send_replace(Gate::Open);
    let response = client.call(12, &waiting(&[("cold", 0, 0)], 20_000)).await;
    assert_eq!((values(&partition_data(response)).len(), bucket.reads()), (10, 1));
    node.stop().await;
}

/// A node with eight partitions in the bucket alone, of twenty batches of 10 kB each.
async fn wide(gate: Gate) -> (Node, Arc<Bucket>) {
    let node = Node::start().await;
    let bucket = Bucket::new(gate);
    node.replicas.set_cold_reader(Arc::new(Reader(Arc::clone(&bucket))));
    let mut client = node.client().await;
    for number in 0..8_u8 {
        let topic = format!("cold-{number}");
        client.create_topic(&topic, 1, &[]).await;
        for _ in 0..20 {
            let records = batch(Codec::None, 1_000, &[&[number; 10_000]]).to_bytes();
            assert_eq!(client.produce(&topic, 0, records).await.error_code, 0);
        }
        assert_eq!(bucket.take(&node, &topic, u64::from(number) + 1).await, 20);
    }
    (node, bucket)
}

const WIDE: [(&str, i32, i64); 8] = [
    ("cold-0", 0, 0),
    ("cold-1", 0, 0),
    ("cold-2", 0, 0),
    ("cold-3", 0, 0),
    ("cold-4", 0, 0),
    ("cold-5", 0, 0),
    ("cold-6", 0, 0),
    ("cold-7", 0, 0),
];

// R10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_a_fetch_bound_what_it_reads_from_the_bucket() {
    let (node, bucket) = wide(Gate::Closed).await;
    let mut client = node.client().await;
    // 60 kB of each of eight partitions, 150 kB in all: reads of two are begun, and no more.
    let mut request = waiting(&WIDE, 100);
    request.max_bytes = 150_000;
    for topic in &mut request.topics {
        topic.partitions[0].partition_max_bytes = 60_000;
    }
    client.call(12, &request).await;
    assert_eq!(bucket.reads(), 2);
    bucket.gate.send_replace(Gate::Open);
    request.max_wait_ms = 20_000;
    request.min_bytes = 100_000;
    let response = client.call(12, &request).await;
    let counts: Vec<usize> =
        response.responses.iter().map(|topic| values(&topic.partitions[0]).len()).collect();
    assert_eq!(counts, [5, 5, 0, 0, 0, 0, 0, 0]);
    // The limit of the whole bounds the first partition too, above one batch.
    for (max_bytes, count) in [(35_000, 3), (1, 1)] {
        let mut request = waiting(&[("cold-3", 0, 0)], 20_000);
        request.max_bytes = max_bytes;
        assert_eq!(values(&partition_data(client.call(12, &request).await)).len(), count, "{max_bytes}");
    }
    node.stop().await;
}

// R10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_from_the_bucket_is_cut_to_what_the_answer_has_room_for() {
    let (node, bucket) = wide(Gate::Closed).await;
    let mut client = node.client().await;
    client.create_topic("hot", 1, &[]).await;
    let mut request = waiting(&[("hot", 0, 0), ("cold-0", 0, 0)], 100);
    request.max_bytes = 120_000;
    request.topics[1].partitions[0].partition_max_bytes = 115_000;
    client.call(12, &request).await;
    client.produce("hot", 0, batch(Codec::None, 1_000, &[&[7; 60_000]]).to_bytes()).await;
    bucket.gate.send_replace(Gate::Open);
    request.min_bytes = 100_000;
    request.max_wait_ms = 20_000;
    let response = client.call(12, &request).await;
    let bytes: usize = response
        .responses
        .iter()
        .map(|topic| topic.partitions[0].records.as_ref().unwrap().to_bytes().len())
        .sum();
    assert!(bytes <= 120_000, "{bytes}");
    assert_eq!(values(&response.responses[0].partitions[0]).len(), 1);
    assert_eq!(values(&response.responses[1].partitions[0]).len(), 5);
    node.stop().await;
}

// B11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_batch_comes_whole_from_the_bucket_too() {
    let (node, bucket) = tiered(Gate::Open).await;
    let mut client = node.client().await;
    client.create_topic("large", 1, &[("max.message.bytes", "5242880")]).await;
    client.produce("large", 0, batch(Codec::None, 1_000, &[&vec![7; 3 << 20]]).to_bytes()).await;
    for number in 0..10_u8 {
        client.produce("large", 0, batch(Codec::None, 1_000, &[&[number]]).to_bytes()).await;
    }
    assert_eq!(bucket.take(&node, "large", 2).await, 11);
    let mut read = Vec::new();
    while read.len() < 11 {
        let mut request = waiting(&[("large", 0, i64::try_from(read.len()).unwrap())], 20_000);
        request.max_bytes = 1024;
        request.topics[0].partitions[0].partition_max_bytes = 1024;
        let found = values(&partition_data(client.call(12, &request).await));
        assert!(!found.is_empty(), "stuck at {}", read.len());
        read.extend(found.into_iter().map(|(offset, _)| offset));
    }
    assert_eq!(read, (0..11).collect::<Vec<i64>>());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gone_client_leaves_no_read_that_the_next_one_repeats() {
    let (node, bucket) = tiered(Gate::Closed).await;
    let mut client = node.client().await;
    client.call(12, &waiting(&[("cold", 0, 0)], 100)).await;
    drop(client);
    bucket.gate.send_replace(Gate::Open);
    let mut other = node.client().await;
    let response = other.call(12, &waiting(&[("cold", 0, 0)], 20_000)).await;
    assert_eq!((values(&partition_data(response)).len(), bucket.reads()), (10, 1));
    node.stop().await;
}
