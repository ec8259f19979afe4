//! What everybody may read: the metadata as of one log index.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tidelog_format::manifest::{ManifestEntry, PageLine};
use tidelog_types::{
    BootId, BrokerId, BrokerIncarnation, ClusterId, DirectoryId, LeaderEpoch, Offset, PartitionIndex,
    TopicId, TopicName, TopicPartition, UploadSequence,
};

use super::{
    command::ConfigResource,
    deletion::{DeletionItem, DeletionQueue, DeletionScope},
};

/// A position in the controllers' log. 0 is its first entry, which carries no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogIndex(pub u64);

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The listener's name, as `PLAINTEXT`.
    pub name: String,
    /// The advertised host.
    pub host: String,
    /// The advertised port.
    pub port: u16,
}

/// One broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerImage {
    /// `node.id`.
    pub id: BrokerId,
    /// Its newest incarnation.
    pub incarnation: BrokerIncarnation,
    /// Its broker epoch: the log index of its registration.
    pub epoch: u64,
    /// Its data directory.
    pub directory: DirectoryId,
    /// The boot it registered from.
    pub boot: BootId,
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Whether it may lead nothing: its session has ended.
    pub fenced: bool,
    /// The state machine's time when it was last heard of, in milliseconds.
    pub heard_ms: u64,
    /// Uploads of this incarnation at or below this sequence are refused (T7).
    pub fenced_uploads: Option<UploadSequence>,
}

/// The manifest of one partition: what of it is in the bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartitionManifest {
    /// One line per page, oldest first.
    pub lines: Vec<PageLine>,
    /// The newest entries, oldest first; they begin where the last line ends.
    pub entries: Vec<ManifestEntry>,
    /// One past the last offset in the bucket; the log start where nothing is.
    pub tiered_end: Offset,
    /// Grows with every change of what a published copy would say.
    pub version: u64,
    /// Versions of which copies are in the bucket: the newest three at most, ascending.
    pub published: Vec<u64>,
}

impl PartitionManifest {
    /// The newest version that is in the bucket; 0 where none is.
    #[must_use]
    pub fn published_version(&self) -> u64 {
        self.published.last().copied().unwrap_or(0)
    }

    /// The first offset that an object holds; `None` where nothing is in the bucket.
    #[must_use]
    pub fn first_base(&self) -> Option<Offset> {
        let line = self.lines.first().map(|line| line.range.base);
        line.or_else(|| self.entries.first().map(|entry| entry.range.base))
    }
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionImage {
    /// Who leads it; `None` while no in-sync replica lives.
    pub leader: Option<BrokerId>,
    /// Grows with every election.
    pub leader_epoch: LeaderEpoch,
    /// Grows with every change of leader, ISR or replicas.
    pub partition_epoch: u32,
    /// Who holds it, in order of preference.
    pub replicas: Vec<BrokerId>,
    /// The data directory of each replica.
    pub directories: Vec<DirectoryId>,
    /// The in-sync replicas, ascending; never empty.
    pub isr: Vec<BrokerId>,
    /// Who led it last: the one that had synced what was acknowledged.
    pub last_leader: BrokerId,
    /// The log start of a tiered partition. For one that is not tiered its leader's own is the truth.
    pub log_start: Offset,
    /// What is in the bucket.
    pub manifest: Arc<PartitionManifest>,
    /// Whether its segments go to the bucket.
    pub tiered: bool,
}

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicImage {
    /// Its id.
    pub id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// Its configuration overrides.
    pub configs: BTreeMap<String, String>,
    /// Its partitions, by number.
    pub partitions: Vec<Arc<PartitionImage>>,
}

/// The cluster's metadata as of [`MetadataImage::index`]. A clone shares everything.
#[derive(Debug, Clone)]
pub struct MetadataImage {
    /// The last log index in it.
    pub index: LogIndex,
    /// The last log index that changed which topics there are, how many partitions they have, or brokers; the snapshot's where
    /// it is not known.
    pub topics_changed: LogIndex,
    /// The cluster's id; `None` until it has one.
    pub cluster_id: Option<ClusterId>,
    /// The finalised feature level.
    pub feature_level: u16,
    /// The state machine's time, in milliseconds: for durations alone.
    pub now_ms: u64,
    pub(super) brokers: Arc<BTreeMap<BrokerId, Arc<BrokerImage>>>,
    pub(super) broker_configs: Arc<BTreeMap<Option<BrokerId>, BTreeMap<String, String>>>,
    pub(super) group_configs: Arc<BTreeMap<String, BTreeMap<String, String>>>,
    pub(super) topics: Arc<BTreeMap<TopicId, Arc<TopicImage>>>,
    pub(super) names: Arc<BTreeMap<TopicName, TopicId>>,
    pub(super) deletions: Arc<DeletionQueue>,
}

/// Equal where they say the same of the cluster: after a load it is not known when its topics were changed last.
impl PartialEq for MetadataImage {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            index,
            topics_changed: _,
            cluster_id,
            feature_level,
            now_ms,
            brokers,
            broker_configs,
            group_configs,
            topics,
            names,
            deletions,
        } = self;
        *index == other.index
            && *cluster_id == other.cluster_id
            && *feature_level == other.feature_level
            && *now_ms == other.now_ms
            && *brokers == other.brokers
            && *broker_configs == other.broker_configs
            && *group_configs == other.group_configs
            && *topics == other.topics
            && *names == other.names
            && *deletions == other.deletions
    }
}

