//! The last 512 bytes of a segment object.

use tidelog_types::{BrokerIncarnation, ClusterId, LeaderEpoch, Timestamp, UploadId, UploadSequence};

use super::ObjectIdentity;
use crate::{
    crc::crc32c,
    cursor::{Put, Reader},
    error::DecodeError,
    manifest::{ManifestEntry, Section, SegmentObjectId},
};

/// Bytes of a footer.
pub const FOOTER_BYTES: usize = 512;

const WHAT: &str = "segment object footer";
const MAGIC: [u8; 8] = *b"TLSEGOBJ";
const VERSION: u16 = 1;
/// For encryption: a key's name, a nonce, an algorithm.
const RESERVED_BYTES: usize = FOOTER_BYTES - 4 - 268;

/// What an object says of itself. It repeats its manifest entry, so that a lost manifest can be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// Whose it is, and which.
    pub identity: ObjectIdentity,
    /// The leader epoch of its last batch.
    pub last_batch_epoch: LeaderEpoch,
    /// The largest timestamp of its batches.
    pub max_timestamp: Option<Timestamp>,
    /// The batches.
    pub batches: Section,
    /// Index, aborted transactions and leader epochs together.
    pub serving: Section,
    /// The index.
    pub index: Section,
    /// The aborted transactions.
    pub aborted: Section,
    /// The leader epochs.
    pub epochs: Section,
    /// The producer snapshot.
    pub producers: Section,
    /// The whole object's length.
    pub object_bytes: u64,
}

impl Footer {
    /// What makes the object's key, within its partition.
    #[must_use]
    pub const fn object_id(&self) -> SegmentObjectId {
        SegmentObjectId {
            base: self.identity.range.base,
            leader_epoch: self.identity.leader_epoch,
            upload: self.identity.upload,
        }
    }

    /// The entry that a manifest holds for the object.
    #[must_use]
    pub const fn manifest_entry(&self) -> ManifestEntry {
        ManifestEntry {
            range: self.identity.range,
            object: self.object_id(),
            position: self.batches.position,
            bytes: self.batches.bytes,
            object_bytes: self.object_bytes,
            max_timestamp: self.max_timestamp,
            index: self.serving,
            leader_epoch: self.last_batch_epoch,
        }
    }

    /// The footer's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let identity = &self.identity;
        let mut bytes = Vec::with_capacity(FOOTER_BYTES);
        bytes.put(&MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u16(u16::try_from(FOOTER_BYTES).expect("512 fits"));
        bytes.put_u32(0);
        bytes.put(identity.cluster_id.as_bytes());
        bytes.put_topic_partition(identity.place);
        bytes.put_range(identity.range);
        bytes.put_i32(identity.leader_epoch.to_wire());
        bytes.put_i32(self.last_batch_epoch.to_wire());
        bytes.put_u64(identity.upload.incarnation.0);
        bytes.put_u64(identity.upload.sequence.0);
        bytes.put_offset(identity.log_start);
        bytes.put_timestamp(self.max_timestamp);
        put_previous(&mut bytes, identity.previous);
        for section in self.sections() {
            bytes.put_u64(section.position);
            bytes.put_u64(section.bytes);
            bytes.put_u32(section.crc);
        }
        bytes.put_u64(self.object_bytes);
        bytes.put_zeros(FOOTER_BYTES - 4 - bytes.len());
        let crc = crc32c(&bytes);
        bytes.put_u32(crc);
        bytes
    }

