//! Inputs made of other inputs, the same ones for the same seed: what runs where no coverage is counted.

/// A small generator of numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.number() % limit).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.number().to_be_bytes()[0]
    }
}

/// Numbers at which decoders go wrong.
const NUMBERS: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_f000,
    u64::MAX,
];

/// `input` with one to four changes; `other` is where foreign pieces come from. At most `bytes_max` long.
#[must_use]
pub fn mutated(input: &[u8], other: &[u8], random: &mut Random, bytes_max: usize) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut bytes, other, random);
    }
    bytes.truncate(bytes_max);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    let rest = bytes.len().saturating_sub(at);
    match random.below(9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 if !bytes.is_empty() => bytes[at] = random.byte(),
        2 if !bytes.is_empty() => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_be_bytes();
            let width = [1, 2, 4, 8][random.below(4)].min(rest);
            bytes[at..at + width].copy_from_slice(&number[8 - width..]);
        }
        3 if !bytes.is_empty() => {
            // A small step, as of a length or a count.
            let step = u8::try_from(1 + random.below(16)).unwrap_or(1);
            bytes[at] = if random.below(2) == 0 {
                bytes[at].wrapping_add(step)
            } else {
                bytes[at].wrapping_sub(step)
            };
        }
        4 => bytes.truncate(at),
        5 => {
            let count = 1 + random.below(rest.min(64));
            drop(bytes.drain(at..(at + count).min(bytes.len())));
        }
        6 => {
            let piece: Vec<u8> = (0..=random.below(16)).map(|_| random.byte()).collect();
            drop(bytes.splice(at..at, piece));
        }
        7 => {
            // A piece of itself once more.
            let count = 1 + random.below(rest.min(256));
            let piece = bytes[at..(at + count).min(bytes.len())].to_vec();
            let to = random.below(bytes.len() + 1);
            drop(bytes.splice(to..to, piece));
        }
        _ => {
            let from = random.below(other.len());
            let count = 1 + random.below(other.len() - from.min(other.len()));
            let piece = other.get(from..(from + count).min(other.len())).unwrap_or(&[]).to_vec();
            let end = if random.below(2) == 0 { at } else { (at + piece.len()).min(bytes.len()) };
            drop(bytes.splice(at..end, piece));
        }
    }
}