impl Eq for MetadataImage {}

impl MetadataImage {
    /// The image of a cluster that has no id yet.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            index: LogIndex(0),
            topics_changed: LogIndex(0),
            cluster_id: None,
            feature_level: 0,
            now_ms: 0,
            brokers: Arc::default(),
            broker_configs: Arc::default(),
            group_configs: Arc::default(),
            topics: Arc::default(),
            names: Arc::default(),
            deletions: Arc::default(),
        }
    }

    /// The topic that has this name now.
    #[must_use]
    pub fn topic_by_name(&self, name: &TopicName) -> Option<&Arc<TopicImage>> {
        self.names.get(name).and_then(|id| self.topics.get(id))
    }

    /// The topic with this id.
    #[must_use]
    pub fn topic(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.topics.get(&id)
    }

    /// All topics, by name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<TopicImage>> {
        self.names.values().filter_map(|id| self.topics.get(id))
    }

    /// Whether this has the very topics, by name and id, of another image: nothing was created or deleted between them. May be
    /// false where they are equal.
    #[must_use]
    pub fn has_topics_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.names, &other.names)
    }

    /// One partition.
    #[must_use]
    pub fn partition(&self, place: &TopicPartition) -> Option<&Arc<PartitionImage>> {
        let partition = usize::try_from(place.partition.0).ok()?;
        self.topics.get(&place.topic_id)?.partitions.get(partition)
    }

    /// All partitions, by topic id and number.
    pub fn partitions(&self) -> impl Iterator<Item = (TopicPartition, &Arc<PartitionImage>)> {
        self.topics.values().flat_map(|topic| {
            topic.partitions.iter().zip(0..).map(|(partition, number)| {
                (TopicPartition { topic_id: topic.id, partition: PartitionIndex(number) }, partition)
            })
        })
    }

    /// One broker, whether its session lives or not.
    #[must_use]
    pub fn broker(&self, id: BrokerId) -> Option<&Arc<BrokerImage>> {
        self.brokers.get(&id)
    }

    /// All brokers that ever registered, by id.
    pub fn brokers(&self) -> impl Iterator<Item = &Arc<BrokerImage>> {
        self.brokers.values()
    }

    /// Dynamic overrides of one broker, or of all (`None`).
    #[must_use]
    pub fn broker_configs(&self, broker: Option<BrokerId>) -> Option<&BTreeMap<String, String>> {
        self.broker_configs.get(&broker)
    }

    /// The settings of every group that has some of its own, by its id. A clone shares them.
    #[must_use]
    pub const fn group_configs(&self) -> &Arc<BTreeMap<String, BTreeMap<String, String>>> {
        &self.group_configs
    }

    /// The overrides of one resource; `None` where the topic is not known or a broker has none.
    #[must_use]
    pub fn configs(&self, resource: ConfigResource) -> Option<&BTreeMap<String, String>> {
        match resource {
            ConfigResource::Topic { topic_id } => self.topics.get(&topic_id).map(|topic| &topic.configs),
            ConfigResource::Broker { broker } => self.broker_configs(Some(broker)),
            ConfigResource::ClusterDefault {} => self.broker_configs(None),
        }
    }

    /// What waits to be deleted from the bucket.
    #[must_use]
    pub fn deletions(&self) -> &DeletionQueue {
        &self.deletions
    }

    /// Of each scope that has any, the first items, in order, that may be carried out now.
    pub fn ready_scopes(&self) -> impl Iterator<Item = (DeletionScope, &[DeletionItem])> {
        self.deletions.scopes().filter_map(|(scope, items)| {
            let published = self.published_version(scope);
            let count = items.iter().take_while(|item| item.is_ready(self.now_ms, published)).count();
            (count > 0).then(|| (scope, &items[..count]))
        })
    }

    /// Up to `limit` items that may be carried out now, of each scope its first ones, in order.
    #[cfg(test)]
    pub(crate) fn ready_deletions(&self, limit: usize) -> Vec<(DeletionScope, DeletionItem)> {
        let ready = self
            .ready_scopes()
            .flat_map(|(scope, items)| items.iter().map(move |item| (scope, item.clone())));
        ready.take(limit).collect()
    }

    /// The newest published manifest of a scope; `None` where none will ever be published again.
    pub(super) fn published_version(&self, scope: DeletionScope) -> Option<u64> {
        match scope {
            DeletionScope::Topic { .. } => None,
            DeletionScope::Partition { place } => {
                self.partition(&place).map(|partition| partition.manifest.published_version())
            }
        }
    }
}
