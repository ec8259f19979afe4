//! One group as a shard keeps it.

use std::{sync::Arc, time::Duration};

use tidelog_core::groups::{
    classic::{ClassicGroup, ClassicState},
    offsets::{OffsetTable, Place},
};
use tidelog_types::Timestamp;

/// A group: who is in it, and its offsets.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: ClassicGroup,
    pub(super) offsets: OffsetTable,
    /// When the timer will look at it.
    pub(super) deadline: Option<Duration>,
    /// Whether the log has a record of its members, or will have.
    pub(super) recorded: bool,
    /// Its tombstones are on their way: until they are durable it takes no request.
    pub(super) deleting: bool,
    /// Writes of it that are not applied yet.
    pub(super) writes: usize,
}

impl Group {
    pub(super) fn new(members: ClassicGroup) -> Self {
        Self {
            members,
            offsets: OffsetTable::default(),
            deadline: None,
            recorded: false,
            deleting: false,
            writes: 0,
        }
    }

    /// Whether forgetting it loses nothing: it was asked for, and came to nothing.
    pub(super) fn is_nothing(&self) -> bool {
        !self.recorded
            && self.writes == 0
            && self.offsets.is_empty()
            && self.members.state() == ClassicState::Empty
            && self.members.pending_member_count() == 0
    }

    /// Offsets that have expired.
    pub(super) fn expired(&self, now: Timestamp, retention: Duration) -> Vec<Place> {
        let members = &self.members;
        self.offsets.expired(now, retention, members.offset_expiry(), |topic| members.is_subscribed(topic))
    }
}

/// A name that outlives its frame.
pub(super) fn name(text: &str) -> Arc<str> {
    Arc::from(text)
}
