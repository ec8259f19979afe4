//! A bucket with objects of one or more partitions, and the reader of it; the model that its answers are compared with.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_core::cluster::{PartitionImage, PartitionManifest};
use tidelog_format::{
    batch::{BatchBuilder, NewRecord, RawBatch},
    keys::ObjectKey,
    manifest::{ManifestEntry, Page, PageId},
    object::{Gaps, ObjectIdentity, SegmentObjectBuilder},
    segment::AbortedTransaction,
};
use tidelog_object::{ChunkCache, MapCache, ObjectClient, StoreOptions};
use tidelog_replica::{ColdError, ColdPlace, ColdRead, ColdReader, ColdRecords};
use tidelog_runtime::{Clock, Registry, Rng, SeededRng, Supervisor, SystemClock};
use tidelog_testkit::{FaultyStore, StoreOperation};
use tidelog_tier::{ColdConfig, ColdTier};
use tidelog_types::{
    BrokerId, BrokerIncarnation, ByteSize, ClusterId, DirectoryId, LeaderEpoch, Offset, OffsetRange,
    PartitionIndex, Timestamp, TopicId, TopicName, TopicPartition, UploadId, UploadSequence,
};

pub(crate) const MIB: usize = 1024 * 1024;
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
const CLUSTER: ClusterId = ClusterId::from_bytes([5; 16]);

pub(crate) fn at(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

pub(crate) fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(raw).unwrap()
}

pub(crate) fn range(base: u64, end: u64) -> OffsetRange {
    OffsetRange { base: at(base), end: at(end) }
}

/// A bucket and its reader.
pub(crate) struct Rig {
    pub store: FaultyStore,
    pub client: ObjectClient,
    pub cache: Arc<MapCache>,
    pub clock: Arc<dyn Clock>,
    pub tier: Arc<ColdTier>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(&ColdConfig::default())
    }

    pub(crate) fn with(config: &ColdConfig) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store = FaultyStore::memory(Arc::clone(&clock));
        let (rng, registry) = (Arc::new(SeededRng::new(1)), Registry::new());
        let options = StoreOptions::default();
        let client =
            ObjectClient::with_store(Arc::new(store.clone()), options, Arc::clone(&clock), rng, &registry);
        let cache = Arc::new(MapCache::new(ByteSize::mib(64), &registry));
        Self::over(config, store, client, cache, clock, &registry)
    }

    /// A reader of any client; `store` counts its requests where it is the client's own.
    pub(crate) fn over(
        config: &ColdConfig,
        store: FaultyStore,
        client: ObjectClient,
        cache: Arc<MapCache>,
        clock: Arc<dyn Clock>,
        registry: &Registry,
    ) -> Self {
        let supervisor = Supervisor::for_test();
        let chunks: Arc<dyn ChunkCache> = Arc::clone(&cache) as Arc<dyn ChunkCache>;
        let reader = client.clone();
        let tier = ColdTier::new(config, reader, chunks, CLUSTER, Arc::clone(&clock), &supervisor, registry);
        Self { store, client, cache, clock, tier }
    }

    /// GETs that reached the store.
    pub(crate) fn gets(&self) -> usize {
        self.store.count(StoreOperation::Get, "")
    }

    /// Runs `work` and answers how many GETs and how much virtual time it took.
    pub(crate) async fn measured<T>(&self, work: impl Future<Output = T>) -> (T, usize, Duration) {
        let (gets, begun) = (self.gets(), self.clock.monotonic());
        let answer = work.await;
        (answer, self.gets() - gets, self.clock.monotonic() - begun)
    }

    /// Lets everything that runs by itself end.
    pub(crate) async fn rest(&self) {
        self.clock.sleep(Duration::from_secs(120)).await;
    }
}

/// One batch of the model.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub base: Offset,
    pub end: Offset,
    pub time: Timestamp,
    pub epoch: LeaderEpoch,
    pub bytes: Bytes,
}

/// A batch of `records` offsets with about `bytes` bytes.
pub(crate) fn batch(
    base: u64,
    records: i32,
    bytes: usize,
    time: u64,
    epoch_number: i32,
    fill: u8,
) -> RawBatch {
    let value = vec![fill; bytes.saturating_sub(80)];
    let record = NewRecord {
        timestamp: Some(Timestamp::from_millis(time)),
        value: Some(&value),
        ..NewRecord::default()
    };
    BatchBuilder::new(at(base))
        .leader_epoch(epoch(epoch_number))
        .last_offset_delta(records - 1)
        .record_at(records - 1, &record)
        .build()
        .unwrap()
}

/// One partition: its objects in the bucket, and the same batches in memory.
#[derive(Clone)]
pub(crate) struct Partition {
    pub place: TopicPartition,
    pub topic: TopicName,
    pub image: PartitionImage,
    pub batches: Vec<Batch>,
    pub sequence: u64,
    previous: Option<tidelog_format::manifest::SegmentObjectId>,
}

