//! Groups of the consumer protocol (KIP-848): what is asked of them, and what follows from it.
//!
//! Their machine is ahead of the log: it applies a change at once and says which records it is. They are queued under the same
//! lock, so that the log has them in the order in which they happened, and whoever is told of them waits until they are durable.
//! Where a write fails the shard is loaded anew from what the log has.

use std::sync::Arc;

use tidelog_core::{
    cluster::MetadataImage,
    groups::{
        GroupError, Now,
        classic::{Effects, JoinRequest, Joined, LeavingMember, SyncRequest, Synced},
        consumer::{
            CommitPermit, ConsumerGroup, ConsumerRecord, DescribedGroup, Heartbeat, HeartbeatAnswer,
            HeartbeatRefused, LEAVE_FOR_GOOD,
        },
    },
};
use tidelog_wire::ErrorCode;
use tokio::sync::oneshot;

use super::{
    GroupSettings, Shard,
    group::{Group, Kind, Members, name},
    records,
    requests::Commit,
    shard::{News, State},
    topics::Topics,
    write::{Answer, Entry, Then, Write},
    writer::now,
};
use crate::{error_code, node::Node};

/// A change that a machine has made.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// What it is in the log.
    pub(super) records: Vec<ConsumerRecord>,
    /// Records that come first: the end of the classic group that was taken over.
    pub(super) before: Vec<Entry>,
    /// Replies to those who waited for the classic group.
    pub(super) effects: Effects,
    /// A member is gone: those that are left may all speak the classic protocol.
    pub(super) lost_a_member: bool,
    /// A member came in another's place, with the same consequence.
    pub(super) replaced_a_member: bool,
    /// Who waits until it is durable.
    pub(super) answer: Option<Answer>,
}

/// Why a heartbeat is refused, with a text for people.
pub(crate) type Refused = (ErrorCode, Option<String>);

fn refused(refused: HeartbeatRefused) -> Refused {
    (error_code::group(&refused.error), Some(refused.reason))
}

impl State {
    /// Queues what a machine has changed, and makes a classic group of it where all its members are classic.
    pub(super) fn changed(
        &mut self,
        name: &Arc<str>,
        now: Now,
        settings: &GroupSettings,
        image: &MetadataImage,
        change: Change,
    ) -> News {
        let Change { records: made, before, mut effects, lost_a_member, replaced_a_member, answer } = change;
        let mut entries = before;
        entries.extend(entries_of(name, &made));
        let Some(group) = self.groups.get_mut(name) else { return News::default() };
        if lost_a_member || replaced_a_member {
            entries.extend(downgrade(name, group, now, settings, image, lost_a_member, &mut effects));
        }
        group.recorded |= !entries.is_empty();
        let mut news = News::default();
        // What is told may be of a change that is on its way.
        if !entries.is_empty() || (answer.is_some() && group.writes > 0) {
            let then = Then::Told { answer };
            self.push_applied(Write { group: Arc::clone(name), entries, then });
            news.written = true;
        } else if let Some(answer) = answer {
            // The client may be gone.
            let _ = answer.send(Ok(()));
        }
        news |= self.settle(name, now, effects);
        news
    }
}

/// Every text in them came in by the same encoding and fits it.
fn entries_of(name: &str, made: &[ConsumerRecord]) -> Vec<Entry> {
    records::consumer(name, made).unwrap_or_else(|code| {
        tracing::error!(group = name, %code, "a change of a group has no record");
        Vec::new()
    })
}

fn downgrade(
    name: &str,
    group: &mut Group,
    now: Now,
    settings: &GroupSettings,
    image: &MetadataImage,
    rebalance: bool,
    effects: &mut Effects,
) -> Vec<Entry> {
    let Members::Consumer(members) = &mut group.members else { return Vec::new() };
    if members.is_empty() {
        return Vec::new();
    }
    let (rules, policy) = (&settings.rules, settings.migration);
    let Some(downgraded) = members.downgrade(now, rules, policy, &Topics(image), rebalance, effects) else {
        return Vec::new();
    };
    tracing::info!(group = name, "group goes back to the classic protocol");
    let mut entries = entries_of(name, &downgraded.tombstones);
    entries.extend(records::group(name, &downgraded.stored));
    group.members = Members::Classic(downgraded.group);
    entries
}

