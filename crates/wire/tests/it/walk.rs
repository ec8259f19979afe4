//! Random messages as bytes, written by walking the table: a second, naive encoder that shares no code with the first.

use tidelog_wire::{ApiKey, FieldSpec, Kind, StructSpec};

/// A small generator of numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }
}

/// Requests and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Request,
    Response,
}

impl Role {
    pub(crate) const BOTH: [Self; 2] = [Self::Request, Self::Response];

    pub(crate) fn spec(self, api: ApiKey) -> &'static StructSpec {
        match self {
            Self::Request => api.request_spec(),
            Self::Response => api.response_spec(),
        }
    }
}

/// Every message: API, version, role.
pub(crate) fn all_messages() -> impl Iterator<Item = (ApiKey, i16, Role)> {
    ApiKey::ALL.iter().flat_map(|api| {
        api.codec_versions().iter().flat_map(|version| Role::BOTH.map(|role| (*api, version, role)))
    })
}

/// The bytes of a random message.
pub(crate) fn message(api: ApiKey, version: i16, role: Role, seed: u64) -> Vec<u8> {
    structure(role.spec(api), version, api.flexible_versions().contains(version), seed)
}

/// The bytes of a random structure.
pub(crate) fn structure(spec: &StructSpec, version: i16, flexible: bool, seed: u64) -> Vec<u8> {
    let mut walk = Walk { random: Random(seed), version, flexible, bytes: Vec::new() };
    walk.structure(spec);
    walk.bytes
}

struct Walk {
    random: Random,
    version: i16,
    flexible: bool,
    bytes: Vec<u8>,
}

const TEXTS: [&str; 6] =
    ["", "a", "orders", "grün", "日本語", "a.rather-long_topic.name-that-goes-on-and-on-and-on"];

impl Walk {
    fn structure(&mut self, spec: &StructSpec) {
        let version = self.version;
        for field in spec.fields.iter().filter(|field| field.is_plain_in(version)) {
            self.field(field);
        }
        if !self.flexible {
            return;
        }
        let mut tagged = Vec::new();
        for field in spec.fields.iter().filter(|field| field.is_tagged_in(version)) {
            if self.random.below(2) == 0 {
                let outer = std::mem::take(&mut self.bytes);
                self.field(field);
                tagged.push((field.tag.unwrap(), std::mem::replace(&mut self.bytes, outer)));
            }
        }
        self.uvarint(tagged.len());
        for (tag, value) in tagged {
            self.uvarint(usize::try_from(tag).unwrap());
            self.uvarint(value.len());
            self.bytes.extend(value);
        }
    }

    fn field(&mut self, field: &FieldSpec) {
        let nullable = field.nullable.contains(self.version);
        let null = nullable && self.random.below(3) == 0;
        match field.kind {
            Kind::Struct(spec) if nullable => {
                self.bytes.push(match null {
                    true if field.tag.is_some() => 0,
                    true => 0xff,
                    false => 1,
                });
                if !null {
                    self.structure(spec);
                }
            }
            Kind::String | Kind::Bytes | Kind::Records | Kind::Array { .. } if null => match field.kind {
                _ if self.flexible => self.bytes.push(0),
                Kind::String => self.bytes.extend([0xff; 2]),
                _ => self.bytes.extend([0xff; 4]),
            },
            kind => self.value(kind),
        }
    }

    fn value(&mut self, kind: Kind) {
        match kind {
            Kind::Bool => {
                let value = u8::from(self.random.below(2) == 1);
                self.bytes.push(value);
            }
            Kind::Int(size) => {
                let number = match self.random.below(6) {
                    0 => 0,
                    1 => 1,
                    2 => u64::MAX,
                    3 => 0x7fff_ffff_ffff_ffff >> (64 - 8 * size),
                    _ => self.random.next(),
                };
                self.bytes.extend(&number.to_be_bytes()[8 - size..]);
            }
            Kind::Float => {
                let number = f64::from(u32::try_from(self.random.below(1000)).unwrap()) / 8.0;
                self.bytes.extend(number.to_be_bytes());
            }
            Kind::Uuid => {
                for _ in 0..2 {
                    let half = self.random.next();
                    self.bytes.extend(half.to_be_bytes());
                }
            }
            Kind::String => {
                let text = TEXTS[self.random.below(TEXTS.len())];
                self.length(text.len(), 2);
                self.bytes.extend(text.as_bytes());
            }
            Kind::Bytes | Kind::Records => {
                // Sometimes longer than what the writer copies into its buffer.
                let length = [0, 1, 61, 128, 129, 700][self.random.below(6)];
                self.length(length, 4);
                for _ in 0..length {
                    let byte = self.random.next().to_be_bytes()[0];
                    self.bytes.push(byte);
                }
            }
            Kind::Array { element, .. } => {
                let count = self.random.below(4);
                self.length(count, 4);
                for _ in 0..count {
                    self.value(*element);
                }
            }
            Kind::Struct(spec) => self.structure(spec),
        }
    }

    fn length(&mut self, length: usize, plain_bytes: usize) {
        if self.flexible {
            self.uvarint(length + 1);
        } else {
            self.bytes.extend(&length.to_be_bytes()[8 - plain_bytes..]);
        }
    }

    fn uvarint(&mut self, mut value: usize) {
        while value > 127 {
            self.bytes.push(u8::try_from(value & 127).unwrap() | 128);
            value >>= 7;
        }
        self.bytes.push(u8::try_from(value).unwrap());
    }
}

/// The shortest encoding of a value of `kind`.
pub(crate) fn bytes_min(kind: Kind, nullable: bool, flexible: bool, version: i16) -> usize {
    match kind {
        Kind::Bool => 1,
        Kind::Int(size) => size,
        Kind::Float => 8,
        Kind::Uuid => 16,
        Kind::String | Kind::Bytes | Kind::Records | Kind::Array { .. } if flexible => 1,
        Kind::String => 2,
        Kind::Bytes | Kind::Records | Kind::Array { .. } => 4,
        Kind::Struct(_) if nullable => 1,
        Kind::Struct(spec) => {
            let fields = spec.fields.iter().filter(|field| field.is_plain_in(version));
            usize::from(flexible)
                + fields
                    .map(|field| bytes_min(field.kind, field.nullable.contains(version), flexible, version))
                    .sum::<usize>()
        }
    }
}
