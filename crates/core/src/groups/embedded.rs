//! The embedded protocol of classic consumers: what a member says of its subscription and what it is told of its
//! assignment, inside the bytes that a classic group hands on without a look.
//!
//! ```text
//!  subscription: version i16 | topics [string] | user data bytes?
//!                from version 1: | owned [topic string, partitions [i32]]
//!                from version 2: | generation i32
//!                from version 3: | rack string?
//!  assignment:   version i16 | partitions [topic string, partitions [i32]] | user data bytes?
//! ```
//!
//! A later version begins like version 3. The bytes come from clients: nothing is allocated for a count that is not
//! there.

use std::{collections::BTreeSet, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};

/// The last version that is known.
const VERSION_MAX: i16 = 3;

/// Partitions of topics by name.
pub(super) type NamedPartitions = Vec<(Arc<str>, Vec<i32>)>;

/// What a member says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscription {
    /// The version that it was written in, at most the last one known.
    pub(super) version: i16,
    /// The topics it subscribes to.
    pub(super) topics: BTreeSet<Arc<str>>,
    /// What it owns.
    pub(super) owned: NamedPartitions,
    /// Its rack.
    pub(super) rack: Option<Arc<str>>,
}

impl Subscription {
    /// Reads one; `None` when it is malformed.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let version = reader.version()?;
        let topics = reader.array(Reader::string)?.into_iter().collect();
        reader.nullable_bytes()?;
        let owned = if version >= 1 { reader.partitions()? } else { Vec::new() };
        if version >= 2 {
            reader.i32()?;
        }
        let rack = if version >= 3 { reader.nullable_string()? } else { None };
        Some(Self { version, topics, owned, rack })
    }
}

/// What a member is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    /// The partitions.
    pub(super) partitions: NamedPartitions,
    /// True when the assignor of a client added something of its own.
    pub(super) has_user_data: bool,
}

impl Assignment {
    /// Reads one; no bytes are no partitions, and `None` is malformed.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self { partitions: Vec::new(), has_user_data: false });
        }
        let mut reader = Reader(bytes);
        reader.version()?;
        let partitions = reader.partitions()?;
        let has_user_data = !reader.nullable_bytes()?.is_empty();
        Some(Self { partitions, has_user_data })
    }

    /// Writes one without user data; all versions are alike.
    pub(super) fn write(version: i16, partitions: &[(Arc<str>, BTreeSet<i32>)]) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_i16(version);
        bytes.put_i32(length(partitions.len()));
        for (topic, partitions) in partitions {
            bytes.put_i16(i16::try_from(topic.len()).expect("a topic name is at most 249 bytes long"));
            bytes.put_slice(topic.as_bytes());
            bytes.put_i32(length(partitions.len()));
            partitions.iter().for_each(|partition| bytes.put_i32(*partition));
        }
        bytes.put_i32(-1);
        bytes.freeze()
    }
}

fn length(count: usize) -> i32 {
    i32::try_from(count).expect("partitions are numbered with 31 bits")
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn version(&mut self) -> Option<i16> {
        let version = i16::from_be_bytes(self.take()?);
        (version >= 0).then(|| version.min(VERSION_MAX))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn nullable_string(&mut self) -> Option<Option<Arc<str>>> {
        match i16::from_be_bytes(self.take()?) {
            -1 => Some(None),
            length => {
                let bytes = self.slice(usize::try_from(length).ok()?)?;
                Some(Some(Arc::from(std::str::from_utf8(bytes).ok()?)))
            }
        }
    }

    fn string(&mut self) -> Option<Arc<str>> {
        self.nullable_string()?
    }

    /// Null is empty.
    fn nullable_bytes(&mut self) -> Option<&'a [u8]> {
        match self.i32()? {
            -1 => Some(&[]),
            length => self.slice(usize::try_from(length).ok()?),
        }
    }

    fn array<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.i32()?).ok()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(read(self)?);
        }
        Some(items)
    }

    fn partitions(&mut self) -> Option<NamedPartitions> {
        self.array(|reader| Some((reader.string()?, reader.array(Self::i32)?)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A subscription as a client writes it.
    pub(in crate::groups) fn subscription(version: i16, topics: &[&str], owned: &[(&str, &[i32])]) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_i16(version);
        bytes.put_i32(length(topics.len()));
        for topic in topics {
            put_string(&mut bytes, topic);
        }
        bytes.put_i32(-1);
        if version >= 1 {
            bytes.put_i32(length(owned.len()));
            for (topic, partitions) in owned {
                put_string(&mut bytes, topic);
                bytes.put_i32(length(partitions.len()));
                partitions.iter().for_each(|partition| bytes.put_i32(*partition));
            }
        }
        if version >= 2 {
            bytes.put_i32(7);
        }
        if version >= 3 {
            put_string(&mut bytes, "rack");
        }
        bytes.freeze()
    }

    fn put_string(bytes: &mut BytesMut, text: &str) {
        bytes.put_i16(i16::try_from(text.len()).unwrap());
        bytes.put_slice(text.as_bytes());
    }

    #[test]
    fn every_version_of_a_subscription_is_read() {
        for version in 0..=5 {
            let read = Subscription::read(&subscription(version, &["a", "b"], &[("a", &[0, 2])])).unwrap();
            assert_eq!(read.version, version.min(3));
            assert_eq!(read.topics, BTreeSet::from([Arc::from("a"), Arc::from("b")]));
            let owned = if version >= 1 { vec![(Arc::from("a"), vec![0, 2])] } else { Vec::new() };
            assert_eq!(read.owned, owned);
            assert_eq!(read.rack.as_deref(), (version >= 3).then_some("rack"));
        }
    }

    #[test]
    fn what_is_cut_off_is_malformed() {
        let whole = subscription(3, &["a", "b"], &[("a", &[0, 2])]);
        for end in 0..whole.len() {
            assert_eq!(Subscription::read(&whole[..end]), None, "{end}");
        }
        assert_eq!(Subscription::read(&[0, 0, 0x7f, 0xff, 0xff, 0xff]), None);
        assert_eq!(Subscription::read(&[0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn an_assignment_is_read_as_it_was_written() {
        let partitions = [(Arc::from("a"), BTreeSet::from([1, 3])), (Arc::from("b"), BTreeSet::from([0]))];
        let bytes = Assignment::write(1, &partitions);
        assert_eq!(
            bytes.as_ref(),
            b"\x00\x01\x00\x00\x00\x02\x00\x01a\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x03\
              \x00\x01b\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"
        );
        let read = Assignment::read(&bytes).unwrap();
        assert_eq!(read.partitions, [(Arc::from("a"), vec![1, 3]), (Arc::from("b"), vec![0])]);
        assert!(!read.has_user_data);
        for end in 1..bytes.len() {
            assert_eq!(Assignment::read(&bytes[..end]), None, "{end}");
        }
        assert!(Assignment::read(&[]).unwrap().partitions.is_empty());
        assert!(Assignment::read(b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01x").unwrap().has_user_data);
    }
}
