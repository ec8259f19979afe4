//! Where the bytes are, for people and their tools.
//!
//! Offsets are numbers. Sizes count record batches, whichever tiers hold them; `object_bytes` is what an object takes in the
//! bucket with its sections.

use std::collections::BTreeMap;

use serde::Serialize;
use tidelog_core::cluster::{MetadataImage, PartitionImage};
use tidelog_format::manifest::ManifestEntry;
use tidelog_types::{Offset, PartitionIndex, TopicId, TopicName, TopicPartition};

use crate::{Tier, context::Context, delete::key_of, pages::PageError, upload::lag_of};

/// The tiers of every partition that this node hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TierStatus {
    /// By name.
    pub topics: Vec<TopicStatus>,
    /// Bytes of batches in the bucket.
    pub bucket_bytes: u64,
    /// Segment objects that manifests name; `None` (null) where a page could not be read to count them.
    pub bucket_objects: Option<u64>,
    /// Bytes of chunks that the cache holds in memory.
    pub cache_memory_bytes: u64,
    /// Bytes that the cache's files take on the device; what is in memory is mostly there too.
    pub cache_disk_bytes: u64,
}

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopicStatus {
    /// Its name.
    pub topic: TopicName,
    /// Its id.
    pub topic_id: TopicId,
    /// By number.
    pub partitions: Vec<PartitionStatus>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionStatus {
    /// Its number.
    pub partition: PartitionIndex,
    /// Nothing below it is served.
    pub log_start: Offset,
    /// The first offset on local disk.
    pub local_log_start: Offset,
    /// One past the last offset in the bucket.
    pub tiered_end: Offset,
    /// One past the last offset that consumers see.
    pub high_watermark: Offset,
    /// One past the last offset.
    pub log_end: Offset,
    /// Bytes on local disk.
    pub local_bytes: u64,
    /// Bytes in the bucket.
    pub bucket_bytes: u64,
    /// Segment objects; `None` (null) where a page could not be read to count them.
    pub bucket_objects: Option<u64>,
    /// Bytes in sealed segments that are not in the bucket.
    pub lag_bytes: u64,
    /// Age of the oldest of them, rounded up.
    pub lag_seconds: u64,
}

/// The segment objects of one topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TierSegments {
    /// By partition, then by offset.
    pub segments: Vec<SegmentStatus>,
}

/// One segment object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentStatus {
    /// The partition.
    pub partition: PartitionIndex,
    /// The first offset.
    pub base_offset: Offset,
    /// One past the last offset.
    pub end_offset: Offset,
    /// Bytes of its batches.
    pub bytes: u64,
    /// Bytes of the object.
    pub object_bytes: u64,
    /// The leader epoch of its last batch.
    pub leader_epoch: u32,
    /// The largest timestamp in it, in milliseconds; null where no record has one.
    pub max_timestamp: Option<u64>,
    /// Its key below the bucket's prefix.
    pub key: String,
}

/// Why there is no list of segments.
#[derive(Debug, thiserror::Error)]
pub enum SegmentsError {
    /// No topic has this name.
    #[error("topic `{0}` does not exist")]
    UnknownTopic(TopicName),
    /// A page of the manifest could not be read; it may be asked again.
    #[error(transparent)]
    Page(#[from] PageError),
}

impl Tier {
    /// Where the bytes of every hosted partition are. Pages are read once each, to count what they list.
    pub async fn status(&self) -> TierStatus {
        let context = &*self.context;
        let image = context.commands.image();
        let mut topics: BTreeMap<TopicName, TopicStatus> = BTreeMap::new();
        for handle in context.partitions.partitions() {
            let place = handle.place();
            let Some(partition) = image.partition(&place) else { continue };
            let snapshot = handle.snapshot();
            let lag = lag_of(context, &handle, &image).unwrap_or_default();
            let (bucket_bytes, bucket_objects) = in_bucket(context, handle.topic(), place, partition).await;
            let status = PartitionStatus {
                partition: place.partition,
                log_start: snapshot.log_start,
                local_log_start: snapshot.local_log_start,
                tiered_end: snapshot.tiered_end,
                high_watermark: snapshot.high_watermark,
                log_end: snapshot.log_end,
                local_bytes: handle.local_bytes(),
                bucket_bytes,
                bucket_objects,
                lag_bytes: lag.bytes,
                lag_seconds: lag.age_ms.div_ceil(1_000),
            };
            let topic = topics.entry(handle.topic().clone()).or_insert_with(|| TopicStatus {
                topic: handle.topic().clone(),
                topic_id: place.topic_id,
                partitions: Vec::new(),
            });
            topic.partitions.push(status);
        }
        let all = || topics.values().flat_map(|topic| &topic.partitions);
        TierStatus {
            bucket_bytes: all().map(|partition| partition.bucket_bytes).sum(),
            bucket_objects: all().map(|partition| partition.bucket_objects).sum(),
            cache_memory_bytes: context.cache.get().map_or(0, |cache| cache.usage().memory_bytes),
            cache_disk_bytes: context.cache.get().map_or(0, |cache| cache.disk_bytes()),
            topics: topics.into_values().collect(),
        }
    }

