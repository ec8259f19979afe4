//! The state machine: one command in, one outcome out.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_types::{
    BrokerId, BrokerIncarnation, ClusterId, ProducerId, TopicId, TopicPartition, UploadId, limits,
};

use super::{
    command::{Command, ConfigChange, ConfigResource, Outcome, Refusal},
    deletion::{DeletionScope, DeletionTarget, Grace, ObjectName},
    image::{BrokerImage, LogIndex, MetadataImage, PartitionImage, TopicImage},
    tiering,
};

/// The key that says whether a topic's segments go to the bucket: they do unless it says `false`.
pub const REMOTE_STORAGE_ENABLE: &str = "remote.storage.enable";

/// The cluster-wide key that sets the deletion queue's grace period, in milliseconds.
pub const TIER_DELETION_GRACE_MS: &str = "tier.delete.grace.ms";

/// The cluster's metadata with what only controllers need: the counters that must never go back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterState {
    pub(super) image: MetadataImage,
    pub(super) restore_number: u32,
    /// The lower half of the next incarnation.
    pub(super) next_registration: u32,
    pub(super) next_producer_id: i64,
}

impl Default for ClusterState {
    fn default() -> Self {
        Self::new()
    }
}

impl ClusterState {
    /// The state before the first command.
    #[must_use]
    pub fn new() -> Self {
        Self { image: MetadataImage::empty(), restore_number: 0, next_registration: 1, next_producer_id: 0 }
    }

    /// The metadata as of now. Cheap: everything in it is shared.
    #[must_use]
    pub const fn image(&self) -> &MetadataImage {
        &self.image
    }

