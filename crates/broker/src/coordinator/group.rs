//! One group as a shard keeps it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidelog_core::groups::{
    GroupRules, Now,
    classic::{ClassicGroup, ClassicState, Effects, OffsetExpiry},
    consumer::ConsumerGroup,
    offsets::{OffsetTable, Place},
};
use tidelog_types::Timestamp;

use super::{room::Held, settings::GroupSettings};

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

    /// The topics that its members read; `None`: that cannot be known, and they may read all.
    pub(super) fn subscribed(&self) -> Option<BTreeSet<&str>> {
        match self {
            Self::Classic(group) => match group.subscribed_topics() {
                Some(topics) => Some(topics.iter().map(|topic| &**topic).collect()),
                None => (!group.uses_consumer_protocol()).then(BTreeSet::new),
            },
            Self::Consumer(group) => {
                Some(group.subscribed_topics().into_iter().map(|topic| &**topic).collect())
            }
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

    /// About what they take in memory.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Classic(group) => group.bytes(),
            Self::Consumer(group) => group.bytes(),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Classic(group) => group.member_count(),
            Self::Consumer(group) => group.members().len(),
        }
    }

    /// About what one of them takes, known by its instance id where it has one; 0 where there is none.
    pub(super) fn member_bytes(&self, (member_id, instance_id): (&str, Option<&str>)) -> usize {
        match self {
            Self::Classic(group) => group.member_bytes(member_id, instance_id),
            Self::Consumer(group) => group.member_bytes(member_id, instance_id),
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
    pub(super) fn loaded(&mut self, name: &str, now: Now, settings: &GroupSettings, effects: &mut Effects) {
        let rules: &GroupRules = &settings.rules;
        match self {
            Self::Classic(group) => group.loaded(now, rules, effects),
            Self::Consumer(group) => group.loaded(now, &settings.consumer(name)),
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
    /// Of its tombstones, some of offsets were not written.
    pub(super) has_lasting_offsets: bool,
    /// Writes of it that are not applied yet.
    pub(super) writes: usize,
    /// The last generation that was counted and told.
    pub(super) told_generation: i32,
    /// What its members take of the budget of all; none before they were counted.
    pub(super) held: Option<Held>,
}

impl Group {
    pub(super) fn new(members: Members) -> Self {
        Self {
            members,
            offsets: OffsetTable::default(),
            deadline: None,
            recorded: false,
            deleting: false,
            has_lasting_offsets: false,
            writes: 0,
            told_generation: 0,
            held: None,
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
        if self.offsets.is_empty() {
            return Vec::new();
        }
        let subscribed = self.members.subscribed();
        let is_subscribed = |topic: &str| subscribed.as_ref().is_none_or(|topics| topics.contains(topic));
        self.offsets.expired(now, retention, self.members.expiry(), is_subscribed)
    }
}

/// A name that outlives its frame.
pub(super) fn name(text: &str) -> Arc<str> {
    Arc::from(text)
}
