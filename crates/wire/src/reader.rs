//! Reading a frame that nobody vouches for.

use bytes::Bytes;
use thiserror::Error;

use crate::{ApiKey, Context};

/// What decoding may allocate for each byte of a frame.
///
/// No frame that keeps the format needs more: of every array's element the size in memory is at most this many times
/// its shortest encoding, which a test checks for every array of every version. So a frame that decodes took at most
/// this for each of its bytes that are not records (those stay slices of the frame), and one that does not took at most
/// this for each of its bytes.
pub const ALLOCATED_PER_BYTE_MAX: usize = 40;

/// What decoding one frame may allocate at all, however long it is. A million topic partitions fit.
pub const DECODED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Why bytes are not the message that they should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The frame ends inside a field.
    #[error("frame ends inside a field: {needed} bytes needed, {remaining} left")]
    Truncated {
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// Bytes follow the message.
    #[error("{count} bytes follow the message")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// A length below what null is encoded as.
    #[error("negative length {length} in field `{field}`")]
    NegativeLength {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
        /// What the frame says.
        length: i64,
    },
    /// A field is null that may not be in this version.
    #[error("field `{field}` is null")]
    UnexpectedNull {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
    },
    /// An array claims more elements than the rest of the frame can hold.
    #[error("field `{field}` claims {count} elements, {remaining} bytes are left")]
    CountTooLarge {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
        /// Elements that the frame claims.
        count: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// The message would take more memory than a frame of its size may.
    #[error(
        "field `{field}` needs {needed} bytes of memory, {allowance} are allowed for the rest of the frame"
    )]
    AllocationTooLarge {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
        /// Bytes that the array would take.
        needed: usize,
        /// Bytes that may still be allocated.
        allowance: usize,
    },
    /// A string is longer than Kafka allows.
    #[error("field `{field}` has a string of {length} bytes")]
    StringTooLong {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
        /// Its length.
        length: usize,
    },
    /// A string is not UTF-8.
    #[error("a string is not valid UTF-8")]
    NotUtf8,
    /// A variable-length integer does not fit 32 bits.
    #[error("a variable-length integer does not fit 32 bits")]
    VarintTooLong,
    /// The bytes of a tagged field are more than its value.
    #[error("{count} bytes follow the value of tagged field {tag}")]
    TaggedFieldTooLong {
        /// The field's tag.
        tag: u32,
        /// Bytes too many.
        count: usize,
    },
    /// No API has this key here.
    #[error("unknown api key {key}")]
    UnknownApiKey {
        /// The key.
        key: i16,
    },
    /// The API has no such version here.
    #[error("{} has no version {version} here", api.name())]
    UnsupportedVersion {
        /// The API.
        api: ApiKey,
        /// The version.
        version: i16,
    },
    /// No record has this type here.
    #[error("unknown record type {record_type}")]
    UnknownRecordType {
        /// The type.
        record_type: i16,
    },
    /// A record's value has no such version here.
    #[error("{value} has no version {version} here")]
    UnsupportedRecordVersion {
        /// Kafka's name of the value.
        value: &'static str,
        /// The version.
        version: i16,
    },
    /// The size before a frame is negative or above the limit.
    #[error("frame size {size} is not within 0 and {max}")]
    FrameSize {
        /// What the size prefix says.
        size: i32,
        /// The limit.
        max: usize,
    },
}

/// A position in a frame, and what decoding the rest of it may still allocate.
#[derive(Debug)]
pub struct Reader {
    frame: Bytes,
    position: usize,
    end: usize,
    allowance: usize,
}

impl Reader {
    /// Starts at the first byte of a frame (what follows the size prefix).
    #[must_use]
    pub fn new(frame: Bytes) -> Self {
        let allowance = frame.len().saturating_mul(ALLOCATED_PER_BYTE_MAX).min(DECODED_BYTES_MAX);
        Self { position: 0, end: frame.len(), frame, allowance }
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.end - self.position
    }