    /// Applies the command at `index`. A refused command changes nothing but the index.
    ///
    /// # Panics
    /// Where `index` does not ascend, or the state would break one of its invariants: a bug, never an input.
    pub fn apply(&mut self, index: LogIndex, command: &Command) -> Outcome {
        self.advance(index);
        match self.decide(index, command) {
            Ok(outcome) => {
                if command.changes_topics() {
                    self.image.topics_changed = index;
                }
                outcome
            }
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    /// Passes an entry that carries no command.
    ///
    /// # Panics
    /// Where `index` does not ascend.
    pub fn advance(&mut self, index: LogIndex) {
        assert!(
            index > self.image.index || index == LogIndex(0),
            "entries are applied once and in order: {index} after {}",
            self.image.index
        );
        self.image.index = index;
    }

    fn decide(&mut self, index: LogIndex, command: &Command) -> Result<Outcome, Refusal> {
        if let Command::Initialize { cluster_id, feature_level, restore_number, producer_ids_from } = command
        {
            return self.initialize(*cluster_id, *feature_level, *restore_number, *producer_ids_from);
        }
        if self.image.cluster_id.is_none() {
            return Err(Refusal::NotInitialized);
        }
        match command {
            Command::Initialize { .. } => unreachable!("it was answered above"),
            Command::RegisterBroker { registration } => self.register(index, registration),
            Command::Heartbeat { broker, incarnation } => self.heartbeat(*broker, *incarnation),
            Command::EndSession { broker, incarnation } => self.end_session(*broker, *incarnation),
            Command::CreateTopic { topic } => self.create_topic(topic),
            Command::DeleteTopic { topic_id } => self.delete_topic(*topic_id),
            Command::CreatePartitions { topic_id, partition_count, assignments } => {
                self.create_partitions(*topic_id, *partition_count, assignments)
            }
            Command::AlterConfigs { resource, changes } => self.alter_configs(*resource, changes),
            Command::AlterGroupConfigs { group, changes } => self.alter_group_configs(group, changes),
            Command::AllocateProducerIds { broker, incarnation } => {
                self.allocate_producer_ids(*broker, *incarnation)
            }
            Command::AdvanceLogStart { place, leader_epoch, to } => {
                self.advance_log_start(*place, *leader_epoch, *to)
            }
            Command::CommitSegments { commits } => Ok(Outcome::Committed {
                results: commits.iter().map(|commit| self.commit_segment(commit)).collect(),
            }),
            Command::SpillManifest { spill } => self.spill(spill),
            Command::FenceUploads { incarnation, sequence } => {
                self.fence_uploads(UploadId { incarnation: *incarnation, sequence: *sequence })
            }
            Command::ManifestPublished { place, leader_epoch, version } => {
                self.manifest_published(*place, *leader_epoch, *version)
            }
            Command::DeletionDone { items } => Ok(self.deletion_done(items)),
            Command::Tick { elapsed_ms } => self.tick(*elapsed_ms),
            Command::SetFeatureLevel { level } => self.set_feature_level(*level),
        }
    }

    fn initialize(
        &mut self,
        cluster_id: ClusterId,
        feature_level: u16,
        restore_number: u32,
        producer_ids_from: ProducerId,
    ) -> Result<Outcome, Refusal> {
        match self.image.cluster_id {
            Some(known) if known == cluster_id => return Ok(Outcome::Done),
            Some(known) => return Err(Refusal::AnotherCluster { cluster_id: known }),
            None => {}
        }
        if feature_level == 0 || feature_level > limits::FEATURE_LEVEL {
            return Err(Refusal::FeatureLevel {
                asked: feature_level,
                finalised: 0,
                known: limits::FEATURE_LEVEL,
            });
        }
        self.image.cluster_id = Some(cluster_id);
        self.image.feature_level = feature_level;
        self.restore_number = restore_number;
        self.next_producer_id = producer_ids_from.0.max(0);
        Ok(Outcome::Done)
    }

    fn allocate_producer_ids(
        &mut self,
        broker: BrokerId,
        incarnation: BrokerIncarnation,
    ) -> Result<Outcome, Refusal> {
        self.check_incarnation(broker, incarnation)?;
        let first = self.next_producer_id;
        let next = first.checked_add(limits::PRODUCER_ID_BLOCK).ok_or(Refusal::ProducerIdsExhausted)?;
        self.next_producer_id = next;
        Ok(Outcome::ProducerIds { first: ProducerId(first), count: limits::PRODUCER_ID_BLOCK })
    }

    fn tick(&mut self, elapsed_ms: u64) -> Result<Outcome, Refusal> {
        let now_ms = self.image.now_ms.checked_add(elapsed_ms).ok_or(Refusal::TimeOverflow { elapsed_ms })?;
        self.image.now_ms = now_ms;
        Ok(Outcome::Done)
    }

    fn set_feature_level(&mut self, level: u16) -> Result<Outcome, Refusal> {
        let finalised = self.image.feature_level;
        if level < finalised || level > limits::FEATURE_LEVEL {
            return Err(Refusal::FeatureLevel { asked: level, finalised, known: limits::FEATURE_LEVEL });
        }
        self.image.feature_level = level;
        Ok(Outcome::Done)
    }

    fn alter_configs(
        &mut self,
        resource: ConfigResource,
        changes: &[(String, ConfigChange)],
    ) -> Result<Outcome, Refusal> {
        let mut configs = match resource {
            ConfigResource::Topic { topic_id } => self.topic(topic_id)?.configs.clone(),
            ConfigResource::Broker { broker } => {
                self.image.broker_configs(Some(broker)).cloned().unwrap_or_default()
            }
            ConfigResource::ClusterDefault {} => self.image.broker_configs(None).cloned().unwrap_or_default(),
        };
        change_configs(&mut configs, changes)?;
        match resource {
            ConfigResource::Topic { topic_id } => self.set_topic_configs(topic_id, configs),
            ConfigResource::Broker { broker } => self.set_broker_configs(Some(broker), configs)?,
            ConfigResource::ClusterDefault {} => self.set_broker_configs(None, configs)?,
        }
        Ok(Outcome::Done)
    }

    fn set_topic_configs(&mut self, topic_id: TopicId, configs: BTreeMap<String, String>) {
        let tiered = is_tiered(&configs);
        let topic = self.topic_mut(topic_id);
        topic.configs = configs;
        for partition in &mut topic.partitions {
            if partition.tiered != tiered {
                Arc::make_mut(partition).tiered = tiered;
            }
        }
    }

    fn set_broker_configs(
        &mut self,
        broker: Option<BrokerId>,
        configs: BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        let known = self.image.broker_configs.contains_key(&broker);
        if !known && self.image.broker_configs.len() > limits::BROKERS_MAX {
            return Err(Refusal::TooMuch { what: "brokers with configurations", most: limits::BROKERS_MAX });
        }
        let all = Arc::make_mut(&mut self.image.broker_configs);
        if configs.is_empty() {
            drop(all.remove(&broker))
        } else {
            drop(all.insert(broker, configs))
        }
        Ok(())
    }

    fn alter_group_configs(
        &mut self,
        group: &str,
        changes: &[(String, ConfigChange)],
    ) -> Result<Outcome, Refusal> {
        let known = self.image.group_configs.get(group);
        if known.is_none() && self.image.group_configs.len() >= limits::GROUPS_WITH_SETTINGS_MAX {
            return Err(Refusal::TooMuch {
                what: "groups with settings",
                most: limits::GROUPS_WITH_SETTINGS_MAX,
            });
        }
        if group.len() > limits::CONFIGURED_GROUP_ID_BYTES_MAX {
            return Err(Refusal::TooMuch {
                what: "bytes of a group's id",
                most: limits::CONFIGURED_GROUP_ID_BYTES_MAX,
            });
        }
        let mut configs = known.cloned().unwrap_or_default();
        change_configs(&mut configs, changes)?;
        let all = Arc::make_mut(&mut self.image.group_configs);
        if configs.is_empty() {
            drop(all.remove(group));
        } else {
            drop(all.insert(group.to_owned(), configs));
        }
        Ok(Outcome::Done)
    }

    pub(super) fn topic(&self, topic_id: TopicId) -> Result<&Arc<TopicImage>, Refusal> {
        self.image.topic(topic_id).ok_or(Refusal::UnknownTopic { topic_id })
    }

    /// The topic for a change; it must exist.
    pub(super) fn topic_mut(&mut self, topic_id: TopicId) -> &mut TopicImage {
        let topic = Arc::make_mut(&mut self.image.topics).get_mut(&topic_id);
        Arc::make_mut(topic.expect("the caller found this topic"))
    }

    /// The partition for a change; it must exist.
    pub(super) fn partition_mut(&mut self, place: TopicPartition) -> &mut PartitionImage {
        let number = usize::try_from(place.partition.0).expect("the caller found this partition");
        Arc::make_mut(&mut self.topic_mut(place.topic_id).partitions[number])
    }

    pub(super) fn broker_mut(&mut self, broker: BrokerId) -> Option<&mut BrokerImage> {
        Arc::make_mut(&mut self.image.brokers).get_mut(&broker).map(Arc::make_mut)
    }

    pub(super) fn check_incarnation(
        &self,
        broker: BrokerId,
        incarnation: BrokerIncarnation,
    ) -> Result<(), Refusal> {
        let known = self.image.broker(broker).ok_or(Refusal::UnknownBroker { broker })?;
        if known.incarnation != incarnation {
            return Err(Refusal::StaleIncarnation { broker, newest: known.incarnation });
        }
        Ok(())
    }

    /// When something that is dropped now may go.
    pub(super) fn grace(&self) -> Grace {
        let set = self.image.broker_configs(None).and_then(|configs| configs.get(TIER_DELETION_GRACE_MS));
        let grace_ms = set.and_then(|text| text.trim().parse().ok()).unwrap_or(limits::DELETION_GRACE_MS);
        Grace { now_ms: self.image.now_ms, grace_ms }
    }

    /// Checks everything that must always hold (T1, T4, T6 and the shape of topics, leaders and the queue).
    ///
    /// # Errors
    /// What does not hold: a snapshot that says so is not ours, a state that does was made by a bug.
    pub fn check(&self) -> Result<(), String> {
        let image = &self.image;
        if image.names.len() != image.topics.len() {
            return Err(format!("{} names for {} topics", image.names.len(), image.topics.len()));
        }
        for (name, id) in image.names.iter() {
            if image.topics.get(id).is_none_or(|topic| topic.id != *id || topic.name != *name) {
                return Err(format!("name {name} does not lead to its topic"));
            }
        }
        for (id, broker) in image.brokers.iter() {
            if broker.id != *id || self.was_never_issued(broker.incarnation) {
                return Err(format!("broker {id} has an incarnation that was not issued"));
            }
        }
        for topic in image.topics.values() {
            let tiered = is_tiered(&topic.configs);
            if topic.partitions.is_empty()
                || topic.partitions.iter().any(|partition| partition.tiered != tiered)
            {
                return Err(format!("topic {} and its partitions disagree", topic.name));
            }
        }
        for (place, partition) in image.partitions() {
            self.check_leadership(partition).map_err(|why| format!("{place}: {why}"))?;
            tiering::check_partition(partition).map_err(|why| format!("{place}: {why}"))?;
        }
        self.check_queue()
    }

    fn check_queue(&self) -> Result<(), String> {
        self.image.deletions.check()?;
        for (scope, items) in self.image.deletions.scopes() {
            match scope {
                DeletionScope::Topic { topic_id } => {
                    if self.image.topic(topic_id).is_some() || items.len() != 1 {
                        return Err(format!("topic {topic_id} is queued for deletion wrongly"));
                    }
                }
                DeletionScope::Partition { place } => {
                    let Some(partition) = self.image.partition(&place) else {
                        return Err(format!("deletions of {place} outlive it"));
                    };
                    if let Some(item) = items.iter().find(|item| names_live_object(partition, &item.target)) {
                        return Err(format!("{place}: deletion {} names a live object", item.id));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a deletion names something that the manifest still holds (T4).
pub(super) fn names_live_object(partition: &PartitionImage, target: &DeletionTarget) -> bool {
    let manifest = &partition.manifest;
    match target {
        DeletionTarget::Key { object: ObjectName::Segment { object } } => {
            manifest.entries.iter().any(|entry| entry.object == *object)
        }
        DeletionTarget::Key { object: ObjectName::Page { page } } => {
            manifest.lines.iter().any(|line| line.page == *page)
        }
        DeletionTarget::Key { object: ObjectName::Manifest { version } } => {
            manifest.published.contains(version)
        }
        DeletionTarget::Range { page, to, whole_page, .. } => {
            *to > partition.log_start || *whole_page && manifest.lines.iter().any(|line| line.page == *page)
        }
        DeletionTarget::Topic { .. } => true,
    }
}

/// Whether a topic with these overrides is tiered.
pub(super) fn is_tiered(configs: &BTreeMap<String, String>) -> bool {
    configs.get(REMOTE_STORAGE_ENABLE).is_none_or(|value| value.trim().eq_ignore_ascii_case("true"))
}

fn change_configs(
    configs: &mut BTreeMap<String, String>,
    changes: &[(String, ConfigChange)],
) -> Result<(), Refusal> {
    for (key, change) in changes {
        match change {
            ConfigChange::Set { value } => drop(configs.insert(key.clone(), value.clone())),
            ConfigChange::Delete {} => drop(configs.remove(key)),
        }
    }
    check_configs(configs)
}

pub(super) fn check_configs(configs: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if configs.len() > limits::CONFIG_KEYS_MAX {
        return Err(Refusal::TooMuch {
            what: "configuration keys of one resource",
            most: limits::CONFIG_KEYS_MAX,
        });
    }
    if configs.iter().any(|(key, value)| {
        key.len() > limits::CONFIG_VALUE_BYTES_MAX || value.len() > limits::CONFIG_VALUE_BYTES_MAX
    }) {
        return Err(Refusal::TooMuch {
            what: "bytes of one configuration",
            most: limits::CONFIG_VALUE_BYTES_MAX,
        });
    }
    Ok(())
}
