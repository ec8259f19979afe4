//! Kafka's 16-byte ids.

use std::fmt;

use tidelog_types::{DirectoryId, TopicId};

/// A 16-byte id of a message: a topic's, or a log directory's.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Sixteen zero bytes: Kafka's "no id".
    pub const ZERO: Self = Self([0; 16]);

    /// Whether it is Kafka's "no id".
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl From<TopicId> for Uuid {
    fn from(id: TopicId) -> Self {
        Self(*id.as_bytes())
    }
}

impl From<Uuid> for TopicId {
    fn from(id: Uuid) -> Self {
        Self::from_bytes(id.0)
    }
}

impl From<DirectoryId> for Uuid {
    fn from(id: DirectoryId) -> Self {
        Self(*id.as_bytes())
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TopicId::from(*self).fmt(f)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}
