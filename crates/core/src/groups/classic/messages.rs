//! What goes into a classic group and what comes out of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_types::Timestamp;

use crate::groups::{GoneMember, GroupError, Token};

/// A `JoinGroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The member; empty when the client has no id yet.
    pub member_id: Arc<str>,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<Arc<str>>,
    /// How the client calls itself.
    pub client_id: Arc<str>,
    /// Where it connects from.
    pub client_host: Arc<str>,
    /// How long the member may be silent.
    pub session_timeout: Duration,
    /// How long the others wait for it to join again. Version 0 of the request has none: there it is the session timeout.
    pub rebalance_timeout: Duration,
    /// `consumer`, `connect`, ...
    pub protocol_type: Arc<str>,
    /// The protocols that the member speaks, the one it likes best first, each with the member's metadata.
    pub protocols: Vec<(Arc<str>, Bytes)>,
    /// Whether a client without an id must come again with the one it is given (version 4 and later).
    pub require_known_member_id: bool,
    /// Whether the client knows to skip the assignment (version 9 and later).
    pub supports_skip_assignment: bool,
    /// The id that a client without one gets. No member ever had it.
    pub new_member_id: Arc<str>,
    /// Why the client joins, for the log.
    pub reason: Option<Arc<str>>,
}

/// A `SyncGroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncRequest {
    /// The member.
    pub member_id: Arc<str>,
    /// Its instance id, when it is static.
    pub instance_id: Option<Arc<str>>,
    /// The generation it joined.
    pub generation: i32,
    /// The protocol type it believes the group to have.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol it believes to be chosen.
    pub protocol_name: Option<Arc<str>>,
    /// What the leader hands out, by member id. Others send none, and what they send is not read.
    pub assignments: Vec<(Arc<str>, Bytes)>,
}

/// One member of a `LeaveGroup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeavingMember<'a> {
    /// The member; empty when an administrator removes a static member by its instance id.
    pub member_id: &'a str,
    /// Its instance id, when it is static.
    pub instance_id: Option<&'a str>,
}

/// Names a write that a group asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreTicket(pub(super) u64);

/// What the shell has to do after a call. One call fills one fresh value.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Replies to requests that waited, or that this call answered at once.
    pub replies: Vec<(Token, Reply)>,
    /// A record to write. Its outcome goes to [`super::ClassicGroup::stored`]. Records of one group go to the log in the
    /// order of the calls that asked for them.
    pub store: Option<(StoreTicket, Stored)>,
    /// Members that were put out since their time was over.
    pub gone: Vec<GoneMember>,
}

impl Effects {
    pub(super) fn joined(&mut self, token: Option<Token>, joined: Joined) {
        if let Some(token) = token {
            self.replies.push((token, Reply::Join(Ok(joined))));
        }
    }

    pub(super) fn refuse_join(&mut self, token: Option<Token>, refused: JoinRefused) {
        if let Some(token) = token {
            self.replies.push((token, Reply::Join(Err(refused))));
        }
    }

    pub(super) fn synced(&mut self, token: Option<Token>, result: Result<Synced, GroupError>) {
        if let Some(token) = token {
            self.replies.push((token, Reply::Sync(result)));
        }
    }

    pub(super) fn store(&mut self, ticket: StoreTicket, stored: Stored) {
        assert!(self.store.is_none(), "one call asks for one write, and its effects are fresh: {ticket:?}");
        self.store = Some((ticket, stored));
    }
}

/// The reply to a request that carried a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To a `JoinGroup`.
    Join(Result<Joined, JoinRefused>),
    /// To a `SyncGroup`.
    Sync(Result<Synced, GroupError>),
}

/// The member is in the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The generation.
    pub generation: i32,
    /// The protocol type of the group.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol that was chosen.
    pub protocol_name: Option<Arc<str>>,
    /// Who leads.
    pub leader: Arc<str>,
    /// Whether the leader must not compute an assignment: the present one goes on.
    pub skip_assignment: bool,
    /// The member that joined.
    pub member_id: Arc<str>,
    /// For the leader, all members in the order of their ids; for the others, nothing.
    pub members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member_id: Arc<str>,
    /// Its instance id, when it is static.
    pub instance_id: Option<Arc<str>>,
    /// Its metadata for the protocol that was chosen.
    pub metadata: Bytes,
}

/// The member is not in the group by this request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRefused {
    /// Why.
    pub error: GroupError,
    /// The member id of the reply: with [`GroupError::MemberIdRequired`] the one to come back with, empty where the client
    /// is to forget the one it has.
    pub member_id: Arc<str>,
}

/// What a member is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// The protocol type of the group.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol that was chosen.
    pub protocol_name: Option<Arc<str>>,
    /// The assignment, as the leader wrote it.
    pub assignment: Bytes,
}

/// A generation of a group, as it is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The protocol type; `None` for a group that never had a member.
    pub protocol_type: Option<Arc<str>>,
    /// The generation.
    pub generation: i32,
    /// The protocol that was chosen; `None` when there are no members.
    pub protocol: Option<Arc<str>>,
    /// Who leads; `None` when there are no members.
    pub leader: Option<Arc<str>>,
    /// When the state began in which this was written; `None` in records of old brokers.
    pub state_timestamp: Option<Timestamp>,
    /// The members in the order of their ids.
    pub members: Vec<StoredMember>,
}

/// A member, as it is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMember {
    /// Its id.
    pub member_id: Arc<str>,
    /// Its instance id, when it is static.
    pub instance_id: Option<Arc<str>>,
    /// How its client calls itself.
    pub client_id: Arc<str>,
    /// Where it connects from.
    pub client_host: Arc<str>,
    /// How long the others wait for it.
    pub rebalance_timeout: Duration,
    /// How long it may be silent.
    pub session_timeout: Duration,
    /// Its metadata for the protocol that was chosen.
    pub subscription: Bytes,
    /// What it is to do.
    pub assignment: Bytes,
}

/// A member as `DescribeGroups` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub member_id: Arc<str>,
    /// Its instance id, when it is static.
    pub instance_id: Option<Arc<str>>,
    /// How its client calls itself.
    pub client_id: Arc<str>,
    /// Where it connects from.
    pub client_host: Arc<str>,
    /// Its metadata for the protocol that was chosen; empty unless the group is stable.
    pub metadata: Bytes,
    /// What it was last told to do.
    pub assignment: Bytes,
}
