use super::*;

/// A group of generation 1 that waits for its assignment.
fn completing(ids: &[&str]) -> Scene {
    let mut scene = Scene::new();
    for id in ids {
        scene.join(newcomer(id));
    }
    scene.pass(DELAY);
    scene.pass(DELAY);
    scene.replies.clear();
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
    scene
}

fn sync_error(error: GroupError) -> Option<Reply> {
    Some(Reply::Sync(Err(error)))
}

#[test]
fn assignment_is_told_once_it_is_stored() {
    let mut scene = completing(&["a", "b"]);
    let follower = scene.sync(sync_of("b", 1));
    let leader = scene.sync_leader(&["a", "b"]);
    assert_eq!(scene.replies, BTreeMap::new());
    let stored = scene.store_done(Ok(()));
    let stored_member = |id: &str| StoredMember {
        member_id: text(id),
        instance_id: None,
        client_id: text("client"),
        client_host: text("/10.0.0.1"),
        rebalance_timeout: REBALANCE,
        session_timeout: SESSION,
        subscription: subscription(&["t"]),
        assignment: bytes(&format!("to-{id}")),
    };
    let expected = Stored {
        protocol_type: Some(text("consumer")),
        generation: 1,
        protocol: Some(text("range")),
        leader: Some(text("a")),
        state_timestamp: Some(Timestamp::from_millis(WALL + 6_000)),
        members: vec![stored_member("a"), stored_member("b")],
    };
    assert_eq!(stored, expected);
    assert_eq!(scene.reply(leader), Some(synced("to-a")));
    assert_eq!(scene.reply(follower), Some(synced("to-b")));
    assert_eq!(scene.group.state(), ClassicState::Stable);
}

#[test]
fn follower_that_syncs_late_gets_its_assignment_at_once() {
    let mut scene = completing(&["a", "b"]);
    scene.sync_leader(&["a", "b"]);
    scene.store_done(Ok(()));
    let late = scene.sync(sync_of("b", 1));
    assert_eq!(scene.reply(late), Some(synced("to-b")));
    assert_eq!(scene.group.sync_deadline, None);
}

#[test]
fn member_that_the_leader_left_out_gets_an_empty_assignment() {
    let mut scene = completing(&["a", "b"]);
    let follower = scene.sync(sync_of("b", 1));
    scene.sync_leader(&["a", "stranger"]);
    let stored = scene.store_done(Ok(()));
    assert_eq!(stored.members.len(), 2);
    assert_eq!(scene.reply(follower), Some(synced("")));
}

#[test]
fn what_a_follower_hands_out_is_not_read() {
    let mut scene = completing(&["a", "b"]);
    scene.sync(SyncRequest { assignments: vec![(text("b"), bytes("all"))], ..sync_of("b", 1) });
    assert_eq!(scene.stores, []);
}

#[test]
fn failed_write_is_told_to_all_and_they_join_again() {
    let mut scene = completing(&["a", "b"]);
    let follower = scene.sync(sync_of("b", 1));
    let leader = scene.sync_leader(&["a", "b"]);
    scene.store_done(Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(scene.reply(leader), sync_error(GroupError::CoordinatorNotAvailable));
    assert_eq!(scene.reply(follower), sync_error(GroupError::CoordinatorNotAvailable));
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert!(scene.group.members().all(|member| member.assignment.is_empty()));
    let again = scene.join(member("b"));
    scene.join(member("a"));
    assert_eq!(scene.reply(again), Some(told(joined(2, "a", "b", &[]))));
}

#[test]
fn outcome_of_a_write_of_an_earlier_generation_changes_nothing() {
    for result in [Ok(()), Err(GroupError::NotCoordinator)] {
        let mut scene = completing(&["a", "b"]);
        let leader = scene.sync_leader(&["a", "b"]);
        scene.leave("b", None).unwrap();
        assert_eq!(scene.reply(leader), sync_error(GroupError::RebalanceInProgress));
        scene.join(member("a"));
        assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::CompletingRebalance, 2));
        scene.store_done(result);
        assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::CompletingRebalance, 2));
        assert!(scene.group.members().all(|member| member.assignment.is_empty()));
    }
}

#[test]
fn leader_that_asks_again_waits_for_the_write_that_runs() {
    let mut scene = completing(&["a"]);
    let first = scene.sync_leader(&["a"]);
    let other = vec![(text("a"), bytes("other"))];
    let second = scene.sync(SyncRequest { assignments: other, ..sync_of("a", 1) });
    assert_eq!(scene.reply(first), sync_error(GroupError::RebalanceInProgress));
    assert_eq!(scene.stores.len(), 1);
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(second), Some(synced("to-a")));
}

#[test]
fn sync_in_other_states() {
    let mut scene = Scene::new();
    let token = scene.sync(sync_of("a", 0));
    assert_eq!(scene.reply(token), sync_error(GroupError::UnknownMemberId));
    scene.join(newcomer("a"));
    let token = scene.sync(SyncRequest { protocol_name: None, ..sync_of("a", 0) });
    assert_eq!(scene.reply(token), sync_error(GroupError::RebalanceInProgress));
    let mut scene = Scene::stable(&["a"]);
    let mut effects = Effects::default();
    scene.group.shut(&mut effects, GroupError::NotCoordinator);
    let token = scene.sync(sync_of("a", 1));
    assert_eq!(scene.reply(token), sync_error(GroupError::CoordinatorNotAvailable));
}

