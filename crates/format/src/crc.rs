//! CRC-32C (Castagnoli), the checksum of Kafka's record batches and of every structure here.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of bytes that come in pieces.
#[derive(Debug, Clone)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Begins with no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds the next piece, and hands itself on.
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        self.update(bytes);
        self
    }

    /// The checksum of all pieces so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        low_half(self.0.finalize())
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// The checksum of two stretches of bytes behind each other, from the checksum of each.
#[must_use]
pub fn combine(first: u32, second: u32, second_bytes: u64) -> u32 {
    if second_bytes == 0 {
        return first;
    }
    low_half(crc_fast::checksum_combine(
        CrcAlgorithm::Crc32Iscsi,
        u64::from(first),
        u64::from(second),
        second_bytes,
    ))
}

fn low_half(checksum: u64) -> u32 {
    u32::try_from(checksum).expect("a 32-bit checksum lies in the low half")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, from the polynomial.
    fn by_definition(bytes: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        !crc
    }

    #[test]
    fn the_check_value_is_the_published_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        assert_eq!(Crc32c::new().finish(), 0);
    }

    proptest! {
        #[test]
        fn whole_pieces_and_combination_agree(bytes in prop::collection::vec(any::<u8>(), 0..3000), at in 0_usize..3000) {
            let (first, second) = bytes.split_at(at.min(bytes.len()));
            let whole = by_definition(&bytes);
            prop_assert_eq!(crc32c(&bytes), whole);
            prop_assert_eq!(Crc32c::new().with(first).with(second).finish(), whole);
            prop_assert_eq!(combine(crc32c(first), crc32c(second), second.len() as u64), whole);
        }
    }
}