    /// Checks that the message took the whole frame.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`] if it did not.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes { count }),
        }
    }

    fn advance(&mut self, count: usize) -> Result<usize, DecodeError> {
        let remaining = self.remaining();
        if count > remaining {
            return Err(DecodeError::Truncated { needed: count, remaining });
        }
        let start = self.position;
        self.position += count;
        Ok(start)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let start = self.advance(N)?;
        Ok(self.frame[start..start + N].try_into().expect("a slice of N bytes"))
    }

    /// A shared slice of the frame.
    pub(crate) fn slice(&mut self, count: usize) -> Result<Bytes, DecodeError> {
        let start = self.advance(count)?;
        Ok(self.frame.slice(start..start + count))
    }

    pub(crate) fn uvarint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0x0f {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::VarintTooLong)
    }

    fn length_plus_one(&mut self, context: Context) -> Result<Option<usize>, DecodeError> {
        match self.uvarint()? {
            0 => Ok(None),
            length => usize::try_from(length - 1)
                .map(Some)
                .map_err(|_| DecodeError::NegativeLength { field: context.field, length: i64::from(length) }),
        }
    }

    fn signed_length(length: i64, context: Context) -> Result<Option<usize>, DecodeError> {
        match length {
            -1 => Ok(None),
            _ => usize::try_from(length)
                .map(Some)
                .map_err(|_| DecodeError::NegativeLength { field: context.field, length }),
        }
    }

    /// The length of a string; `None` is null.
    pub(crate) fn string_length(&mut self, context: Context) -> Result<Option<usize>, DecodeError> {
        let length = if context.flexible {
            self.length_plus_one(context)?
        } else {
            Self::signed_length(i64::from(i16::from_be_bytes(self.array()?)), context)?
        };
        match length {
            Some(length) if length > STRING_BYTES_MAX => {
                Err(DecodeError::StringTooLong { field: context.field, length })
            }
            length => Ok(length),
        }
    }

    /// The length of bytes or records, or the count of an array; `None` is null.
    pub(crate) fn length(&mut self, context: Context) -> Result<Option<usize>, DecodeError> {
        if context.flexible {
            self.length_plus_one(context)
        } else {
            Self::signed_length(i64::from(i32::from_be_bytes(self.array()?)), context)
        }
    }

    /// Accounts for an array before it is allocated.
    pub(crate) fn charge(
        &mut self,
        count: usize,
        least: usize,
        size: usize,
        field: &'static str,
    ) -> Result<(), DecodeError> {
        let remaining = self.remaining();
        if count > remaining / least.max(1) {
            return Err(DecodeError::CountTooLarge { field, count, remaining });
        }
        let needed = count.saturating_mul(size);
        let Some(allowance) = self.allowance.checked_sub(needed) else {
            return Err(DecodeError::AllocationTooLarge { field, needed, allowance: self.allowance });
        };
        self.allowance = allowance;
        Ok(())
    }

    /// Reads the tagged fields at the end of a structure. `known` reads the value of a tag that it knows and says
    /// whether it did; others are skipped.
    pub(crate) fn tagged_fields(
        &mut self,
        mut known: impl FnMut(&mut Self, u32) -> Result<bool, DecodeError>,
    ) -> Result<(), DecodeError> {
        // Not an allocation: a count beyond the frame runs into its end.
        for _ in 0..self.uvarint()? {
            let tag = self.uvarint()?;
            let size = usize::try_from(self.uvarint()?).unwrap_or(usize::MAX);
            let start = self.advance(size)?;
            let (after, end) = (self.position, self.end);
            self.position = start;
            self.end = after;
            let read = known(self, tag)?;
            let count = self.remaining();
            self.position = after;
            self.end = end;
            if read && count > 0 {
                return Err(DecodeError::TaggedFieldTooLong { tag, count });
            }
        }
        Ok(())
    }
}

/// Kafka's longest string: what a 16-bit length can say, in the compact encoding too.
pub(crate) const STRING_BYTES_MAX: usize = 0x7fff;
