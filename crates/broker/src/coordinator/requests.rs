//! What is asked of a group, in the words of its machine: everything that the APIs do with groups.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use tidelog_core::groups::{
    Token,
    classic::{ClassicState, Effects, JoinRefused, JoinRequest, Joined, Reply, SyncRequest, Synced},
    offsets::{CommittedOffset, OffsetTable, Place, Sizes},
};
use tidelog_wire::ErrorCode;
use tokio::sync::oneshot;

use super::{
    consumer, expiry,
    group::{Group, Kind, Members, name},
    records, room,
    shard::Shard,
    timers::bounded,
    write::{Then, Write},
    writer::now,
};
use crate::{connection::Caller, error_code, node::Node};

/// A commit, as far as it can be checked without its group.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub(crate) member_id: Arc<str>,
    pub(crate) instance_id: Option<Arc<str>>,
    /// -1 or less: of a consumer without a group.
    pub(crate) generation: i32,
    /// Of a version whose clients do not know the consumer protocol, nor the error that a group does not exist.
    pub(crate) is_old_version: bool,
    pub(crate) changes: Vec<(Place, CommittedOffset)>,
}

/// A group, described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupView {
    pub(crate) id: Arc<str>,
    pub(crate) state: &'static str,
    pub(crate) protocol_type: Option<Arc<str>>,
    pub(crate) protocol: Option<Arc<str>>,
    pub(crate) members: Vec<MemberView>,
}

/// A member, described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberView {
    pub(crate) member_id: Arc<str>,
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) metadata: Bytes,
    pub(crate) assignment: Bytes,
}

