//! Room for what members say of themselves. It is kept until their sessions end, for half an hour at most, and nothing else
//! bounds how many members there are.

use tidelog_core::groups::{ENTRY_OVERHEAD_BYTES, classic::JoinRequest, consumer::Heartbeat};
use tidelog_runtime::{Budget, Permit};
use tidelog_types::{
    ByteSize,
    limits::{GROUP_LARGE_MEMBERS_BYTES_MAX, GROUP_MEMBERS_BYTES_MAX, GROUP_ORDINARY_MEMBER_BYTES_MAX},
};

/// The memory of all members of all groups here. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct MembersRoom {
    all: Budget,
    /// What groups take beyond what as many ordinary members would.
    large: Budget,
}

/// What one group takes of it.
#[derive(Debug)]
pub(super) struct Held {
    all: Permit,
    large: Permit,
}

impl MembersRoom {
    pub(super) fn new() -> Self {
        let budget = |name, bytes| Budget::new(name, ByteSize::bytes(bytes));
        Self {
            all: budget("members of groups", GROUP_MEMBERS_BYTES_MAX),
            large: budget("large members of groups", GROUP_LARGE_MEMBERS_BYTES_MAX),
        }
    }

    /// Bytes that are taken now.
    pub(super) fn used(&self) -> u64 {
        self.all.used()
    }

    /// Whether what takes `had` bytes now may take `bytes`, where `ordinary` would be usual. What does not grow always may.
    pub(super) fn admits(&self, had: u64, bytes: u64, ordinary: u64) -> bool {
        let more = bytes.saturating_sub(had);
        let fits = |budget: &Budget| budget.used().saturating_add(more) <= budget.capacity();
        more == 0 || (fits(&self.all) && (bytes <= ordinary || fits(&self.large)))
    }

    /// Counts a group that has so many members and takes so many bytes from now on.
    pub(super) fn count(&self, held: &mut Option<Held>, members: usize, bytes: usize) {
        let held = held.get_or_insert_with(|| Held { all: self.all.charge(0), large: self.large.charge(0) });
        let bytes = bytes as u64;
        held.all.resize_to(bytes);
        held.large.resize_to(bytes.saturating_sub(ordinary(members.max(1))));
    }
}

/// What so many ordinary members say at most.
pub(super) const fn ordinary(members: usize) -> u64 {
    (members as u64).saturating_mul(GROUP_ORDINARY_MEMBER_BYTES_MAX)
}

/// What a JoinGroup says, about.
pub(super) fn of_join(request: &JoinRequest) -> u64 {
    let protocols = request.protocols.iter();
    let protocols: usize =
        protocols.map(|(name, metadata)| name.len() + metadata.len() + ENTRY_OVERHEAD_BYTES).sum();
    (protocols + request.client_id.len() + request.instance_id.as_ref().map_or(0, |id| id.len())) as u64
}

/// What a ConsumerGroupHeartbeat says, about.
pub(super) fn of_heartbeat(request: &Heartbeat) -> u64 {
    let topics = request.subscribed_topics.iter().flatten();
    let topics: usize = topics.map(|topic| topic.len() + ENTRY_OVERHEAD_BYTES).sum();
    let texts =
        [&request.instance_id, &request.rack_id, &request.subscribed_pattern, &request.server_assignor];
    let texts: usize = texts.into_iter().flatten().map(|text| text.len()).sum();
    (topics + texts + request.member_id.len() + request.client_id.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_members_leave_room_for_ordinary_ones_and_what_does_not_grow_stays() {
        const MIB: usize = 1 << 20;
        let room = MembersRoom::new();
        let (mut one, mut others) = (None, None);
        assert!(room.admits(0, 1 << 20, ordinary(1)));
        room.count(&mut one, 1, 128 * MIB + 16 * 1024);
        assert!(!room.admits(0, 16 * 1024 + 1, ordinary(1)), "another large one");
        assert!(room.admits(0, 16 * 1024, ordinary(1)));
        assert!(room.admits(1 << 20, 1 << 20, ordinary(1)), "the same large one");
        // Ordinary ones take nothing of what large ones have.
        room.count(&mut others, 100_000, 120 * MIB);
        assert!(!room.admits(0, 8 << 20, ordinary(1_000)), "there is no room at all");
        assert!(room.admits(100, 100, ordinary(1)) && !room.admits(100, 8 << 20, ordinary(1)));
        drop(one);
        assert!(room.admits(0, 1 << 20, ordinary(1)));
        drop(others);
        assert_eq!(room.used(), 0);
    }
}
