//! From images of the cluster's metadata to partitions on disk.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use tidelog_core::{
    cluster::{MetadataImage, PartitionImage, TopicImage},
    partition::{EpochStart, PartitionState, RecoveredLog},
    producers::{ProducerLimits, Producers},
    topic_config::BrokerSettings,
};
use tidelog_format::batch::BatchHeader;
use tidelog_log::{CreateError, LogFailure, PartitionLog, ReadError as LogReadError, RecoveredPartition};
use tidelog_types::{Offset, OffsetRange, TopicPartition, limits};
use tracing::{error, info, warn};

use super::{ReplicaManager, Started};
use crate::{
    PartitionHandle, PartitionSettings, StartError,
    observer::Progress,
    partition::{Partition, Sources},
    producers_form,
};

/// A partition that an image places here.
#[derive(Clone)]
struct Placed<'a> {
    place: TopicPartition,
    topic: &'a Arc<TopicImage>,
    image: &'a Arc<PartitionImage>,
}

impl ReplicaManager {
    /// Opens what the log recovered and the image knows, creates what is missing, deletes the rest.
    pub(super) async fn open(
        &self,
        recovered: Vec<RecoveredPartition>,
        image: Arc<MetadataImage>,
    ) -> Result<Started, StartError> {
        let mut started = Started::default();
        let mut on_disk: BTreeMap<TopicPartition, RecoveredPartition> =
            recovered.into_iter().map(|found| (found.log.place(), found)).collect();
        let broker = self.broker_settings(&image);
        let mut partitions = BTreeMap::new();
        let mut missing = Vec::new();
        for placed in self.placed(&image) {
            let place = placed.place;
            let Some(found) = on_disk.remove(&place) else {
                missing.push(placed);
                continue;
            };
            started.opened += 1;
            let opened = self.open_one(&placed, &broker, found, &mut started).await;
            partitions.insert(place, opened.map_err(|source| StartError::Log { place, source })?);
        }
        started.created = missing.len();
        for (place, created) in self.create_all(missing, &broker).await {
            partitions.insert(place, created.map_err(|source| StartError::Create { place, source })?);
        }
        for place in on_disk.into_keys() {
            info!(partition = %place, "deletes the log of a topic that is gone");
            self.shared.log.delete(place).await.map_err(|source| StartError::Log { place, source })?;
            started.deleted += 1;
        }
        let opened: Vec<PartitionHandle> = partitions.values().cloned().collect();
        self.host(Some(partitions), image);
        self.commit_log_starts(opened).await;
        Ok(started)
    }

    /// Brings the partitions to what a newer image says, then shows it to clients, then has deleted what it does not hold.
    pub(super) async fn follow(&self, image: Arc<MetadataImage>) {
        let before = self.partitions.load_full();
        let broker = self.broker_settings(&image);
        let mut kept = 0;
        let mut missing = Vec::new();
        let mut changed = Vec::new();
        let placed = self.placed(&image);
        for placed in &placed {
            match before.get(&placed.place) {
                Some(handle) => {
                    kept += 1;
                    if self.update_one(handle, placed, &broker).await {
                        changed.push(handle.clone());
                    }
                }
                None => missing.push(placed.clone()),
            }
        }
        if missing.is_empty() && kept == before.len() {
            self.host(None, image.clone());
            self.commit_log_starts(changed).await;
            return;
        }
        let mut partitions: super::Partitions = placed
            .iter()
            .filter_map(|placed| Some((placed.place, before.get(&placed.place)?.clone())))
            .collect();
        for (place, created) in self.create_all(missing, &broker).await {
            match created {
                Ok(handle) => {
                    partitions.insert(place, handle);
                }
                // Tried again with the next image; until then clients get "not here".
                Err(error) => error!(partition = %place, %error, "could not create a partition"),
            }
        }
        let gone: Vec<PartitionHandle> = before
            .iter()
            .filter(|(place, _)| !partitions.contains_key(place))
            .map(|(_, handle)| handle.clone())
            .collect();
        for handle in &gone {
            if handle.fence().is_some() {
                self.shared.metrics.fenced_partitions.sub(1);
            }
            handle.inner.fail("the partition is deleted", true);
        }
        self.host(Some(partitions), image.clone());
        self.deletions.add(gone);
        self.commit_log_starts(changed).await;
    }

