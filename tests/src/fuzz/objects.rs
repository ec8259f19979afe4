//! What lies in the bucket, and its keys.

use tidelog_format::{
    broker_json::{BrokerJson, KnownClaims},
    cluster_json::ClusterJson,
    crc::crc32c,
    keys::{KeySpace, ObjectKey},
    manifest::{ManifestEntry, ManifestFile, PAGE_ENTRIES_MAX, Page},
    object::{Footer, ServingIndex},
};
use tidelog_types::{ClusterId, Offset, OffsetRange, Timestamp};

use super::{
    FILE_ALLOCATED_PER_BYTE_MAX, FIXED_BYTES, allocation::measured, files::small_file, repair, seeds,
};

/// A column of equal numbers takes three bytes, whatever its length: a page is bounded by its count of entries, not by its
/// bytes. Fourteen columns of numbers and the entries made of them.
const PAGE_BYTES_MAX: usize = PAGE_ENTRIES_MAX * (14 * 8 + size_of::<ManifestEntry>());

pub(super) fn page(input: &[u8]) {
    small_file(input, PAGE_BYTES_MAX + FIXED_BYTES, Page::decode, Page::encode);
    let mut repaired = input.to_vec();
    repair::envelope(&mut repaired);
    if let Ok(page) = Page::decode(&repaired) {
        let range = page.range();
        assert_eq!(page.find(range.end), None);
        if range.base < range.end {
            assert!(page.find(range.base).is_some(), "a page holds what it covers");
        }
    }
}

pub(super) fn manifest(input: &[u8]) {
    small_file(input, FIXED_BYTES, ManifestFile::decode, ManifestFile::encode);
}

/// The end of an object.
pub(super) fn footer(input: &[u8]) {
    let mut repaired = input.to_vec();
    repair::footer(&mut repaired);
    for bytes in [input, &repaired] {
        // The length as a listing tells it: what the footer itself says, and another one.
        let said = bytes.len().checked_sub(512).and_then(|at| bytes[at + 260..at + 268].try_into().ok());
        let said = said.map_or(0, u64::from_be_bytes);
        for object_bytes in [said, u64::try_from(bytes.len()).unwrap_or(u64::MAX)] {
            let (decoded, spent) = measured(|| Footer::decode(bytes, object_bytes));
            assert!(spent.total <= FIXED_BYTES, "{spent:?} for a footer");
            let Ok(footer) = decoded else { continue };
            assert!(bytes.ends_with(&footer.encode()), "a footer has one form");
            let entry = footer.manifest_entry();
            assert_eq!((entry.object, entry.object_bytes), (footer.object_id(), object_bytes));
        }
    }
}

fn golden_entry() -> (Vec<u8>, ManifestEntry) {
    let object = seeds::golden("v1/segment.seg");
    let entry =
        Footer::decode(&object, object.len() as u64).expect("the golden object is one").manifest_entry();
    (object, entry)
}

/// The length of the batches, then the serving index of an object of that many.
pub(super) fn serving_index(input: &[u8]) {
    let Some((length, bytes)) = input.split_first_chunk() else { return };
    let (_, mut entry) = golden_entry();
    entry.bytes = u64::from(u32::from_be_bytes(*length));
    entry.index.bytes = bytes.len() as u64;
    entry.index.crc = crc32c(bytes);
    let (decoded, spent) = measured(|| ServingIndex::decode(bytes, &entry));
    let allowed = FILE_ALLOCATED_PER_BYTE_MAX * bytes.len() + FIXED_BYTES;
    assert!(spent.total <= allowed, "{spent:?} for {} bytes", bytes.len());
    let Ok(index) = decoded else { return };
    assert!(index.memory_bytes() <= allowed);
    for offset in [Offset::ZERO, entry.range.base, entry.range.end, Offset::MAX] {
        let interval = index.intervals()[index.interval_for_offset(offset)];
        assert!(interval.end_position() <= entry.position + entry.bytes);
        let _ = index.epoch_at(offset);
    }
    let _ = index.interval_for_time(Timestamp::from_millis(1_780_000_000_100));
    let all = OffsetRange { base: Offset::ZERO, end: Offset::MAX };
    assert!(index.aborted_in(all).count() <= index.aborted().len());
}

