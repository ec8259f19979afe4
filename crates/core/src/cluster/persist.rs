//! The compact binary form of replicated values.
//!
//! **Owns** how numbers, texts, lists and enums become bytes: unsigned numbers are LEB128, signed ones zigzag first,
//! lists and texts carry a count. No allocation is made from a count alone: a count above the bytes that are left is
//! refused, since each item takes at least one.

use std::{collections::BTreeMap, sync::Arc};

use thiserror::Error;
use tidelog_types::{
    BootId, BrokerId, BrokerIncarnation, ClusterId, DirectoryId, LeaderEpoch, Offset, OffsetRange,
    PartitionIndex, ProducerId, Timestamp, TopicId, TopicName, TopicPartition, UploadId, UploadSequence,
};

/// Bytes are not the form of a value that this version knows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end inside a value.
    #[error("the bytes end inside {what}")]
    Short {
        /// What was being read.
        what: &'static str,
    },
    /// A number, tag or text is outside of what its place allows.
    #[error("{what} is out of range")]
    OutOfRange {
        /// What was being read.
        what: &'static str,
    },
    /// Bytes are left after the value.
    #[error("{count} bytes are left after the value")]
    Trailing {
        /// How many.
        count: usize,
    },
    /// The envelope is not ours, or damaged.
    #[error("the envelope is not valid: {what}")]
    Envelope {
        /// Which check failed.
        what: &'static str,
    },
    /// A version that this build does not read.
    #[error("format version {found} is not known, this build reads up to {known}")]
    Version {
        /// What the bytes say.
        found: u16,
        /// The newest that is read.
        known: u16,
    },
}

/// Takes values from the front of a slice.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes exactly `count` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Short { what })?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes a count of items that follow, each of one byte at least.
    ///
    /// # Errors
    /// [`DecodeError::OutOfRange`] where more items are announced than bytes are left.
    pub fn count(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        let count = u64::take(self)?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.rest.len())
            .ok_or(DecodeError::OutOfRange { what })
    }

    /// Checks that everything was taken.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`].
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { count: self.rest.len() }) }
    }
}

/// A value with a binary form.
pub trait Persist: Sized {
    /// Appends the form of `self`.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes one value.
    ///
    /// # Errors
    /// Bytes that no [`Persist::put`] of a known version wrote.
    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// The whole form of one value.
#[must_use]
pub fn to_bytes<T: Persist>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// Reads one value that fills `bytes` exactly.
///
/// # Errors
/// Bytes that are not the form of a `T`.
pub fn from_bytes<T: Persist>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = T::take(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

impl Persist for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(u8::try_from(rest & 0x7f).expect("seven bits fit a byte") | 0x80);
            rest >>= 7;
        }
        out.push(u8::try_from(rest).expect("seven bits fit a byte"));
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = reader.bytes(1, "a number")?[0];
            let digit = u64::from(byte & 0x7f);
            if shift == 63 && digit > 1 {
                break;
            }
            value |= digit << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::OutOfRange { what: "a number" })
    }
}

impl Persist for i64 {
    fn put(&self, out: &mut Vec<u8>) {
        ((*self << 1) ^ (*self >> 63)).cast_unsigned().put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let raw = u64::take(reader)?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }
}

macro_rules! persist_narrow {
    ($($narrow:ty as $wide:ty),*) => {$(
        impl Persist for $narrow {
            fn put(&self, out: &mut Vec<u8>) {
                <$wide>::from(*self).put(out);
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                <$narrow>::try_from(<$wide>::take(reader)?).map_err(|_| DecodeError::OutOfRange { what: stringify!($narrow) })
            }
        }
    )*};
}
persist_narrow!(u16 as u64, u32 as u64, i32 as i64);

impl Persist for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.bytes(1, "a flag")?[0] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::OutOfRange { what: "a flag" }),
        }
    }
}

impl Persist for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count("a text")?;
        let bytes = reader.bytes(count, "a text")?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::OutOfRange { what: "a text" })
    }
}

/// Appends a count, as [`Reader::count`] takes it.
pub fn put_count(count: usize, out: &mut Vec<u8>) {
    u64::try_from(count).expect("a count of things in memory fits 64 bits").put(out);
}