    /// The broker's settings under an image: the same allocation while they are the same, so that comparing is cheap.
    fn broker_settings(&self, image: &MetadataImage) -> Arc<BrokerSettings> {
        let settings = self.shared.config.broker_settings(image);
        let known = self.broker.load_full();
        if *known == settings {
            return known;
        }
        let settings = Arc::new(settings);
        self.broker.store(Arc::clone(&settings));
        settings
    }

    /// Shows an image to clients, with the partitions it places here where they are others than before.
    fn host(&self, partitions: Option<super::Partitions>, image: Arc<MetadataImage>) {
        if let Some(partitions) = partitions {
            self.shared.metrics.partitions.set(partitions.len() as u64);
            self.partitions.store(Arc::new(partitions));
        }
        self.applied.send_replace(image);
    }

    fn placed<'a>(&self, image: &'a MetadataImage) -> Vec<Placed<'a>> {
        let broker = self.shared.config.broker;
        let mut placed = Vec::new();
        for (place, partition) in
            image.partitions().filter(|(_, partition)| partition.replicas.contains(&broker))
        {
            if let Some(topic) = image.topic(place.topic_id) {
                placed.push(Placed { place, topic, image: partition });
            }
        }
        placed
    }

    /// Creates partitions, many at a time: they share the journal's rounds.
    async fn create_all(
        &self,
        missing: Vec<Placed<'_>>,
        broker: &Arc<BrokerSettings>,
    ) -> Vec<(TopicPartition, Result<PartitionHandle, CreateError>)> {
        // A vector of futures: a closure over the placed partitions' lifetimes cannot be sent to another thread.
        let mut creations = Vec::with_capacity(missing.len());
        for placed in missing {
            creations.push(self.create_placed(placed, broker));
        }
        stream::iter(creations).buffered(limits::PARTITION_CREATIONS_IN_FLIGHT).collect().await
    }

    async fn create_placed(
        &self,
        placed: Placed<'_>,
        broker: &Arc<BrokerSettings>,
    ) -> (TopicPartition, Result<PartitionHandle, CreateError>) {
        (placed.place, self.create_one(&placed, broker).await)
    }

    async fn create_one(
        &self,
        placed: &Placed<'_>,
        broker: &Arc<BrokerSettings>,
    ) -> Result<PartitionHandle, CreateError> {
        let settings = PartitionSettings::resolve(broker, placed.topic, placed.place);
        let start = first_local_offset(placed.image);
        let log = self.shared.log.create(placed.place, settings.log_config(), start).await?;
        let producers = Producers::new(settings.producers);
        Ok(self.assemble(placed, broker, settings, log, producers))
    }

    async fn open_one(
        &self,
        placed: &Placed<'_>,
        broker: &Arc<BrokerSettings>,
        found: RecoveredPartition,
        started: &mut Started,
    ) -> Result<PartitionHandle, LogFailure> {
        let settings = PartitionSettings::resolve(broker, placed.topic, placed.place);
        let log = found.log.clone();
        log.set_config(settings.log_config());
        let first = first_local_offset(placed.image);
        let log_end = log.offsets().log_end;
        let floor = if placed.image.tiered { first } else { log.offsets().log_start };
        let producers = if log_end < first {
            warn!(
                partition = %placed.place, topic = %placed.topic.name, %log_end, start = %first,
                "the local log ends below what the bucket holds; it begins anew there"
            );
            log.reset(first).await?;
            started.reset += 1;
            self.warn_of_lost_producers(placed, &found, "the local log began anew");
            Ok(Producers::new(settings.producers))
        } else {
            self.recover_producers(placed, &settings, &found).await
        };
        if let Some(why) = &found.report.fenced {
            error!(partition = %placed.place, topic = %placed.topic.name, why = %why, "recovery found a damaged log");
        }
        let behind = placed.image.tiered && placed.image.log_start > log.offsets().log_start;
        if let Some(why) = lost_for_good(&found.report.lost, floor) {
            log.fence(&why).await?;
        } else if found.report.fenced.is_none() && log.fenced().is_some() {
            info!(partition = %placed.place, topic = %placed.topic.name, "what is missing here is not needed, or in the bucket");
            log.truncate(log.offsets().log_end).await?;
        }
        let (producers, unknown) = match producers {
            Ok(producers) => (producers, None),
            Err(error) => (Producers::new(settings.producers), Some(error)),
        };
        if behind && unknown.is_some() {
            // Nobody is attached to the log: the state of none must not be stored as theirs.
            log.set_log_start(placed.image.log_start).await?;
        }
        let handle = self.assemble(placed, broker, settings, log, producers);
        if behind && unknown.is_none() {
            // Now that the log can ask for the producers: their batches are not replayed any more at the next start.
            handle.inner.log.set_log_start(placed.image.log_start).await?;
        }
        if handle.fence().is_some() {
            self.shared.metrics.fenced_partitions.add(1);
        }
        if let Some(error) = unknown {
            error!(partition = %placed.place, topic = %placed.topic.name, %error, "takes no appends: its producers are not known");
            self.shared.metrics.failed_partitions.add(1);
            handle.inner.fail(&format!("its producers are not known: {error}"), false);
        }
        Ok(handle)
    }

    /// The producers' state: the newest stored one that can be read, and every batch after it; without one, every batch of
    /// the local log. Producers count as heard of now.
    ///
    /// # Errors
    /// Batches that are here cannot be read: retries of them would be taken for new records.
    async fn recover_producers(
        &self,
        placed: &Placed<'_>,
        settings: &PartitionSettings,
        found: &RecoveredPartition,
    ) -> Result<Producers, LogReadError> {
        let now = self.shared.clock.wall();
        let stored = found
            .producer_snapshot
            .as_ref()
            .map(|(at, bytes)| stored_producers(*at, bytes, settings.producers));
        let (from, mut producers, replay) = match stored {
            Some(Ok((from, producers))) => (from, producers, Cow::Borrowed(&found.replay)),
            Some(Err(why)) => {
                self.warn_of_lost_producers(placed, found, &why);
                let local = Cow::Owned(found.log.batch_headers(Offset::ZERO).await?);
                (Offset::ZERO, Producers::new(settings.producers), local)
            }
            None => {
                let is_whole = found.report.lost.is_empty();
                if !is_whole || found.log.offsets().local_log_start > placed.image.log_start {
                    self.warn_of_lost_producers(placed, found, "no producer snapshot can be read");
                }
                (Offset::ZERO, Producers::new(settings.producers), Cow::Borrowed(&found.replay))
            }
        };
        for header in replay.iter() {
            producers_form::replay(&mut producers, &BatchHeader::from_bytes(*header), from, now);
        }
        Ok(producers)
    }

    fn warn_of_lost_producers(&self, placed: &Placed<'_>, found: &RecoveredPartition, why: &str) {
        let (lost_from, lost_to) = (placed.image.log_start, found.log.offsets().local_log_start);
        self.shared.metrics.lost_producer_states.inc();
        warn!(
            partition = %placed.place, topic = %placed.topic.name, %lost_from, %lost_to, why,
            "producers are known from the local log alone: a retry of a batch below its start would be appended again"
        );
    }

    fn assemble(
        &self,
        placed: &Placed<'_>,
        broker: &Arc<BrokerSettings>,
        settings: PartitionSettings,
        log: PartitionLog,
        producers: Producers,
    ) -> PartitionHandle {
        let offsets = log.offsets();
        let tiered_end = if placed.image.tiered { placed.image.manifest.tiered_end } else { Offset::ZERO };
        let log_start = true_log_start(placed.image, offsets.log_start);
        let epochs = log.epochs();
        let mut state = PartitionState::new(
            RecoveredLog {
                log_start,
                local_log_start: offsets.local_log_start,
                tiered_end,
                log_end: offsets.log_end,
                written_end: offsets.written_end,
                synced_end: offsets.synced_end,
                epochs: epochs
                    .entries()
                    .iter()
                    .map(|entry| EpochStart { epoch: entry.epoch, start: entry.start })
                    .collect(),
            },
            producers,
            settings.flush,
        );
        let leads = placed.image.leader == Some(self.shared.config.broker);
        state.follow_image(leads, placed.image.leader_epoch, placed.image.isr.len(), placed.image.tiered);
        let partition = Arc::new(Partition::new(
            placed.place,
            placed.topic.name.clone(),
            log.clone(),
            Arc::clone(&self.shared),
            state,
            Sources { settings, broker: Arc::clone(broker), overrides: placed.topic.configs.clone() },
            Arc::clone(placed.image),
        ));
        log.attach(Arc::new(Progress::new(&partition)));
        // What the log finished between the look at its offsets and the attachment is told again.
        let offsets = log.offsets();
        partition.change(|locked| {
            let _ = locked.state.written(offsets.written_end);
            ((), locked.state.synced(offsets.synced_end))
        });
        PartitionHandle { inner: partition }
    }

    /// Brings one partition to a newer image; answers whether anything of it changed.
    async fn update_one(
        &self,
        handle: &PartitionHandle,
        placed: &Placed<'_>,
        broker: &Arc<BrokerSettings>,
    ) -> bool {
        let partition = &handle.inner;
        // Most images change neither: the settings of thousands of partitions are not resolved again for each.
        if !partition.sources().are(broker, &placed.topic.configs) {
            let settings = PartitionSettings::resolve(broker, placed.topic, placed.place);
            let overrides = placed.topic.configs.clone();
            partition.take_settings(Sources { settings, broker: Arc::clone(broker), overrides });
        }
        if Arc::ptr_eq(&partition.image(), placed.image) {
            return false;
        }
        partition.take_image(Arc::clone(placed.image));
        if placed.image.tiered
            && placed.image.log_start > partition.snapshot().log_start
            && let Err(error) = partition.apply_log_start(placed.image.log_start).await
        {
            error!(partition = %placed.place, %error, "could not move the log start to the committed one");
        }
        true
    }

    /// A topic that becomes tiered first commits its leader's log start.
    async fn commit_log_starts(&self, partitions: Vec<PartitionHandle>) {
        for handle in partitions {
            if let Err(error) = handle.commit_own_log_start().await {
                // Tried again with the partition's next image, and by the first upload, which it keeps waiting.
                warn!(partition = %handle.place(), %error, "could not commit the log start of a tiered partition");
            }
        }
    }
}

