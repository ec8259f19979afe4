use std::sync::Arc;

use tidelog_core::groups::offsets::CommittedOffset;
use tidelog_runtime::{LogLimit, SystemClock, metrics::Counter};
use tidelog_types::{Timestamp, TopicId};

use super::*;
use crate::coordinator::expiry;

pub(in crate::coordinator) fn state() -> State {
    let lines = LogLimit::new(Arc::new(SystemClock::new()), 10);
    let mut state = State::new(1 << 20, MembersRoom::new(), lines, Counter::default());
    state.phase = Phase::Serving;
    state
}

pub(in crate::coordinator) fn now() -> Now {
    Now { monotonic: Duration::from_secs(1), wall: Timestamp::from_millis(1_000) }
}

pub(in crate::coordinator) fn committed(topic_id: TopicId) -> CommittedOffset {
    CommittedOffset {
        offset: 7,
        leader_epoch: 0,
        metadata: "".into(),
        commit_time: Timestamp::from_millis(1),
        expire_time: None,
        topic_id: Some(topic_id),
    }
}

/// A commit, on its way.
pub(in crate::coordinator) fn queue_commit(state: &mut State, group: &Arc<str>, place: &Place, id: TopicId) {
    state.group_or_new(group, now()).unwrap();
    let changes = vec![(place.clone(), committed(id))];
    let entries = records::offsets(group, &changes).unwrap();
    let changes = changes.into_iter().map(|(place, offset)| (place, Some(offset))).collect();
    let then = Then::Offsets { changes, answer: None };
    state.push(Write { group: Arc::clone(group), entries, then }).unwrap();
}

/// The first write that waits is durable, or is not. Answers whether memory is ahead of the log now.
pub(in crate::coordinator) fn write_one(state: &mut State, outcome: Result<(), ErrorCode>) -> bool {
    let write = state.queue.pop_front().unwrap();
    state.queued_bytes -= write.bytes() + WRITE_OVERHEAD_BYTES;
    state.apply(now(), write, outcome).ahead
}

fn group_with_an_offset(state: &mut State) -> Arc<str> {
    let group: Arc<str> = "g".into();
    queue_commit(state, &group, &("t".into(), 0), TopicId::from_bytes([1; 16]));
    assert!(!write_one(state, Ok(())));
    group
}

#[test]
fn a_group_whose_offsets_could_not_be_ended_is_not_said_to_be_deleted() {
    let mut state = state();
    let group = group_with_an_offset(&mut state);
    let (answer, mut receiver) = oneshot::channel();
    assert!(expiry::delete_group(&mut state, &group, Some(answer)));
    // The offsets' tombstones are a write of their own, which a passing fault keeps from the log.
    assert!(!write_one(&mut state, Err(ErrorCode::CoordinatorNotAvailable)));
    assert!(write_one(&mut state, Ok(())), "the shard has to be loaded anew: the machine has ended");
    assert_eq!(receiver.try_recv().unwrap(), Err(ErrorCode::CoordinatorNotAvailable));
    assert!(state.groups[&group].offsets.get("t", 0).is_some());
    // Once more, with all of it written.
    let (answer, mut receiver) = oneshot::channel();
    assert!(expiry::delete_group(&mut state, &group, Some(answer)));
    assert!(!write_one(&mut state, Ok(())) && !write_one(&mut state, Ok(())));
    assert_eq!(receiver.try_recv().unwrap(), Ok(()));
    assert!(state.groups.is_empty());
}

#[test]
fn a_group_is_deleted_behind_what_is_on_its_way() {
    let mut state = state();
    let group: Arc<str> = "g".into();
    state.group_or_new(&group, now()).unwrap();
    state.push_applied(Write {
        group: Arc::clone(&group),
        entries: Vec::new(),
        then: Then::Told { answer: None },
    });
    let (answer, mut receiver) = oneshot::channel();
    assert!(expiry::delete_group(&mut state, &group, Some(answer)), "it waits for the write before it");
    assert!(receiver.try_recv().is_err());
    assert!(!write_one(&mut state, Ok(())) && !write_one(&mut state, Ok(())));
    assert_eq!(receiver.try_recv().unwrap(), Ok(()));
}

#[test]
fn writes_without_records_take_room_too() {
    let mut state = state();
    let group: Arc<str> = "g".into();
    state.group_or_new(&group, now()).unwrap();
    let mut count = 0;
    while state.has_room() {
        let then = Then::Told { answer: None };
        state.push_applied(Write { group: Arc::clone(&group), entries: Vec::new(), then });
        count += 1;
        assert!(count <= QUEUED_BYTES_MAX / WRITE_OVERHEAD_BYTES);
    }
}