impl<T: Persist> Persist for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        for item in self {
            item.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count("a list")?;
        let mut list = Self::with_capacity(count.min(64));
        for _ in 0..count {
            list.push(T::take(reader)?);
        }
        Ok(list)
    }
}

impl<K: Persist + Ord, V: Persist> Persist for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count("a map")?;
        let mut map = Self::new();
        for _ in 0..count {
            let key = K::take(reader)?;
            // One map has one form: keys ascend.
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(DecodeError::OutOfRange { what: "a map's key" });
            }
            map.insert(key, V::take(reader)?);
        }
        Ok(map)
    }
}

impl<T: Persist> Persist for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::take(reader)? { Some(T::take(reader)?) } else { None })
    }
}

impl<A: Persist, B: Persist> Persist for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((A::take(reader)?, B::take(reader)?))
    }
}

impl<T: Persist> Persist for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_ref().put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        T::take(reader).map(Self::new)
    }
}

macro_rules! persist_uuid {
    ($($name:ty),*) => {$(
        impl Persist for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(self.as_bytes());
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let bytes = reader.bytes(16, stringify!($name))?;
                Ok(Self::from_bytes(bytes.try_into().expect("16 bytes were taken")))
            }
        }
    )*};
}
persist_uuid!(TopicId, ClusterId, DirectoryId, BootId);

macro_rules! persist_number {
    ($($name:ident as $raw:ty),*) => {$(
        impl Persist for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                <$raw>::take(reader).map($name)
            }
        }
    )*};
}
persist_number!(
    BrokerId as i32,
    PartitionIndex as i32,
    ProducerId as i64,
    BrokerIncarnation as u64,
    UploadSequence as u64
);

impl Persist for Offset {
    fn put(&self, out: &mut Vec<u8>) {
        self.get().put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::new(u64::take(reader)?).ok_or(DecodeError::OutOfRange { what: "an offset" })
    }
}

impl Persist for OffsetRange {
    fn put(&self, out: &mut Vec<u8>) {
        self.base.put(out);
        self.end.distance_from(self.base).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let base = Offset::take(reader)?;
        let length = u64::take(reader)?;
        let end = base.checked_add(length).ok_or(DecodeError::OutOfRange { what: "a range" })?;
        Ok(Self { base, end })
    }
}

impl Persist for LeaderEpoch {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_wire().put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_wire(i32::take(reader)?).ok_or(DecodeError::OutOfRange { what: "a leader epoch" })
    }
}

impl Persist for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_wire().put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_wire(i64::take(reader)?).ok_or(DecodeError::OutOfRange { what: "a timestamp" })
    }
}

impl Persist for TopicName {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.as_str().len(), out);
        out.extend_from_slice(self.as_str().as_bytes());
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::new(&String::take(reader)?).map_err(|_| DecodeError::OutOfRange { what: "a topic name" })
    }
}

/// Writes [`Persist`] for a struct, field after field in the order given.
macro_rules! persist_struct {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::cluster::persist::Persist for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::cluster::persist::Persist::put(&self.$field, out);)*
            }

            fn take(
                reader: &mut $crate::cluster::persist::Reader<'_>,
            ) -> Result<Self, $crate::cluster::persist::DecodeError> {
                Ok(Self { $($field: $crate::cluster::persist::Persist::take(reader)?),* })
            }
        }
    };
}

/// Writes [`Persist`] for an enum: a tag byte, then the variant's fields. A tag is never reused.
macro_rules! persist_enum {
    ($name:ty { $($tag:literal => $variant:ident { $($field:ident),* $(,)? }),* $(,)? }) => {
        impl $crate::cluster::persist::Persist for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        out.push($tag);
                        $($crate::cluster::persist::Persist::put($field, out);)*
                    })*
                }
            }

            fn take(
                reader: &mut $crate::cluster::persist::Reader<'_>,
            ) -> Result<Self, $crate::cluster::persist::DecodeError> {
                match reader.bytes(1, "a tag")?[0] {
                    $($tag => Ok(Self::$variant { $($field: $crate::cluster::persist::Persist::take(reader)?),* }),)*
                    _ => Err($crate::cluster::persist::DecodeError::OutOfRange { what: concat!("the tag of ", stringify!($name)) }),
                }
            }
        }
    };
}

pub(super) use {persist_enum, persist_struct};

persist_struct!(TopicPartition { topic_id, partition });
persist_struct!(UploadId { incarnation, sequence });