impl Partition {
    pub(crate) fn new(number: i32) -> Self {
        let manifest = Arc::new(PartitionManifest::default());
        let image = PartitionImage {
            leader: Some(BrokerId(1)),
            leader_epoch: epoch(9),
            partition_epoch: 0,
            replicas: vec![BrokerId(1)],
            directories: vec![DirectoryId::from_bytes([1; 16])],
            isr: vec![BrokerId(1)],
            last_leader: BrokerId(1),
            log_start: Offset::ZERO,
            manifest,
            tiered: true,
        };
        let place =
            TopicPartition { topic_id: TopicId::from_bytes([6; 16]), partition: PartitionIndex(number) };
        let topic = TopicName::new("events").unwrap();
        Self { place, topic, image, batches: Vec::new(), sequence: 0, previous: None }
    }

    pub(crate) fn end(&self) -> Offset {
        self.image.manifest.tiered_end
    }

    pub(crate) fn entries(&self) -> &[ManifestEntry] {
        &self.image.manifest.entries
    }

    pub(crate) fn key(&self, entry: &ManifestEntry) -> String {
        let (topic, place) = (self.topic.clone(), self.place);
        ObjectKey::Segment { topic, place, object: entry.object }.to_string()
    }

    pub(crate) fn manifest(&mut self) -> &mut PartitionManifest {
        Arc::make_mut(&mut self.image.manifest)
    }

    fn upload(&mut self) -> UploadId {
        self.sequence += 1;
        let incarnation = BrokerIncarnation(u64::try_from(self.place.partition.0).unwrap() + 1);
        UploadId { incarnation, sequence: UploadSequence(self.sequence) }
    }

    /// Puts an object of these batches; its range ends with them, or behind a hole at `end`.
    pub(crate) async fn put(&mut self, rig: &Rig, batches: &[RawBatch], end: Option<u64>) {
        self.put_with(rig, batches, end, &[]).await;
    }

    pub(crate) async fn put_with(
        &mut self,
        rig: &Rig,
        batches: &[RawBatch],
        end: Option<u64>,
        aborted: &[AbortedTransaction],
    ) {
        let base = self.end();
        let last = batches.last().unwrap().header.end_offset().unwrap();
        let range = OffsetRange { base, end: end.map_or(last, at) };
        let (entry, bytes) = self.object(batches, range, aborted);
        rig.client.put_new(&self.key(&entry), vec![bytes]).await.unwrap();
        let manifest = self.manifest();
        manifest.entries.push(entry);
        manifest.tiered_end = entry.range.end;
        self.batches.extend(batches.iter().map(|batch| Batch {
            base: batch.header.base_offset().unwrap(),
            end: batch.header.end_offset().unwrap(),
            time: batch.header.max_timestamp().unwrap(),
            epoch: batch.header.leader_epoch().unwrap(),
            bytes: batch.to_bytes(),
        }));
    }

    pub(crate) fn object(
        &mut self,
        batches: &[RawBatch],
        range: OffsetRange,
        aborted: &[AbortedTransaction],
    ) -> (ManifestEntry, Bytes) {
        let identity = ObjectIdentity {
            cluster_id: CLUSTER,
            place: self.place,
            range,
            leader_epoch: epoch(9),
            upload: self.upload(),
            log_start: Offset::ZERO,
            previous: self.previous,
        };
        let mut builder = SegmentObjectBuilder::new(identity, Gaps::Allowed);
        for batch in batches {
            builder.add(batch.to_bytes()).unwrap();
        }
        let object = builder.finish(aborted, None).unwrap();
        let entry = object.entry();
        self.previous = Some(entry.object);
        (entry, object.payload.concat().into())
    }

    /// An object of `count` batches of one record and `bytes` bytes each.
    pub(crate) async fn put_even(&mut self, rig: &Rig, count: u64, bytes: usize) {
        let base = self.end().get();
        let fill = |offset: u64| u8::try_from(offset % 251).unwrap();
        let batches: Vec<RawBatch> =
            (base..base + count).map(|offset| batch(offset, 1, bytes, offset, 1, fill(offset))).collect();
        self.put(rig, &batches, None).await;
    }

    /// Moves the first `count` entries into a page.
    pub(crate) async fn spill(&mut self, rig: &Rig, count: usize) {
        let entries: Vec<ManifestEntry> = self.manifest().entries.drain(..count).collect();
        let page = Page { cluster_id: CLUSTER, place: self.place, entries };
        let id = PageId { base: page.range().base, upload: self.upload() };
        let key = ObjectKey::Page { topic: self.topic.clone(), place: self.place, page: id };
        rig.client.put_new(&key.to_string(), vec![page.encode().into()]).await.unwrap();
        self.manifest().lines.push(page.line(id));
    }