    /// The segment objects of a topic that manifests name, from the newest image and the pages of the bucket.
    ///
    /// # Errors
    /// The topic is not known, or a page could not be read.
    pub async fn segments(&self, topic: &TopicName) -> Result<TierSegments, SegmentsError> {
        let context = &*self.context;
        let image: std::sync::Arc<MetadataImage> = context.commands.image();
        let known = image.topic_by_name(topic).ok_or_else(|| SegmentsError::UnknownTopic(topic.clone()))?;
        let mut segments = Vec::new();
        for (partition, number) in known.partitions.iter().zip(0..) {
            let place = TopicPartition { topic_id: known.id, partition: PartitionIndex(number) };
            let live = |entry: &&ManifestEntry| entry.range.end > partition.log_start;
            for line in &partition.manifest.lines {
                let entries = context.page(topic, place, line.page).await?;
                segments.extend(entries.iter().filter(live).map(|entry| segment(topic, place, entry)));
            }
            segments.extend(
                partition.manifest.entries.iter().filter(live).map(|entry| segment(topic, place, entry)),
            );
        }
        Ok(TierSegments { segments })
    }
}

fn segment(topic: &TopicName, place: TopicPartition, entry: &ManifestEntry) -> SegmentStatus {
    let object = tidelog_core::cluster::ObjectName::Segment { object: entry.object };
    SegmentStatus {
        partition: place.partition,
        base_offset: entry.range.base,
        end_offset: entry.range.end,
        bytes: entry.bytes,
        object_bytes: entry.object_bytes,
        leader_epoch: entry.leader_epoch.get(),
        max_timestamp: entry.max_timestamp.map(tidelog_types::Timestamp::as_millis),
        key: key_of(topic, place, &object),
    }
}

/// Bytes and objects of one partition that are at or above its log start.
async fn in_bucket(
    context: &Context,
    topic: &TopicName,
    place: TopicPartition,
    partition: &PartitionImage,
) -> (u64, Option<u64>) {
    let manifest = &partition.manifest;
    let mut bytes: u64 = manifest.entries.iter().map(|entry| entry.bytes).sum();
    let mut objects = Some(manifest.entries.len() as u64);
    for line in &manifest.lines {
        // Only the oldest page may list what is gone already; of others the line and the remembered count tell all.
        let whole = line.range.base >= partition.log_start;
        if whole && let Some(count) = context.pages.count(place, line.page) {
            bytes = bytes.saturating_add(line.bytes);
            objects = objects.map(|objects| objects + count);
            continue;
        }
        match context.page(topic, place, line.page).await {
            Ok(entries) => {
                let live = || entries.iter().filter(|entry| entry.range.end > partition.log_start);
                bytes = bytes.saturating_add(live().map(|entry| entry.bytes).sum());
                objects = objects.map(|objects| objects + live().count() as u64);
            }
            Err(error) => {
                tracing::debug!(partition = %place, %error, "a page cannot be counted");
                bytes = bytes.saturating_add(line.bytes);
                objects = None;
            }
        }
    }
    (bytes, objects)
}
