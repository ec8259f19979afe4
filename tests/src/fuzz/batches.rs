//! Record batches, and the codecs behind them.

use bytes::Bytes;
use tidelog_format::{
    batch::{BatchLimits, DecodedBatch, RawBatch, control_kind, split_batches, validate_records},
    codec::{Codec, compress, decompress},
};
use tidelog_types::{Timestamp, TopicName};

use super::{allocation::measured, repair, seeds};

/// What records may decompress to here.
const RECORDS_BYTES_MAX: usize = 64 * 1024;

/// What a decompressor may hold beside its input and output: two blocks of the largest size that lz4 knows (4 MiB; 8 MiB
/// in its legacy form) and their windows.
const CODEC_STATE_BYTES_MAX: usize = 18 * 1024 * 1024;

/// What sharing bytes costs once.
const SHARING_BYTES: usize = 64;

/// One byte of choices, then batches: cut, checked, looked into, and written again.
pub(super) fn batches(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 2 != 0 {
        repair::batches(&mut bytes);
    }
    let bytes = Bytes::from(bytes);
    let limits = if choice & 1 == 0 { BatchLimits::client(RECORDS_BYTES_MAX) } else { BatchLimits::log() };
    let (count, spent) = measured(|| split_batches(bytes.clone(), &limits).filter(Result::is_ok).count());
    assert!(spent.total <= SHARING_BYTES, "{spent:?} to cut {count} batches");
    let codec = Codec::ALL[usize::from(choice >> 2) % Codec::ALL.len()];
    let mut at = 0;
    let mut splitter = split_batches(bytes.clone(), &limits);
    while let Some(Ok(batch)) = splitter.next() {
        let end = at + batch.size();
        assert_eq!(
            (batch.to_bytes(), splitter.position()),
            (bytes.slice(at..end), end),
            "a batch is its bytes"
        );
        at = end;
        look_into(&batch, codec);
    }
}

fn look_into(batch: &RawBatch, codec: Codec) {
    let header = &batch.header;
    assert_eq!(header.batch_bytes(), Some(batch.size()));
    assert!(batch.crc_is_valid());
    let _ = (header.last_sequence(), header.base_timestamp(), header.record_count(), control_kind(batch));
    let body_bytes = batch.body.len();
    let (report, spent) = measured(|| validate_records(batch, RECORDS_BYTES_MAX));
    if header.attributes().codec() == Ok(Codec::None) {
        assert!(spent.total <= 4 * body_bytes + 256, "{spent:?} for {body_bytes} bytes as they are");
    } else {
        let allowed = 4 * RECORDS_BYTES_MAX + 4 * body_bytes + CODEC_STATE_BYTES_MAX;
        assert!(spent.peak <= allowed, "{spent:?} for {body_bytes} compressed bytes");
    }
    if let Ok(decoded) = DecodedBatch::new(batch, RECORDS_BYTES_MAX) {
        for record in decoded.iter().map_while(Result::ok) {
            assert!(record.offset >= header.base_offset().expect("a cut batch has an offset"));
            let headers = record.headers.iter().count();
            assert_eq!(u32::try_from(headers), Ok(record.headers.len()), "a record's headers were checked");
        }
    }
    let Ok(report) = report else { return };
    let mut stored = batch
        .recompressed(codec, None, RECORDS_BYTES_MAX)
        .expect("records that were read can be stored with any codec");
    stored.set_log_append_time(Timestamp::from_millis(1));
    assert!(stored.crc_is_valid());
    let again = validate_records(&stored, RECORDS_BYTES_MAX).expect("what was stored is read");
    assert_eq!(
        (again.record_count, again.records_bytes, again.without_key),
        (report.record_count, report.records_bytes, report.without_key)
    );
}

/// A codec, a cap in units of 16 bytes, and what it should decompress.
pub(super) fn codecs(input: &[u8]) {
    let Some(([codec, c0, c1], bytes)) = input.split_first_chunk() else { return };
    let codec = Codec::ALL[usize::from(*codec) % Codec::ALL.len()];
    let bytes_max = usize::from(u16::from_be_bytes([*c0, *c1])) * 16;
    let (decompressed, spent) = measured(|| decompress(codec, bytes, bytes_max));
    let allowed = 4 * bytes_max + 4 * bytes.len() + CODEC_STATE_BYTES_MAX;
    assert!(spent.peak <= allowed, "{spent:?} for {} bytes of {codec:?}, cap {bytes_max}", bytes.len());
    let Ok(decompressed) = decompressed else { return };
    assert!(decompressed.len() <= bytes_max);
    let compressed = compress(codec, &decompressed).expect("every codec takes every bytes");
    if codec != Codec::Snappy || !decompressed.is_empty() {
        let again = decompress(codec, &compressed, bytes_max).expect("what was compressed decompresses");
        assert!(again == decompressed, "{codec:?} changed the bytes");
    }
}

/// The records of a fetch's answer, as our own client takes them.
pub(super) fn fetched(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 != 0 {
        repair::batches(&mut bytes);
    }
    let topic = TopicName::new("t").expect("it is a name");
    let _ = tidelog::client::fetched(&topic, bytes.into());
}

fn golden() -> Vec<Vec<u8>> {
    ["none", "gzip", "snappy", "lz4", "zstd", "abort-marker"]
        .iter()
        .map(|name| seeds::golden(&format!("v1/batch-{name}.bin")))
        .collect()
}

pub(super) fn batch_seeds() -> Vec<Vec<u8>> {
    let batches = golden();
    let mut all: Vec<Vec<u8>> = batches.iter().map(|batch| [&[1_u8], &batch[..]].concat()).collect();
    // As a producer sends them: offsets from 0, and whatever codec is asked for on the way.
    for (choice, batch) in (0_u8..).zip(&batches) {
        let mut sent = batch.clone();
        sent[..8].fill(0);
        all.push([&[2 | choice << 2], &sent[..]].concat());
    }
    all.push([vec![3], batches.concat()].concat());
    all
}

pub(super) fn fetched_seeds() -> Vec<Vec<u8>> {
    golden().into_iter().map(|batch| [vec![1], batch].concat()).collect()
}

pub(super) fn codec_seeds() -> Vec<Vec<u8>> {
    let text = b"twelve bytes twelve bytes twelve bytes, and then something else, else, else".repeat(8);
    let mut all = Vec::new();
    for codec in Codec::ALL {
        for bytes in [&text[..], b"short"] {
            let compressed = compress(codec, bytes).expect("every codec takes every bytes");
            all.push([&[codec.id(), 1, 0], &compressed[..]].concat());
        }
    }
    // Raw snappy, and two streams one behind the other.
    all.push([&[2, 1, 0, 5, 16], &b"short"[..]].concat());
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let one = compress(codec, b"first, first, first").expect("every codec takes every bytes");
        all.push([&[codec.id(), 1, 0], &one[..], &one[..]].concat());
    }
    all
}
