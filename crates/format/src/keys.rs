//! The names of the bucket's objects.
//!
//! ```text
//! <prefix>/cluster.json
//! <prefix>/brokers/<broker>.json
//! <prefix>/controller/snapshot-<countdown>
//! <prefix>/topics/<topic>-<topic id>/<partition>/<base>-<leader epoch>-<incarnation>-<sequence>.seg
//! <prefix>/topics/<topic>-<topic id>/<partition>/pages/<base>-<incarnation>-<sequence>.page
//! <prefix>/topics/<topic>-<topic id>/<partition>/manifest-<countdown>.manifest
//! <prefix>/tables/<topic>-<topic id>/...
//! ```
//!
//! **Owns** building and parsing. **Does not own** listing or deletion: a key says what an object claims to be, not that a
//! manifest names it.
//!
//! Base offsets have 20 digits, so that a listing is in offset order; a countdown is 2⁶⁴ − 1 less the number, in 20
//! digits, so that the newest is listed first. Every key has one spelling: what parses builds the same text again.

use std::fmt;

use thiserror::Error;
use tidelog_types::{
    BrokerId, BrokerIncarnation, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicName, TopicPartition,
    UploadId, UploadSequence,
};

use crate::manifest::{PageId, SegmentObjectId};

/// Characters of a topic id in a key.
const TOPIC_ID_CHARACTERS: usize = 22;

/// A key that is none of ours.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{key}` is not a key of this cluster's prefix")]
pub struct KeyError {
    /// The key, or its beginning.
    pub key: String,
}

/// What an object is, from its key below the prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKey {
    /// The cluster's claim of the prefix.
    ClusterJson,
    /// A broker's claim of the prefix: which of its starts is the newest.
    BrokerJson {
        /// The broker.
        broker: BrokerId,
    },
    /// A snapshot of the controller's state.
    ControllerSnapshot {
        /// The index of the last log entry in it.
        index: u64,
    },
    /// A segment object.
    Segment {
        /// The topic's name.
        topic: TopicName,
        /// The partition.
        place: TopicPartition,
        /// Which.
        object: SegmentObjectId,
    },
    /// A page of a manifest.
    Page {
        /// The topic's name.
        topic: TopicName,
        /// The partition.
        place: TopicPartition,
        /// Which.
        page: PageId,
    },
    /// A published manifest.
    Manifest {
        /// The topic's name.
        topic: TopicName,
        /// The partition.
        place: TopicPartition,
        /// The manifest's version.
        version: u64,
    },
}

/// The folder of a topic below the prefix, with its slash.
#[must_use]
pub fn topic_folder(topic: &TopicName, topic_id: TopicId) -> String {
    format!("topics/{topic}-{topic_id}/")
}

/// The folder of a partition below the prefix, with its slash: what a listing of its segment objects begins with.
#[must_use]
pub fn partition_folder(topic: &TopicName, place: TopicPartition) -> String {
    format!("{}{}/", topic_folder(topic, place.topic_id), place.partition)
}

/// The folder of a partition's pages below the prefix, with its slash.
#[must_use]
pub fn pages_folder(topic: &TopicName, place: TopicPartition) -> String {
    format!("{}pages/", partition_folder(topic, place))
}

/// What the keys of a partition's published manifests begin with; the newest is listed first.
#[must_use]
pub fn manifests_prefix(topic: &TopicName, place: TopicPartition) -> String {
    format!("{}manifest-", partition_folder(topic, place))
}

/// What the keys of the controller's snapshots begin with; the newest is listed first.
pub const CONTROLLER_SNAPSHOTS_PREFIX: &str = "controller/snapshot-";

/// The folder of a topic's table below the prefix, with its slash.
#[must_use]
pub fn table_folder(topic: &TopicName, topic_id: TopicId) -> String {
    format!("tables/{topic}-{topic_id}/")
}

/// A text that lies before the keys of all segment objects of a partition with a base at or above `base`, and behind
/// those below: where a listing starts.
#[must_use]
pub fn segments_from(topic: &TopicName, place: TopicPartition, base: Offset) -> String {
    format!("{}{base:020}", partition_folder(topic, place))
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterJson => f.write_str("cluster.json"),
            Self::BrokerJson { broker } => write!(f, "brokers/{broker}.json"),
            Self::ControllerSnapshot { index } => {
                write!(f, "{CONTROLLER_SNAPSHOTS_PREFIX}{:020}", u64::MAX - index)
            }
            Self::Segment { topic, place, object } => {
                let SegmentObjectId { base, leader_epoch, upload } = object;
                write!(f, "{}{base:020}-{leader_epoch}-{upload}.seg", partition_folder(topic, *place))
            }
            Self::Page { topic, place, page } => {
                write!(f, "{}{:020}-{}.page", pages_folder(topic, *place), page.base, page.upload)
            }
            Self::Manifest { topic, place, version } => {
                write!(f, "{}{:020}.manifest", manifests_prefix(topic, *place), u64::MAX - version)
            }
        }
    }
}

