//! Compression of the records of a batch: the five codecs of Kafka.
//!
//! **Owns** reading of every legal form that Kafka's clients write (snappy raw and in xerial's framing, concatenated
//! gzip members and lz4 and zstd frames) and writing of the forms that every client reads.
//!
//! **Does not own** the records themselves ([`crate::batch`]).
//!
//! Output is capped: a decompression stops with [`Error::TooLarge`] at the first byte past the cap, and memory grows
//! with what was really produced, never with what a header claims. A zstd frame may ask for a window of at most
//! [`ZSTD_WINDOW_LOG_MAX`].

use std::io::{self, Read, Write};

use thiserror::Error;

/// The largest window that a zstd frame may ask for, as a power of two: 128 MiB, what zstd's own decoder accepts and
/// what its level 22 writes. The window is address space until it is written to, which the output cap bounds.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// The eight bytes with which xerial's snappy framing begins.
pub const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];

/// Uncompressed bytes of one block in what this module writes as snappy: Java's default.
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

/// The most that one byte of raw snappy can stand for: a copy of 64 bytes takes 3. A longer claim is a lie.
const SNAPPY_EXPANSION_MAX: usize = 32;

/// How a batch's records are compressed: bits 0 to 2 of its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// gzip (RFC 1952).
    Gzip,
    /// Snappy, written in xerial's framing.
    Snappy,
    /// LZ4 in its frame format.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Codec {
    /// All codecs, in the order of their ids.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec of an id; `None` for an id that Kafka has not given out.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The id in a batch's attributes.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// Whether `bytes` begin as what this codec writes begins: all that can be told of them without decompression.
    #[must_use]
    pub fn begins(self, bytes: &[u8]) -> bool {
        match self {
            Self::None => true,
            Self::Gzip => bytes.starts_with(&[0x1f, 0x8b]),
            // Raw snappy begins with its length, which may be anything.
            Self::Snappy => !bytes.is_empty(),
            Self::Lz4 => bytes.starts_with(&[0x04, 0x22, 0x4d, 0x18]),
            // A frame, or one of the sixteen that are to be skipped.
            Self::Zstd => match bytes.first_chunk::<4>() {
                Some([0x28, 0xb5, 0x2f, 0xfd]) => true,
                Some([first, 0x2a, 0x4d, 0x18]) => first & 0xf0 == 0x50,
                _ => false,
            },
        }
    }

    /// The name in `compression.type`, except that this says `none` where the setting says `uncompressed`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Why bytes could not be compressed or decompressed.
#[derive(Debug, Error)]
pub enum Error {
    /// The output would be larger than the cap.
    #[error("decompressed records exceed {bytes_max} bytes")]
    TooLarge {
        /// The cap.
        bytes_max: usize,
    },
    /// The input is not what its codec writes.
    #[error("{codec} data is corrupt", codec = codec.name())]
    Corrupt {
        /// The codec that refused it.
        codec: Codec,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Of bytes that do not begin as the codec's do.
    pub(crate) fn not_begun(codec: Codec) -> Self {
        let source = io::Error::new(io::ErrorKind::InvalidData, "it does not begin as such data does");
        Self::Corrupt { codec, source }
    }
}

/// Compresses `bytes` at the codec's default level.
///
/// # Errors
/// [`Error::Corrupt`] where the codec itself fails, which it does for input beyond its format's limits only.
pub fn compress(codec: Codec, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    compress_level(codec, None, bytes)
}

/// Compresses `bytes` at a level: gzip 1 to 9, zstd −131072 to 22; snappy and lz4 have one. A level outside of the
/// range is moved into it.
///
/// # Errors
/// As [`compress`].
pub fn compress_level(codec: Codec, level: Option<i32>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let corrupt = |source| Error::Corrupt { codec, source };
    match codec {
        Codec::None => Ok(bytes.to_vec()),
        Codec::Gzip => {
            let level = level.map_or_else(flate2::Compression::default, |level| {
                flate2::Compression::new(level.clamp(1, 9).unsigned_abs())
            });
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(bytes).map_err(corrupt)?;
            encoder.finish().map_err(corrupt)
        }
        Codec::Snappy => compress_xerial(bytes).map_err(corrupt),
        Codec::Lz4 => {
            // Independent blocks without a dictionary: the only ones that Java's reader takes.
            let frame = lz4_flex::frame::FrameInfo::new()
                .block_mode(lz4_flex::frame::BlockMode::Independent)
                .block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(frame, Vec::new());
            encoder.write_all(bytes).map_err(corrupt)?;
            encoder.finish().map_err(|error| corrupt(io::Error::other(error)))
        }
        Codec::Zstd => {
            let level = level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL).clamp(-131_072, 22);
            zstd::stream::encode_all(bytes, level).map_err(corrupt)
        }
    }
}