/// A group in a list: its name, its kind, Kafka's word for its state, its protocol type.
pub(crate) type Listed = (Arc<str>, Kind, &'static str, Option<Arc<str>>);

/// Which partitions' offsets are to end, and what each is told.
pub(crate) type Deletions = Vec<(Place, ErrorCode)>;

impl Shard {
    /// Joins a member, and waits until its group answers.
    ///
    /// # Errors
    /// Kafka's code, and the member id to go on with.
    pub(crate) async fn join(
        &self,
        node: &Node,
        caller: &Caller,
        group: &str,
        request: JoinRequest,
    ) -> Result<Joined, (ErrorCode, Arc<str>)> {
        let (group, member_id) = (name(group), Arc::clone(&request.member_id));
        let refused = |code| (code, Arc::clone(&member_id));
        if let Some(joined) = self.classic_join(node, &group, &request).await? {
            return Ok(joined);
        }
        let now = now(node);
        let (token, receiver) = {
            let mut state = self.serving().map_err(refused)?;
            let member = (&*request.member_id, request.instance_id.as_deref());
            if !state.admits(&group, member, room::of_join(&request)) {
                node.groups.no_room(node, &group);
                return Err(refused(ErrorCode::CoordinatorNotAvailable));
            }
            // A member that has an id has a group, or had one.
            if request.member_id.is_empty() {
                state.group_or_new(&group, now).map_err(refused)?;
            } else if state.group(&group).map_err(refused)?.is_none() {
                return Err(refused(ErrorCode::UnknownMemberId));
            }
            let (token, receiver) = state.wait();
            let mut effects = Effects::default();
            if let Some(Group { members: Members::Classic(members), .. }) = state.groups.get_mut(&group) {
                members.join(now, &node.groups.settings().rules, request, token, &mut effects);
            } else {
                // It went over to the other protocol this moment.
                state.forget(&group, token);
                return Err(refused(ErrorCode::RebalanceInProgress));
            }
            state.recount(&group);
            let news = state.settle(&group, now, effects);
            drop(state);
            self.wake(news);
            (token, receiver)
        };
        match self.reply(caller, &group, token, receiver).await {
            Ok(Reply::Join(joined)) => {
                joined.map_err(|JoinRefused { error, member_id }| (error_code::group(&error), member_id))
            }
            Ok(Reply::Sync(_)) => Err(refused(ErrorCode::UnknownServerError)),
            Err(code) => Err(refused(code)),
        }
    }

    /// Hands in, or asks for, the assignment of a generation, and waits until it is there.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) async fn sync(
        &self,
        node: &Node,
        caller: &Caller,
        group: &str,
        request: SyncRequest,
    ) -> Result<Synced, ErrorCode> {
        let group = name(group);
        let now = now(node);
        if let Some(synced) = self.classic_sync(node, &group, &request).await? {
            return Ok(synced);
        }
        let (token, receiver) = {
            let mut state = self.serving()?;
            if state.group(&group)?.is_none() {
                return Err(ErrorCode::UnknownMemberId);
            }
            let bytes = request.assignments.iter().map(|(member_id, bytes)| member_id.len() + bytes.len());
            if !state.admits_assignments(&group, bytes.sum()) {
                node.groups.no_room(node, &group);
                return Err(ErrorCode::CoordinatorNotAvailable);
            }
            let (token, receiver) = state.wait();
            let mut effects = Effects::default();
            if let Some(Group { members: Members::Classic(members), .. }) = state.groups.get_mut(&group) {
                members.sync(now, request, token, &mut effects);
            } else {
                state.forget(&group, token);
                return Err(ErrorCode::RebalanceInProgress);
            }
            state.recount(&group);
            let news = state.settle(&group, now, effects);
            drop(state);
            self.wake(news);
            (token, receiver)
        };
        match self.reply(caller, &group, token, receiver).await? {
            Reply::Sync(synced) => synced.map_err(|error| error_code::group(&error)),
            Reply::Join(_) => Err(ErrorCode::UnknownServerError),
        }
    }

    /// Waits for a group's reply for as long as the connection is there.
    async fn reply(
        &self,
        caller: &Caller,
        group: &str,
        token: Token,
        receiver: oneshot::Receiver<Reply>,
    ) -> Result<Reply, ErrorCode> {
        tokio::select! {
            biased;
            reply = receiver => reply.map_err(|_| ErrorCode::NotCoordinator),
            () = caller.ended.cancelled() => {
                self.lock().forget(group, token);
                Err(ErrorCode::CoordinatorNotAvailable)
            }
        }
    }

    /// A sign of life.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) fn heartbeat(
        &self,
        node: &Node,
        group: &str,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        let mut state = self.serving()?;
        let found = state.group(group)?.ok_or(ErrorCode::UnknownMemberId)?;
        let alive = match &mut found.members {
            Members::Classic(members) => members.heartbeat(now(node), member_id, instance_id, generation),
            Members::Consumer(members) => {
                let settings = node.groups.settings();
                let rules = settings.consumer(group);
                members.classic_heartbeat(now(node), &rules, member_id, instance_id, generation)
            }
        };
        // A member that must join again has a time for it.
        let sooner = alive.is_err() && state.schedule(&name(group));
        drop(state);
        if sooner {
            self.alarm.notify_one();
        }
        alive.map_err(|error| error_code::group(&error))
    }

    /// Has members leave, each with an answer of its own.
    ///
    /// # Errors
    /// Kafka's code for the whole request.
    pub(crate) async fn leave(
        &self,
        node: &Node,
        group: &str,
        members: &[(Arc<str>, Option<Arc<str>>)],
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        let (group, now) = (name(group), now(node));
        if let Some(outcomes) = self.classic_leave(node, &group, members).await? {
            return Ok(outcomes);
        }
        let mut state = self.serving()?;
        let found = state.group(&group)?.ok_or(ErrorCode::UnknownMemberId)?;
        let Members::Classic(found) = &mut found.members else { return Err(ErrorCode::UnknownMemberId) };
        let mut effects = Effects::default();
        let outcomes = found.leave_members(now, &consumer::leaving(members), &mut effects);
        state.recount(&group);
        let news = state.settle(&group, now, effects);
        drop(state);
        self.wake(news);
        Ok(consumer::outcomes(outcomes))
    }

    /// Commits offsets, and waits until they are durable.
    ///
    /// # Errors
    /// Kafka's code for all of them. Where it is `COORDINATOR_NOT_AVAILABLE` or `NOT_COORDINATOR` they may have been committed.
    pub(crate) async fn commit(&self, node: &Node, group: &str, commit: Commit) -> Result<(), ErrorCode> {
        let (group, now) = (name(group), now(node));
        let receiver = {
            let mut state = self.serving()?;
            let found = if commit.generation < 0 {
                state.group_or_new(&group, now)?
            } else {
                state.group(&group)?.ok_or(if commit.is_old_version {
                    ErrorCode::IllegalGeneration
                } else {
                    ErrorCode::GroupIdNotFound
                })?
            };
            let (member_id, instance_id) = (&commit.member_id, commit.instance_id.as_deref());
            let checked = match &mut found.members {
                Members::Classic(members) => {
                    members.check_commit(now, member_id, instance_id, commit.generation)
                }
                Members::Consumer(members) => consumer::check_commit(members, now, &commit),
            };
            let entries = checked
                .map_err(|error| error_code::group(&error))
                .and_then(|()| records::offsets(&group, &commit.changes));
            let queued = entries.and_then(|entries| {
                let (answer, receiver) = oneshot::channel();
                let changes = commit.changes.into_iter().map(|(place, offset)| (place, Some(offset)));
                let then = Then::Offsets { changes: changes.collect(), answer: Some(answer) };
                let pushed = state.push(Write { group: Arc::clone(&group), entries, then });
                pushed.map(|()| receiver).map_err(|(code, _)| code)
            });
            match queued {
                Ok(receiver) => receiver,
                Err(code) => {
                    // A group that was made for this commit alone goes again.
                    let news = state.settle(&group, now, Effects::default());
                    drop(state);
                    self.wake(news);
                    return Err(of_a_commit(code));
                }
            }
        };
        self.work.notify_one();
        self.durable(node, receiver).await.map_err(of_a_commit)
    }

    /// Waits for a write, no longer than `offsets.commit.timeout.ms`.
    pub(super) async fn durable(
        &self,
        node: &Node,
        receiver: oneshot::Receiver<Result<(), ErrorCode>>,
    ) -> Result<(), ErrorCode> {
        let most = node.groups.settings().commit_timeout;
        match bounded(node, most, receiver).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(ErrorCode::NotCoordinator),
            // It may yet become durable: the client asks again, and commits the same.
            None => Err(ErrorCode::CoordinatorNotAvailable),
        }
    }

    /// Looks at the offsets of a group, as a member of it where one is named; those of none where there is no such group.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) fn offsets<T>(
        &self,
        group: &str,
        (member_id, epoch): (Option<&str>, i32),
        look: impl FnOnce(&OffsetTable) -> T,
    ) -> Result<T, ErrorCode> {
        let mut state = self.serving()?;
        let none = OffsetTable::default();
        let found = state.group(group)?;
        if let Some(Group { members: Members::Consumer(members), .. }) = &found {
            members.check_fetch(member_id, epoch).map_err(|error| error_code::group(&error))?;
        }
        Ok(look(found.map_or(&none, |group| &group.offsets)))
    }

    /// Ends offsets, of those that may end: the codes of the others are kept as they are. Waits until that is durable.
    ///
    /// # Errors
    /// Kafka's code for the whole request.
    pub(crate) async fn delete_offsets(
        &self,
        node: &Node,
        group: &str,
        places: BTreeSet<Place>,
    ) -> Result<Deletions, ErrorCode> {
        let group = name(group);
        let (answers, receiver) = {
            let mut state = self.serving()?;
            let found = state.group(&group)?.ok_or(ErrorCode::GroupIdNotFound)?;
            if !found.members.is_empty() && !found.members.are_consumers() {
                return Err(ErrorCode::NonEmptyGroup);
            }
            let mut ends = Vec::new();
            let mut answers = Deletions::new();
            let subscribed = found.members.subscribed();
            for place in places {
                if subscribed.as_ref().is_none_or(|topics| topics.contains(&*place.0)) {
                    answers.push((place, ErrorCode::GroupSubscribedToTopic));
                    continue;
                }
                answers.push((place.clone(), ErrorCode::None));
                ends.push(place);
            }
            let coming = state.unapplied_places(&group);
            let kept = state.groups.get(&group).map(|group| &group.offsets);
            let is_kept =
                |(topic, partition): &Place| kept.is_some_and(|kept| kept.get(topic, *partition).is_some());
            ends.retain(|place| is_kept(place) || coming.contains(place));
            if ends.is_empty() {
                return Ok(answers);
            }
            let entries = ends
                .iter()
                .map(|place| records::offset_tombstone(&group, place))
                .collect::<Result<_, _>>()?;
            let (answer, receiver) = oneshot::channel();
            let changes: Vec<_> = ends.into_iter().map(|place| (place, None)).collect();
            let count = changes.len() as u64;
            let then = Then::Offsets { changes, answer: Some(answer) };
            let pushed = state.push(Write { group: Arc::clone(&group), entries, then });
            pushed.map_err(|(code, _)| match code {
                ErrorCode::MessageTooLarge => ErrorCode::UnknownServerError,
                code => code,
            })?;
            node.groups.metrics.deleted.add(count);
            (answers, receiver)
        };
        self.work.notify_one();
        self.durable(node, receiver).await?;
        Ok(answers)
    }

    /// Deletes a group that nobody is in, with its offsets, and waits until that is durable.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) async fn delete(&self, node: &Node, group: &str) -> Result<(), ErrorCode> {
        let group = name(group);
        let receiver = {
            let mut state = self.serving()?;
            let found = state.groups.get(&group).filter(|group| !group.deleting);
            let found = found.ok_or(ErrorCode::GroupIdNotFound)?;
            if !found.members.is_empty() {
                return Err(ErrorCode::NonEmptyGroup);
            }
            let count = found.offsets.len() as u64;
            let (answer, receiver) = oneshot::channel();
            if expiry::delete_group(&mut state, &group, Some(answer)) {
                node.groups.metrics.deleted.add(count);
            }
            receiver
        };
        self.work.notify_one();
        self.durable(node, receiver).await
    }

    /// A classic group, described. The error within is that there is none, or another kind of group of that name.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) fn describe(&self, group: &str) -> Result<Result<GroupView, Option<Kind>>, ErrorCode> {
        let state = self.serving()?;
        let found = state.groups.get_key_value(group).filter(|(_, group)| !group.deleting);
        let Some((id, group)) = found else { return Ok(Err(None)) };
        let Members::Classic(classic) = &group.members else { return Ok(Err(Some(group.members.kind()))) };
        let members = classic.members().map(|member| MemberView {
            member_id: member.member_id,
            instance_id: member.instance_id,
            client_id: member.client_id,
            client_host: member.client_host,
            metadata: member.metadata,
            assignment: member.assignment,
        });
        Ok(Ok(GroupView {
            id: Arc::clone(id),
            state: classic.state().as_str(),
            protocol_type: classic.protocol_type().cloned(),
            // What a group agrees on while it forms is nobody's yet.
            protocol: classic.protocol().filter(|_| classic.state() == ClassicState::Stable).cloned(),
            members: members.collect(),
        }))
    }

    /// All groups: name, kind, state, protocol type.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, ErrorCode> {
        let state = self.serving()?;
        let listed = state.groups.iter().filter(|(_, group)| !group.deleting);
        Ok(listed
            .map(|(id, group)| {
                let members = &group.members;
                (Arc::clone(id), members.kind(), members.state(), members.protocol_type())
            })
            .collect())
    }

    /// About how many bytes a group of this kind is described by; 0 where there is none.
    pub(crate) fn described_bytes(&self, group: &str, kind: Kind) -> usize {
        let Ok(state) = self.serving() else { return 0 };
        match state.groups.get(group).map(|group| &group.members).filter(|members| members.kind() == kind) {
            Some(Members::Classic(members)) => members.bytes(),
            Some(Members::Consumer(members)) => members.described_bytes(),
            None => 0,
        }
    }

    /// What the offsets of a group take; nothing where there is none.
    pub(crate) fn offset_sizes(&self, group: &str) -> Sizes {
        let Ok(state) = self.serving() else { return Sizes::default() };
        state.groups.get(group).map_or_else(Sizes::default, |group| group.offsets.sizes())
    }

    /// Every committed offset, up to `most`: group, topic, partition, what was committed. Nothing while it loads.
    pub(super) fn committed(&self, most: usize) -> Vec<(Arc<str>, Arc<str>, i32, CommittedOffset)> {
        let Ok(state) = self.serving() else { return Vec::new() };
        let all = state.groups.iter().flat_map(|(id, group)| {
            group.offsets.topics().flat_map(move |(topic, partitions)| {
                partitions.iter().map(move |(partition, committed)| {
                    (Arc::clone(id), Arc::clone(topic), *partition, committed.clone())
                })
            })
        });
        all.take(most).collect()
    }

    /// How many groups it keeps.
    pub(crate) fn count(&self) -> usize {
        self.lock().groups.len()
    }
}

/// What a commit is told where its records find no place.
const fn of_a_commit(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::MessageTooLarge => ErrorCode::InvalidCommitOffsetSize,
        code => code,
    }
}