impl ObjectKey {
    /// Reads a key below the prefix.
    ///
    /// # Errors
    /// For everything that this version does not write, the tables' files included.
    pub fn parse(key: &str) -> Result<Self, KeyError> {
        parse(key)
            .filter(|parsed| parsed.to_string() == key)
            .ok_or_else(|| KeyError { key: key.chars().take(512).collect() })
    }
}

fn parse(key: &str) -> Option<ObjectKey> {
    if key == "cluster.json" {
        return Some(ObjectKey::ClusterJson);
    }
    if let Some(name) = key.strip_prefix("brokers/") {
        let broker: i32 = name.strip_suffix(".json")?.parse().ok()?;
        return (broker >= 0).then_some(ObjectKey::BrokerJson { broker: BrokerId(broker) });
    }
    if let Some(countdown) = key.strip_prefix(CONTROLLER_SNAPSHOTS_PREFIX) {
        return Some(ObjectKey::ControllerSnapshot { index: u64::MAX - countdown.parse::<u64>().ok()? });
    }
    let mut parts = key.strip_prefix("topics/")?.split('/');
    let (folder, partition, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let at = folder.len().checked_sub(TOPIC_ID_CHARACTERS)?;
    let topic = TopicName::new(folder.get(..at)?.strip_suffix('-')?).ok()?;
    let topic_id: TopicId = folder.get(at..)?.parse().ok()?;
    let partition: i32 = partition.parse().ok().filter(|partition| *partition >= 0)?;
    let place = TopicPartition { topic_id, partition: PartitionIndex(partition) };
    let last = parts.next();
    if parts.next().is_some() {
        return None;
    }
    if let Some(name) = last {
        let fields = name.strip_suffix(".page").filter(|_| rest == "pages")?;
        let [base, incarnation, sequence] = fields_of(fields)?;
        let page = PageId { base: Offset::new(base)?, upload: upload(incarnation, sequence) };
        return Some(ObjectKey::Page { topic, place, page });
    }
    if let Some(name) = rest.strip_prefix("manifest-") {
        let [countdown] = fields_of(name.strip_suffix(".manifest")?)?;
        return Some(ObjectKey::Manifest { topic, place, version: u64::MAX - countdown });
    }
    let [base, epoch, incarnation, sequence] = fields_of(rest.strip_suffix(".seg")?)?;
    let object = SegmentObjectId {
        base: Offset::new(base)?,
        leader_epoch: LeaderEpoch::from_wire(i32::try_from(epoch).ok()?)?,
        upload: upload(incarnation, sequence),
    };
    Some(ObjectKey::Segment { topic, place, object })
}

fn upload(incarnation: u64, sequence: u64) -> UploadId {
    UploadId { incarnation: BrokerIncarnation(incarnation), sequence: UploadSequence(sequence) }
}

/// Exactly `N` numbers with dashes between them.
fn fields_of<const N: usize>(text: &str) -> Option<[u64; N]> {
    let mut fields = [0; N];
    let mut parts = text.split('-');
    for field in &mut fields {
        *field = parts.next()?.parse().ok()?;
    }
    parts.next().is_none().then_some(fields)
}

/// The part of a bucket that belongs to one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySpace {
    /// Empty, or ends in a slash.
    prefix: String,
}

