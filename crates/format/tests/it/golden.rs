//! The bytes of every format version that was ever released. A file here is never changed: bytes that no longer match
//! are a new version, with a file of its own in that version's folder, and the old file must still be read.
//!
//! `TIDELOG_GOLDEN_WRITE=1` writes the files that are missing.

use std::{fs, path::PathBuf};

use bytes::Bytes;
use tidelog_format::{
    batch::{BatchLimits, DecodedBatch, split_batches},
    broker_json::{BrokerJson, KnownClaims},
    checkpoint::Checkpoint,
    cluster_json::ClusterJson,
    codec::Codec,
    epochs::EpochChain,
    journal::{FileHeader, scan},
    manifest::{ManifestFile, Page},
    object::{Footer, ServingIndex},
    producers::ProducerSnapshot,
    segment::{AbortedTransaction, EntryFile, IndexEntry, TimeIndexEntry},
};

use crate::samples;

/// Names of other versions than the first carry their folder.
fn path(name: &str) -> PathBuf {
    let name = if name.contains('/') { name.to_owned() } else { format!("v1/{name}") };
    // Where cargo runs this from: a target directory that several clones share may hold another one's build.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    PathBuf::from(here).join("tests/golden").join(name)
}

fn stored(name: &str, written: &[u8]) -> Bytes {
    let path = path(name);
    if std::env::var_os("TIDELOG_GOLDEN_WRITE").is_some() && !path.exists() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, written).unwrap();
    }
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// The stored bytes, which are also what is written today.
fn golden(name: &str, written: &[u8]) -> Bytes {
    let stored = stored(name, written);
    assert!(stored == written, "{name} is no longer written as its version: that takes a new version");
    stored
}

#[test]
fn record_batches_of_version_1() {
    let plain = samples::batch(100, 5, Codec::None);
    golden("batch-none.bin", &plain.to_bytes());
    golden("batch-abort-marker.bin", &samples::marker(102).to_bytes());
    for codec in Codec::ALL {
        // What a compressor writes may change with its version; what it wrote must be read.
        let batch = samples::batch(100, 5, codec);
        let bytes = stored(&format!("batch-{}.bin", codec.name()), &batch.to_bytes());
        let read = split_batches(bytes, &BatchLimits::log()).next().unwrap().unwrap();
        let (ours, theirs) =
            (DecodedBatch::new(&plain, 1 << 20).unwrap(), DecodedBatch::new(&read, 1 << 20).unwrap());
        let records = |batch: &DecodedBatch<'_>| {
            batch.iter().map(|record| format!("{:?}", record.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(records(&ours), records(&theirs), "{codec:?}");
    }
}

#[test]
fn journal_of_version_1() {
    let (header, bytes) = samples::journal();
    let bytes = golden("journal.bin", &bytes);
    assert_eq!(FileHeader::decode(&bytes), Ok(header));
    let found = scan(&[(header, bytes)]).unwrap();
    assert_eq!((found.entries.len(), found.rot.len()), (7, 0));
}

#[test]
fn small_files_of_version_1() {
    let bytes = stored("checkpoint.bin", &[]);
    assert_eq!(Checkpoint::decode(&bytes), Ok(samples::checkpoint_v1()));
    let bytes = golden("leader-epochs.bin", &samples::epochs().encode());
    assert_eq!(EpochChain::decode(&bytes), Ok(samples::epochs()));
    let bytes = golden("producers.bin", &samples::producers().encode());
    assert_eq!(ProducerSnapshot::decode(&bytes), Ok(samples::producers()));
    let bytes = golden("cluster.json", &samples::cluster_json().encode());
    assert_eq!(ClusterJson::decode(&bytes), Ok(samples::cluster_json()));
    let bytes = golden("broker.json", &samples::broker_json().encode());
    assert_eq!(BrokerJson::decode(&bytes), Ok(samples::broker_json()));
    let bytes = golden("bucket.claims", &samples::known_claims().encode());
    assert_eq!(KnownClaims::decode(&bytes), Ok(samples::known_claims()));
}

#[test]
fn small_files_of_version_2() {
    let bytes = golden("v2/checkpoint.bin", &samples::checkpoint().encode());
    assert_eq!(Checkpoint::decode(&bytes), Ok(samples::checkpoint()));
}

#[test]
fn segment_files_of_version_1() {
    let file = EntryFile::<IndexEntry>::new(samples::place(0), samples::offset(100));
    let bytes = golden("offset.index", &file.encode_sealed(&samples::index_entries()));
    let decoded = file.decode(&bytes).unwrap();
    assert_eq!((decoded.entries, decoded.sealed), (samples::index_entries(), true));
    let file = EntryFile::<TimeIndexEntry>::new(samples::place(0), samples::offset(100));
    let bytes = golden("offset.timeindex", &file.encode_sealed(&samples::time_entries()));
    assert_eq!(file.decode(&bytes).unwrap().entries, samples::time_entries());
    let file = EntryFile::<AbortedTransaction>::new(samples::place(0), samples::offset(100));
    let bytes = golden("offset.txnindex", &file.encode_sealed(&samples::aborted()));
    assert_eq!(file.decode(&bytes).unwrap().entries, samples::aborted());
}

#[test]
fn objects_of_version_1() {
    let object = samples::object();
    let bytes = golden("segment.seg", &object.payload.concat());
    let footer = Footer::decode(&bytes, bytes.len() as u64).unwrap();
    assert_eq!(footer, object.footer);
    let entry = footer.manifest_entry();
    let from = usize::try_from(entry.index.position).unwrap();
    let index =
        ServingIndex::decode(&bytes[from..from + usize::try_from(entry.index.bytes).unwrap()], &entry)
            .unwrap();
    assert_eq!((index.intervals().len(), index.aborted().len()), (1, 1));
    let bytes = golden("manifest.page", &samples::page().encode());
    assert_eq!(Page::decode(&bytes), Ok(samples::page()));
    let bytes = golden("manifest.manifest", &samples::manifest().encode());
    assert_eq!(ManifestFile::decode(&bytes), Ok(samples::manifest()));
}
