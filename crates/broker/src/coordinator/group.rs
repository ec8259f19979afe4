//! One group as a shard keeps it.

use std::{sync::Arc, time::Duration};

use tidelog_core::groups::{
    GroupRules, Now,
    classic::{ClassicGroup, ClassicState, Effects, OffsetExpiry},
    consumer::ConsumerGroup,
    offsets::{OffsetTable, Place},
};
use tidelog_types::Timestamp;

use super::settings::GroupSettings;

/// Who is in a group, and by which protocol they agree.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a group has one for as long as it lives, and both are large")]
pub(super) enum Members {
    /// A client assigns.
    Classic(ClassicGroup),
    /// The coordinator assigns.
    Consumer(ConsumerGroup),
}

/// The kinds of groups, in Kafka's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Classic,
    Consumer,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Consumer => "consumer",
        }
    }
}

impl Members {
    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Classic(_) => Kind::Classic,
            Self::Consumer(_) => Kind::Consumer,
        }
    }

    /// Kafka's word for where the group stands.
    pub(super) fn state(&self) -> &'static str {
        match self {
            Self::Classic(group) => group.state().as_str(),
            Self::Consumer(group) => group.state().as_str(),
        }
    }

    /// Whether nobody is in it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Classic(group) => group.state() == ClassicState::Empty,
            Self::Consumer(group) => group.is_empty(),
        }
    }

    pub(super) fn protocol_type(&self) -> Option<Arc<str>> {
        match self {
            Self::Classic(group) => group.protocol_type().cloned(),
            Self::Consumer(_) => Some("consumer".into()),
        }
    }

    /// Whether its members read this topic, as far as that is known.
    pub(super) fn is_subscribed(&self, topic: &str) -> bool {
        match self {
            Self::Classic(group) => group.is_subscribed(topic),
            Self::Consumer(group) => group.is_subscribed_to(topic),
        }
    }

    /// Whether offsets of topics that they do not read may be deleted while members are there.
    pub(super) fn are_consumers(&self) -> bool {
        match self {
            Self::Classic(group) => group.uses_consumer_protocol(),
            Self::Consumer(_) => true,
        }
    }

    /// Whether someone was given an id and is about to come back with it.
    pub(super) fn awaits_members(&self) -> bool {
        match self {
            Self::Classic(group) => group.pending_member_count() > 0,
            Self::Consumer(_) => false,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match self {
            Self::Classic(group) => group.next_deadline(),
            Self::Consumer(group) => group.next_deadline(),
        }
    }

    /// Grows with every generation.
    pub(super) fn generation(&self) -> i32 {
        match self {
            Self::Classic(group) => group.generation(),
            Self::Consumer(group) => group.epoch(),
        }
    }

    /// They were read from the log, and serve from now on.
    pub(super) fn loaded(&mut self, now: Now, settings: &GroupSettings, effects: &mut Effects) {
        let rules: &GroupRules = &settings.rules;
        match self {
            Self::Classic(group) => group.loaded(now, rules, effects),
            Self::Consumer(group) => group.loaded(now, &settings.consumer),
        }
    }

    fn expiry(&self) -> OffsetExpiry {
        match self {
            Self::Classic(group) => group.offset_expiry(),
            Self::Consumer(_) => OffsetExpiry::SinceCommit,
        }
    }
}

/// A group: who is in it, and its offsets.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Members,
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
    pub(super) fn new(members: Members) -> Self {
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
            && self.members.is_empty()
            && !self.members.awaits_members()
    }

    /// Offsets that have expired.
    pub(super) fn expired(&self, now: Timestamp, retention: Duration) -> Vec<Place> {
        let members = &self.members;
        self.offsets.expired(now, retention, members.expiry(), |topic| members.is_subscribed(topic))
    }
}

/// A name that outlives its frame.
pub(super) fn name(text: &str) -> Arc<str> {
    Arc::from(text)
}