#[test]
fn sync_of_a_stranger_or_of_another_generation_is_refused() {
    let mut scene = completing(&["a"]);
    let token = scene.sync(sync_of("x", 1));
    assert_eq!(scene.reply(token), sync_error(GroupError::UnknownMemberId));
    for generation in [0, 2, -1] {
        let token = scene.sync(sync_of("a", generation));
        assert_eq!(scene.reply(token), sync_error(GroupError::IllegalGeneration));
    }
}

#[test]
fn sync_must_name_the_protocol_of_the_group_if_it_names_one() {
    let mut scene = Scene::stable(&["a"]);
    let token = scene.sync(SyncRequest { protocol_name: Some(text("sticky")), ..sync_of("a", 1) });
    assert_eq!(scene.reply(token), sync_error(GroupError::InconsistentGroupProtocol));
    let token = scene.sync(SyncRequest { protocol_type: Some(text("connect")), ..sync_of("a", 1) });
    assert_eq!(scene.reply(token), sync_error(GroupError::InconsistentGroupProtocol));
    let token = scene.sync(SyncRequest { protocol_type: None, protocol_name: None, ..sync_of("a", 1) });
    assert_eq!(scene.reply(token), Some(synced("to-a")));
}

#[test]
fn who_never_syncs_is_out_after_the_rebalance_timeout() {
    let mut scene = completing(&["a", "b", "c"]);
    scene.sync_leader(&["a", "b", "c"]);
    scene.sync(sync_of("c", 1));
    scene.store_done(Ok(()));
    scene.replies.clear();
    scene.pass_with_heartbeats(secs(59), &["a", "b", "c"]);
    assert_eq!(
        (scene.ids(), scene.group.state()),
        (vec!["a".into(), "b".into(), "c".into()], ClassicState::Stable)
    );
    scene.pass_with_heartbeats(secs(1), &["a", "b", "c"]);
    assert_eq!(scene.ids(), ["a", "c"]);
    assert_eq!(scene.gone, [("b".into(), GoneWhy::Sync)]);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
}

#[test]
fn leader_that_never_syncs_is_out_and_the_others_are_told() {
    let mut scene = completing(&["a", "b"]);
    let follower = scene.sync(sync_of("b", 1));
    scene.pass_with_heartbeats(secs(60), &["a"]);
    assert_eq!(scene.reply(follower), sync_error(GroupError::RebalanceInProgress));
    assert_eq!(scene.ids(), ["b"]);
    assert_eq!(scene.group.leader(), Some(&text("b")));
}

#[test]
fn member_that_waits_for_its_assignment_does_not_expire() {
    let mut scene = completing(&["a", "b"]);
    let follower = scene.sync(sync_of("b", 1));
    scene.pass_with_heartbeats(secs(30), &["a"]);
    assert_eq!(scene.ids(), ["a", "b"]);
    scene.sync_leader(&["a", "b"]);
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(follower), Some(synced("to-b")));
    scene.pass_with_heartbeats(secs(9), &["a"]);
    assert_eq!(scene.ids(), ["a", "b"]);
    scene.pass_with_heartbeats(secs(1), &["a"]);
    assert_eq!(scene.ids(), ["a"]);
}

#[test]
fn second_sync_of_a_waiting_member_takes_the_place_of_the_first() {
    let mut scene = completing(&["a", "b"]);
    let first = scene.sync(sync_of("b", 1));
    let second = scene.sync(sync_of("b", 1));
    assert_eq!(scene.reply(first), sync_error(GroupError::RebalanceInProgress));
    scene.sync_leader(&["a", "b"]);
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(second), Some(synced("to-b")));
}

#[test]
fn forgotten_sync_is_not_answered_but_its_member_stays() {
    let mut scene = completing(&["a", "b"]);
    let gone = scene.sync(sync_of("b", 1));
    scene.group.forget(gone);
    assert_eq!(scene.group.awaiting_sync_count(), 1);
    scene.sync_leader(&["a", "b"]);
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(gone), None);
    let again = scene.sync(sync_of("b", 1));
    assert_eq!(scene.reply(again), Some(synced("to-b")));
}

#[test]
fn everybody_is_answered_when_the_group_ends_here() {
    let mut scene = completing(&["a", "b"]);
    let waiting = scene.sync(sync_of("b", 1));
    let stored = scene.sync_leader(&["a", "b"]);
    let mut effects = Effects::default();
    scene.group.shut(&mut effects, GroupError::NotCoordinator);
    scene.take_in(effects);
    assert_eq!(scene.reply(waiting), sync_error(GroupError::NotCoordinator));
    assert_eq!(scene.reply(stored), sync_error(GroupError::NotCoordinator));
    assert_eq!((scene.group.state(), scene.group.next_deadline()), (ClassicState::Dead, None));
    scene.store_done(Ok(()));
    scene.pass(secs(1_000));
    assert_eq!((scene.group.state(), scene.replies.len()), (ClassicState::Dead, 0));
    let token = scene.join(newcomer("c"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::CoordinatorNotAvailable, "")));

    let mut scene = Scene::new();
    let token = scene.join(newcomer("a"));
    let mut effects = Effects::default();
    scene.group.shut(&mut effects, GroupError::NotCoordinator);
    scene.take_in(effects);
    assert_eq!(scene.reply(token), Some(refused(GroupError::NotCoordinator, "a")));
}
