//! Commands and snapshots as bytes.
//!
//! A command is a version byte and its [`Persist`](super::persist) form; the controllers' log puts a CRC around it.
//! A snapshot stands alone, so it has an envelope:
//!
//! ```text
//! "TIDECLST" | version u16 | reserved u16 | payload bytes u64 | payload | CRC-32C of all before u32     (big-endian)
//! ```

use std::{collections::BTreeMap, sync::Arc};

use tidelog_format::{
    crc::crc32c,
    manifest::{ManifestEntry, PageId, PageLine, Section, SegmentObjectId},
};
use tidelog_types::{TopicId, TopicName};

use super::{
    command::{BrokerRegistration, Command, ConfigChange, ConfigResource, NewTopic, SegmentCommit, Spill},
    image::{BrokerImage, Listener, LogIndex, MetadataImage, PartitionImage, PartitionManifest, TopicImage},
    persist::{DecodeError, Persist, Reader, persist_enum, persist_struct, put_count},
    state::ClusterState,
};

const COMMAND_VERSION: u8 = 1;
const SNAPSHOT_MAGIC: &[u8; 8] = b"TIDECLST";
/// The newest version: as version 1, and then the settings of groups.
const SNAPSHOT_VERSION: u16 = 2;
const SNAPSHOT_HEADER_BYTES: usize = 20;

impl Command {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![COMMAND_VERSION];
        self.put(&mut out);
        out
    }

    /// Reads [`Command::encode`]'s form.
    ///
    /// # Errors
    /// Bytes that are not a command, or one of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = reader.bytes(1, "a command's version")?[0];
        if version != COMMAND_VERSION {
            return Err(DecodeError::Version {
                found: u16::from(version),
                known: u16::from(COMMAND_VERSION),
            });
        }
        let command = Self::take(&mut reader)?;
        reader.finish()?;
        Ok(command)
    }
}

impl ClusterState {
    /// The stored form of everything. Equal states have equal bytes.
    #[must_use]
    pub fn encode_snapshot(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        self.put(&mut payload);
        // As long as no group has settings an older build can read it.
        let groups = &self.image.group_configs;
        let version = if groups.is_empty() { 1 } else { SNAPSHOT_VERSION };
        if version > 1 {
            groups.put(&mut payload);
        }
        let mut out = Vec::with_capacity(payload.len().saturating_add(SNAPSHOT_HEADER_BYTES + 4));
        out.extend_from_slice(SNAPSHOT_MAGIC);
        out.extend_from_slice(&version.to_be_bytes());
        out.extend_from_slice(&0_u16.to_be_bytes());
        out.extend_from_slice(&u64::try_from(payload.len()).expect("it is in memory").to_be_bytes());
        out.extend_from_slice(&payload);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// Reads [`ClusterState::encode_snapshot`]'s form, and checks the invariants of what it says.
    ///
    /// # Errors
    /// Damage, a later version, or a state that no sequence of commands makes.
    pub fn decode_snapshot(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(8, "a snapshot's magic")? != SNAPSHOT_MAGIC {
            return Err(DecodeError::Envelope { what: "the magic is not a snapshot's" });
        }
        let version = reader.bytes(2, "a snapshot's version")?;
        let version = u16::from_be_bytes(version.try_into().expect("two bytes were taken"));
        if !(1..=SNAPSHOT_VERSION).contains(&version) {
            return Err(DecodeError::Version { found: version, known: SNAPSHOT_VERSION });
        }
        if reader.bytes(2, "a snapshot's reserved field")? != [0, 0] {
            return Err(DecodeError::Envelope { what: "the reserved field is not zero" });
        }
        let length = reader.bytes(8, "a snapshot's length")?;
        let length = u64::from_be_bytes(length.try_into().expect("eight bytes were taken"));
        let length =
            usize::try_from(length).map_err(|_| DecodeError::OutOfRange { what: "a snapshot's length" })?;
        let payload = reader.bytes(length, "a snapshot")?;
        let crc = reader.bytes(4, "a snapshot's CRC")?;
        reader.finish()?;
        if crc32c(&bytes[..bytes.len() - 4]).to_be_bytes() != crc {
            return Err(DecodeError::Envelope { what: "the CRC does not match" });
        }
        let mut reader = Reader::new(payload);
        let mut state = Self::take(&mut reader)?;
        if version > 1 {
            state.image.group_configs = Persist::take(&mut reader)?;
        }
        reader.finish()?;
        state.check().map_err(|_| DecodeError::Envelope { what: "the state breaks an invariant" })?;
        Ok(state)
    }
}

impl Persist for LogIndex {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u64::take(reader).map(Self)
    }
}

