//! Which members are near which partitions.
//!
//! A member is near a partition when one of its replicas is in the member's rack (KIP-881). Nearness only chooses among
//! assignments that are as good otherwise: neither balance nor what members have gives way to it.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_types::TopicId;

use super::GroupSpec;

/// The racks of a group, where they make a difference.
pub(super) struct Racks<'a> {
    group: &'a GroupSpec<'a>,
}

impl<'a> Racks<'a> {
    /// None where no racks are known, and where all partitions are in the same ones: then there is nothing to choose.
    pub(super) fn of(group: &'a GroupSpec<'a>) -> Option<Self> {
        let mut racks = group.topics.values().flat_map(|spec| &spec.racks);
        let first = racks.next()?;
        (!racks.all(|racks| racks == first)).then_some(Self { group })
    }

    /// Whether a member is near a partition.
    pub(super) fn near(&self, member: usize, topic: TopicId, partition: usize) -> bool {
        let racks: Option<&BTreeSet<Arc<str>>> =
            self.group.topics.get(&topic).and_then(|spec| spec.racks.get(partition));
        self.group.members[member].rack_id.zip(racks).is_some_and(|(rack, racks)| racks.contains(rack))
    }
}
