//! What is checked before the lock: the batch's form, and its records where a topic asks for a look inside.

use std::sync::Arc;

use tidelog_core::{partition::TimestampBounds, topic_config::TimestampType};
use tidelog_format::{
    batch::{
        BatchError, BatchLimits, RawBatch, TimestampSpan, check_plain_records, records_of_times, sent_batch,
        split_batches, validate_records,
    },
    codec::Codec,
};
use tidelog_types::{Timestamp, limits};

use crate::{
    AppendError, AppendRequest, PartitionSettings,
    append::{Prepared, facts_of},
    partition::Partition,
};

/// Checks a batch and makes it what the topic stores.
pub(crate) async fn prepare(partition: &Partition, request: &AppendRequest) -> Result<Prepared, AppendError> {
    let settings = partition.settings();
    let now = partition.shared.clock.wall();
    let mut received = one_batch(request, &settings)?;
    if !request.internal && settings.topic.message_timestamp_type == TimestampType::CreateTime {
        // Before the records are looked at: with the bit each would seem to have the time that the header states.
        received.set_create_time();
    }
    let work = Inspection::of(&received, request, &settings);
    let Inspected { mut batch, timestamps, looked_at, anew } = match work {
        None if request.internal => Inspected {
            timestamps: TimestampSpan::stated(&received.header),
            batch: received,
            looked_at: false,
            anew: false,
        },
        None => Inspected {
            // A batch whose parts disagree stops every consumer that comes to it. Looking costs no decompression.
            timestamps: check_plain_records(&received)
                .map_err(|error| AppendError::Records(Arc::new(error)))?,
            looked_at: received.header.attributes().codec() == Ok(Codec::None),
            batch: received,
            anew: false,
        },
        Some(work) => {
            let metrics = &partition.shared.metrics;
            metrics.inspected_batches.inc();
            if work.recompress.is_some() {
                metrics.recompressed_batches.inc();
            }
            if work.is_small(&received) {
                work.run(received)
            } else {
                let _turn = partition.shared.codec_turns.acquire().await;
                let task =
                    partition.shared.supervisor.spawn_blocking("inspect batch", move || work.run(received));
                let stopped = || AppendError::Storage("the broker is stopping".into());
                task.join().await.map_err(|_| stopped())?
            }?
        }
    };
    if settings.topic.message_timestamp_type == TimestampType::LogAppendTime {
        batch.set_log_append_time(now);
    } else if looked_at {
        batch.set_max_timestamp(timestamps);
    }
    let frame_bytes = if anew { 0 } else { request.frame_bytes };
    Ok(Prepared { facts: facts_of(&batch, timestamps), batch, frame_bytes, now })
}

fn one_batch(request: &AppendRequest, settings: &PartitionSettings) -> Result<RawBatch, AppendError> {
    let records = request.records.clone();
    if !request.internal {
        let bytes_max = usize::try_from(settings.topic.max_message_bytes).unwrap_or(usize::MAX);
        return Ok(sent_batch(records, bytes_max)?);
    }
    let mut batches = split_batches(records, &BatchLimits::log());
    let batch = batches.next().ok_or(BatchError::NotOne { count: 0 })??;
    match batches.next() {
        None => Ok(batch),
        Some(_) => Err(BatchError::NotOne { count: 2 }.into()),
    }
}

/// Which records of a refused batch are out of bounds: none are named where they cannot be read.
pub(crate) async fn out_of_time(
    partition: &Partition,
    batch: RawBatch,
    bounds: TimestampBounds,
    now: Timestamp,
) -> Vec<u32> {
    let small = is_small(&batch);
    let look = move || {
        let refused = |timestamp_ms| !bounds.allow(timestamp_ms, now);
        records_of_times(&batch, limits::DECOMPRESSED_BATCH_BYTES_MAX, refused).unwrap_or_default()
    };
    if small {
        return look();
    }
    let _turn = partition.shared.codec_turns.acquire().await;
    partition
        .shared
        .supervisor
        .spawn_blocking("find records out of time", look)
        .join()
        .await
        .unwrap_or_default()
}

/// Whether a look at the records is too little to leave this thread for: no codec, and few bytes.
fn is_small(batch: &RawBatch) -> bool {
    let plain = batch.header.attributes().codec() == Ok(Codec::None);
    plain && batch.body.len() <= limits::INSPECTED_INLINE_BYTES_MAX
}

/// What must be looked at inside a batch, and what it must become.
#[derive(Debug, Clone, Copy)]
struct Inspection {
    keys: bool,
    recompress: Option<(Codec, Option<i32>)>,
}

struct Inspected {
    batch: RawBatch,
    timestamps: Option<TimestampSpan>,
    /// Whether the timestamps are the records' own, and not what the header states.
    looked_at: bool,
    /// Whether its body is a new allocation.
    anew: bool,
}

impl Inspection {
    fn of(batch: &RawBatch, request: &AppendRequest, settings: &PartitionSettings) -> Option<Self> {
        let topic = &settings.topic;
        let keys = topic.cleanup_policy.compact && !request.internal;
        let create_time = topic.message_timestamp_type == TimestampType::CreateTime;
        let codec = batch.header.attributes().codec().ok();
        // The header states the largest timestamp and the first one, not the least; uncompressed records are looked at anyway.
        let bounds_past = create_time && topic.timestamp_before_max_ms.is_some();
        let timestamps = bounds_past && !request.internal && codec != Some(Codec::None);
        let recompress = settings.codec().filter(|(wanted, _)| !request.internal && codec != Some(*wanted));
        let needed = keys || timestamps || recompress.is_some();
        needed.then_some(Self { keys, recompress })
    }

    /// Whether the work is too little to leave this thread for.
    fn is_small(&self, batch: &RawBatch) -> bool {
        self.recompress.is_none() && is_small(batch)
    }

    fn run(self, batch: RawBatch) -> Result<Inspected, AppendError> {
        let records = |error| AppendError::Records(Arc::new(error));
        let report = validate_records(&batch, limits::DECOMPRESSED_BATCH_BYTES_MAX).map_err(records)?;
        if self.keys && !report.without_key.is_empty() {
            return Err(AppendError::WithoutKey { indexes: report.without_key });
        }
        let timestamps = report.timestamps;
        match self.recompress {
            None => Ok(Inspected { batch, timestamps, looked_at: true, anew: false }),
            Some((codec, level)) => {
                let batch = batch
                    .recompressed(codec, level, limits::DECOMPRESSED_BATCH_BYTES_MAX)
                    .map_err(records)?;
                Ok(Inspected { batch, timestamps, looked_at: true, anew: true })
            }
        }
    }
}
