//! The settings a consumer group follows and the requests it gets.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidelog_types::shown;

use super::{Assignor, Changes, LEAVE_FOR_A_WHILE, LEAVE_FOR_GOOD, Partitions};
use crate::groups::GroupError;

/// The settings of one group, handed to every call: they may change at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerRules {
    /// How long a member lives without a heartbeat: `group.consumer.session.timeout.ms`.
    pub session_timeout: Duration,
    /// How often members are told to send heartbeats: `group.consumer.heartbeat.interval.ms`.
    pub heartbeat_interval: Duration,
    /// How many members a group may have: `group.consumer.max.size`.
    pub size_max: usize,
    /// The assignors that members may ask for, the default first: `group.consumer.assignors`. Never empty: an empty
    /// list counts as the uniform assignor alone.
    pub assignors: Vec<Assignor>,
    /// The least time between two target assignments: `group.consumer.assignment.interval.ms`; zero computes the target
    /// at once.
    pub assignment_interval: Duration,
}

impl Default for ConsumerRules {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(5),
            size_max: 2_147_483_647,
            assignors: vec![Assignor::Uniform, Assignor::Range],
            assignment_interval: Duration::from_secs(1),
        }
    }
}

/// The broker's limits of what a single group's settings may be; both ends are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerBounds {
    /// `group.consumer.min.session.timeout.ms`, `group.consumer.max.session.timeout.ms`.
    pub session_timeout: (Duration, Duration),
    /// `group.consumer.min.heartbeat.interval.ms`, `group.consumer.max.heartbeat.interval.ms`.
    pub heartbeat_interval: (Duration, Duration),
    /// `group.consumer.min.assignment.interval.ms`, `group.consumer.max.assignment.interval.ms`.
    pub assignment_interval: (Duration, Duration),
}

impl Default for ConsumerBounds {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            session_timeout: (Duration::from_secs(45), Duration::from_secs(60)),
            heartbeat_interval: (Duration::from_secs(5), Duration::from_secs(15)),
            assignment_interval: (Duration::ZERO, Duration::from_secs(15)),
        }
    }
}

impl ConsumerRules {
    /// These rules within `bounds`: what is too small or too large becomes the nearest that is allowed.
    #[must_use]
    pub fn within(mut self, bounds: &ConsumerBounds) -> Self {
        let clamp =
            |value: Duration, (least, most): (Duration, Duration)| value.max(least).min(most.max(least));
        self.session_timeout = clamp(self.session_timeout, bounds.session_timeout);
        self.heartbeat_interval = clamp(self.heartbeat_interval, bounds.heartbeat_interval);
        self.assignment_interval = clamp(self.assignment_interval, bounds.assignment_interval);
        self
    }

    /// The assignor of a group whose members wish for none.
    #[must_use]
    pub fn default_assignor(&self) -> Assignor {
        self.assignors.first().copied().unwrap_or(Assignor::Uniform)
    }
}

/// One ConsumerGroupHeartbeat; `None` means unchanged since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The member; may be empty only when `drawn_member_id` is there and it joins.
    pub member_id: Arc<str>,
    /// An id for a member that came without one: version 0 of the request has the coordinator draw it; `None` from
    /// version 1 on, where members bring their own.
    pub drawn_member_id: Option<Arc<str>>,
    /// 0 joins, a positive epoch is the member's, [`LEAVE_FOR_GOOD`] and [`LEAVE_FOR_A_WHILE`] leave.
    pub epoch: i32,
    /// The instance id of a static member.
    pub instance_id: Option<Arc<str>>,
    /// The member's rack.
    pub rack_id: Option<Arc<str>>,
    /// How long the member may take to give up partitions.
    pub rebalance_timeout: Option<Duration>,
    /// The client id of the request.
    pub client_id: Arc<str>,
    /// The address the request comes from.
    pub client_host: Arc<str>,
    /// The topics subscribed to by name.
    pub subscribed_topics: Option<BTreeSet<Arc<str>>>,
    /// The regular expression subscribed by; empty to have none.
    pub subscribed_pattern: Option<Arc<str>>,
    /// The assignor wished for.
    pub server_assignor: Option<Arc<str>>,
    /// The partitions that the member owns at the moment.
    pub owned: Option<Partitions>,
}