/// A stored state of producers, which must be the one at `at`. Empty bytes say that there were none.
fn stored_producers(at: Offset, bytes: &[u8], limits: ProducerLimits) -> Result<(Offset, Producers), String> {
    if bytes.is_empty() {
        return Ok((at, Producers::new(limits)));
    }
    match producers_form::decode(bytes, limits) {
        Ok((end, producers)) if end == at => Ok((at, producers)),
        // One of another end would make every batch in between look replayed, or missing.
        Ok((end, _)) => Err(format!("the producer snapshot at {at} is of {end}")),
        Err(error) => Err(format!("the producer snapshot at {at} cannot be read: {error}")),
    }
}

/// Where a local log without records begins: what is below belongs to the bucket.
fn first_local_offset(image: &PartitionImage) -> Offset {
    if image.tiered { image.log_start.max(image.manifest.tiered_end) } else { image.log_start }
}

/// Why a log that lost segments must not go on: records of it are in no tier. What lies below `floor`, in the bucket or below
/// the log start, is served from there or not wanted any more.
fn lost_for_good(lost: &[OffsetRange], floor: Offset) -> Option<String> {
    let range = lost.iter().find(|range| range.end > floor)?;
    let base = range.base.max(floor);
    Some(format!(
        "the segment at {} is lost, and records in [{base}, {}) are nowhere else",
        range.base, range.end
    ))
}

