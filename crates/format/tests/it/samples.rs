//! One value of every stored structure, the same in every run.

use bytes::Bytes;
use tidelog_format::{
    batch::{BatchBuilder, ControlKind, NewHeader, NewRecord, RawBatch, control_batch},
    broker_json::{BrokerJson, KnownClaims},
    checkpoint::{Checkpoint, CheckpointEntry, CheckpointSegment},
    cluster_json::ClusterJson,
    codec::Codec,
    epochs::EpochChain,
    journal::{FILE_HEADER_BYTES, FileHeader, Generation, JournalPosition, RoundEncoder},
    manifest::{ManifestFile, Page, PageId, SegmentObjectId},
    object::{Gaps, ObjectIdentity, SegmentObject, SegmentObjectBuilder},
    producers::{BatchMeta, ProducerEntry, ProducerSnapshot},
    segment::{AbortedTransaction, IndexEntry, TimeIndexEntry},
};
use tidelog_types::{
    BrokerId, BrokerIncarnation, ClaimId, ClusterId, LeaderEpoch, Offset, OffsetRange, PartitionIndex,
    ProducerEpoch, ProducerId, Timestamp, TopicId, TopicName, TopicPartition, UploadId, UploadSequence,
};

pub(crate) fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

pub(crate) fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(raw).unwrap()
}