impl Heartbeat {
    /// Checks all that can be checked without the group.
    ///
    /// # Errors
    /// `InvalidRequest` and `UnsupportedAssignor`, as Kafka checks and in its order.
    pub fn check(&self, rules: &ConsumerRules) -> Result<(), HeartbeatRefused> {
        let invalid = |reason| Err(HeartbeatRefused::new(GroupError::InvalidRequest, reason));
        let brings_id = self.drawn_member_id.is_none() || self.epoch > 0 || self.epoch == LEAVE_FOR_GOOD;
        if brings_id && is_blank(&self.member_id) {
            return invalid("the member id must not be empty");
        }
        if self.instance_id.as_deref().is_some_and(is_blank) {
            return invalid("the instance id must not be empty");
        }
        if self.rack_id.as_deref().is_some_and(is_blank) {
            return invalid("the rack id must not be empty");
        }
        match self.epoch {
            0 if self.rebalance_timeout.is_none() => {
                return invalid("the first request of a member must have its rebalance timeout");
            }
            0 if self.owned.as_ref().is_none_or(|owned| !owned.is_empty()) => {
                return invalid("a member that joins must own no partitions");
            }
            0 if self.subscribed_topics.is_none() && self.subscribed_pattern.is_none() => {
                return invalid(
                    "a member that joins must subscribe to topic names or by a regular expression",
                );
            }
            LEAVE_FOR_A_WHILE if self.instance_id.is_none() => {
                return invalid("only a member with an instance id can leave for a while");
            }
            epoch if epoch < LEAVE_FOR_A_WHILE => return invalid("the member epoch is not valid"),
            _ => {}
        }
        match &self.server_assignor {
            Some(name) if !rules.assignors.iter().any(|assignor| assignor.name() == &**name) => {
                Err(HeartbeatRefused::new(
                    GroupError::UnsupportedAssignor,
                    format!("the assignor {} is not supported", shown(name)),
                ))
            }
            _ => Ok(()),
        }
    }

    /// True when the request says all that there is to say, so that the answer must as well.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let subscribes = self.subscribed_topics.is_some() || self.subscribed_pattern.is_some();
        self.epoch == 0 || (self.rebalance_timeout.is_some() && subscribes && self.owned.is_some())
    }

    /// The member that the request is of: the id it brings, or the one drawn for it.
    #[must_use]
    pub fn member(&self) -> Arc<str> {
        match &self.drawn_member_id {
            Some(drawn) if self.member_id.is_empty() && self.epoch == 0 => Arc::clone(drawn),
            _ => Arc::clone(&self.member_id),
        }
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Why a heartbeat was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct HeartbeatRefused {
    /// The error, which has a code.
    #[source]
    pub error: GroupError,
    /// What is wrong, for a person to read.
    pub reason: String,
}

impl HeartbeatRefused {
    pub(super) fn new(error: GroupError, reason: impl Into<String>) -> Self {
        Self { error, reason: reason.into() }
    }
}

impl From<GroupError> for HeartbeatRefused {
    fn from(error: GroupError) -> Self {
        Self { error, reason: error.to_string() }
    }
}

/// What a heartbeat came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeated {
    /// What must be stored before the answer goes out; applied to the group already.
    pub changes: Changes,
    /// The answer.
    pub answer: HeartbeatAnswer,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The member.
    pub member_id: Arc<str>,
    /// The epoch it must send from now on; what it sent when it leaves.
    pub epoch: i32,
    /// When the next heartbeat is expected; zero for a member that leaves.
    pub heartbeat_interval: Duration,
    /// The partitions it may have; `None` when they are as they were.
    pub assignment: Option<Partitions>,
}
