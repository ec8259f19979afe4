//! The members of a group, with what is counted over all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::JoinRequest;
use crate::groups::Token;

/// What one member takes besides its strings and bytes: the structs, and its places in the maps.
const MEMBER_OVERHEAD_BYTES: usize = 512;

/// What one protocol of a member takes besides its name and metadata.
const PROTOCOL_OVERHEAD_BYTES: usize = 64;

/// A request of a member that is not answered yet. Without a token nobody reads the reply, but the member counts as waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) token: Option<Token>,
}

impl Wait {
    pub(super) const fn of(token: Token) -> Self {
        Self { token: Some(token) }
    }
}

/// The protocols of a member, the one it likes best first, no name twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Protocols(Vec<(Arc<str>, Bytes)>);

impl Protocols {
    /// Takes the protocols of a request. Of two with one name the first counts. The bytes are copied: they live longer
    /// than the request, whose buffer they would hold.
    pub(super) fn of_request(protocols: &[(Arc<str>, Bytes)]) -> Self {
        let mut seen = BTreeSet::new();
        Self(
            protocols
                .iter()
                .filter(|(name, _)| seen.insert(Arc::clone(name)))
                .map(|(name, metadata)| (Arc::clone(name), Bytes::copy_from_slice(metadata)))
                .collect(),
        )
    }

    pub(super) fn only(name: Arc<str>, metadata: Bytes) -> Self {
        Self(vec![(name, metadata)])
    }

    pub(super) fn to_vec(&self) -> Vec<(Arc<str>, Bytes)> {
        self.0.clone()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|(name, _)| name)
    }

    pub(super) fn metadata(&self, protocol: &str) -> Option<&Bytes> {
        self.0.iter().find(|(name, _)| &**name == protocol).map(|(_, metadata)| metadata)
    }

    fn bytes(&self) -> usize {
        self.said_bytes() + self.0.len() * PROTOCOL_OVERHEAD_BYTES
    }

    pub(super) fn said_bytes(&self) -> usize {
        self.0.iter().map(|(name, metadata)| name.len() + metadata.len()).sum()
    }
}

/// What a static member brings anew when it comes back, and what its predecessor had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) member_id: Arc<str>,
    pub(super) client_id: Arc<str>,
    pub(super) client_host: Arc<str>,
    pub(super) session_timeout: Duration,
    pub(super) rebalance_timeout: Duration,
    pub(super) protocols: Protocols,
}

impl Identity {
    pub(super) fn of_request(request: &JoinRequest, member_id: Arc<str>) -> Self {
        Self {
            member_id,
            client_id: Arc::clone(&request.client_id),
            client_host: Arc::clone(&request.client_host),
            session_timeout: request.session_timeout,
            rebalance_timeout: request.rebalance_timeout,
            protocols: Protocols::of_request(&request.protocols),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.member_id.len() + self.client_id.len() + self.client_host.len() + self.protocols.bytes()
    }
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) identity: Identity,
    pub(super) instance_id: Option<Arc<str>>,
    pub(super) assignment: Bytes,
    /// Whether it has not been in a generation yet. Such a member is dropped after a while even though it waits: its client
    /// cannot send a heartbeat, and may have gone and come again under another id.
    pub(super) is_new: bool,
    pub(super) awaits_join: Option<Wait>,
    pub(super) awaits_sync: Option<Wait>,
}

impl Member {
    pub(super) const fn id(&self) -> &Arc<str> {
        &self.identity.member_id
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.awaits_join.is_some() || self.awaits_sync.is_some()
    }

    pub(super) fn metadata(&self, protocol: Option<&str>) -> Bytes {
        protocol.and_then(|protocol| self.identity.protocols.metadata(protocol)).cloned().unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> usize {
        let instance_id = self.instance_id.as_ref().map_or(0, |instance_id| instance_id.len());
        MEMBER_OVERHEAD_BYTES + self.identity.bytes() + instance_id + self.assignment.len()
    }
}

/// All members. Every change goes through here, so that the counts are true.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    by_id: BTreeMap<Arc<str>, Member>,
    /// Instance id to member id.
    by_instance: BTreeMap<Arc<str>, Arc<str>>,
    /// How many members speak a protocol.
    speakers: BTreeMap<Arc<str>, usize>,
    awaiting_join: usize,
    bytes: usize,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn contains(&self, member_id: &str) -> bool {
        self.by_id.contains_key(member_id)
    }

