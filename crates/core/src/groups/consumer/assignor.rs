//! The assignors of the broker: who gets which partition.
//!
//! An assignor sees members, their subscriptions and what they were to have before, and gives every partition of a
//! subscribed topic to one member that subscribes to it. It is deterministic.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_types::TopicId;

use super::Partitions;

mod mixed;
mod racks;
mod range;
mod uniform;

#[cfg(test)]
mod tests;

/// An assignor, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Assignor {
    /// As even as can be over all topics, and moving as little as can be.
    Uniform,
    /// A range of each topic's partitions for every member, the same numbers of every topic where that is possible.
    Range,
}

impl Assignor {
    /// Every assignor there is.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Range];

    /// The name that clients and `group.consumer.assignors` use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// The assignor of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// The partitions of every member, in the order of the members.
    #[must_use]
    pub fn assign(self, group: &GroupSpec<'_>) -> Vec<Partitions> {
        let Some(first) = group.members.first() else { return Vec::new() };
        match self {
            Self::Range => range::assign(group),
            Self::Uniform if group.members.iter().all(|member| member.topics == first.topics) => {
                uniform::assign(group)
            }
            Self::Uniform => mixed::assign(group),
        }
    }
}

/// A group to assign for.
#[derive(Debug, Clone)]
pub struct GroupSpec<'a> {
    /// The members, in the order of their ids.
    pub members: Vec<MemberSpec<'a>>,
    /// Every topic that a member subscribes to.
    pub topics: BTreeMap<TopicId, TopicSpec>,
}

/// A member to assign to.
#[derive(Debug, Clone)]
pub struct MemberSpec<'a> {
    /// Its id.
    pub member_id: &'a str,
    /// Its instance id, when it is static.
    pub instance_id: Option<&'a str>,
    /// Its rack.
    pub rack_id: Option<&'a str>,
    /// The topics it subscribes to, those that exist.
    pub topics: BTreeSet<TopicId>,
    /// What it was to have before.
    pub previous: &'a Partitions,
}

/// A topic to assign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// How many partitions it has.
    pub partition_count: i32,
    /// The racks of each partition's replicas; empty when they are not known.
    pub racks: Vec<BTreeSet<Arc<str>>>,
}

impl GroupSpec<'_> {
    /// What each member may keep of what it was to have: partitions that exist, of topics it still subscribes to, and
    /// that no member before it keeps.
    fn kept(&self) -> Vec<Vec<(TopicId, i32)>> {
        let mut taken = BTreeSet::new();
        self.members
            .iter()
            .map(|member| {
                let mut kept = Vec::new();
                for (topic, partitions) in member.previous {
                    let Some(spec) = self.topics.get(topic).filter(|_| member.topics.contains(topic)) else {
                        continue;
                    };
                    for partition in partitions.range(0..spec.partition_count) {
                        if taken.insert((*topic, *partition)) {
                            kept.push((*topic, *partition));
                        }
                    }
                }
                kept
            })
            .collect()
    }
}