/// Decompresses `bytes` to at most `bytes_max`.
///
/// # Errors
/// [`Error::TooLarge`] past the cap, [`Error::Corrupt`] for anything that is not a whole and legal stream.
pub fn decompress(codec: Codec, bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, Error> {
    let corrupt = |source| Error::Corrupt { codec, source };
    match codec {
        Codec::None => {
            if bytes.len() > bytes_max {
                return Err(Error::TooLarge { bytes_max });
            }
            Ok(bytes.to_vec())
        }
        Codec::Gzip => read_capped(codec, flate2::read::MultiGzDecoder::new(bytes), bytes.len(), bytes_max),
        Codec::Snappy => decompress_snappy(bytes, bytes_max),
        Codec::Lz4 => read_capped(
            codec,
            Lz4Frames(lz4_flex::frame::FrameDecoder::new(WholeFrames(bytes))),
            bytes.len(),
            bytes_max,
        ),
        Codec::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes).map_err(corrupt)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(corrupt)?;
            read_capped(codec, decoder, bytes.len(), bytes_max)
        }
    }
}

/// Reads a stream to its end into memory that grows with what comes.
fn read_capped(
    codec: Codec,
    reader: impl Read,
    input_bytes: usize,
    bytes_max: usize,
) -> Result<Vec<u8>, Error> {
    if input_bytes == 0 {
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, "an empty stream");
        return Err(Error::Corrupt { codec, source });
    }
    let mut output = Vec::with_capacity(input_bytes.saturating_mul(2).min(bytes_max));
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(limit).read_to_end(&mut output).map_err(|source| Error::Corrupt { codec, source })?;
    if output.len() > bytes_max {
        return Err(Error::TooLarge { bytes_max });
    }
    Ok(output)
}

/// Reads lz4 frames until the input is used up: the decoder reports the end of each frame as the end of its data.
struct Lz4Frames<'a>(lz4_flex::frame::FrameDecoder<WholeFrames<'a>>);

impl Read for Lz4Frames<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.0.read(buffer)?;
            if count > 0 || buffer.is_empty() || self.0.get_ref().0.is_empty() {
                return Ok(count);
            }
        }
    }
}

/// The input of the lz4 decoder, which takes an input that ends between two blocks for the end of the frame: asking
/// for more than there is becomes an error. After a frame's end mark it does not ask.
struct WholeFrames<'a>(&'a [u8]);

impl Read for WholeFrames<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an lz4 frame is cut"));
        }
        self.0.read(buffer)
    }
}

fn compress_xerial(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = snap::raw::Encoder::new();
    let mut output = Vec::with_capacity(16 + bytes.len() / 2);
    output.extend_from_slice(&XERIAL_MAGIC);
    // Version and oldest compatible version, big-endian as Java writes them.
    output.extend_from_slice(&1_i32.to_be_bytes());
    output.extend_from_slice(&1_i32.to_be_bytes());
    for block in bytes.chunks(XERIAL_BLOCK_BYTES) {
        let compressed = encoder.compress_vec(block).map_err(io::Error::other)?;
        let length = u32::try_from(compressed.len()).map_err(io::Error::other)?;
        output.extend_from_slice(&length.to_be_bytes());
        output.extend_from_slice(&compressed);
    }
    Ok(output)
}

fn decompress_snappy(bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, Error> {
    let mut output = Vec::new();
    if !bytes.starts_with(&XERIAL_MAGIC) {
        append_snappy_block(bytes, &mut output, bytes_max)?;
        return Ok(output);
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        // Java's writer begins a new header where streams were joined.
        if rest.starts_with(&XERIAL_MAGIC) {
            let compatible = rest.get(12..16).and_then(|field| field.try_into().ok()).map(i32::from_be_bytes);
            match compatible {
                Some(version) if version >= 1 => rest = &rest[16..],
                _ => return Err(snappy_corrupt("a framing version is not supported")),
            }
            continue;
        }
        let (length, after) =
            rest.split_first_chunk::<4>().ok_or_else(|| snappy_corrupt("a block length is cut"))?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let (block, after) =
            after.split_at_checked(length).ok_or_else(|| snappy_corrupt("a block is cut"))?;
        append_snappy_block(block, &mut output, bytes_max)?;
        rest = after;
    }
    Ok(output)
}

fn append_snappy_block(block: &[u8], output: &mut Vec<u8>, bytes_max: usize) -> Result<(), Error> {
    let length =
        snap::raw::decompress_len(block).map_err(|error| snappy_corrupt_source(io::Error::other(error)))?;
    if block.is_empty() || length > block.len().saturating_mul(SNAPPY_EXPANSION_MAX) {
        return Err(snappy_corrupt("a block claims more than its bytes can hold"));
    }
    let start = output.len();
    let end =
        start.checked_add(length).filter(|end| *end <= bytes_max).ok_or(Error::TooLarge { bytes_max })?;
    output.resize(end, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, &mut output[start..])
        .map_err(|error| snappy_corrupt_source(io::Error::other(error)))?;
    if written != length {
        return Err(snappy_corrupt("a block is shorter than it claims"));
    }
    Ok(())
}

fn snappy_corrupt(why: &'static str) -> Error {
    snappy_corrupt_source(io::Error::new(io::ErrorKind::InvalidData, why))
}

fn snappy_corrupt_source(source: io::Error) -> Error {
    Error::Corrupt { codec: Codec::Snappy, source }
}

#[cfg(test)]
mod tests;
