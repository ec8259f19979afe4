//! Strings of messages: slices of the frame that they came in.

use std::{borrow::Borrow, cmp::Ordering, fmt, hash, ops::Deref, str};

use bytes::Bytes;

use crate::DecodeError;

/// A string of a message: UTF-8 in a shared slice of bytes, so that decoding a frame copies no text.
///
/// It keeps the whole frame in memory for as long as it lives: what outlasts the request is copied out (`to_string`,
/// or a `TopicName`).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Str(Bytes);

impl Str {
    /// Takes a text of the program itself, without a copy.
    #[must_use]
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// Takes bytes that came from outside, without a copy.
    ///
    /// # Errors
    /// [`DecodeError::NotUtf8`] if they are not UTF-8.
    pub fn from_utf8(bytes: Bytes) -> Result<Self, DecodeError> {
        match str::from_utf8(&bytes) {
            Ok(_) => Ok(Self(bytes)),
            Err(_) => Err(DecodeError::NotUtf8),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked anew rather than trusted with `unsafe`: names are short, and comparing goes by bytes.
        str::from_utf8(&self.0).expect("checked when it was made")
    }

    /// The bytes of the text, shared.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl Deref for Str {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Str {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Str {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl hash::Hash for Str {
    // As `str` hashes, which `Borrow` promises.
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Str {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

impl PartialEq<str> for Str {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Str {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialOrd<str> for Str {
    fn partial_cmp(&self, other: &str) -> Option<Ordering> {
        Some((*self.0).cmp(other.as_bytes()))
    }
}

impl fmt::Display for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