impl Shard {
    /// Handles one heartbeat of a member of the consumer protocol, and waits until what it is told is durable.
    ///
    /// # Errors
    /// Kafka's code and a text.
    pub(crate) async fn consumer_heartbeat(
        &self,
        node: &Node,
        group: &str,
        request: Heartbeat,
    ) -> Result<HeartbeatAnswer, Refused> {
        let (group, now) = (name(group), now(node));
        let (settings, image) = (node.groups.settings(), node.image());
        request.check(&settings.consumer).map_err(refused)?;
        let (answer, receiver) = {
            let mut state = self.serving().map_err(|code| (code, None))?;
            if !state.has_room() {
                return Err((ErrorCode::CoordinatorNotAvailable, None));
            }
            let (heartbeated, change) = beat(&mut state, &group, now, &settings, &image, &request)?;
            if !heartbeated.records.is_empty() {
                node.groups.metrics.rebalances.inc();
            }
            let (sender, receiver) = oneshot::channel();
            let change = Change { records: heartbeated.records, answer: Some(sender), ..change };
            let news = state.changed(&group, now, &settings, &image, change);
            drop(state);
            self.wake(news);
            (heartbeated.answer, receiver)
        };
        self.durable(node, receiver).await.map_err(|code| (code, None))?;
        Ok(answer)
    }

    /// Joins a classic member to a group of the consumer protocol. `None`: the group is empty, and another may take its place.
    ///
    /// # Errors
    /// Kafka's code, and the member id to go on with.
    pub(super) async fn classic_join(
        &self,
        node: &Node,
        group: &Arc<str>,
        request: &JoinRequest,
    ) -> Result<Option<Joined>, (ErrorCode, Arc<str>)> {
        let now = now(node);
        let (settings, image) = (node.groups.settings(), node.image());
        let plain = |code| (code, Arc::clone(&request.member_id));
        let (joined, receiver) = {
            let mut state = self.serving().map_err(plain)?;
            if !state.has_room() {
                return Err(plain(ErrorCode::CoordinatorNotAvailable));
            }
            let Some(Group { members: Members::Consumer(members), .. }) =
                state.group(group).map_err(plain)?
            else {
                return Ok(None);
            };
            if members.is_empty() {
                self.make_room_for_a_classic_group(&mut state, group, now);
                return Ok(None);
            }
            let (rules, classic, policy) = (&settings.consumer, &settings.rules, settings.migration);
            let joined = members
                .classic_join(now, rules, classic, policy, &Topics(&image), request)
                .map_err(|refused| (error_code::group(&refused.error), refused.member_id))?;
            let (sender, receiver) = oneshot::channel();
            let change = Change {
                records: joined.records,
                replaced_a_member: joined.replaced,
                answer: Some(sender),
                ..Change::default()
            };
            let news = state.changed(group, now, &settings, &image, change);
            drop(state);
            self.wake(news);
            (joined.joined, receiver)
        };
        self.durable(node, receiver).await.map_err(plain)?;
        Ok(Some(joined))
    }

    /// Ends an empty group of the consumer protocol in the log; its offsets stay, and a classic group has its name.
    fn make_room_for_a_classic_group(&self, state: &mut State, group: &Arc<str>, now: Now) {
        let entries = state.end_members(group);
        if let Some(found) = state.groups.get_mut(group) {
            found.members = Members::Classic(tidelog_core::groups::classic::ClassicGroup::new(now));
            found.recorded = false;
        }
        state.push_applied(Write { group: Arc::clone(group), entries, then: Then::Told { answer: None } });
        self.work.notify_one();
    }

    /// Tells a classic member of a group of the consumer protocol what it has. `None`: the group is a classic one.
    ///
    /// # Errors
    /// Kafka's code.
    pub(super) async fn classic_sync(
        &self,
        node: &Node,
        group: &Arc<str>,
        request: &SyncRequest,
    ) -> Result<Option<Synced>, ErrorCode> {
        let now = now(node);
        let (settings, image) = (node.groups.settings(), node.image());
        let (synced, receiver) = {
            let mut state = self.serving()?;
            let Some(Group { members: Members::Consumer(members), .. }) = state.group(group)? else {
                return Ok(None);
            };
            let synced = members
                .classic_sync(now, &Topics(&image), request)
                .map_err(|error| error_code::group(&error))?;
            let (sender, receiver) = oneshot::channel();
            let change = Change { answer: Some(sender), ..Change::default() };
            let news = state.changed(group, now, &settings, &image, change);
            drop(state);
            self.wake(news);
            (synced, receiver)
        };
        self.durable(node, receiver).await?;
        Ok(Some(synced))
    }

