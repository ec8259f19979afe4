//! Retention of topics that are not tiered, and expiry of producers.
//!
//! A tiered topic's retention covers the bucket and is `tier`'s.

use tidelog_log::SegmentSummary;
use tidelog_types::{Offset, Timestamp};
use tracing::warn;

use crate::partition::{Partition, PartitionHandle};

/// What retention keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    /// `retention.ms`.
    age_ms: Option<u64>,
    /// `retention.bytes`.
    bytes: Option<u64>,
}

/// What is to be done for retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// Everything below goes; `None`: nothing does.
    log_start: Option<Offset>,
    /// The active segment is past its time and is sealed first.
    seal_active: bool,
    /// The bytes that go.
    bytes: u64,
}

/// Decides which of the oldest segments go: those past their age, then as many as bring the size down to the limit without
/// going below it. A segment that reaches above the high watermark stays (B67).
fn plan(segments: &[SegmentSummary], high_watermark: Offset, now: Timestamp, limits: Limits) -> Plan {
    let expired = |segment: &SegmentSummary| {
        let newest = segment.max_timestamp.unwrap_or(segment.created);
        limits.age_ms.is_some_and(|age_ms| now.millis_since(newest) > age_ms)
    };
    let mut excess = limits
        .bytes
        .map_or(0, |most| segments.iter().map(|segment| segment.bytes).sum::<u64>().saturating_sub(most));
    let mut plan = Plan { log_start: None, seal_active: false, bytes: 0 };
    for segment in segments {
        let too_much = excess > 0 && segment.bytes <= excess;
        if segment.range.is_empty() || segment.range.end > high_watermark || !(expired(segment) || too_much) {
            break;
        }
        if !segment.sealed && !expired(segment) {
            break;
        }
        plan.seal_active = !segment.sealed;
        plan.log_start = Some(segment.range.end);
        plan.bytes += segment.bytes;
        excess = excess.saturating_sub(segment.bytes);
    }
    plan
}

impl PartitionHandle {
    /// Applies `retention.ms` and `retention.bytes` if the topic deletes and is not tiered. Answers the bytes that went.
    ///
    /// # Errors
    /// What stopped it; the next tick tries again.
    pub async fn apply_retention(&self) -> Result<u64, crate::DeleteRecordsError> {
        let partition = &self.inner;
        let settings = partition.settings();
        let snapshot = partition.snapshot();
        if snapshot.tiered || !snapshot.leading || !settings.topic.cleanup_policy.delete {
            return Ok(0);
        }
        let limits = Limits { age_ms: settings.topic.retention_ms, bytes: settings.topic.retention_bytes };
        let now = partition.shared.clock.wall();
        let plan = plan(&partition.log.segments(), snapshot.high_watermark, now, limits);
        let Some(log_start) = plan.log_start.filter(|to| *to > snapshot.log_start) else { return Ok(0) };
        if plan.seal_active {
            partition.log.roll().await?;
        }
        self.advance_log_start(log_start).await?;
        partition.shared.metrics.deleted_by_retention_bytes.add(plan.bytes);
        Ok(plan.bytes)
    }
}

impl Partition {
    pub(crate) fn expire_producers(&self) {
        let now = self.shared.clock.wall();
        let expired = self.lock().state.expire_producers(now);
        self.shared.metrics.expired_producers.add(expired as u64);
    }
}

/// One tick over all partitions.
pub(crate) async fn tick(partitions: Vec<PartitionHandle>) {
    for partition in partitions {
        if let Err(error) = partition.apply_retention().await {
            warn!(partition = %partition.place(), topic = %partition.topic(), %error, "retention will be tried again");
        }
    }
}

#[cfg(test)]
mod tests {
    use tidelog_types::{LeaderEpoch, OffsetRange};

    use super::*;

    fn offset(raw: u64) -> Offset {
        Offset::new(raw).unwrap()
    }

    /// Ten records and 100 bytes a segment, each a second younger than the one before; the last one is active.
    fn segments(count: u64) -> Vec<SegmentSummary> {
        (0..count)
            .map(|index| SegmentSummary {
                range: OffsetRange { base: offset(index * 10), end: offset(index * 10 + 10) },
                bytes: 100,
                sealed: index + 1 < count,
                max_timestamp: Some(Timestamp::from_millis(10_000 + index * 1_000)),
                created: Timestamp::from_millis(10_000 + index * 1_000),
                leader_epochs: (LeaderEpoch::ZERO, LeaderEpoch::ZERO),
            })
            .collect()
    }

    fn planned(
        high_watermark: u64,
        now_ms: u64,
        age_ms: Option<u64>,
        bytes: Option<u64>,
    ) -> (Option<u64>, bool) {
        let plan = plan(
            &segments(5),
            offset(high_watermark),
            Timestamp::from_millis(now_ms),
            Limits { age_ms, bytes },
        );
        (plan.log_start.map(Offset::get), plan.seal_active)
    }

    #[test]
    fn age_takes_the_oldest_segments() {
        assert_eq!(planned(50, 13_500, Some(2_000), None), (Some(20), false));
        assert_eq!(
            planned(50, 13_000, Some(2_000), None),
            (Some(10), false),
            "exactly at its age a segment stays"
        );
        assert_eq!(planned(50, 13_500, None, None), (None, false));
    }

    #[test]
    fn an_active_segment_past_its_age_is_sealed_and_goes() {
        assert_eq!(planned(50, 100_000, Some(2_000), None), (Some(50), true));
    }

    #[test]
    fn size_never_takes_more_than_the_excess() {
        assert_eq!(planned(50, 0, None, Some(300)), (Some(20), false));
        assert_eq!(planned(50, 0, None, Some(301)), (Some(10), false));
        assert_eq!(planned(50, 0, None, Some(0)), (Some(40), false), "the active segment stays");
    }

    #[test]
    fn a_segment_that_reaches_above_the_high_watermark_stays() {
        // B67
        assert_eq!(planned(29, 100_000, Some(1), Some(0)), (Some(20), false));
        assert_eq!(planned(9, 100_000, Some(1), Some(0)), (None, false));
    }
}
