//! How a classic group becomes a consumer group, and the other way round (KIP-848).
//!
//! ```text
//!                a member of the consumer protocol joins
//!   classic ────────────────────────────────────────────▶ consumer
//!           ◀────────────────────────────────────────────
//!                the last member of the consumer protocol leaves
//! ```

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Changes, ClassicMember, ConsumerGroup, ConsumerRecord, ConsumerRules, CurrentAssignment, EpochPartitions,
    GroupMetadata, Heartbeat, HeartbeatRefused, Heartbeated, MemberMetadata, MemberState, Partitions,
    Resolutions, TargetAssignmentMetadata, TopicsImage,
    classic_members::{by_id, by_name},
    topics_hash,
};
use crate::groups::{
    GroupError, GroupRules, Now,
    classic::{ClassicGroup, Effects, MigratingMember, Stored},
    embedded::{Assignment, Subscription},
};

/// What migrations are allowed: `group.consumer.migration.policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MigrationPolicy {
    /// None.
    Disabled,
    /// From classic to consumer.
    Upgrade,
    /// From consumer to classic.
    Downgrade,
    /// Both.
    Bidirectional,
}

impl MigrationPolicy {
    /// The policy of this name; Kafka takes any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "disabled" => Some(Self::Disabled),
            "upgrade" => Some(Self::Upgrade),
            "downgrade" => Some(Self::Downgrade),
            "bidirectional" => Some(Self::Bidirectional),
            _ => None,
        }
    }

    /// Whether a classic group may become a consumer group.
    #[must_use]
    pub const fn allows_upgrade(self) -> bool {
        matches!(self, Self::Upgrade | Self::Bidirectional)
    }

    const fn allows_downgrade(self) -> bool {
        matches!(self, Self::Downgrade | Self::Bidirectional)
    }
}

/// A consumer group that became a classic one.
#[derive(Debug)]
pub struct Downgraded {
    /// What ends the consumer group in the log; written before `stored`, in the same batch.
    pub tombstones: Vec<ConsumerRecord>,
    /// The record of the classic group.
    pub stored: Stored,
    /// The classic group.
    pub group: ClassicGroup,
}

/// How a classic group begins that its members take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassicBegin {
    /// The epoch that its members know, as Kafka has it: not the one that a member's leaving has just raised.
    pub generation: i32,
    /// For a group that lost a member: the members are told to join anew. A member that came in another's place is just joining.
    pub rebalance: bool,
}

impl ConsumerGroup {
    /// A member of the consumer protocol comes to a classic group: gives the consumer group that takes its members over,
    /// and what the member's heartbeat came to in it; the records make up the whole new group.
    ///
    /// The classic group is not touched. The caller writes its tombstone before the records, in the same batch, and ends it
    /// with `shut(RebalanceInProgress)`, so that whoever waits joins again, here. An empty classic group is replaced in
    /// the same way.
    ///
    /// # Errors
    /// `GroupIdNotFound` when the group cannot be taken over: the policy forbids it, its members are not consumers or too
    /// many, or what they said is malformed or would be lost; or what is wrong with the heartbeat.
    pub fn upgrade(
        classic: &ClassicGroup,
        policy: MigrationPolicy,
        now: Now,
        rules: &ConsumerRules,
        topics: &dyn TopicsImage,
        resolutions: &Resolutions,
        request: &Heartbeat,
    ) -> Result<(Self, Heartbeated), HeartbeatRefused> {
        let refuse = |reason| Err(HeartbeatRefused::new(GroupError::GroupIdNotFound, reason));
        request.check(rules)?;
        if request.epoch != 0 {
            return refuse("the group is not a consumer group");
        }
        let mut group = Self::new();
        let mut changes = Changes::default();
        if classic.member_count() > 0 {
            if !policy.allows_upgrade() {
                return refuse("the group is a classic group and must not be upgraded");
            }
            if !classic.uses_consumer_protocol() {
                return refuse("the members of the group are not consumers");
            }
            if classic.member_count() > rules.size_max {
                return refuse("the group has more members than a consumer group may have");
            }
            if group.take_over(classic, topics, &mut changes).is_none() {
                return refuse("what the members of the classic group said cannot be taken over");
            }
            group.loaded(now, rules);
        }
        let mut heartbeated = group.heartbeat(now, rules, topics, resolutions, request)?;
        changes.extend(heartbeated.changes);
        heartbeated.changes = changes;
        Ok((group, heartbeated))
    }