    /// Has classic members leave a group of the consumer protocol. `None`: the group is a classic one.
    ///
    /// # Errors
    /// Kafka's code for the whole request.
    pub(super) async fn classic_leave(
        &self,
        node: &Node,
        group: &Arc<str>,
        members: &[(Arc<str>, Option<Arc<str>>)],
    ) -> Result<Option<Vec<Result<(), ErrorCode>>>, ErrorCode> {
        let now = now(node);
        let (settings, image) = (node.groups.settings(), node.image());
        let (left, receiver) = {
            let mut state = self.serving()?;
            let Some(Group { members: Members::Consumer(found), .. }) = state.group(group)? else {
                return Ok(None);
            };
            let (left, records) = found.classic_leave(&Topics(&image), &leaving(members));
            let (sender, receiver) = oneshot::channel();
            let lost_a_member = !records.is_empty();
            let change = Change { records, lost_a_member, answer: Some(sender), ..Change::default() };
            let news = state.changed(group, now, &settings, &image, change);
            drop(state);
            self.wake(news);
            (left, receiver)
        };
        self.durable(node, receiver).await?;
        Ok(Some(outcomes(left)))
    }

    /// A group of the consumer protocol, described. `None`: there is no such group, or it is another kind of group.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) fn describe_consumers(
        &self,
        node: &Node,
        group: &str,
    ) -> Result<Result<DescribedGroup, Option<Kind>>, ErrorCode> {
        let (settings, image) = (node.groups.settings(), node.image());
        let state = self.serving()?;
        let found = state.groups.get(group).filter(|group| !group.deleting);
        Ok(match found.map(|group| &group.members) {
            Some(Members::Consumer(members)) => Ok(members.describe(&settings.consumer, &Topics(&image))),
            Some(members @ Members::Classic(_)) => Err(Some(members.kind())),
            None => Err(None),
        })
    }
}

/// Members that leave, as a machine takes them.
pub(super) fn leaving(members: &[(Arc<str>, Option<Arc<str>>)]) -> Vec<LeavingMember<'_>> {
    members
        .iter()
        .map(|(member_id, instance_id)| LeavingMember { member_id, instance_id: instance_id.as_deref() })
        .collect()
}

/// What each is told.
pub(super) fn outcomes(left: Vec<Result<Arc<str>, GroupError>>) -> Vec<Result<(), ErrorCode>> {
    left.into_iter().map(|one| one.map(drop).map_err(|error| error_code::group(&error))).collect()
}

/// Hands a heartbeat to its group, which it makes, or takes over, where it must.
fn beat(
    state: &mut State,
    name: &Arc<str>,
    now: Now,
    settings: &GroupSettings,
    image: &MetadataImage,
    request: &Heartbeat,
) -> Result<(tidelog_core::groups::consumer::Heartbeated, Change), Refused> {
    let (rules, topics) = (&settings.consumer, Topics(image));
    let lost_a_member = request.epoch == LEAVE_FOR_GOOD;
    let change = Change { lost_a_member, ..Change::default() };
    let kind = state.group(name).map_err(|code| (code, None))?.map(|group| group.members.kind());
    let Some(group) = state.groups.get_mut(name).filter(|_| kind.is_some()) else {
        if request.epoch != 0 {
            return Err((ErrorCode::GroupIdNotFound, Some(format!("Group {name} not found."))));
        }
        let mut members = ConsumerGroup::new();
        let heartbeated = members.heartbeat(now, rules, &topics, request).map_err(refused)?;
        state.groups.insert(Arc::clone(name), Group::new(Members::Consumer(members)));
        return Ok((heartbeated, change));
    };
    match &mut group.members {
        Members::Consumer(members) => {
            let heartbeated = members.heartbeat(now, rules, &topics, request).map_err(refused)?;
            Ok((heartbeated, change))
        }
        Members::Classic(classic) => {
            let upgraded = ConsumerGroup::upgrade(classic, settings.migration, now, rules, &topics, request);
            let (members, heartbeated) = upgraded.map_err(refused)?;
            let mut effects = Effects::default();
            classic.shut(&mut effects, GroupError::RebalanceInProgress);
            tracing::info!(group = &**name, "group goes over to the consumer protocol");
            let before = if group.recorded {
                records::group_tombstone(name).into_iter().collect()
            } else {
                Vec::new()
            };
            group.members = Members::Consumer(members);
            Ok((heartbeated, Change { before, effects, ..change }))
        }
    }
}

/// Whether a member of the consumer protocol may commit what it wants to.
pub(super) fn check_commit(members: &mut ConsumerGroup, now: Now, commit: &Commit) -> Result<(), GroupError> {
    let instance_id = commit.instance_id.as_deref();
    let permit = members.check_commit(
        &commit.member_id,
        instance_id,
        commit.generation,
        false,
        commit.is_old_version,
    )?;
    if let CommitPermit::Since { .. } = &permit {
        for ((_, partition), committed) in &commit.changes {
            // The topic's id is that of the topic as it is now: every commit has one.
            let Some(topic_id) = committed.topic_id else { return Err(GroupError::StaleMemberEpoch) };
            members.check_commit_of(&permit, topic_id, *partition)?;
        }
    }
    members.classic_commits(now, &commit.member_id);
    Ok(())
}