/// The log start offset, from what the cluster and the local log say. A local log that was begun anew where the bucket ends
/// says where *it* begins, which is no log start (B98). One that begins above the tiered end lost records by a deletion
/// that is not committed yet, as a topic does that was not tiered before.
fn true_log_start(image: &PartitionImage, local: Offset) -> Offset {
    if image.tiered && local <= image.manifest.tiered_end {
        image.log_start
    } else {
        image.log_start.max(local)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidelog_core::cluster::PartitionManifest;
    use tidelog_types::{BrokerId, LeaderEpoch};

    use super::*;

    fn image(tiered: bool, log_start: u64, tiered_end: u64) -> PartitionImage {
        let offset = |raw| Offset::new(raw).unwrap();
        PartitionImage {
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch::ZERO,
            partition_epoch: 0,
            replicas: vec![BrokerId(1)],
            directories: Vec::new(),
            isr: vec![BrokerId(1)],
            last_leader: BrokerId(1),
            log_start: offset(log_start),
            manifest: Arc::new(PartitionManifest {
                tiered_end: offset(tiered_end),
                ..PartitionManifest::default()
            }),
            tiered,
        }
    }

    #[test]
    fn a_lost_segment_fences_unless_the_bucket_holds_it_or_nobody_wants_it() {
        let offset = |raw| Offset::new(raw).unwrap();
        let lost = [
            OffsetRange { base: offset(10), end: offset(20) },
            OffsetRange { base: offset(30), end: offset(40) },
        ];
        assert_eq!(lost_for_good(&lost, offset(40)), None);
        let why = "the segment at 30 is lost, and records in [35, 40) are nowhere else";
        assert_eq!(lost_for_good(&lost, offset(35)).as_deref(), Some(why));
        assert_eq!(lost_for_good(&[], offset(0)), None);
    }

    #[test]
    fn a_stored_state_of_producers_is_the_one_at_its_offset_or_none() {
        let (at, limits) = (Offset::new(7).unwrap(), ProducerLimits::default());
        let none = Producers::new(limits);
        let stored = producers_form::encode(&none, at);
        assert_eq!(stored_producers(at, &stored, limits).unwrap(), (at, none.clone()));
        assert_eq!(stored_producers(at, b"", limits).unwrap(), (at, none), "there were none");
        let refused = stored_producers(Offset::new(8).unwrap(), &stored, limits).unwrap_err();
        assert_eq!(refused, "the producer snapshot at 8 is of 7");
        assert!(stored_producers(at, &stored[1..], limits).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn a_log_start_is_the_clusters_where_the_bucket_covers_it() {
        let start = |tiered, log_start, tiered_end, local| {
            true_log_start(&image(tiered, log_start, tiered_end), Offset::new(local).unwrap()).get()
        };
        assert_eq!(start(true, 5, 100, 100), 5, "begun anew at the tiered end");
        assert_eq!(start(true, 5, 100, 3), 5, "behind the cluster");
        assert_eq!(start(true, 0, 0, 40), 40, "not committed yet");
        assert_eq!(start(false, 0, 0, 40), 40);
        assert_eq!(first_local_offset(&image(true, 5, 100)).get(), 100);
    }
}