impl Persist for ClusterState {
    fn put(&self, out: &mut Vec<u8>) {
        let image = &self.image;
        image.index.put(out);
        image.cluster_id.put(out);
        image.feature_level.put(out);
        image.now_ms.put(out);
        self.restore_number.put(out);
        self.next_registration.put(out);
        self.next_producer_id.put(out);
        image.brokers.put(out);
        image.broker_configs.put(out);
        put_count(image.topics.len(), out);
        for topic in image.topics.values() {
            topic.put(out);
        }
        image.deletions.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut image = MetadataImage::empty();
        image.index = Persist::take(reader)?;
        image.topics_changed = image.index;
        image.cluster_id = Persist::take(reader)?;
        image.feature_level = Persist::take(reader)?;
        image.now_ms = Persist::take(reader)?;
        let restore_number = Persist::take(reader)?;
        let next_registration = Persist::take(reader)?;
        let next_producer_id = Persist::take(reader)?;
        image.brokers = Persist::take(reader)?;
        image.broker_configs = Persist::take(reader)?;
        let topics: Vec<Arc<TopicImage>> = Persist::take(reader)?;
        image.names = Arc::new(
            topics
                .iter()
                .map(|topic| (topic.name.clone(), topic.id))
                .collect::<BTreeMap<TopicName, TopicId>>(),
        );
        image.topics = Arc::new(topics.into_iter().map(|topic| (topic.id, topic)).collect());
        image.deletions = Persist::take(reader)?;
        Ok(Self { image, restore_number, next_registration, next_producer_id })
    }
}

persist_struct!(Listener { name, host, port });
persist_struct!(BrokerImage {
    id,
    incarnation,
    epoch,
    directory,
    boot,
    listeners,
    rack,
    fenced,
    heard_ms,
    fenced_uploads,
});
persist_struct!(PartitionManifest { lines, entries, tiered_end, version, published });
persist_struct!(PartitionImage {
    leader,
    leader_epoch,
    partition_epoch,
    replicas,
    directories,
    isr,
    last_leader,
    log_start,
    manifest,
    tiered,
});
persist_struct!(TopicImage { id, name, configs, partitions });
persist_struct!(BrokerRegistration { broker, directory, boot, clean, listeners, rack, feature_level_max });
persist_struct!(NewTopic { topic_id, name, partition_count, replication_factor, assignments, configs });
persist_struct!(SegmentCommit { place, leader_epoch, entry });
persist_struct!(Spill { place, leader_epoch, last_page, replaces_last, moved, line });

persist_enum!(ConfigResource { 0 => Topic { topic_id }, 1 => Broker { broker }, 2 => ClusterDefault {} });
persist_enum!(ConfigChange { 0 => Set { value }, 1 => Delete {} });
persist_enum!(Command {
    0 => Initialize { cluster_id, feature_level, restore_number, producer_ids_from },
    1 => RegisterBroker { registration },
    2 => Heartbeat { broker, incarnation },
    3 => EndSession { broker, incarnation },
    4 => CreateTopic { topic },
    5 => DeleteTopic { topic_id },
    6 => CreatePartitions { topic_id, partition_count, assignments },
    7 => AlterConfigs { resource, changes },
    8 => AllocateProducerIds { broker, incarnation },
    9 => AdvanceLogStart { place, leader_epoch, to },
    10 => CommitSegments { commits },
    11 => SpillManifest { spill },
    12 => FenceUploads { incarnation, sequence },
    13 => ManifestPublished { place, leader_epoch, version },
    14 => DeletionDone { items },
    15 => Tick { elapsed_ms },
    16 => SetFeatureLevel { level },
    17 => AlterGroupConfigs { group, changes },
});

persist_struct!(SegmentObjectId { base, leader_epoch, upload });
persist_struct!(PageId { base, upload });
persist_struct!(Section { position, bytes, crc });
persist_struct!(ManifestEntry {
    range,
    object,
    position,
    bytes,
    object_bytes,
    max_timestamp,
    index,
    leader_epoch
});
persist_struct!(PageLine { page, range, bytes, max_timestamp });
