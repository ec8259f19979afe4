//! A published manifest: the whole state of a partition in the bucket, so that replay and restore need no broker.

use tidelog_types::{
    BrokerIncarnation, ClusterId, Offset, TopicName, TopicPartition, UploadId, UploadSequence,
    limits::TOPIC_NAME_BYTES_MAX,
};

use super::{ManifestEntry, PageId, PageLine, Section, SegmentObjectId};
use crate::{
    cursor::{Put, Reader},
    envelope::{self, Kind},
    error::DecodeError,
};

const FILE: Kind = Kind { what: "published manifest", magic: *b"TLMF", version: 1 };

const LINE_BYTES: usize = 8 + 16 + 16 + 8 + 8;
const ENTRY_BYTES: usize = 16 + 8 + 4 + 16 + 8 + 8 + 8 + 8 + 20 + 4;

/// A partition's manifest at one version. Two of one version are equal, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestFile {
    /// Whose.
    pub cluster_id: ClusterId,
    /// The topic's name.
    pub topic: TopicName,
    /// The partition.
    pub place: TopicPartition,
    /// The manifest's version; it grows with every change of the lines and entries.
    pub version: u64,
    /// The log start offset.
    pub log_start: Offset,
    /// One past the last offset in the bucket.
    pub tiered_end: Offset,
    /// Pages of older entries, by offset.
    pub lines: Vec<PageLine>,
    /// The newest entries, by offset.
    pub entries: Vec<ManifestEntry>,
}

impl ManifestFile {
    /// The object.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let name = self.topic.as_str().as_bytes();
        let mut payload = Vec::new();
        payload.put(self.cluster_id.as_bytes());
        payload.put_topic_partition(self.place);
        payload.put_u16(u16::try_from(name.len()).expect("a topic name is short"));
        payload.put(name);
        payload.put_u64(self.version);
        payload.put_offset(self.log_start);
        payload.put_offset(self.tiered_end);
        payload.put_zeros(16);
        payload.put_count(self.lines.len());
        for line in &self.lines {
            payload.put_offset(line.page.base);
            put_upload(&mut payload, line.page.upload);
            payload.put_range(line.range);
            payload.put_u64(line.bytes);
            payload.put_timestamp(line.max_timestamp);
        }
        payload.put_count(self.entries.len());
        for entry in &self.entries {
            payload.put_range(entry.range);
            payload.put_offset(entry.object.base);
            payload.put_i32(entry.object.leader_epoch.to_wire());
            put_upload(&mut payload, entry.object.upload);
            payload.put_u64(entry.position);
            payload.put_u64(entry.bytes);
            payload.put_u64(entry.object_bytes);
            payload.put_timestamp(entry.max_timestamp);
            payload.put_u64(entry.index.position);
            payload.put_u64(entry.index.bytes);
            payload.put_u32(entry.index.crc);
            payload.put_i32(entry.leader_epoch.to_wire());
        }
        envelope::seal(FILE, &payload)
    }

    /// Reads [`ManifestFile::encode`]'s object.
    ///
    /// # Errors
    /// For damage, another kind of object, a newer version, and ranges that are not contiguous (T1).
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (_, payload) = envelope::open(FILE, bytes)?;
        let mut reader = Reader::new(FILE.what, payload);
        let cluster_id = ClusterId::from_bytes(reader.array()?);
        let place = reader.topic_partition()?;
        let topic = take_name(&mut reader)?;
        let version = reader.u64()?;
        let (log_start, tiered_end) = (reader.offset()?, reader.offset()?);
        reader.reserved(16)?;
        let count = reader.count(LINE_BYTES)?;
        let lines = (0..count).map(|_| take_line(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let count = reader.count(ENTRY_BYTES)?;
        let entries = (0..count).map(|_| take_entry(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let ranges: Vec<_> =
            lines.iter().map(|line| line.range).chain(entries.iter().map(|entry| entry.range)).collect();
        let contiguous = ranges.windows(2).all(|pair| pair[0].end == pair[1].base);
        if !contiguous || ranges.last().is_some_and(|last| last.end != tiered_end) {
            return Err(reader.invalid("its ranges do not lead to its end"));
        }
        reader.finish()?;
        Ok(Self { cluster_id, topic, place, version, log_start, tiered_end, lines, entries })
    }
}

fn put_upload(output: &mut Vec<u8>, upload: UploadId) {
    output.put_u64(upload.incarnation.0);
    output.put_u64(upload.sequence.0);
}

fn take_upload(reader: &mut Reader<'_>) -> Result<UploadId, DecodeError> {
    let incarnation = BrokerIncarnation(reader.u64()?);
    Ok(UploadId { incarnation, sequence: UploadSequence(reader.u64()?) })
}

fn take_name(reader: &mut Reader<'_>) -> Result<TopicName, DecodeError> {
    let length = usize::from(reader.u16()?);
    if length > TOPIC_NAME_BYTES_MAX {
        return Err(reader.invalid("its topic name is too long"));
    }
    let name = reader.slice(length)?;
    let name = std::str::from_utf8(name).ok().and_then(|name| TopicName::new(name).ok());
    name.ok_or(reader.invalid("its topic name is not one"))
}

fn take_line(reader: &mut Reader<'_>) -> Result<PageLine, DecodeError> {
    Ok(PageLine {
        page: PageId { base: reader.offset()?, upload: take_upload(reader)? },
        range: reader.range()?,
        bytes: reader.u64()?,
        max_timestamp: reader.timestamp()?,
    })
}

fn take_entry(reader: &mut Reader<'_>) -> Result<ManifestEntry, DecodeError> {
    Ok(ManifestEntry {
        range: reader.range()?,
        object: SegmentObjectId {
            base: reader.offset()?,
            leader_epoch: reader.leader_epoch()?,
            upload: take_upload(reader)?,
        },
        position: reader.u64()?,
        bytes: reader.u64()?,
        object_bytes: reader.u64()?,
        max_timestamp: reader.timestamp()?,
        index: Section { position: reader.u64()?, bytes: reader.u64()?, crc: reader.u32()? },
        leader_epoch: reader.leader_epoch()?,
    })
}
