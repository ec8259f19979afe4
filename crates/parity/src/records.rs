//! Record batches from a short notation, right or wrong, and back.
//!
//! Written here a second time, so that a fault of the product's own batches cannot hide itself.

use anyhow::{Context as _, Result, bail, ensure};
use tidelog_format::{
    codec::{Codec, compress, decompress},
    crc::crc32c,
};

use crate::value::Tree;

/// Timestamps of records that name none: 2023-11-14 22:13:20 UTC and on.
const TIMESTAMP: i64 = 1_700_000_000_000;
/// Bytes before the records of a batch.
const HEADER_BYTES: usize = 61;
/// What a batch of this set may be when it is decompressed.
const DECOMPRESSED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The settings of a batch, as a script names them.
struct Options<'a>(&'a [(String, Tree)]);

impl Options<'_> {
    fn get(&self, name: &str) -> Option<&Tree> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    fn int(&self, name: &str, otherwise: i64) -> Result<i64> {
        match self.get(name) {
            None => Ok(otherwise),
            Some(Tree::Int(value)) => Ok(*value),
            Some(other) => bail!("`{name}` of a batch is a number, not {other}"),
        }
    }

    fn check(&self, known: &[&str]) -> Result<()> {
        for (name, _) in self.0 {
            ensure!(known.contains(&name.as_str()), "a batch has no `{name}`");
        }
        Ok(())
    }
}

const BATCH: [&str; 19] = [
    "records",
    "producer_id",
    "epoch",
    "sequence",
    "codec",
    "timestamp",
    "transactional",
    "control",
    "append_time",
    "base_offset",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "count",
    "length",
    "max_timestamp",
    "payload",
];

/// A batch of magic 2: `batch({records: ["a", {key: "k", value: null, headers: [["h", "1"]]}], codec: "zstd"})`.
///
/// # Errors
/// A setting that does not exist or is not what it must be.
pub fn batch(fields: &[(String, Tree)]) -> Result<Vec<u8>> {
    let options = Options(fields);
    options.check(&BATCH)?;
    let base_timestamp = options.int("timestamp", TIMESTAMP)?;
    let records = match options.get("records") {
        Some(Tree::Array(records)) => records.as_slice(),
        None => &[],
        Some(other) => bail!("records are a list, not {other}"),
    };
    let (mut payload, mut max_timestamp) = (Vec::new(), base_timestamp);
    for (delta, value) in (0_i64..).zip(records) {
        let timestamp = record(&mut payload, delta, base_timestamp, value)?;
        max_timestamp = max_timestamp.max(timestamp);
    }
    let codec = match options.get("codec") {
        None => Codec::None,
        Some(Tree::Text(name)) => {
            Codec::ALL.into_iter().find(|codec| codec.name() == name).context("no codec has this name")?
        }
        Some(other) => bail!("a codec is a name, not {other}"),
    };
    let mut payload = compress(codec, &payload)?;
    if let Some(Tree::Bytes(bytes)) = options.get("payload") {
        payload.clone_from(bytes);
    }
    let flag = |name: &str, bit: i64| {
        options.get(name).map_or(0, |value| if *value == Tree::Bool(true) { bit } else { 0 })
    };
    let attributes =
        i64::from(codec.id()) | flag("append_time", 8) | flag("transactional", 16) | flag("control", 32);
    let count = i64::try_from(records.len())?;
    let mut checked = Vec::new();
    put(&mut checked, options.int("attributes", attributes)?, 2);
    put(&mut checked, options.int("last_offset_delta", count - 1)?, 4);
    put(&mut checked, base_timestamp, 8);
    put(&mut checked, options.int("max_timestamp", max_timestamp)?, 8);
    put(&mut checked, options.int("producer_id", -1)?, 8);
    put(&mut checked, options.int("epoch", -1)?, 2);
    put(&mut checked, options.int("sequence", -1)?, 4);
    put(&mut checked, options.int("count", count)?, 4);
    checked.extend_from_slice(&payload);
    let mut bytes = Vec::new();
    put(&mut bytes, options.int("base_offset", 0)?, 8);
    put(&mut bytes, options.int("length", i64::try_from(checked.len() + 9)?)?, 4);
    put(&mut bytes, options.int("leader_epoch", -1)?, 4);
    put(&mut bytes, options.int("magic", 2)?, 1);
    put(&mut bytes, options.int("crc", i64::from(crc32c(&checked)))?, 4);
    bytes.extend_from_slice(&checked);
    Ok(bytes)
}

/// The last bytes of a number, big-endian.
fn put(bytes: &mut Vec<u8>, value: i64, count: usize) {
    bytes.extend_from_slice(&value.to_be_bytes()[8 - count..]);
}

/// Adds one record; answers its timestamp.
fn record(bytes: &mut Vec<u8>, delta: i64, base_timestamp: i64, value: &Tree) -> Result<i64> {
    let text = [("value".to_owned(), value.clone())];
    let options = Options(match value {
        Tree::Struct(fields) => fields,
        _ => &text,
    });
    options.check(&["key", "value", "headers", "timestamp", "attributes", "offset_delta"])?;
    let timestamp = options.int("timestamp", base_timestamp + delta)?;
    let mut record = Vec::new();
    put(&mut record, options.int("attributes", 0)?, 1);
    varint(&mut record, timestamp - base_timestamp);
    varint(&mut record, options.int("offset_delta", delta)?);
    sized(&mut record, options.get("key").unwrap_or(&Tree::Null))?;
    sized(&mut record, options.get("value").unwrap_or(&Tree::Null))?;
    let headers = match options.get("headers") {
        Some(Tree::Array(headers)) => headers.as_slice(),
        _ => &[],
    };
    varint(&mut record, i64::try_from(headers.len())?);
    for header in headers {
        let Tree::Array(pair) = header else { bail!("a header is a pair") };
        for half in pair {
            sized(&mut record, half)?;
        }
    }
    varint(bytes, i64::try_from(record.len())?);
    bytes.extend_from_slice(&record);
    Ok(timestamp)
}

