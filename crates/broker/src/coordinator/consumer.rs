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
            Changes, ClassicBegin, CommitPermit, ConsumerGroup, ConsumerRecord, DescribedGroup, Heartbeat,
            HeartbeatAnswer, HeartbeatRefused, LEAVE_FOR_GOOD, Resolutions,
        },
    },
};
use tidelog_types::shown;
use tidelog_wire::ErrorCode;
use tokio::sync::oneshot;

use super::{
    GroupSettings, Shard,
    group::{Group, Kind, Members, name},
    records,
    requests::Commit,
    room,
    shard::{News, State},
    topics::Topics,
    write::{Answer, Entry, Then, Write},
    writer::now,
};
use crate::{error_code, node::Node};

/// What is told where there is no memory for what a member says.
const NO_ROOM: &str = "There is no room for what the member says of itself now.";

/// What is told where a change cannot be stored.
const TOO_LARGE: &str = "The change is larger than one batch of __consumer_offsets may be.";

/// A change that a machine has made.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// What it is in the log, and how it is taken back.
    pub(super) changes: Changes,
    /// The group that takes the place of a classic one; all of it is in `changes`.
    pub(super) takes_over: Option<ConsumerGroup>,
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
    ///
    /// # Errors
    /// `UNKNOWN_SERVER_ERROR`, Kafka's code for it: the records of the change are more than one batch may hold.
    /// `COORDINATOR_NOT_AVAILABLE`: the disk has no space for them. The group is what it was.
    pub(super) fn changed(
        &mut self,
        name: &Arc<str>,
        now: Now,
        settings: &GroupSettings,
        image: &MetadataImage,
        change: Change,
    ) -> Result<News, ErrorCode> {
        let Change { changes, takes_over, lost_a_member, replaced_a_member, answer } = change;
        if !changes.is_empty() && !self.has_space() {
            self.take_back(name, now, settings, &changes, takes_over.is_some());
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let Some(group) = self.groups.get(name) else { return Ok(News::default()) };
        let end = (takes_over.is_some() && group.recorded).then(|| records::group_tombstone(name));
        let entries = end.into_iter().chain(entries_of(name, changes.records())).collect();
        let mut entries: Vec<Entry> = match entries {
            Ok(entries) if self.fits(&entries) => entries,
            Ok(_) | Err(_) => {
                self.take_back(name, now, settings, &changes, takes_over.is_some());
                return Err(ErrorCode::UnknownServerError);
            }
        };
        let mut effects = Effects { gone: changes.gone().to_vec(), ..Effects::default() };
        self.take_over(name, takes_over, &mut effects);
        if lost_a_member || replaced_a_member {
            let how = (lost_a_member, changes.raise_the_epoch());
            self.downgrade(name, now, settings, image, how, (&mut entries, &mut effects));
        }
        let Some(group) = self.groups.get_mut(name) else { return Ok(News::default()) };
        let has_changed = !entries.is_empty();
        group.recorded |= has_changed;
        let mut news = News::default();
        // What is told may be of a change that is on its way.
        if has_changed || (answer.is_some() && group.writes > 0) {
            let then = Then::Told { answer };
            self.push_applied(Write { group: Arc::clone(name), entries, then });
            news.written = true;
        } else if let Some(answer) = answer {
            // The client may be gone.
            let _ = answer.send(Ok(()));
        }
        if has_changed {
            self.recount(name);
        }
        news |= self.settle(name, now, effects);
        Ok(news)
    }

    /// Undoes what cannot be stored.
    fn take_back(
        &mut self,
        name: &Arc<str>,
        now: Now,
        settings: &GroupSettings,
        changes: &Changes,
        took_over: bool,
    ) {
        if let Some(Group { members: Members::Consumer(members), .. }) = self.groups.get_mut(name)
            && !took_over
        {
            members.undo(changes, now, &settings.consumer(name));
        }
        if self.groups.get(name).is_some_and(Group::is_nothing) {
            self.remove(name);
        } else {
            self.schedule(name);
        }
    }

    /// Puts the group that its members go over to in the place of a classic one.
    fn take_over(&mut self, name: &Arc<str>, by: Option<ConsumerGroup>, effects: &mut Effects) {
        let Some((by, group)) = by.zip(self.groups.get_mut(name)) else { return };
        if let Members::Classic(classic) = &mut group.members {
            classic.shut(effects, GroupError::RebalanceInProgress);
        }
        tracing::info!(group = &**name, "group goes over to the consumer protocol");
        group.members = Members::Consumer(by);
    }

    /// Makes a classic group of one whose members are all classic, where a record can hold it.
    fn downgrade(
        &mut self,
        name: &Arc<str>,
        now: Now,
        settings: &GroupSettings,
        image: &MetadataImage,
        (rebalance, raised): (bool, bool),
        (entries, effects): (&mut Vec<Entry>, &mut Effects),
    ) {
        let Some(Group { members: Members::Consumer(members), .. }) = self.groups.get(name) else { return };
        let Some(bytes_min) = members.classic_bytes_min().filter(|_| !members.is_empty()) else { return };
        // Looked at first: making the group costs more than what was asked for.
        let too_large = |state: &Self| {
            if let Some(suppressed) = state.lines.pass("group too large for the classic protocol") {
                let group = shown(name);
                tracing::warn!(suppressed, group, "group is too large for a record of the classic protocol");
            }
        };
        if bytes_min > self.batch_bytes_max() {
            return too_large(self);
        }
        let (rules, policy, mut own) = (&settings.rules, settings.migration, Effects::default());
        let begin = ClassicBegin { generation: members.epoch() - i32::from(raised), rebalance };
        let Some(made) = members.downgrade(now, rules, policy, &Topics(image), begin, &mut own) else {
            return;
        };
        let more = entries_of(name, &made.tombstones).chain([records::group(name, &made.stored)]);
        let Ok(more) = more.collect::<Result<Vec<_>, _>>() else { return };
        if !self.fits(entries.iter().chain(&more)) {
            // Its members are served where they are.
            return too_large(self);
        }
        tracing::info!(group = &**name, "group goes back to the classic protocol");
        entries.extend(more);
        effects.replies.extend(own.replies);
        effects.store = own.store;
        if let Some(group) = self.groups.get_mut(name) {
            group.members = Members::Classic(made.group);
        }
    }
}