    pub(super) fn get(&self, member_id: &str) -> Option<&Member> {
        self.by_id.get(member_id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_id.values()
    }

    pub(super) fn ids(&self) -> Vec<Arc<str>> {
        self.by_id.keys().cloned().collect()
    }

    /// The member that holds an instance id.
    pub(super) fn holder(&self, instance_id: &str) -> Option<&Arc<str>> {
        self.by_instance.get(instance_id)
    }

    pub(super) const fn awaiting_join(&self) -> usize {
        self.awaiting_join
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether every member speaks `protocol`.
    pub(super) fn all_speak(&self, protocol: &str) -> bool {
        self.speakers.get(protocol).copied().unwrap_or(0) == self.len()
    }

    /// The longest that a member wants to be waited for.
    pub(super) fn rebalance_timeout(&self) -> Duration {
        self.iter().map(|member| member.identity.rebalance_timeout).max().unwrap_or_default()
    }

    /// Puts in a member.
    ///
    /// # Panics
    ///
    /// When its id or its instance id is taken.
    pub(super) fn insert(&mut self, member: Member) {
        let member_id = Arc::clone(member.id());
        if let Some(instance_id) = &member.instance_id {
            let taken = self.by_instance.insert(Arc::clone(instance_id), Arc::clone(&member_id));
            assert!(taken.is_none(), "instance id {instance_id} has one holder: {taken:?}");
        }
        for protocol in member.identity.protocols.names() {
            *self.speakers.entry(Arc::clone(protocol)).or_default() += 1;
        }
        self.awaiting_join += usize::from(member.awaits_join.is_some());
        self.bytes += member.bytes();
        let taken = self.by_id.insert(Arc::clone(&member_id), member);
        assert!(taken.is_none(), "member id {member_id} is in the group once");
    }

    /// Takes out a member.
    pub(super) fn remove(&mut self, member_id: &str) -> Option<Member> {
        let member = self.by_id.remove(member_id)?;
        if let Some(instance_id) = &member.instance_id {
            self.by_instance.remove(instance_id);
        }
        for protocol in member.identity.protocols.names() {
            if let Some(count) = self.speakers.get_mut(protocol) {
                *count -= 1;
                if *count == 0 {
                    self.speakers.remove(protocol);
                }
            }
        }
        self.awaiting_join -= usize::from(member.awaits_join.is_some());
        self.bytes -= member.bytes();
        Some(member)
    }

    /// Changes a member; `None` when there is no such.
    pub(super) fn change<R>(&mut self, member_id: &str, change: impl FnOnce(&mut Member) -> R) -> Option<R> {
        let mut member = self.remove(member_id)?;
        let result = change(&mut member);
        self.insert(member);
        Some(result)
    }

    /// Leaves the waiting of `token` in place, with nobody to read the reply.
    pub(super) fn forget(&mut self, token: Token) {
        let wanted = Some(Wait::of(token));
        for member in self.by_id.values_mut() {
            for wait in [&mut member.awaits_join, &mut member.awaits_sync] {
                if *wait == wanted {
                    *wait = Some(Wait { token: None });
                    return;
                }
            }
        }
    }

    /// Chooses the protocol of the next generation: of those that all speak, the one most members like best. Where votes are
    /// equal, the leader's taste decides. `None` when there are no members, or nothing that all speak.
    pub(super) fn elect_protocol(&self, leader: Option<&str>) -> Option<Arc<str>> {
        let favourite = |member: &Member| {
            member.identity.protocols.names().find(|protocol| self.all_speak(protocol)).cloned()
        };
        let mut votes: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for protocol in self.iter().filter_map(favourite) {
            *votes.entry(protocol).or_default() += 1;
        }
        let most = votes.values().copied().max()?;
        votes.retain(|_, count| *count == most);
        let judge = leader.and_then(|leader| self.get(leader));
        let by_taste = judge
            .and_then(|judge| judge.identity.protocols.names().find(|protocol| votes.contains_key(*protocol)))
            .cloned();
        by_taste.or_else(|| votes.into_keys().next())
    }

    /// [`Self::bytes`], counted anew.
    #[cfg(test)]
    pub(super) fn bytes_counted(&self) -> usize {
        self.iter().map(Member::bytes).sum()
    }
}