fn sized(bytes: &mut Vec<u8>, value: &Tree) -> Result<()> {
    let content = match value {
        Tree::Null => {
            varint(bytes, -1);
            return Ok(());
        }
        Tree::Text(text) => text.as_bytes(),
        Tree::Bytes(bytes) => bytes,
        other => bail!("keys, values and headers are texts, bytes or null, not {other}"),
    };
    varint(bytes, i64::try_from(content.len())?);
    bytes.extend_from_slice(content);
    Ok(())
}

fn varint(bytes: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest > 0x7f {
        bytes.push(rest.to_le_bytes()[0] & 0x7f | 0x80);
        rest >>= 7;
    }
    bytes.push(rest.to_le_bytes()[0]);
}

/// A message of magic 0 or 1, as clients before Kafka 0.11 wrote them.
///
/// # Errors
/// A setting that does not exist or is not what it must be.
pub fn message(fields: &[(String, Tree)]) -> Result<Vec<u8>> {
    let options = Options(fields);
    options.check(&["magic", "attributes", "timestamp", "key", "value", "offset"])?;
    let magic = options.int("magic", 1)?;
    let mut checked = Vec::new();
    put(&mut checked, magic, 1);
    put(&mut checked, options.int("attributes", 0)?, 1);
    if magic > 0 {
        put(&mut checked, options.int("timestamp", TIMESTAMP)?, 8);
    }
    for name in ["key", "value"] {
        match options.get(name) {
            Some(Tree::Text(text)) => {
                put(&mut checked, i64::try_from(text.len())?, 4);
                checked.extend_from_slice(text.as_bytes());
            }
            _ => put(&mut checked, -1, 4),
        }
    }
    let mut bytes = Vec::new();
    put(&mut bytes, options.int("offset", 0)?, 8);
    put(&mut bytes, i64::try_from(checked.len() + 4)?, 4);
    put(&mut bytes, i64::from(crc32(&checked)), 4);
    bytes.extend_from_slice(&checked);
    Ok(bytes)
}

/// The checksum of magic 0 and 1, bit by bit: these messages are short.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 },
        )
    })
}

/// The batches of a records field: every field of each header, and the records. Bytes that are no whole batch are shown as
/// they are.
#[must_use]
pub fn decode(bytes: &[u8]) -> Tree {
    let (mut batches, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let Some((batch, after)) = decode_batch(rest) else {
            batches.push(Tree::Bytes(rest.to_vec()));
            break;
        };
        batches.push(batch);
        rest = after;
    }
    Tree::Array(batches)
}

fn number(bytes: &[u8], start: usize, count: usize) -> i64 {
    let negative = bytes[start] & 0x80 != 0 && count < 8;
    let value = bytes[start..start + count].iter().fold(0_i64, |value, byte| value << 8 | i64::from(*byte));
    if negative { value - (1_i64 << (8 * count)) } else { value }
}

fn decode_batch(bytes: &[u8]) -> Option<(Tree, &[u8])> {
    if bytes.len() < HEADER_BYTES || bytes[16] != 2 {
        return None;
    }
    let length = usize::try_from(number(bytes, 8, 4)).ok()?.checked_add(12)?;
    let batch = bytes.get(..length).filter(|batch| batch.len() >= HEADER_BYTES)?;
    let attributes = number(batch, 21, 2);
    let is_right = crc32c(&batch[21..]).to_be_bytes() == batch[17..21];
    let fields = [
        ("base_offset", 0, 8),
        ("partition_leader_epoch", 12, 4),
        ("attributes", 21, 2),
        ("last_offset_delta", 23, 4),
        ("base_timestamp", 27, 8),
        ("max_timestamp", 35, 8),
        ("producer_id", 43, 8),
        ("producer_epoch", 51, 2),
        ("base_sequence", 53, 4),
        ("count", 57, 4),
    ];
    let mut found: Vec<(String, Tree)> = fields
        .into_iter()
        .map(|(name, start, count)| (name.to_owned(), Tree::Int(number(batch, start, count))))
        .collect();
    found.push(("crc_is_right".to_owned(), Tree::Bool(is_right)));
    let codec = Codec::from_id(u8::try_from(attributes & 7).ok()?);
    let payload =
        codec.and_then(|codec| decompress(codec, &batch[HEADER_BYTES..], DECOMPRESSED_BYTES_MAX).ok());
    let payload = payload.map_or_else(|| Tree::text("<not decompressed>"), Tree::Bytes);
    found.push(("records".to_owned(), payload));
    Some((Tree::Struct(found), &bytes[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let records = Tree::Array(vec![Tree::text("a"), Tree::text("b")]);
        for codec in Codec::ALL {
            let fields =
                [("records".to_owned(), records.clone()), ("codec".to_owned(), Tree::text(codec.name()))];
            let bytes = batch(&fields).unwrap();
            let batches = decode(&bytes);
            assert_eq!(batches.at("[0].count"), Some(&Tree::Int(2)));
            assert_eq!(batches.at("[0].producer_id"), Some(&Tree::Int(-1)));
            assert_eq!(batches.at("[0].crc_is_right"), Some(&Tree::Bool(true)));
            // Length, attributes, both deltas, no key, one byte of value, no headers.
            let payload = [14, 0, 0, 0, 1, 2, b'a', 0, 14, 0, 2, 2, 1, 2, b'b', 0].to_vec();
            assert_eq!(batches.at("[0].records"), Some(&Tree::Bytes(payload)));
        }
    }

    #[test]
    fn the_old_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
