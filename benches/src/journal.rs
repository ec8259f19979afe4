//! Rounds of the journal against the bare file: what one sync for many partitions costs beyond the disk.
//!
//! A round appends one batch to each of N partitions and waits until all are durable. The bare file's round is one write of the
//! same bytes at once and one `fdatasync`, into a file that is allocated ahead. They alternate in one run on one disk.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use serde::Serialize;
use tidelog_format::batch::{BatchBuilder, NewRecord, RawBatch};
use tidelog_log::{AppendBatch, Log, LogConfig, PartitionConfig, PartitionLog};
use tidelog_runtime::{
    Clock, FileDisk, FileDiskConfig, Registry, Runtimes, RuntimesConfig, Supervisor, SystemClock,
};
use tidelog_types::{
    ByteSize, DirectoryId, LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicId, TopicPartition,
};

use crate::get_loop::float;

/// The bare file; a round that would pass its end begins at its start again.
const FILE_BYTES: u64 = 512 * 1024 * 1024;

/// Times of one kind of round, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Times {
    /// Of rounds.
    pub count: usize,
    /// The middle one.
    pub median_ms: f64,
    /// The shortest.
    pub min_ms: f64,
    /// 99 of 100 are shorter.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// Megabytes (10⁶) in a second over all of them.
    pub mb_per_s: f64,
}

/// One number of dirty partitions.
#[derive(Debug, Clone, Serialize)]
pub struct Rounds {
    /// Dirty partitions in a round.
    pub partitions: usize,
    /// Bytes of each one's batch.
    pub batch_bytes: usize,
    /// One write and one sync.
    pub bare: Times,
    /// Our journal.
    pub journal: Times,
    /// For each pair of blocks: the journal's median by the bare file's.
    pub ratios: Vec<f64>,
}

/// One size of sequential write and sync.
#[derive(Debug, Clone, Serialize)]
pub struct Sequential {
    /// Bytes of one write.
    pub bytes: usize,
    /// Write and sync together.
    pub times: Times,
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Dirty partitions of a round, one measurement each.
    pub partitions: Vec<usize>,
    /// Bytes of a batch.
    pub batch_bytes: usize,
    /// Pairs of blocks.
    pub pairs: usize,
    /// Rounds of a block.
    pub rounds: usize,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The disk's own figures.
    pub sequential: Vec<Sequential>,
    /// Rounds.
    pub rounds: Vec<Rounds>,
}

/// Measures in a folder, which must be on the disk that is meant.
///
/// # Errors
/// Where the disk or the log refuses.
pub fn run(folder: &Path, plan: &Plan) -> Result<Outcome> {
    let scratch = tempfile::tempdir_in(folder).context("make a scratch folder")?;
    let bare = BareFile::create(&scratch.path().join("bare"))?;
    let sequential = [4096, 65_536, 262_144, 1_048_576, 4_194_304]
        .into_iter()
        .map(|bytes| {
            let data = vec![0x61; bytes];
            let times = (0..plan.rounds).map(|_| bare.round(&data)).collect::<Result<Vec<_>>>()?;
            Ok(Sequential { bytes, times: summarize(times, bytes) })
        })
        .collect::<Result<Vec<_>>>()?;
    let runtimes = Runtimes::start(RuntimesConfig::default()).context("start threads")?;
    let mut rounds = Vec::new();
    for partitions in &plan.partitions {
        let log_folder = scratch.path().join(format!("log-{partitions}"));
        let measured = runtimes.front().block_on(measure(&log_folder, *partitions, plan, &bare, &runtimes));
        rounds.push(measured.with_context(|| format!("rounds of {partitions} partitions"))?);
        fs::remove_dir_all(&log_folder).context("remove the log")?;
    }
    runtimes.shutdown(Duration::from_secs(5));
    Ok(Outcome { sequential, rounds })
}

struct BareFile {
    file: File,
    at: std::cell::Cell<u64>,
}