impl KeySpace {
    /// The keys below `prefix`; slashes at its ends do not count.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        Self { prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") } }
    }

    /// A key or a folder below the prefix, as the bucket knows it.
    #[must_use]
    pub fn full(&self, below: &impl fmt::Display) -> String {
        format!("{}{below}", self.prefix)
    }

    /// What a key of the bucket is.
    ///
    /// # Errors
    /// For a key outside of the prefix, and as [`ObjectKey::parse`].
    pub fn parse(&self, key: &str) -> Result<ObjectKey, KeyError> {
        let below = key.strip_prefix(&self.prefix);
        ObjectKey::parse(below.ok_or_else(|| KeyError { key: key.chars().take(512).collect() })?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> TopicPartition {
        TopicPartition { topic_id: TopicId::from_bytes([0xfb; 16]), partition: PartitionIndex(12) }
    }

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    fn segment(base: u64) -> ObjectKey {
        let object = SegmentObjectId {
            base: Offset::new(base).unwrap(),
            leader_epoch: LeaderEpoch::from_wire(4).unwrap(),
            upload: upload(1 << 32 | 7, 0),
        };
        ObjectKey::Segment { topic: topic("flights-2013"), place: place(), object }
    }

    #[test]
    fn keys_are_spelled_as_designed() {
        assert_eq!(
            segment(1234).to_string(),
            "topics/flights-2013--_v7-_v7-_v7-_v7-_v7-w/12/00000000000000001234-4-4294967303-0.seg"
        );
        let page = PageId { base: Offset::ZERO, upload: upload(3, 99) };
        assert_eq!(
            ObjectKey::Page { topic: topic("a"), place: place(), page }.to_string(),
            "topics/a--_v7-_v7-_v7-_v7-_v7-w/12/pages/00000000000000000000-3-99.page"
        );
        assert_eq!(
            ObjectKey::Manifest { topic: topic("a"), place: place(), version: 1 }.to_string(),
            "topics/a--_v7-_v7-_v7-_v7-_v7-w/12/manifest-18446744073709551614.manifest"
        );
        assert_eq!(
            ObjectKey::ControllerSnapshot { index: 0 }.to_string(),
            "controller/snapshot-18446744073709551615"
        );
        assert_eq!(ObjectKey::BrokerJson { broker: BrokerId(7) }.to_string(), "brokers/7.json");
        assert_eq!(KeySpace::new("/a/b/").full(&ObjectKey::ClusterJson), "a/b/cluster.json");
        assert_eq!(KeySpace::new("").full(&ObjectKey::ClusterJson), "cluster.json");
    }

    #[test]
    fn listings_are_in_the_order_wanted() {
        assert!(segment(9).to_string() < segment(10).to_string());
        let from = segments_from(&topic("flights-2013"), place(), Offset::new(10).unwrap());
        assert!(segment(9).to_string() < from && from < segment(10).to_string());
        let manifest =
            |version| ObjectKey::Manifest { topic: topic("a"), place: place(), version }.to_string();
        assert!(manifest(10) < manifest(9), "the newest comes first");
    }

    #[test]
    fn other_spellings_are_refused() {
        let good = segment(1234).to_string();
        assert!(ObjectKey::parse(&good).is_ok());
        for bad in [
            good.replace("1234-4", "1234-04"),
            good.replace("1234-4", "1234-+4"),
            good.replace("0001234", "1234"),
            good.replace("/12/", "/012/"),
            good.replace("/12/", "/-1/"),
            good.replace(".seg", ".seg.tmp"),
            good.replace("-0.seg", ".seg"),
            good.replace("topics/", "topics//"),
            good.replace("flights-2013", "fl\u{e9}ghts"),
            good.replace("-w/", "-x/"),
            format!("{good}/x"),
            "topics/a/0/x.seg".to_owned(),
            "brokers/07.json".to_owned(),
            "brokers/-1.json".to_owned(),
            "brokers/7.json/x".to_owned(),
            "tables/a-_v7-_v7-_v7-_v7-_v7-wAA/current.json".to_owned(),
            String::new(),
        ] {
            assert!(ObjectKey::parse(&bad).is_err(), "{bad}");
        }
        assert!(KeySpace::new("p").parse(&good).is_err());
        assert_eq!(KeySpace::new("p").parse(&format!("p/{good}")), Ok(segment(1234)));
    }

    proptest! {
        #[test]
        fn keys_round_trip(name in "[a-zA-Z0-9._-]{1,60}", id: [u8; 16], partition in 0..i32::MAX, base in 0..=i64::MAX as u64, epoch in 0..=i32::MAX, incarnation: u64, sequence: u64) {
            prop_assume!(name != "." && name != "..");
            let topic = topic(&name);
            let place = TopicPartition { topic_id: TopicId::from_bytes(id), partition: PartitionIndex(partition) };
            let base = Offset::new(base).unwrap();
            let upload = upload(incarnation, sequence);
            let object = SegmentObjectId { base, leader_epoch: LeaderEpoch::from_wire(epoch).unwrap(), upload };
            for key in [
                ObjectKey::Segment { topic: topic.clone(), place, object },
                ObjectKey::Page { topic: topic.clone(), place, page: PageId { base, upload } },
                ObjectKey::Manifest { topic: topic.clone(), place, version: sequence },
                ObjectKey::ControllerSnapshot { index: incarnation },
                ObjectKey::BrokerJson { broker: BrokerId(partition) },
            ] {
                prop_assert_eq!(ObjectKey::parse(&key.to_string()), Ok(key));
            }
        }

        #[test]
        fn garbage_never_panics(text in "\\PC{0,80}", tail in "[0-9a-z./-]{0,80}") {
            let _ = ObjectKey::parse(&text);
            let _ = ObjectKey::parse(&format!("topics/{tail}"));
        }
    }
}