fn entries_of(name: &str, made: &[ConsumerRecord]) -> impl Iterator<Item = Result<Entry, ErrorCode>> {
    made.iter().map(move |record| records::consumer(name, record))
}

impl Shard {
    /// Handles one heartbeat of a member of the consumer protocol, and waits until what it is told is durable.
    ///
    /// # Errors
    /// Kafka's code and a text.
    pub(crate) async fn consumer_heartbeat(
        self: &Arc<Self>,
        node: &Arc<Node>,
        group: &str,
        request: Heartbeat,
    ) -> Result<HeartbeatAnswer, Refused> {
        let group = name(group);
        let settings = node.groups.settings();
        request.check(&settings.consumer(&group)).map_err(refused)?;
        let (resolutions, turn) = self.resolutions(node, &group, &request).await?;
        let (now, image) = (now(node), node.image());
        let (answer, receiver) = {
            let mut state = self.serving().map_err(|code| (code, None))?;
            if !state.has_room() {
                return Err((ErrorCode::CoordinatorNotAvailable, None));
            }
            let member = (&*request.member_id, request.instance_id.as_deref());
            // Who leaves takes nothing.
            if request.epoch >= 0 && !state.admits(&group, member, room::of_heartbeat(&request)) {
                node.groups.no_room(node, &group);
                return Err((ErrorCode::CoordinatorNotAvailable, Some(NO_ROOM.to_owned())));
            }
            let surroundings = (&*settings, &*image, &resolutions);
            let beat = |state: &mut State| beat(state, &group, now, surroundings, &request);
            let tried = handed_on(node, &mut state, &group, now, (&settings, &image), beat)?;
            let HandedOn { answer, receiver, news } = tried.map_err(|code| {
                (code, (code == ErrorCode::UnknownServerError).then(|| TOO_LARGE.to_owned()))
            })?;
            drop(state);
            self.wake(news);
            (answer, receiver)
        };
        drop(turn);
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
            let member = (&*request.member_id, request.instance_id.as_deref());
            let has_room = state.admits(group, member, room::of_join(request));
            let Some(Group { members: Members::Consumer(members), .. }) =
                state.group(group).map_err(plain)?
            else {
                return Ok(None);
            };
            if !has_room {
                node.groups.no_room(node, group);
                return Err(plain(ErrorCode::CoordinatorNotAvailable));
            }
            if members.is_empty() {
                self.make_room_for_a_classic_group(&mut state, group, now);
                return Ok(None);
            }
            let join = |state: &mut State| join(state, group, now, (&settings, &image), request);
            let tried = handed_on(node, &mut state, group, now, (&settings, &image), join)?;
            let HandedOn { answer: joined, receiver, news } = tried.map_err(plain)?;
            drop(state);
            self.wake(news);
            (joined, receiver)
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
            let has_room = state.has_room();
            let Some(Group { members: Members::Consumer(members), .. }) = state.group(group)? else {
                return Ok(None);
            };
            if !has_room {
                return Err(ErrorCode::CoordinatorNotAvailable);
            }
            let synced = members
                .classic_sync(now, &Topics(&image), request)
                .map_err(|error| error_code::group(&error))?;
            let (sender, receiver) = oneshot::channel();
            let change = Change { answer: Some(sender), ..Change::default() };
            let news = state.changed(group, now, &settings, &image, change)?;
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
            let has_room = state.has_room();
            let Some(Group { members: Members::Consumer(found), .. }) = state.group(group)? else {
                return Ok(None);
            };
            if !has_room {
                return Err(ErrorCode::CoordinatorNotAvailable);
            }
            let (left, changes) = found.classic_leave(&Topics(&image), &leaving(members));
            let (sender, receiver) = oneshot::channel();
            let lost_a_member = !changes.is_empty();
            let change = Change { changes, lost_a_member, answer: Some(sender), ..Change::default() };
            let changed = state.changed(group, now, &settings, &image, change);
            let news = changed.inspect_err(|code| node.groups.taken_back(node, group, *code))?;
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
            Some(Members::Consumer(members)) => {
                Ok(members.describe(&settings.consumer(group), &Topics(&image)))
            }
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

/// Hands a heartbeat to its group, which it makes, or has taken over, where it must.
fn beat(
    state: &mut State,
    name: &Arc<str>,
    now: Now,
    (settings, image, resolutions): (&GroupSettings, &MetadataImage, &Resolutions),
    request: &Heartbeat,
) -> Result<(HeartbeatAnswer, Change), Refused> {
    let (rules, topics) = (settings.consumer(name), Topics(image));
    let rules = &*rules;
    let lost_a_member = request.epoch == LEAVE_FOR_GOOD;
    let change = |changes| Change { changes, lost_a_member, ..Change::default() };
    let kind = state.group(name).map_err(|code| (code, None))?.map(|group| group.members.kind());
    let batch_bytes_max = state.batch_bytes_max();
    let Some(group) = state.groups.get_mut(name).filter(|_| kind.is_some()) else {
        if request.epoch != 0 {
            return Err((ErrorCode::GroupIdNotFound, Some(format!("Group {} not found.", shown(name)))));
        }
        let mut members = ConsumerGroup::new();
        let beat = members.heartbeat(now, rules, &topics, resolutions, request).map_err(refused)?;
        state.groups.insert(Arc::clone(name), Group::new(Members::Consumer(members)));
        return Ok((beat.answer, change(beat.changes)));
    };
    match &mut group.members {
        Members::Consumer(members) => {
            let beat = members.heartbeat(now, rules, &topics, resolutions, request).map_err(refused)?;
            Ok((beat.answer, change(beat.changes)))
        }
        Members::Classic(classic) => {
            // Looked at first: reading all that its members said costs more than what was asked for.
            let policy = settings.migration;
            let may_go_over =
                request.epoch == 0 && policy.allows_upgrade() && classic.uses_consumer_protocol();
            if may_go_over && classic.said_bytes() > batch_bytes_max {
                return Err((ErrorCode::UnknownServerError, Some(TOO_LARGE.to_owned())));
            }
            let upgraded = ConsumerGroup::upgrade(classic, policy, now, rules, &topics, resolutions, request);
            let (members, beat) = upgraded.map_err(refused)?;
            Ok((beat.answer, Change { takes_over: Some(members), ..change(beat.changes) }))
        }
    }
}

/// Hands a JoinGroup to a group of the consumer protocol.
fn join(
    state: &mut State,
    name: &Arc<str>,
    now: Now,
    (settings, image): (&GroupSettings, &MetadataImage),
    request: &JoinRequest,
) -> Result<(Joined, Change), (ErrorCode, Arc<str>)> {
    let Some(Group { members: Members::Consumer(members), .. }) = state.groups.get_mut(name) else {
        return Err((ErrorCode::RebalanceInProgress, Arc::clone(&request.member_id)));
    };
    let (rules, classic, policy) = (settings.consumer(name), &settings.rules, settings.migration);
    let joined = members
        .classic_join(now, &rules, classic, policy, &Topics(image), request)
        .map_err(|refused| (error_code::group(&refused.error), refused.member_id))?;
    let change = Change { changes: joined.changes, replaced_a_member: joined.replaced, ..Change::default() };
    Ok((joined.joined, change))
}

/// A change that is on its way to the log.
struct HandedOn<A> {
    /// What its member is told once it is durable.
    answer: A,
    /// Tells when it is.
    receiver: oneshot::Receiver<Result<(), ErrorCode>>,
    /// What others have to look at.
    news: News,
}

/// Has `make` change a group, and hands that on. Where it is too large with what all are to have from then on, once more: the
/// group then does without for a while, and the member goes on with what it has.
///
/// # Errors
/// What `make` says; within, the code of a change that cannot be stored: the group is what it was.
fn handed_on<A, E>(
    node: &Node,
    state: &mut State,
    name: &Arc<str>,
    now: Now,
    (settings, image): (&GroupSettings, &MetadataImage),
    mut make: impl FnMut(&mut State) -> Result<(A, Change), E>,
) -> Result<Result<HandedOn<A>, ErrorCode>, E> {
    let mut once = || {
        let (answer, change) = make(state)?;
        let has_target = change.changes.has_target();
        let (sender, receiver) = oneshot::channel();
        let change = Change { answer: Some(sender), ..change };
        let changed = state.changed(name, now, settings, image, change);
        Ok(match changed {
            Ok(news) => Ok(HandedOn { answer, receiver, news }),
            Err(code) => {
                node.groups.taken_back(node, name, code);
                Err((code, has_target && code == ErrorCode::UnknownServerError))
            }
        })
    };
    let mut tried = once()?;
    if let Err((_, true)) = tried {
        tried = once()?;
    }
    Ok(tried.map_err(|(code, _)| code))
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
