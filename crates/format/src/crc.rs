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
    // Behind `second_bytes` more bytes, `first` is multiplied by x^(8 * bytes); the bits of that exponent choose the factors.
    let mut shifted = first;
    let mut left = second_bytes;
    while left != 0 {
        let bit = left.trailing_zeros();
        shifted = multiply(shifted, POWERS[bit as usize + 3]);
        left &= left - 1;
    }
    shifted ^ second
}

/// The polynomial, the highest power in the lowest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^(2^n) modulo the polynomial: bytes are counted by 64 bits, and each has eight.
const POWERS: [u32; 67] = {
    let mut powers = [0x4000_0000; 67];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = multiply(powers[at - 1], powers[at - 1]);
        at += 1;
    }
    powers
};

/// The product of two polynomials over GF(2), modulo the polynomial. Without branches, in 32 steps for each bit of
/// a length: the library's matrices were a tenth of the CPU of batches of 16 KiB, each of which is combined twice.
const fn multiply(one: u32, other: u32) -> u32 {
    let (mut product, mut other) = (0, other);
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= other & (one >> bit & 1).wrapping_neg();
        other = other >> 1 ^ POLYNOMIAL & (other & 1).wrapping_neg();
    }
    product
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

    #[test]
    fn stretches_of_any_length_combine_as_the_library_has_it() {
        for second_bytes in [1, 7, 61, 4096, 16_384, 262_144, 1 << 32, (1 << 40) + 12_345, u64::MAX >> 1] {
            let (first, second) = (0x1234_5678, 0x9abc_def0);
            let algorithm = CrcAlgorithm::Crc32Iscsi;
            let library =
                crc_fast::checksum_combine(algorithm, u64::from(first), u64::from(second), second_bytes);
            assert_eq!(u64::from(combine(first, second, second_bytes)), library, "{second_bytes}");
        }
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
