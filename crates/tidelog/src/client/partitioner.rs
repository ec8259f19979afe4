//! Which partition a key goes to: as Kafka's own clients decide, so that ours and theirs agree.

/// The partition of a key: Kafka's murmur2, positive, modulo the partition count.
///
/// # Panics
/// Where `partition_count` is 0.
#[must_use]
pub fn partition_of(key: &[u8], partition_count: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partition_count
}

/// Austin Appleby's MurmurHash2 with the seed that Kafka's producers use.
fn murmur2(bytes: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    // Kafka hashes with 32-bit lengths; keys are far below that.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut mixed = u32::from_le_bytes(word.try_into().expect("chunks of four")).wrapping_mul(MULTIPLIER);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ mixed.wrapping_mul(MULTIPLIER);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The values of Kafka's own test of `Utils.murmur2`.
    #[test]
    fn keys_hash_as_in_kafkas_clients() {
        let cases: [(&str, i32); 5] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ];
        for (key, expected) in cases {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), expected, "{key}");
        }
    }
}