    pub(crate) fn cold_place(&self) -> ColdPlace {
        ColdPlace { place: self.place, topic: self.topic.clone(), image: Arc::new(self.image.clone()) }
    }

    pub(crate) fn request(&self, offset: u64, bytes_max: usize) -> ColdRead {
        let place = self.cold_place();
        let (offset, end) = (at(offset), self.end());
        ColdRead { place, offset, end, bytes_max, one_at_least: true, deadline: DEADLINE }
    }

    pub(crate) async fn read(
        &self,
        rig: &Rig,
        offset: u64,
        bytes_max: usize,
    ) -> Result<ColdRecords, ColdError> {
        rig.tier.read(self.request(offset, bytes_max)).await
    }

    /// What a log in memory would answer.
    pub(crate) fn expected(&self, read: &ColdRead) -> (Vec<u8>, Offset, Offset) {
        let (mut bytes, mut base, mut next) = (Vec::new(), None, read.offset);
        let mut reached_end = true;
        for batch in self.batches.iter().filter(|batch| batch.end > read.offset && batch.base < read.end) {
            let fits = bytes.len() + batch.bytes.len() <= read.bytes_max;
            let first = bytes.is_empty() && read.one_at_least;
            if !fits && !first {
                reached_end = false;
                break;
            }
            base = base.or(Some(batch.base));
            bytes.extend_from_slice(&batch.bytes);
            next = batch.end;
        }
        if bytes.is_empty() && reached_end {
            next = read.end;
        }
        (bytes, base.unwrap_or(read.offset), next)
    }

    /// Reads and compares. An answer may be shorter than was asked for, but not empty where a record fits.
    pub(crate) async fn check(&self, rig: &Rig, mut read: ColdRead) -> Offset {
        let what = format!("{}..{} of {} bytes", read.offset, read.end, read.bytes_max);
        let records = rig.tier.read(read.clone()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let bytes = records.chunks.concat();
        let most = self.expected(&read).0;
        assert!(bytes.len() <= most.len(), "{what}");
        if !bytes.is_empty() {
            (read.bytes_max, read.one_at_least) = (bytes.len(), false);
        }
        let (expected, base, next) = self.expected(&read);
        assert_eq!((records.base, records.next), (base, next), "{what}");
        assert!(bytes == expected, "the bytes of {what}");
        next
    }

    /// Reads all from `from` in steps and compares. Answers how many reads it took.
    pub(crate) async fn replay(&self, rig: &Rig, from: u64, bytes_max: usize) -> usize {
        let (mut offset, mut reads) = (from, 0);
        while offset < self.end().get() {
            let next = self.check(rig, self.request(offset, bytes_max)).await.get();
            assert!(next > offset, "a read at {offset} goes on");
            (offset, reads) = (next, reads + 1);
            // A client's round trip.
            rig.clock.sleep(Duration::from_millis(1)).await;
        }
        reads
    }
}

/// A partition of random batches, objects, holes, epochs and pages.
pub(crate) async fn random_partition(rig: &Rig, rng: &SeededRng, number: i32) -> Partition {
    let mut partition = Partition::new(number);
    let (mut offset, mut time, mut epoch_number) = (rng.below(3) * 1000, 1_000_u64, 1);
    partition.manifest().tiered_end = at(offset);
    partition.image.log_start = at(offset);
    for _ in 0..1 + rng.below(5) {
        let mut batches = Vec::new();
        let large = rng.chance(1, 3);
        for _ in 0..1 + rng.below(if large { 60 } else { 12 }) {
            let bytes = match rng.below(20) {
                0 if large => 1_200_000 + rng.below(1_500_000),
                1..=4 => 20_000 + rng.below(200_000),
                _ => 100 + rng.below(8_000),
            };
            if rng.chance(1, 12) {
                epoch_number += 1 + i32::try_from(rng.below(2)).unwrap();
            }
            // Mostly later, at times much earlier.
            time = if rng.chance(1, 10) { time.saturating_sub(700) } else { time + rng.below(50) };
            let records = 1 + i32::try_from(rng.below(20)).unwrap();
            let fill = u8::try_from(rng.below(256)).unwrap();
            batches.push(batch(offset, records, usize::try_from(bytes).unwrap(), time, epoch_number, fill));
            offset += u64::try_from(records).unwrap();
            if rng.chance(1, 8) {
                offset += rng.below(30);
            }
        }
        let last = batches.last().unwrap().header.end_offset().unwrap().get();
        offset = offset.max(last);
        partition.put(rig, &batches, Some(offset)).await;
    }
    let spilled = usize::try_from(rng.below(partition.entries().len() as u64)).unwrap();
    if spilled > 0 && rng.chance(1, 2) {
        partition.spill(rig, spilled).await;
    }
    partition
}
