//! A column of numbers, in the shortest of three forms.
//!
//! ```text
//!  0 | the value                         all are equal
//!  1 | the least | width u8 | bits       each less the least, `width` bits, most significant first, zeros to a byte
//!  2 | the numbers                       each as a varint
//! ```

use crate::{
    cursor::{Put, Reader},
    error::DecodeError,
    varint,
};

const EQUAL: u8 = 0;
const PACKED: u8 = 1;
const VARINTS: u8 = 2;

/// Appends a column. Equal columns have equal bytes.
pub(super) fn put(output: &mut Vec<u8>, values: &[u64]) {
    let least = values.iter().copied().min().unwrap_or(0);
    let most = values.iter().copied().max().unwrap_or(0);
    if least == most {
        output.put_u8(EQUAL);
        varint::put_unsigned(output, least);
        return;
    }
    let width = u64::BITS - (most - least).leading_zeros();
    let mut packed = vec![PACKED];
    varint::put_unsigned(&mut packed, least);
    packed.put_u8(u8::try_from(width).expect("at most 64"));
    let (mut bits, mut held) = (0_u128, 0_u32);
    for value in values {
        bits = bits << width | u128::from(value - least);
        held += width;
        while held >= 8 {
            held -= 8;
            packed.push(low_byte(bits >> held));
        }
    }
    if held > 0 {
        packed.push(low_byte(bits << (8 - held)));
    }
    let mut varints = vec![VARINTS];
    values.iter().for_each(|value| varint::put_unsigned(&mut varints, *value));
    output.put(if varints.len() < packed.len() { &varints } else { &packed });
}

fn low_byte(bits: u128) -> u8 {
    u8::try_from(bits & 0xff).expect("eight bits fit")
}

/// Takes a column of `count` numbers, which the caller has bounded.
pub(super) fn take(reader: &mut Reader<'_>, count: usize) -> Result<Vec<u64>, DecodeError> {
    match reader.u8()? {
        EQUAL => Ok(vec![reader.varint()?; count]),
        PACKED => {
            let least = reader.varint()?;
            let width = u32::from(reader.u8()?);
            if width == 0 || width > 64 {
                return Err(reader.invalid("a column's width is out of range"));
            }
            let bytes = (count as u64 * u64::from(width)).div_ceil(8);
            let mut packed = reader.slice(usize::try_from(bytes).unwrap_or(usize::MAX))?.iter();
            let mask = u64::MAX >> (64 - width);
            let (mut bits, mut held) = (0_u128, 0_u32);
            let mut values = Vec::with_capacity(count);
            for _ in 0..count {
                while held < width {
                    let byte = packed.next().copied().ok_or(reader.invalid("a column is too short"))?;
                    bits = bits << 8 | u128::from(byte);
                    held += 8;
                }
                held -= width;
                let value = u64::try_from(bits >> held & u128::from(mask)).expect("masked to 64 bits");
                values.push(value.checked_add(least).ok_or(reader.invalid("a number is out of range"))?);
            }
            Ok(values)
        }
        VARINTS => (0..count).map(|_| reader.varint()).collect(),
        _ => Err(reader.invalid("a column has an unknown form")),
    }
}