fn time(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn place(partition: i32) -> TopicPartition {
    let topic_id = TopicId::from_bytes(*b"a topic's id, 16");
    TopicPartition { topic_id, partition: PartitionIndex(partition) }
}

fn cluster_id() -> ClusterId {
    ClusterId::from_bytes(*b"a cluster's id..")
}

fn upload(sequence: u64) -> UploadId {
    UploadId { incarnation: BrokerIncarnation(1 << 32 | 3), sequence: UploadSequence(sequence) }
}

pub(crate) fn batch(base: u64, leader_epoch: i32, codec: Codec) -> RawBatch {
    let headers = [NewHeader { key: "trace", value: Some(b"abc") }, NewHeader { key: "null", value: None }];
    BatchBuilder::new(offset(base))
        .leader_epoch(epoch(leader_epoch))
        .producer(ProducerId(4_000), ProducerEpoch(2), 17)
        .transactional()
        .codec(codec)
        .record(&NewRecord {
            timestamp: Some(time(1_780_000_000_000 + base)),
            key: Some(b"key"),
            value: Some(b"a value that is long enough to be worth compressing, compressing, compressing"),
            headers: &headers,
        })
        .record(&NewRecord {
            timestamp: Some(time(1_780_000_000_500 + base)),
            key: None,
            value: None,
            headers: &[],
        })
        .build()
        .unwrap()
}

pub(crate) fn marker(base: u64) -> RawBatch {
    let producer = (ProducerId(4_000), ProducerEpoch(2));
    control_batch(offset(base), epoch(5), producer, ControlKind::Abort, 9, time(1_780_000_001_000)).unwrap()
}

pub(crate) fn journal() -> (FileHeader, Bytes) {
    let header = FileHeader {
        generation: Generation(12),
        base: JournalPosition(1 << 20),
        synced: JournalPosition(999_424),
    };
    let mut bytes = header.encode().to_vec();
    let first = JournalPosition(header.base.0 + FILE_HEADER_BYTES);
    let mut round = RoundEncoder::new(header.generation, first, header.synced, 2);
    for (partition, batch) in [(0, batch(100, 5, Codec::None)), (1, marker(7))] {
        round.append(place(partition), batch.header.as_bytes(), &batch.body);
    }
    let first = round.finish();
    let mut round = RoundEncoder::new(header.generation, first.end, first.end, 5);
    round.truncate(place(0), offset(101));
    round.reset(place(1), offset(50));
    round.log_start(place(0), offset(3));
    round.local_log_start(place(0), offset(90));
    round.delete(place(2));
    let second = round.finish();
    for part in first.parts.iter().chain(&second.parts) {
        bytes.extend_from_slice(part);
    }
    (header, bytes.into())
}

/// What a checkpoint of version 1 says of [`checkpoint`].
pub(crate) fn checkpoint_v1() -> Checkpoint {
    let mut checkpoint = checkpoint();
    checkpoint.written_at = None;
    checkpoint.entries.iter_mut().for_each(|entry| entry.segments.clear());
    checkpoint
}

pub(crate) fn checkpoint() -> Checkpoint {
    let segment = |base, end, max_timestamp| CheckpointSegment {
        range: OffsetRange { base: offset(base), end: offset(end) },
        bytes: 1_000 + base,
        max_timestamp,
        created: time(1_780_000_000_000),
    };
    let entry = |partition, base: u64| CheckpointEntry {
        place: place(partition),
        synced_end: offset(base + 10),
        position: JournalPosition(1 << 20 | base),
        log_start: offset(base),
        local_log_start: offset(base + 5),
        segments: vec![segment(base + 5, base + 8, None), segment(base + 9, base + 10, Some(time(17)))],
    };
    Checkpoint {
        generation: Generation(12),
        replay_from: JournalPosition(1 << 20),
        clean: true,
        written_at: Some(time(1_780_000_000_999)),
        entries: vec![entry(0, 100), entry(3, 0)],
    }
}

pub(crate) fn epochs() -> EpochChain {
    let mut chain = EpochChain::default();
    chain.assign(epoch(2), offset(10));
    chain.assign(epoch(5), offset(100));
    chain
}

pub(crate) fn producers() -> ProducerSnapshot {
    let batch = |n: i32| BatchMeta {
        base_sequence: 10 * n,
        last_sequence: 10 * n + 9,
        base_offset: offset(100),
        last_offset: offset(109),
        timestamp: (n == 1).then(|| time(1_780_000_000_000)),
    };
    let plain = ProducerEntry {
        producer_id: ProducerId(4_000),
        producer_epoch: ProducerEpoch(2),
        last_timestamp: time(1_780_000_000_000),
        batches: vec![batch(0), batch(1)],
        open_transaction: Some(offset(100)),
    };
    let fresh = ProducerEntry {
        producer_id: ProducerId(4_001),
        batches: vec![],
        open_transaction: None,
        ..plain.clone()
    };
    ProducerSnapshot { end: offset(110), entries: vec![plain, fresh] }
}

pub(crate) fn index_entries() -> Vec<IndexEntry> {
    let first = IndexEntry {
        base_offset: offset(100),
        position: 0,
        bytes: 4_200,
        max_timestamp: None,
        crc: 0x0102_0304,
    };
    let second = IndexEntry {
        base_offset: offset(140),
        position: 4_200,
        bytes: 90,
        max_timestamp: Some(time(1_780_000_000_000)),
        crc: 0xfefe_fefe,
    };
    vec![first, second]
}

pub(crate) fn time_entries() -> Vec<TimeIndexEntry> {
    let entry = |millis, at| TimeIndexEntry { max_timestamp: time(millis), offset: offset(at) };
    vec![entry(1_780_000_000_000, 100), entry(1_780_000_000_001, 140)]
}

pub(crate) fn aborted() -> Vec<AbortedTransaction> {
    vec![AbortedTransaction {
        producer_id: ProducerId(4_000),
        first_offset: offset(90),
        last_offset: offset(102),
        last_stable_offset: offset(103),
    }]
}

pub(crate) fn object() -> SegmentObject {
    let identity = ObjectIdentity {
        cluster_id: cluster_id(),
        place: place(0),
        range: OffsetRange { base: offset(101), end: offset(103) },
        leader_epoch: epoch(6),
        upload: upload(77),
        log_start: offset(3),
        previous: Some(SegmentObjectId { base: offset(50), leader_epoch: epoch(5), upload: upload(70) }),
    };
    let mut builder = SegmentObjectBuilder::new(identity, Gaps::Refused);
    builder.add(batch(100, 5, Codec::None).to_bytes()).unwrap();
    builder.add(marker(102).to_bytes()).unwrap();
    builder.finish(&aborted(), Some(&producers())).unwrap()
}

pub(crate) fn page() -> Page {
    let first = object().entry();
    let mut second = first;
    second.range = OffsetRange { base: offset(103), end: offset(400) };
    second.object = SegmentObjectId { base: offset(103), leader_epoch: epoch(6), upload: upload(90) };
    second.bytes += 1_000;
    second.index.position += 1_000;
    second.object_bytes += 1_000;
    second.max_timestamp = None;
    Page { cluster_id: cluster_id(), place: place(0), entries: vec![first, second] }
}

pub(crate) fn manifest() -> ManifestFile {
    let page = page();
    let mut newest = page.entries[1];
    newest.range = OffsetRange { base: offset(400), end: offset(450) };
    ManifestFile {
        cluster_id: cluster_id(),
        topic: TopicName::new("flights").unwrap(),
        place: place(0),
        version: 5,
        log_start: offset(102),
        tiered_end: offset(450),
        lines: vec![page.line(PageId { base: offset(101), upload: upload(91) })],
        entries: vec![newest],
    }
}

pub(crate) fn cluster_json() -> ClusterJson {
    ClusterJson::new(cluster_id())
}

pub(crate) fn broker_json() -> BrokerJson {
    BrokerJson {
        broker: BrokerId(7),
        incarnation: BrokerIncarnation(1 << 32 | 3),
        claim: ClaimId::from_bytes([2; 16]),
    }
}

pub(crate) fn known_claims() -> KnownClaims {
    KnownClaims { former: Some(ClaimId::from_bytes([1; 16])), newest: ClaimId::from_bytes([2; 16]) }
}
