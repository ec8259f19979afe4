//! The frame of every small file that is written at once: what it is, its version, its length, its checksum.
//!
//! ```text
//!  0       4         6          8                16      20
//!  | magic | version | reserved | payload length | CRC   | payload
//!  | 4     | u16     | u16 = 0  | u64            | u32   |
//!  `----------- the CRC-32C covers 0 to 16 and the payload
//! ```

use crate::{
    crc::Crc32c,
    cursor::{Put, Reader},
    error::DecodeError,
};

/// Bytes before the payload.
pub(crate) const ENVELOPE_BYTES: usize = 20;

/// A kind of file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// What errors call it.
    pub(crate) what: &'static str,
    /// Its first four bytes.
    pub(crate) magic: [u8; 4],
    /// The newest version that is known, which is written.
    pub(crate) version: u16,
}

/// Frames a payload.
pub(crate) fn seal(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENVELOPE_BYTES + payload.len());
    bytes.put(&kind.magic);
    bytes.put_u16(kind.version);
    bytes.put_u16(0);
    bytes.put_u64(payload.len() as u64);
    let crc = Crc32c::new().with(&bytes).with(payload).finish();
    bytes.put_u32(crc);
    bytes.put(payload);
    bytes
}

/// Checks a frame, and answers the version and the payload.
pub(crate) fn open(kind: Kind, bytes: &[u8]) -> Result<(u16, &[u8]), DecodeError> {
    let what = kind.what;
    let mut reader = Reader::new(what, bytes);
    if reader.array()? != kind.magic {
        return Err(DecodeError::Magic { what });
    }
    let version = reader.u16()?;
    let reserved = reader.u16()?;
    let length = reader.u64()?;
    let stated = reader.u32()?;
    let payload = reader.slice(reader.left())?;
    if length != payload.len() as u64 {
        return Err(if length > payload.len() as u64 {
            DecodeError::Cut { what }
        } else {
            reader.invalid("bytes follow its end")
        });
    }
    let computed = Crc32c::new().with(&bytes[..ENVELOPE_BYTES - 4]).with(payload).finish();
    if stated != computed {
        return Err(DecodeError::Checksum { what, stated, computed });
    }
    // After the checksum: a flipped bit in the version is damage, not a newer program's work.
    if version == 0 || version > kind.version {
        return Err(DecodeError::Version { what, version, version_max: kind.version });
    }
    if reserved != 0 {
        return Err(reader.invalid("reserved bytes are in use"));
    }
    Ok((version, payload))
}
