use proptest::prelude::*;

use super::*;

fn sample() -> Vec<u8> {
    (0..200_000_u32).flat_map(|n| (n / 7).to_be_bytes()).collect()
}

#[test]
fn every_codec_round_trips_and_keeps_to_its_cap() {
    let bytes = sample();
    for codec in Codec::ALL {
        assert_eq!(Codec::from_id(codec.id()), Some(codec));
        let compressed = compress(codec, &bytes).unwrap();
        assert_eq!(decompress(codec, &compressed, bytes.len()).unwrap(), bytes, "{codec:?}");
        let refused = decompress(codec, &compressed, bytes.len() - 1);
        assert!(
            matches!(refused, Err(Error::TooLarge { bytes_max }) if bytes_max == bytes.len() - 1),
            "{codec:?}"
        );
    }
    assert_eq!(Codec::from_id(5), None);
}

#[test]
fn levels_are_moved_into_range() {
    for (codec, level) in [(Codec::Gzip, -5), (Codec::Gzip, 100), (Codec::Zstd, 23), (Codec::Lz4, 9)] {
        let compressed = compress_level(codec, Some(level), b"abcabcabc").unwrap();
        assert_eq!(decompress(codec, &compressed, 9).unwrap(), b"abcabcabc");
    }
}

/// B10: the framing's version fields are big-endian ones.
#[test]
fn snappy_is_written_as_java_writes_it() {
    let compressed = compress(Codec::Snappy, b"sdfdsf").unwrap();
    assert_eq!(&compressed[..16], b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01");
    assert_eq!(&compressed[16..20], &[0, 0, 0, 8]);
    assert_eq!(snap::raw::Decoder::new().decompress_vec(&compressed[20..]).unwrap(), b"sdfdsf");
}

/// B10: raw snappy (librdkafka), framed (Java, Go), and framed streams joined.
#[test]
fn every_snappy_framing_is_read() {
    let bytes = sample();
    let raw = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
    assert_eq!(decompress(Codec::Snappy, &raw, bytes.len()).unwrap(), bytes);
    let mut joined = compress(Codec::Snappy, b"first ").unwrap();
    joined.extend(compress(Codec::Snappy, b"second").unwrap());
    assert_eq!(decompress(Codec::Snappy, &joined, 100).unwrap(), b"first second");
    // The version fields in the wrong order, as an older broker wrote them: they read as large versions.
    let mut swapped = compress(Codec::Snappy, b"text").unwrap();
    swapped[8..16].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(decompress(Codec::Snappy, &swapped, 100).unwrap(), b"text");
}

#[test]
fn lz4_frames_of_every_legal_kind_are_read() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let bytes = sample();
    let mut all = Vec::new();
    for (mode, size, checksums) in
        [(BlockMode::Linked, BlockSize::Max256KB, true), (BlockMode::Independent, BlockSize::Max4MB, false)]
    {
        let frame = FrameInfo::new()
            .block_mode(mode)
            .block_size(size)
            .block_checksums(checksums)
            .content_checksum(checksums)
            .content_size(Some(bytes.len() as u64));
        let mut encoder = FrameEncoder::with_frame_info(frame, Vec::new());
        encoder.write_all(&bytes).unwrap();
        all.extend(encoder.finish().unwrap());
    }
    let twice = [bytes.clone(), bytes].concat();
    assert_eq!(decompress(Codec::Lz4, &all, twice.len()).unwrap(), twice);
}

#[test]
fn joined_gzip_members_and_zstd_frames_are_read() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let joined = [compress(codec, b"one ").unwrap(), compress(codec, b"two").unwrap()].concat();
        assert_eq!(decompress(codec, &joined, 100).unwrap(), b"one two");
    }
}

#[test]
fn a_cut_stream_is_refused() {
    let bytes = sample();
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let compressed = compress(codec, &bytes[..5000]).unwrap();
        for cut in 0..compressed.len() {
            // A framed snappy stream may end after any block: the count of records in the batch finds that.
            if let Ok(output) = decompress(codec, &compressed[..cut], 5000) {
                assert!(codec == Codec::Snappy && output.is_empty(), "{codec:?} cut at {cut}");
            }
        }
    }
}

#[test]
fn a_claimed_length_allocates_nothing() {
    // A raw block that claims 2^32 - 1 bytes, and one that claims 1 GiB below the cap.
    for block in [&[0xff, 0xff, 0xff, 0xff, 0x0f, 0][..], &[0x80, 0x80, 0x80, 0x80, 0x04, 0][..]] {
        assert!(matches!(decompress(Codec::Snappy, block, usize::MAX), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn a_zstd_window_beyond_the_cap_is_refused() {
    // Magic, a descriptor without a single segment, window descriptor 2^(10+21): 2 GiB.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 1, 0, 0];
    assert!(matches!(decompress(Codec::Zstd, &frame, 1 << 20), Err(Error::Corrupt { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        for codec in Codec::ALL {
            let compressed = compress(codec, &bytes).unwrap();
            prop_assert_eq!(&decompress(codec, &compressed, bytes.len()).unwrap(), &bytes);
        }
    }

    #[test]
    fn garbage_never_panics_and_never_passes_the_cap(bytes in prop::collection::vec(any::<u8>(), 0..300), flip in any::<u16>()) {
        for codec in Codec::ALL {
            if let Ok(output) = decompress(codec, &bytes, 1000) {
                prop_assert!(output.len() <= 1000);
            }
            let mut compressed = compress(codec, &bytes).unwrap();
            if !compressed.is_empty() {
                let bit = usize::from(flip) % (compressed.len() * 8);
                compressed[bit / 8] ^= 1 << (bit % 8);
            }
            if let Ok(output) = decompress(codec, &compressed, 1000) {
                prop_assert!(output.len() <= 1000);
            }
        }
    }
}
