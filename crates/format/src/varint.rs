//! Numbers of variable length: seven bits a byte, least significant first, as Protocol Buffers and Kafka write them.

use crate::error::DecodeError;

/// Appends an unsigned number: 1 to 10 bytes.
pub(crate) fn put_unsigned(output: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        output.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    output.push(value.to_le_bytes()[0]);
}

/// Appends a signed number, small magnitudes first ("zigzag").
pub(crate) fn put_signed(output: &mut Vec<u8>, value: i64) {
    put_unsigned(output, zigzag(value));
}

/// Folds signed numbers into unsigned ones: 0, −1, 1, −2, …
pub(crate) const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

/// The inverse of [`zigzag`].
pub(crate) const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

/// Takes an unsigned number from the front of `bytes`.
///
/// Nearly all of a batch have one byte or two: these are taken without a loop, since every record that is produced has six.
#[inline]
pub(crate) fn take_unsigned(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    match **bytes {
        [first, ref rest @ ..] if first < 0x80 => {
            *bytes = rest;
            Ok(u64::from(first))
        }
        [first, second, ref rest @ ..] if second < 0x80 => {
            *bytes = rest;
            Ok(u64::from(first & 0x7f) | u64::from(second) << 7)
        }
        _ => take_long(bytes),
    }
}

/// As [`take_unsigned`], of any length.
fn take_long(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0_u64;
    for index in 0..10_u32 {
        let (byte, rest) = bytes.split_first().ok_or(DecodeError::Cut { what: "varint" })?;
        *bytes = rest;
        // The tenth byte has room for one bit.
        if index == 9 && *byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Invalid { what: "varint", why: "it is longer than 64 bits" })
}

/// Takes a signed number from the front of `bytes`.
#[inline]
pub(crate) fn take_signed(bytes: &mut &[u8]) -> Result<i64, DecodeError> {
    take_unsigned(bytes).map(unzigzag)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        for (value, bytes) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[126]),
            (64, &[128, 1]),
            (-65, &[129, 1]),
            (300, &[216, 4]),
        ] {
            let mut output = Vec::new();
            put_signed(&mut output, value);
            assert_eq!(output, bytes, "{value}");
        }
    }

    #[test]
    fn eleven_bytes_or_an_eleventh_group_of_bits_are_refused() {
        assert!(take_unsigned(&mut &[0xff; 11][..]).is_err());
        assert!(take_unsigned(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]).is_err());
        assert!(take_unsigned(&mut &[0x80][..]).is_err());
    }

    proptest! {
        #[test]
        fn numbers_round_trip(value: i64, unsigned: u64) {
            let mut output = Vec::new();
            put_signed(&mut output, value);
            put_unsigned(&mut output, unsigned);
            let mut bytes = &output[..];
            prop_assert_eq!(take_signed(&mut bytes).unwrap(), value);
            prop_assert_eq!(take_unsigned(&mut bytes).unwrap(), unsigned);
            prop_assert!(bytes.is_empty());
            prop_assert_eq!(take_long(&mut &output[..]).unwrap(), zigzag(value));
        }
    }
}
