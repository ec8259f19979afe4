//! What is checked before the lock: the batch's form, and its records where a topic asks for a look inside.

use std::sync::Arc;

use tidelog_core::topic_config::TimestampType;
use tidelog_format::{
    batch::{BatchLimits, RawBatch, TimestampSpan, check_plain_records, split_batches, validate_records},
    codec::Codec,
};
use tidelog_types::limits;

use crate::{
    AppendError, AppendRequest, PartitionSettings,
    append::{Prepared, facts_of},
    partition::Partition,
};

/// Checks a batch and makes it what the topic stores.
pub(crate) async fn prepare(partition: &Partition, request: &AppendRequest) -> Result<Prepared, AppendError> {
    let settings = partition.settings();
    let now = partition.shared.clock.wall();
    let received = one_batch(request, &settings)?;
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
    let limits = if request.internal {
        BatchLimits::log()
    } else {
        BatchLimits::client(usize::try_from(settings.topic.max_message_bytes).unwrap_or(usize::MAX))
    };
    let mut batches = split_batches(request.records.clone(), &limits);
    let batch = batches.next().ok_or(AppendError::BatchCount { count: 0 })??;
    if batches.next().is_some() {
        return Err(AppendError::BatchCount { count: 2 });
    }
    Ok(batch)
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

    /// Whether the work is too little to leave this thread for: no codec, and few bytes.
    fn is_small(&self, batch: &RawBatch) -> bool {
        let plain = batch.header.attributes().codec() == Ok(Codec::None);
        plain && self.recompress.is_none() && batch.body.len() <= limits::INSPECTED_INLINE_BYTES_MAX
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
