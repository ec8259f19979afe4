//! A bucket in memory: what tiering does, without its objects.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tidelog_core::cluster::{Command, Outcome, SegmentCommit};
use tidelog_format::{
    batch::RawBatch,
    manifest::{ManifestEntry, Section, SegmentObjectId},
};
use tidelog_replica::{ColdError, ColdFuture, ColdPlace, ColdRead, ColdReader, ColdRecords, PartitionHandle};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, UploadId, UploadSequence};

use crate::node::{Node, batches};

/// Batches of one partition that are "in the bucket".
#[derive(Default)]
pub(crate) struct Bucket {
    held: Mutex<Vec<RawBatch>>,
}

impl Bucket {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Uploads everything that may be and commits it; answers the new tiered end.
    pub(crate) async fn upload(&self, node: &Node, partition: &PartitionHandle, sequence: u64) -> u64 {
        let state = partition.upload_state().unwrap();
        let read = partition.read_for_upload(state.range, 1 << 20).await.unwrap();
        assert_eq!(read.next, state.range.end, "the test's segments are small");
        let records =
            tidelog_replica::Records { chunks: read.chunks, base: state.range.base, next: read.next };
        let uploaded = batches(&records);
        let max_timestamp = uploaded.iter().filter_map(|batch| batch.header.max_timestamp()).max();
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
            max_timestamp,
            index: Section { position: read.bytes, bytes: 100, crc: 0 },
            leader_epoch: uploaded.last().unwrap().header.leader_epoch().unwrap(),
        };
        self.held.lock().unwrap().extend(uploaded);
        let commit = SegmentCommit { place: partition.place(), leader_epoch: state.leader_epoch, entry };
        let outcome = node.propose(Command::CommitSegments { commits: vec![commit] }).await;
        let Outcome::Committed { results } = outcome else { panic!("{outcome:?}") };
        node.settled().await;
        results[0].clone().unwrap().get()
    }

    fn reaching(&self, range: OffsetRange) -> Vec<RawBatch> {
        let held = self.held.lock().unwrap();
        let reaches = |batch: &&RawBatch| {
            batch.header.end_offset().unwrap() > range.base && batch.header.base_offset().unwrap() < range.end
        };
        held.iter().filter(reaches).cloned().collect()
    }
}

fn ready<T: Send + 'static>(answer: Result<T, ColdError>) -> ColdFuture<T> {
    Box::pin(std::future::ready(answer))
}

impl ColdReader for Bucket {
    fn read(&self, read: ColdRead) -> ColdFuture<ColdRecords> {
        let found = self.reaching(OffsetRange { base: read.offset, end: read.end });
        let Some(first) = found.first().filter(|batch| batch.header.base_offset().unwrap() <= read.offset)
        else {
            return ready(Err(ColdError::NotHeld { offset: read.offset }));
        };
        let mut records =
            ColdRecords { base: first.header.base_offset().unwrap(), next: read.offset, chunks: Vec::new() };
        let mut bytes = 0;
        for batch in found {
            bytes += batch.size();
            if bytes > read.bytes_max && !(read.one_at_least && records.chunks.is_empty()) {
                break;
            }
            records.next = batch.header.end_offset().unwrap();
            records.chunks.push(batch.to_bytes());
        }
        ready(Ok(records))
    }

    fn first_batch_at_or_after(
        &self,
        _place: ColdPlace,
        range: OffsetRange,
        time: Timestamp,
        _deadline: Duration,
    ) -> ColdFuture<Option<Bytes>> {
        let found = self.reaching(range).into_iter().find(|batch| batch.header.max_timestamp() >= Some(time));
        ready(Ok(found.map(|batch| batch.to_bytes())))
    }

    fn max_timestamp_batch(
        &self,
        _place: ColdPlace,
        range: OffsetRange,
        _deadline: Duration,
    ) -> ColdFuture<Option<Bytes>> {
        let found = self.reaching(range).into_iter().rev().max_by_key(|batch| batch.header.max_timestamp());
        ready(Ok(found.map(|batch| batch.to_bytes())))
    }

    fn epoch_end(
        &self,
        place: ColdPlace,
        epoch: LeaderEpoch,
        _deadline: Duration,
    ) -> ColdFuture<Option<(LeaderEpoch, Offset)>> {
        let held = self.held.lock().unwrap();
        let of = |batch: &RawBatch| batch.header.leader_epoch().unwrap();
        let floor = held.iter().map(of).filter(|known| *known <= epoch).max();
        let next =
            held.iter().find(|batch| of(batch) > epoch).map(|batch| batch.header.base_offset().unwrap());
        ready(Ok(floor.map(|floor| (floor, next.unwrap_or(place.image.manifest.tiered_end)))))
    }

    fn epoch_of(
        &self,
        _place: ColdPlace,
        offset: Offset,
        _deadline: Duration,
    ) -> ColdFuture<Option<LeaderEpoch>> {
        let found = self.reaching(OffsetRange { base: offset, end: offset.next() });
        ready(Ok(found.first().and_then(|batch| batch.header.leader_epoch())))
    }
}
