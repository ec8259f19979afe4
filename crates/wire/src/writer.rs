//! Writing a frame as slices: what is encoded goes into one buffer, records are shared beside it.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::{ApiKey, Context, reader::STRING_BYTES_MAX};

/// Slices up to this size are copied into the buffer: cheaper than one more entry of a vectored write. It covers a
/// patched record batch header.
pub const COPIED_BYTES_MAX: usize = 128;

/// Why a message has no encoding in a version.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
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
    /// A field is null that may not be in this version.
    #[error("field `{field}` is null in version {version}")]
    UnexpectedNull {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
        /// The version.
        version: i16,
    },
    /// A field is set that the version lacks and that may not be left out.
    #[error("field `{field}` is set, but version {version} lacks it")]
    FieldNotInVersion {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
        /// The version.
        version: i16,
    },
    /// A length or count that the encoding cannot express.
    #[error("field `{field}` is too long: {length}")]
    TooLong {
        /// Kafka's name of the field, in snake case.
        field: &'static str,
        /// Its length or count.
        length: usize,
    },
    /// The frame is longer than its size prefix can say.
    #[error("frame of {length} bytes")]
    FrameTooLong {
        /// Its length.
        length: usize,
    },
}

/// The bytes of a frame so far.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: BytesMut,
    /// Slices that stand in the frame before the byte of `buffer` at the position beside them.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
    /// The value of a tagged field is being written: its size comes first, so it is kept in one piece.
    in_tagged_field: bool,
}

impl Writer {
    /// An empty frame.
    #[must_use]
    pub fn new() -> Self {
        Self { buffer: BytesMut::with_capacity(128), ..Self::default() }
    }

    /// Bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len() + self.shared_bytes
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frame as slices in order.
    #[must_use]
    pub fn into_slices(self) -> Vec<Bytes> {
        let buffer = self.buffer.freeze();
        let mut slices = Vec::with_capacity(2 * self.shared.len() + 1);
        let mut start = 0;
        for (position, slice) in self.shared {
            if start < position {
                slices.push(buffer.slice(start..position));
            }
            start = position;
            slices.push(slice);
        }
        if start < buffer.len() {
            slices.push(buffer.slice(start..));
        }
        slices
    }

    /// The frame in one piece. Copies if there are several.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.shared.is_empty() {
            return self.buffer.freeze();
        }
        let mut joined = BytesMut::with_capacity(self.len());
        self.into_slices().iter().for_each(|slice| joined.extend_from_slice(slice));
        joined.freeze()
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// Writes the size of all that was written into its first four bytes, which were kept for it.
    pub(crate) fn set_frame_size(&mut self) -> Result<(), EncodeError> {
        let length = self.len() - 4;
        let size = i32::try_from(length).map_err(|_| EncodeError::FrameTooLong { length })?;
        self.buffer[..4].copy_from_slice(&size.to_be_bytes());
        Ok(())
    }

    /// Adds a slice without a copy, unless it is short.
    pub(crate) fn share(&mut self, slice: &Bytes) {
        if slice.len() <= COPIED_BYTES_MAX || self.in_tagged_field {
            self.put(slice);
        } else {
            self.shared_bytes += slice.len();
            self.shared.push((self.buffer.len(), slice.clone()));
        }
    }

    pub(crate) fn uvarint(&mut self, mut value: u32) {
        while value > 0x7f {
            self.buffer.put_u8(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.buffer.put_u8(value.to_le_bytes()[0]);
    }

    fn length_plus_one(&mut self, length: Option<usize>, context: Context) -> Result<(), EncodeError> {
        let encoded = match length {
            None => 0,
            // Kafka's lengths are below 2^31 in the compact encoding as well.
            Some(length) => match i32::try_from(length) {
                Ok(length) => length.unsigned_abs() + 1,
                Err(_) => return Err(EncodeError::TooLong { field: context.field, length }),
            },
        };
        self.uvarint(encoded);
        Ok(())
    }

    /// The length of a string; `None` is null.
    pub(crate) fn string_length(
        &mut self,
        length: Option<usize>,
        context: Context,
    ) -> Result<(), EncodeError> {
        match length {
            Some(length) if length > STRING_BYTES_MAX => {
                Err(EncodeError::TooLong { field: context.field, length })
            }
            _ if context.flexible => self.length_plus_one(length, context),
            _ => {
                let length =
                    length.map_or(-1, |length| i16::try_from(length).expect("at most the longest string"));
                self.put(&length.to_be_bytes());
                Ok(())
            }
        }
    }

    /// The length of bytes or records, or the count of an array; `None` is null.
    pub(crate) fn length(&mut self, length: Option<usize>, context: Context) -> Result<(), EncodeError> {
        if context.flexible {
            return self.length_plus_one(length, context);
        }
        let encoded = match length {
            None => -1,
            Some(length) => {
                i32::try_from(length).map_err(|_| EncodeError::TooLong { field: context.field, length })?
            }
        };
        self.put(&encoded.to_be_bytes());
        Ok(())
    }

    /// A tagged field: tag, size, value.
    pub(crate) fn tagged_field(
        &mut self,
        tag: u32,
        context: Context,
        value: impl FnOnce(&mut Self) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut inner = Self { in_tagged_field: true, ..Self::default() };
        value(&mut inner)?;
        let length = inner.buffer.len();
        let size =
            u32::try_from(length).map_err(|_| EncodeError::TooLong { field: context.field, length })?;
        self.uvarint(tag);
        self.uvarint(size);
        self.put(&inner.buffer);
        Ok(())
    }
}