    /// Reads the footer from the last bytes of an object of `object_bytes`.
    ///
    /// # Errors
    /// For damage, another kind of object, a newer version, and another length than the object had.
    pub fn decode(tail: &[u8], object_bytes: u64) -> Result<Self, DecodeError> {
        let bytes = tail.last_chunk::<FOOTER_BYTES>().ok_or(DecodeError::Cut { what: WHAT })?;
        let mut reader = Reader::new(WHAT, bytes);
        if reader.array()? != MAGIC {
            return Err(DecodeError::Magic { what: WHAT });
        }
        let (covered, crc) = bytes.split_at(FOOTER_BYTES - 4);
        let (stated, computed) = (Reader::new(WHAT, crc).u32()?, crc32c(covered));
        if stated != computed {
            return Err(DecodeError::Checksum { what: WHAT, stated, computed });
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(DecodeError::Version { what: WHAT, version, version_max: VERSION });
        }
        if usize::from(reader.u16()?) != FOOTER_BYTES {
            return Err(reader.invalid("its length is not the one of its version"));
        }
        reader.reserved(4)?;
        let footer = take(&mut reader)?;
        reader.reserved(RESERVED_BYTES)?;
        if footer.object_bytes != object_bytes {
            return Err(reader.invalid("the object has another length"));
        }
        footer.check(&reader)?;
        Ok(footer)
    }

    fn sections(&self) -> [Section; 6] {
        [self.batches, self.serving, self.index, self.aborted, self.epochs, self.producers]
    }

    /// Sections lie behind each other, from the batches to the footer.
    fn check(&self, reader: &Reader<'_>) -> Result<(), DecodeError> {
        let mut at = 0_u64;
        for section in [self.batches, self.index, self.aborted, self.epochs, self.producers] {
            if section.position != at {
                return Err(reader.invalid("its sections do not lie behind each other"));
            }
            at = at.checked_add(section.bytes).ok_or(reader.invalid("a section is too long"))?;
        }
        let serving_ends = self.serving.position.checked_add(self.serving.bytes);
        if self.serving.position != self.index.position || serving_ends != Some(self.producers.position) {
            return Err(reader.invalid("its serving index is not the sum of its parts"));
        }
        if at.checked_add(FOOTER_BYTES as u64) != Some(self.object_bytes) {
            return Err(reader.invalid("its sections do not end at the footer"));
        }
        Ok(())
    }
}

fn put_previous(bytes: &mut Vec<u8>, previous: Option<SegmentObjectId>) {
    let Some(previous) = previous else {
        bytes.put_zeros(32);
        return;
    };
    bytes.put_u32(1);
    bytes.put_i32(previous.leader_epoch.to_wire());
    bytes.put_offset(previous.base);
    bytes.put_u64(previous.upload.incarnation.0);
    bytes.put_u64(previous.upload.sequence.0);
}

fn take_previous(reader: &mut Reader<'_>) -> Result<Option<SegmentObjectId>, DecodeError> {
    match reader.u32()? {
        0 => {
            reader.reserved(28)?;
            Ok(None)
        }
        1 => {
            let leader_epoch = reader.leader_epoch()?;
            let base = reader.offset()?;
            Ok(Some(SegmentObjectId { base, leader_epoch, upload: take_upload(reader)? }))
        }
        _ => Err(reader.invalid("it neither has nor lacks an object before it")),
    }
}

fn take_upload(reader: &mut Reader<'_>) -> Result<UploadId, DecodeError> {
    let incarnation = BrokerIncarnation(reader.u64()?);
    Ok(UploadId { incarnation, sequence: UploadSequence(reader.u64()?) })
}

fn take_section(reader: &mut Reader<'_>) -> Result<Section, DecodeError> {
    Ok(Section { position: reader.u64()?, bytes: reader.u64()?, crc: reader.u32()? })
}

fn take(reader: &mut Reader<'_>) -> Result<Footer, DecodeError> {
    let cluster_id = ClusterId::from_bytes(reader.array()?);
    let place = reader.topic_partition()?;
    let range = reader.range()?;
    let leader_epoch = reader.leader_epoch()?;
    let last_batch_epoch = reader.leader_epoch()?;
    let upload = take_upload(reader)?;
    let log_start = reader.offset()?;
    let max_timestamp = reader.timestamp()?;
    let previous = take_previous(reader)?;
    Ok(Footer {
        identity: ObjectIdentity { cluster_id, place, range, leader_epoch, upload, log_start, previous },
        last_batch_epoch,
        max_timestamp,
        batches: take_section(reader)?,
        serving: take_section(reader)?,
        index: take_section(reader)?,
        aborted: take_section(reader)?,
        epochs: take_section(reader)?,
        producers: take_section(reader)?,
        object_bytes: reader.u64()?,
    })
}