    /// Takes over the members of a classic group, each with what it has and nothing more to do.
    fn take_over(
        &mut self,
        classic: &ClassicGroup,
        topics: &dyn TopicsImage,
        changes: &mut Changes,
    ) -> Option<()> {
        let epoch = classic.generation();
        let mut taken = BTreeSet::new();
        let mut assignments = Vec::new();
        for member in classic.migrating_members() {
            let (metadata, assigned) = taken_over(&member, classic.protocol(), topics)?;
            let mut own = Partitions::new();
            for (topic, partitions) in assigned {
                // A client may have assigned one to two members; the first keeps it.
                let fresh: BTreeSet<i32> =
                    partitions.into_iter().filter(|partition| taken.insert((topic, *partition))).collect();
                if !fresh.is_empty() {
                    own.insert(topic, fresh);
                }
            }
            assignments.push((Arc::clone(&member.member_id), own));
            let value = Some(metadata);
            self.commit(changes, ConsumerRecord::MemberMetadata { member_id: member.member_id, value });
        }
        let metadata_hash = topics_hash(self.state.subscribed_topics(), topics);
        self.commit(changes, ConsumerRecord::GroupMetadata(Some(GroupMetadata { epoch, metadata_hash })));
        for (member_id, own) in &assignments {
            let (member_id, value) = (Arc::clone(member_id), Some(Arc::new(own.clone())));
            self.commit(changes, ConsumerRecord::TargetAssignmentMember { member_id, value });
        }
        let value = TargetAssignmentMetadata { assignment_epoch: epoch, timestamp: None };
        self.commit(changes, ConsumerRecord::TargetAssignmentMetadata(Some(value)));
        for (member_id, own) in assignments {
            let given = |(topic, partitions): (_, BTreeSet<i32>)| {
                (topic, partitions.into_iter().map(|partition| (partition, epoch)).collect())
            };
            let value = Some(CurrentAssignment {
                epoch,
                previous_epoch: epoch,
                state: MemberState::Stable,
                assigned: own.into_iter().map(given).collect(),
                pending_revocation: EpochPartitions::new(),
            });
            self.commit(changes, ConsumerRecord::CurrentMemberAssignment { member_id, value });
        }
        Some(())
    }

    /// Makes a classic group of this one when all its members speak the classic protocol, as they may after one left, died
    /// or was replaced; `None` when they do not, or must not become one. This group is as it was: it is over once the caller
    /// has stored what came of it.
    ///
    pub fn downgrade(
        &self,
        now: Now,
        classic_rules: &GroupRules,
        policy: MigrationPolicy,
        topics: &dyn TopicsImage,
        begin: ClassicBegin,
        effects: &mut Effects,
    ) -> Option<Downgraded> {
        if !policy.allows_downgrade() || self.state.members.len() > classic_rules.size_max {
            return None;
        }
        let members: Vec<MigratingMember> = self
            .state
            .members
            .iter()
            .map(|(member_id, member)| {
                let classic = member.metadata.classic.as_ref()?;
                Some(MigratingMember {
                    member_id: Arc::clone(member_id),
                    instance_id: member.metadata.instance_id.clone(),
                    client_id: Arc::clone(&member.metadata.client_id),
                    client_host: Arc::clone(&member.metadata.client_host),
                    session_timeout: classic.session_timeout,
                    rebalance_timeout: member.metadata.rebalance_timeout,
                    protocols: classic.protocols.clone(),
                    assignment: bytes::Bytes::new(),
                })
            })
            .collect::<Option<_>>()?;
        let none = Partitions::new();
        let assign = |member_id: &str, metadata: &[u8]| {
            let target = self.state.targets.get(member_id).map_or(&none, |target| target);
            let version = Subscription::read(metadata).map_or(0, |subscription| subscription.version);
            Assignment::write(version, &by_name(target, topics))
        };
        let mut group = ClassicGroup::take_over(now, begin.generation, members, assign)?;
        let stored = group.taken_over_form();
        if begin.rebalance {
            group.rebalance_taken_over(now, effects);
        }
        Some(Downgraded { tombstones: self.clone().end(), stored, group })
    }

    /// The least bytes that what the members said takes in the record of a classic group; `None` while one of them does not
    /// speak the classic protocol.
    #[must_use]
    pub fn classic_bytes_min(&self) -> Option<usize> {
        let classic = self.state.members.values().map(|member| member.metadata.classic.as_ref());
        classic.map(|classic| classic?.protocols.iter().map(|(_, said)| said.len()).min()).sum()
    }

    /// Ends the group with all its members.
    fn end(&mut self) -> Vec<ConsumerRecord> {
        let mut changes = Changes::default();
        let member_ids: Vec<Arc<str>> = self.state.members.keys().cloned().collect();
        for member_id in &member_ids {
            self.remove_member(member_id, &mut changes);
        }
        let mut records = changes.into_records();
        records.extend(self.delete().expect("its members were removed"));
        records
    }
}

/// A member's metadata and assignment in the terms of a consumer group; `None` when they are malformed, or when the
/// assignment has something that a consumer group cannot keep.
fn taken_over(
    member: &MigratingMember,
    protocol: Option<&Arc<str>>,
    topics: &dyn TopicsImage,
) -> Option<(MemberMetadata, Partitions)> {
    // Before the first generation of a group no protocol is chosen: then the one that the member likes best.
    let chosen = member.protocols.iter().find(|(name, _)| Some(name) == protocol);
    let (_, metadata) = chosen.or_else(|| member.protocols.first())?;
    let subscription = Subscription::read(metadata)?;
    let assignment = Assignment::read(&member.assignment)?;
    if assignment.has_user_data {
        return None;
    }
    let metadata = MemberMetadata {
        instance_id: member.instance_id.clone(),
        rack_id: subscription.rack,
        client_id: Arc::clone(&member.client_id),
        client_host: Arc::clone(&member.client_host),
        subscribed_topics: Arc::new(subscription.topics),
        subscribed_pattern: Arc::from(""),
        rebalance_timeout: member.rebalance_timeout,
        server_assignor: None,
        classic: Some(ClassicMember {
            session_timeout: member.session_timeout,
            protocols: member.protocols.clone(),
        }),
    };
    Some((metadata, by_id(&assignment.partitions, topics)))
}
