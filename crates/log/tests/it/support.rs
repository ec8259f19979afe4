//! What all tests of the log share.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tidelog_format::batch::{BatchBuilder, BatchHeader, NewRecord};
use tidelog_log::{
    AppendBatch, Log, LogConfig, LogRead, OpenError, PartitionConfig, PartitionLog, RecoveredPartition,
};
use tidelog_runtime::{Disk, Registry, Supervisor};
use tidelog_sim::Context;
use tidelog_types::{
    ByteSize, DirectoryId, LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicId, TopicPartition,
};

pub(crate) const DIRECTORY: &str = "/data";

pub(crate) fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

pub(crate) fn place(topic: u64, partition: i32) -> TopicPartition {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&(topic + 1).to_be_bytes());
    TopicPartition { topic_id: TopicId::from_bytes(id), partition: PartitionIndex(partition) }
}

/// Small files, so that a few KiB roll, recycle and checkpoint.
pub(crate) fn small_config() -> LogConfig {
    let mut config = LogConfig::new(DIRECTORY, DirectoryId::from_bytes([3; 16]));
    config.journal_bytes_max = ByteSize::kib(512);
    config.journal_file_bytes = ByteSize::kib(64);
    config.round_bytes_max = ByteSize::kib(16);
    config.tail_bytes = ByteSize::kib(64);
    config.write_behind_bytes = ByteSize::kib(4);
    config.write_behind_delay = Duration::from_millis(60);
    config.checkpoint_interval = Duration::from_millis(400);
    config.descriptors_max = 8;
    config.reserve_bytes = ByteSize::ZERO;
    config
}

pub(crate) fn small_partition() -> PartitionConfig {
    PartitionConfig {
        segment_bytes: ByteSize::kib(8),
        segment_index_bytes: ByteSize::mib(10),
        segment_age: Duration::from_secs(3600),
        index_interval_bytes: ByteSize::bytes(700),
    }
}

pub(crate) async fn open(
    context: &Context,
    disk: &dyn CloneDisk,
    supervisor: &Supervisor,
    config: LogConfig,
) -> Result<(Log, Vec<RecoveredPartition>), OpenError> {
    open_measured(context, disk, supervisor, config, &Registry::new()).await
}

/// As [`open`], with the metrics.
pub(crate) async fn open_measured(
    context: &Context,
    disk: &dyn CloneDisk,
    supervisor: &Supervisor,
    config: LogConfig,
    registry: &Registry,
) -> Result<(Log, Vec<RecoveredPartition>), OpenError> {
    let clock = Arc::new(context.clock.clone());
    Log::open(config, disk.shared(), clock, supervisor.clone(), registry).await
}

pub(crate) trait CloneDisk {
    fn shared(&self) -> Arc<dyn Disk>;
}

impl<D: Disk + Clone> CloneDisk for D {
    fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }
}

/// A batch of `count` records of `bytes` each, at `base`.
pub(crate) fn batch(base: Offset, epoch: u32, time: u64, count: u64, bytes: usize, fill: u64) -> AppendBatch {
    let epoch = LeaderEpoch::from_wire(i32::try_from(epoch).unwrap()).unwrap();
    let mut builder = BatchBuilder::new(base).leader_epoch(epoch);
    for index in 0..count {
        let mut value = vec![0_u8; bytes];
        for (at, byte) in value.iter_mut().enumerate() {
            let mixed = (fill ^ (index << 32))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(u32::try_from(at % 64).unwrap());
            *byte = mixed.to_be_bytes()[at % 8];
        }
        builder = builder.record(&NewRecord {
            timestamp: Some(Timestamp::from_millis(time + index)),
            key: Some(&fill.to_be_bytes()),
            value: Some(&value),
            headers: &[],
        });
    }
    let raw = builder.build().unwrap();
    AppendBatch {
        header: *raw.header.as_bytes(),
        body: raw.body,
        base_offset: base,
        last_offset: raw.header.last_offset().unwrap(),
        max_timestamp: raw.header.max_timestamp(),
        leader_epoch: epoch,
        frame_bytes: 0,
    }
}

/// The bytes of a batch as they are stored.
pub(crate) fn stored(batch: &AppendBatch) -> Bytes {
    let mut bytes = BytesMut::from(&batch.header[..]);
    bytes.extend_from_slice(&batch.body);
    bytes.freeze()
}

/// All chunks of a read behind one another.
pub(crate) fn joined(read: &LogRead) -> Bytes {
    let mut bytes = BytesMut::new();
    for chunk in &read.chunks {
        bytes.extend_from_slice(chunk);
    }
    bytes.freeze()
}

/// Splits stored bytes into batches.
pub(crate) fn split(bytes: &Bytes) -> Vec<(Offset, Offset, Bytes)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let header = BatchHeader::peek(&bytes[at..]).unwrap();
        let length = header.batch_bytes().unwrap();
        found.push((
            header.base_offset().unwrap(),
            header.last_offset().unwrap(),
            bytes.slice(at..at + length),
        ));
        at += length;
    }
    found
}

/// Everything from `from` to the log end.
pub(crate) async fn read_all(log: &PartitionLog, from: Offset) -> Vec<(Offset, Offset, Bytes)> {
    try_read_all(log, from).await.unwrap()
}

/// As [`read_all`], where the log may be hurt.
pub(crate) async fn try_read_all(
    log: &PartitionLog,
    from: Offset,
) -> Result<Vec<(Offset, Offset, Bytes)>, tidelog_log::ReadError> {
    let mut found = Vec::new();
    let mut at = from;
    let end = log.offsets().log_end;
    while at < end {
        let read = log.read(at, 3000, end, true).await?;
        assert!(read.next > at, "a read of [{at}, {end}) goes on, not {read:?}");
        found.extend(split(&joined(&read)));
        at = read.next;
    }
    Ok(found)
}

/// Appends `count` batches of two records each and answers their stored bytes.
pub(crate) fn append(log: &PartitionLog, epoch: u32, count: u64, bytes: usize) -> Vec<Bytes> {
    (0..count)
        .map(|index| {
            let base = log.offsets().log_end;
            let batch = batch(base, epoch, 1000 * base.get(), 2, bytes, base.get() * 7 + index);
            let whole = stored(&batch);
            log.append(vec![batch]).unwrap();
            whole
        })
        .collect()
}

/// As [`append`], waiting for room.
pub(crate) async fn fill(
    log: &Log,
    partition: &PartitionLog,
    epoch: u32,
    count: u64,
    bytes: usize,
) -> Vec<Bytes> {
    let mut appended = Vec::new();
    for _ in 0..count {
        log.append_room().await;
        appended.extend(append(partition, epoch, 1, bytes));
    }
    appended
}

pub(crate) fn segment_path(place: TopicPartition, base: u64, extension: &str) -> std::path::PathBuf {
    Path::new(DIRECTORY).join(place.to_string()).join(format!("{base:020}.{extension}"))
}
