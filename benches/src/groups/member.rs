//! A member of the classic protocol.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        HeartbeatRequest, JoinGroupRequest, SyncGroupRequest, join_group::JoinGroupRequestProtocol,
        sync_group::SyncGroupRequestAssignment,
    },
};

use super::{
    PATIENCE, PAUSE,
    assignment::{assigned, assignment, cooperative, owned, subscription},
    connection::Connection,
    is_passing,
};

const PROTOCOL: &str = "cooperative-sticky";

/// What a member is to do.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) broker: SocketAddr,
    pub(super) group: String,
    pub(super) topic: String,
    /// Partitions of the topic.
    pub(super) partitions: i32,
    pub(super) session: Duration,
}

/// A member and its connection.
pub(super) struct Member {
    plan: Plan,
    pub(super) connection: Connection,
    pub(super) id: Str,
    pub(super) generation: i32,
    pub(super) owned: BTreeSet<i32>,
}

/// What came of one heartbeat.
pub(super) enum Beat {
    /// All is as it was.
    Stable,
    /// The group rebalances, or the member is no longer in it.
    JoinAgain,
}

impl Member {
    pub(super) async fn connect(plan: Plan) -> Result<Self> {
        let connection = Connection::open(plan.broker).await?;
        Ok(Self { plan, connection, id: Str::default(), generation: -1, owned: BTreeSet::new() })
    }

    /// Joins and syncs, as often as a cooperative rebalance needs: until it has given up nothing in a round.
    pub(super) async fn join(&mut self, mut on_round: impl FnMut(&Self)) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let Some(assignments) = self.join_once().await? else { continue };
            let Some(now) = self.sync(assignments).await? else { continue };
            let gives_up = self.owned.iter().any(|partition| !now.contains(partition));
            self.owned = now;
            on_round(self);
            if !gives_up {
                return Ok(());
            }
        }
        bail!("a member of {} has not joined in {PATIENCE:?}", self.plan.group)
    }

    /// One JoinGroup; gives what it assigns as the leader, and nothing when it has to be sent again.
    async fn join_once(&mut self) -> Result<Option<BTreeMap<String, BTreeSet<i32>>>> {
        let millis = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        let request = JoinGroupRequest {
            group_id: Str::from(self.plan.group.as_str()),
            session_timeout_ms: millis(self.plan.session),
            rebalance_timeout_ms: 60_000,
            member_id: self.id.clone(),
            protocol_type: Str::from_static("consumer"),
            protocols: vec![JoinGroupRequestProtocol {
                name: Str::from_static(PROTOCOL),
                metadata: subscription(&self.plan.topic, &self.owned),
            }],
            ..JoinGroupRequest::default()
        };
        let answer = self.connection.call(7, &request).await?;
        match answer.error_code {
            0 => {}
            code if code == ErrorCode::MemberIdRequired.code() => {
                self.id = answer.member_id;
                return Ok(None);
            }
            code if code == ErrorCode::UnknownMemberId.code() => {
                self.forget();
                return Ok(None);
            }
            code if is_passing(code) || code == ErrorCode::RebalanceInProgress.code() => {
                tokio::time::sleep(PAUSE).await;
                return Ok(None);
            }
            code => bail!("JoinGroup of {}: error {code}", self.plan.group),
        }
        self.id = answer.member_id;
        self.generation = answer.generation_id;
        if answer.leader != self.id {
            return Ok(Some(BTreeMap::new()));
        }
        let mut all = BTreeMap::new();
        for member in answer.members {
            all.insert(member.member_id.to_string(), owned(member.metadata)?);
        }
        cooperative(&all, self.plan.partitions).map(Some)
    }

    /// One SyncGroup; gives the assignment, and nothing when it has to join again.
    async fn sync(&mut self, assignments: BTreeMap<String, BTreeSet<i32>>) -> Result<Option<BTreeSet<i32>>> {
        let one = |(id, partitions): (String, BTreeSet<i32>)| SyncGroupRequestAssignment {
            member_id: Str::from(id),
            assignment: assignment(&self.plan.topic, &partitions),
        };
        let request = SyncGroupRequest {
            group_id: Str::from(self.plan.group.as_str()),
            generation_id: self.generation,
            member_id: self.id.clone(),
            protocol_type: Some(Str::from_static("consumer")),
            protocol_name: Some(Str::from_static(PROTOCOL)),
            assignments: assignments.into_iter().map(one).collect(),
            ..SyncGroupRequest::default()
        };
        let answer = self.connection.call(5, &request).await?;
        match answer.error_code {
            0 => assigned(answer.assignment).map(Some),
            code if self.has_to_join_again(code) => Ok(None),
            code => bail!("SyncGroup of {}: error {code}", self.plan.group),
        }
    }

    /// One heartbeat.
    pub(super) async fn beat(&mut self) -> Result<Beat> {
        let request = HeartbeatRequest {
            group_id: Str::from(self.plan.group.as_str()),
            generation_id: self.generation,
            member_id: self.id.clone(),
            ..HeartbeatRequest::default()
        };
        match self.connection.call(4, &request).await?.error_code {
            0 => Ok(Beat::Stable),
            code if self.has_to_join_again(code) => Ok(Beat::JoinAgain),
            code => bail!("Heartbeat of {}: error {code}", self.plan.group),
        }
    }

    fn has_to_join_again(&mut self, code: i16) -> bool {
        if code == ErrorCode::UnknownMemberId.code() {
            self.forget();
            return true;
        }
        is_passing(code)
            || [ErrorCode::RebalanceInProgress, ErrorCode::IllegalGeneration]
                .iter()
                .any(|again| again.code() == code)
    }

    /// It is out of the group.
    fn forget(&mut self) {
        self.id = Str::default();
        self.owned.clear();
    }
}