impl BareFile {
    /// Every block is written once, so that no round measures the file system's allocation.
    fn create(path: &Path) -> Result<Self> {
        let mut file = File::options().create(true).truncate(true).read(true).write(true).open(path)?;
        let block = vec![0; 4 * 1024 * 1024];
        for _ in 0..FILE_BYTES / block.len() as u64 {
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(Self { file, at: std::cell::Cell::new(0) })
    }

    fn round(&self, data: &[u8]) -> Result<Duration> {
        let length = data.len() as u64;
        let at = if self.at.get() + length > FILE_BYTES { 0 } else { self.at.get() };
        self.at.set(at + length);
        let begun = Instant::now();
        self.file.write_all_at(data, at)?;
        self.file.sync_data()?;
        Ok(begun.elapsed())
    }
}

async fn measure(
    folder: &Path,
    partitions: usize,
    plan: &Plan,
    bare: &BareFile,
    runtimes: &Runtimes,
) -> Result<Rounds> {
    let registry = Registry::new();
    let supervisor = Supervisor::new(runtimes.front().clone(), runtimes.back().clone(), &registry);
    let disk = FileDisk::new(FileDiskConfig { registry: registry.clone(), ..FileDiskConfig::default() })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = LogConfig::new(folder, DirectoryId::from_bytes([7; 16]));
    let (log, _) = Log::open(config, Arc::new(disk), clock, supervisor.clone(), &registry)
        .await
        .map_err(|error| anyhow!("open the log: {error}"))?;
    let mut logs = Vec::with_capacity(partitions);
    for number in 0..partitions {
        let place = TopicPartition {
            topic_id: TopicId::from_bytes([9; 16]),
            partition: PartitionIndex(i32::try_from(number)?),
        };
        let config = PartitionConfig { segment_bytes: ByteSize::mib(64), ..PartitionConfig::default() };
        logs.push(
            log.create(place, config, Offset::ZERO)
                .await
                .map_err(|error| anyhow!("create a partition: {error}"))?,
        );
    }
    let batch = batch(plan.batch_bytes)?;
    let whole = vec![0x62; partitions * (61 + batch.body.len())];
    // The first rounds allocate.
    for _ in 0..3 {
        journal_round(&log, &logs, &batch).await?;
        bare.round(&whole)?;
    }
    let (mut bare_times, mut journal_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.pairs {
        let mut block = (0..plan.rounds).map(|_| bare.round(&whole)).collect::<Result<Vec<_>>>()?;
        let bare_median = median(&mut block);
        bare_times.append(&mut block);
        for _ in 0..plan.rounds {
            block.push(journal_round(&log, &logs, &batch).await?);
        }
        ratios.push(median(&mut block) / bare_median.max(1e-9));
        journal_times.append(&mut block);
    }
    log.close().await.map_err(|error| anyhow!("close the log: {error}"))?;
    supervisor.shutdown(Duration::from_secs(5)).await;
    Ok(Rounds {
        partitions,
        batch_bytes: 61 + batch.body.len(),
        bare: summarize(bare_times, whole.len()),
        journal: summarize(journal_times, whole.len()),
        ratios,
    })
}

/// Appends to all partitions and waits for the last of them.
async fn journal_round(log: &Log, logs: &[PartitionLog], batch: &RawBatch) -> Result<Duration> {
    log.append_room().await;
    let begun = Instant::now();
    let mut ends = Vec::with_capacity(logs.len());
    for partition in logs {
        let at = partition.offsets().log_end;
        let mut header = *batch.header.as_bytes();
        header[..8].copy_from_slice(&at.get().to_be_bytes());
        let last_offset = at;
        let end = partition
            .append([AppendBatch {
                header,
                body: batch.body.clone(),
                base_offset: at,
                last_offset,
                max_timestamp: batch.header.max_timestamp(),
                leader_epoch: LeaderEpoch::from_wire(0).unwrap_or_default(),
                frame_bytes: 0,
            }])
            .map_err(|error| anyhow!("append: {error}"))?;
        ends.push(end);
    }
    for (partition, end) in logs.iter().zip(ends) {
        partition.wait_synced(end).await.map_err(|error| anyhow!("sync: {error}"))?;
    }
    Ok(begun.elapsed())
}

/// One record whose batch has about this size.
fn batch(bytes: usize) -> Result<RawBatch> {
    let value = vec![0x63; bytes.saturating_sub(61 + 9).max(1)];
    let record = NewRecord {
        timestamp: Some(Timestamp::from_millis(1_700_000_000_000)),
        key: None,
        value: Some(&value),
        headers: &[],
    };
    let raw = BatchBuilder::new(Offset::ZERO).record(&record).build().context("build a batch")?;
    // The body is a copy of its own, as large as it must be.
    Ok(RawBatch { body: Bytes::copy_from_slice(&raw.body), ..raw })
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

fn summarize(mut times: Vec<Duration>, bytes: usize) -> Times {
    times.sort();
    let at = |part: usize| {
        let index = (times.len() * part / 100).min(times.len().saturating_sub(1));
        times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let total: f64 = times.iter().map(Duration::as_secs_f64).sum();
    let written = float(bytes as u64) * float(times.len() as u64);
    Times {
        count: times.len(),
        median_ms: at(50),
        min_ms: at(0),
        p99_ms: at(99),
        max_ms: at(100),
        mb_per_s: if total > 0.0 { written / total / 1e6 } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ranked_and_their_rate_is_over_all() {
        let times = (1..=100).map(Duration::from_millis).collect();
        let summary = summarize(times, 5050);
        assert_eq!((summary.count, summary.min_ms, summary.median_ms), (100, 1.0, 51.0));
        assert_eq!((summary.p99_ms, summary.max_ms), (100.0, 100.0));
        assert!((summary.mb_per_s - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_round_makes_every_partition_durable() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan { partitions: vec![3], batch_bytes: 4096, pairs: 2, rounds: 2 };
        let outcome = run(folder.path(), &plan).unwrap();
        assert_eq!((outcome.rounds[0].journal.count, outcome.rounds[0].ratios.len()), (4, 2));
        assert_eq!(outcome.rounds[0].batch_bytes, 4096);
    }
}
