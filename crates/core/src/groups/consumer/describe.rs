//! What a group tells of itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_types::TopicId;

use super::{Assignor, ConsumerGroup, ConsumerRules, MemberMetadata, Partitions, TopicsImage};

/// Where a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConsumerGroupState {
    /// It has no members.
    Empty,
    /// Its target assignment is older than the group.
    Assigning,
    /// Members are on their way to their targets.
    Reconciling,
    /// Every member has its target.
    Stable,
}

impl ConsumerGroupState {
    /// Kafka's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Assigning => "Assigning",
            Self::Reconciling => "Reconciling",
            Self::Stable => "Stable",
        }
    }
}

/// A group, as ConsumerGroupDescribe shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedGroup {
    /// Where it is.
    pub state: ConsumerGroupState,
    /// The group epoch.
    pub epoch: i32,
    /// The epoch of the target assignment.
    pub target_epoch: i32,
    /// The assignor that is in use.
    pub assignor: Assignor,
    /// The members, by id.
    pub members: Vec<DescribedMember>,
}

/// One member of a described group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub member_id: Arc<str>,
    /// Its epoch.
    pub epoch: i32,
    /// What it said of itself.
    pub metadata: MemberMetadata,
    /// What it owns, be it to keep or still to give up.
    pub assigned: Vec<DescribedTopic>,
    /// What it is to have.
    pub target: Vec<DescribedTopic>,
}

/// Partitions of a topic that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedTopic {
    /// Its id.
    pub id: TopicId,
    /// Its name.
    pub name: Arc<str>,
    /// The partitions.
    pub partitions: BTreeSet<i32>,
}

impl ConsumerGroup {
    /// Where the group is.
    #[must_use]
    pub fn state(&self) -> ConsumerGroupState {
        let target_epoch = self.state.target_epoch;
        if self.is_empty() {
            ConsumerGroupState::Empty
        } else if self.state.epoch > target_epoch {
            ConsumerGroupState::Assigning
        } else if self.state.members.values().all(|member| member.current.is_reconciled_to(target_epoch)) {
            ConsumerGroupState::Stable
        } else {
            ConsumerGroupState::Reconciling
        }
    }

    /// About how many bytes [`Self::describe`] tells.
    #[must_use]
    pub fn described_bytes(&self) -> usize {
        /// A topic's id and most names.
        const TOPIC_BYTES: usize = 96;
        const PARTITION_BYTES: usize = 4;
        let topics: usize = self
            .state
            .members
            .iter()
            .map(|(member_id, member)| {
                let current = &member.current;
                let has = current.assigned.values().chain(current.pending_revocation.values());
                let owned: usize = has.map(|inner| TOPIC_BYTES + inner.len() * PARTITION_BYTES).sum();
                let target = self.state.targets.get(member_id).into_iter().flat_map(|target| target.values());
                owned + target.map(|inner| TOPIC_BYTES + inner.len() * PARTITION_BYTES).sum::<usize>()
            })
            .sum();
        self.bytes() + topics
    }

    /// All that can be told of the group.
    #[must_use]
    pub fn describe(&self, rules: &ConsumerRules, topics: &dyn TopicsImage) -> DescribedGroup {
        let none = Partitions::new();
        let members = self.state.members.iter().map(|(member_id, member)| {
            let mut owned = Partitions::new();
            for (topic, partition) in member.current.owned() {
                owned.entry(topic).or_default().insert(partition);
            }
            let target = self.state.targets.get(member_id).map_or(&none, |target| target);
            DescribedMember {
                member_id: Arc::clone(member_id),
                epoch: member.current.epoch,
                metadata: member.metadata.clone(),
                assigned: described(&owned, topics),
                target: described(target, topics),
            }
        });
        DescribedGroup {
            state: self.state(),
            epoch: self.state.epoch,
            target_epoch: self.state.target_epoch,
            assignor: self.preferred_assignor(rules),
            members: members.collect(),
        }
    }
}

/// The partitions with the names of their topics, in the order of the names; topics that are gone are left out.
fn described(partitions: &Partitions, topics: &dyn TopicsImage) -> Vec<DescribedTopic> {
    let by_name: BTreeMap<Arc<str>, DescribedTopic> = partitions
        .iter()
        .filter_map(|(id, partitions)| {
            let name = topics.name(*id)?;
            let topic = DescribedTopic { id: *id, name: Arc::clone(&name), partitions: partitions.clone() };
            Some((name, topic))
        })
        .collect();
    by_name.into_values().collect()
}