fn claimed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut document: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let cluster_id: ClusterId = document.get("cluster_id")?.as_str()?.parse().ok()?;
    let version = document.get("format_version")?.as_u64()?;
    let crc = crc32c(format!("{cluster_id} {version}").as_bytes());
    *document.get_mut("crc32c")? = format!("{crc:08x}").into();
    serde_json::to_vec(&document).ok()
}

pub(super) fn cluster_json(input: &[u8]) {
    let (decoded, spent) = measured(|| ClusterJson::decode(input));
    let allowed = FILE_ALLOCATED_PER_BYTE_MAX * input.len() + FIXED_BYTES;
    assert!(spent.total <= allowed, "{spent:?} for {} bytes", input.len());
    let repaired = claimed(input).and_then(|bytes| ClusterJson::decode(&bytes).ok());
    for file in decoded.ok().into_iter().chain(repaired) {
        assert_eq!(ClusterJson::decode(&file.encode()), Ok(file));
    }
}

/// What the bucket says of a broker's newest start, and what a data directory knows of it.
pub(super) fn broker_json(input: &[u8]) {
    let (decoded, spent) = measured(|| (BrokerJson::decode(input), KnownClaims::decode(input)));
    let allowed = 2 * (FILE_ALLOCATED_PER_BYTE_MAX * input.len() + FIXED_BYTES);
    assert!(spent.total <= allowed, "{spent:?} for {} bytes", input.len());
    if let Ok(file) = decoded.0 {
        assert_eq!(BrokerJson::decode(&file.encode()), Ok(file));
    }
    if let Ok(known) = decoded.1 {
        assert_eq!(KnownClaims::decode(&known.encode()), Ok(known));
    }
}

/// A key as a listing tells it.
pub(super) fn keys(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(key) = ObjectKey::parse(text) {
        assert_eq!(key.to_string(), text, "a key has one form");
    }
    let space = KeySpace::new("a/b");
    if let Ok(key) = space.parse(text) {
        assert_eq!(space.full(&key), text);
    }
}

pub(super) fn page_seeds() -> Vec<Vec<u8>> {
    vec![seeds::golden("v1/manifest.page")]
}

pub(super) fn manifest_seeds() -> Vec<Vec<u8>> {
    vec![seeds::golden("v1/manifest.manifest")]
}

pub(super) fn footer_seeds() -> Vec<Vec<u8>> {
    let object = seeds::golden("v1/segment.seg");
    vec![object[object.len() - 512..].to_vec(), object]
}

pub(super) fn serving_index_seeds() -> Vec<Vec<u8>> {
    let (object, entry) = golden_entry();
    let from = usize::try_from(entry.index.position).expect("it lies in the object");
    let to = from + usize::try_from(entry.index.bytes).expect("it lies in the object");
    let length = u32::try_from(entry.bytes).expect("a small object");
    vec![[&length.to_be_bytes(), &object[from..to]].concat()]
}

pub(super) fn cluster_json_seeds() -> Vec<Vec<u8>> {
    vec![seeds::golden("v1/cluster.json")]
}

pub(super) fn broker_json_seeds() -> Vec<Vec<u8>> {
    vec![seeds::golden("v1/broker.json"), seeds::golden("v1/bucket.claims")]
}

pub(super) fn key_seeds() -> Vec<Vec<u8>> {
    [
        "cluster.json",
        "a/b/cluster.json",
        "brokers/1.json",
        "controller/snapshot-18446744073709551615",
        "topics/flights-2013--_v7-_v7-_v7-_v7-_v7-w/12/00000000000000001234-4-4294967303-0.seg",
        "a/b/topics/a--_v7-_v7-_v7-_v7-_v7-w/12/pages/00000000000000000000-3-99.page",
        "topics/a--_v7-_v7-_v7-_v7-_v7-w/12/manifest-18446744073709551614.manifest",
    ]
    .iter()
    .map(|key| key.as_bytes().to_vec())
    .collect()
}
