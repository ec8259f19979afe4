//! Values of requests and answers, whatever the message: what a script writes and what a decoder reads.

use std::fmt;

/// A value of a message, or a message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// Null.
    Null,
    /// True or false.
    Bool(bool),
    /// Any whole number.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes, and record batches that are not looked into.
    Bytes(Vec<u8>),
    /// An id of sixteen bytes.
    Uuid([u8; 16]),
    /// Elements.
    Array(Vec<Self>),
    /// Fields by name, in the order of the wire.
    Struct(Vec<(String, Self)>),
}

impl Tree {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// What is at a path such as `topics[0].partitions[1].error_code`.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Self> {
        let mut value = self;
        for part in path.split('.') {
            let (name, indexes) = part.split_once('[').map_or((part, ""), |(name, rest)| (name, rest));
            if !name.is_empty() {
                let Self::Struct(fields) = value else { return None };
                value = &fields.iter().find(|(field, _)| field == name)?.1;
            }
            for index in indexes.split('[').filter(|index| !index.is_empty()) {
                let Self::Array(elements) = value else { return None };
                value = elements.get(index.trim_end_matches(']').parse::<usize>().ok()?)?;
            }
        }
        Some(value)
    }

    /// The field of a structure.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Struct(fields) => fields.iter().find(|(field, _)| field == name).map(|(_, value)| value),
            _ => None,
        }
    }
}

/// As a script writes it.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Text(text) => quoted(f, text),
            Self::Bytes(bytes) => write!(f, "hex(\"{}\")", hex(bytes)),
            Self::Uuid(bytes) => write!(f, "uuid(\"{}\")", hex(bytes)),
            Self::Array(elements) => {
                f.write_str("[")?;
                for (index, element) in elements.iter().enumerate() {
                    write!(f, "{}{element}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Struct(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for letter in text.chars() {
        match letter {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            letter if u32::from(letter) < 0x20 => write!(f, "\\u{:04x}", u32::from(letter))?,
            letter => write!(f, "{letter}")?,
        }
    }
    f.write_str("\"")
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits; blanks between them are for the eye.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .map(|l| l.to_digit(16))
        .try_fold(Vec::new(), |mut digits, digit| {
            digits.push(u8::try_from(digit?).ok()?);
            Some(digits)
        })?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}
