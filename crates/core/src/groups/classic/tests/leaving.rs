use super::*;

#[test]
fn last_member_that_leaves_makes_the_group_empty_and_that_is_stored() {
    let mut scene = Scene::stable(&["a"]);
    scene.pass(secs(1));
    assert_eq!(scene.leave("a", None), Ok(text("a")));
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::Empty, 2));
    let expected = Stored {
        protocol_type: Some(text("consumer")),
        generation: 2,
        protocol: None,
        leader: None,
        state_timestamp: Some(Timestamp::from_millis(WALL + 4_000)),
        members: Vec::new(),
    };
    assert_eq!(scene.store_done(Err(GroupError::NotCoordinator)), expected);
    assert_eq!(scene.group.state(), ClassicState::Empty, "nobody is in it, whatever the log says");
    assert_eq!(scene.group.next_deadline(), None);
}

#[test]
fn member_that_leaves_makes_the_others_join_again() {
    let mut scene = Scene::stable(&["a", "b"]);
    assert_eq!(scene.leave("a", None), Ok(text("a")));
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.heartbeat("b", 1), Err(GroupError::RebalanceInProgress));
    let token = scene.join(member("b"));
    assert_eq!(scene.reply(token), Some(told(joined(2, "b", "b", &["b"]))));
}

#[test]
fn members_of_one_request_leave_together() {
    let mut scene = Scene::stable(&["a", "b", "c"]);
    let stays = scene.join(member("a"));
    let leaving = |member_id| LeavingMember { member_id, instance_id: None };
    let mut effects = Effects::default();
    let now = scene.now();
    let left = scene.group.leave_members(now, &[leaving("b"), leaving("x"), leaving("c")], &mut effects);
    scene.take_in(effects);
    assert_eq!(left, [Ok(text("b")), Err(GroupError::UnknownMemberId), Ok(text("c"))]);
    assert_eq!(scene.reply(stays), Some(told(joined(2, "a", "a", &["a"]))));
}

#[test]
fn all_members_of_one_request_leave_an_empty_group() {
    let mut scene = Scene::stable(&["a", "b"]);
    let leaving = |member_id| LeavingMember { member_id, instance_id: None };
    let mut effects = Effects::default();
    let now = scene.now();
    let left = scene.group.leave_members(now, &[leaving("a"), leaving("b"), leaving("a")], &mut effects);
    scene.take_in(effects);
    assert_eq!(left, [Ok(text("a")), Ok(text("b")), Err(GroupError::UnknownMemberId)]);
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::Empty, 2));
}

#[test]
fn waiting_member_that_leaves_is_answered() {
    let mut scene = Scene::stable(&["a", "b"]);
    let token = scene.join(member("a"));
    scene.leave("a", None).unwrap();
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "")));
    scene.join(member("b"));
    scene.join(newcomer("c"));
    scene.join(member("b"));
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
    let generation = scene.group.generation();
    let token = scene.sync(sync_of("c", generation));
    scene.leave("c", None).unwrap();
    assert_eq!(scene.reply(token), Some(Reply::Sync(Err(GroupError::UnknownMemberId))));
}

#[test]
fn member_with_no_more_than_an_id_leaves_without_a_rebalance() {
    let mut scene = Scene::stable(&["a"]);
    scene.join(JoinRequest { require_known_member_id: true, ..newcomer("b") });
    assert_eq!(scene.leave("b", None), Ok(text("b")));
    assert_eq!((scene.group.state(), scene.group.pending_member_count()), (ClassicState::Stable, 0));
    assert_eq!(scene.leave("b", None), Err(GroupError::UnknownMemberId));
}

#[test]
fn awaited_member_that_leaves_ends_the_join_phase() {
    let mut scene = Scene::stable(&["a"]);
    scene.join(JoinRequest { require_known_member_id: true, ..newcomer("b") });
    let token = scene.join(member("a"));
    scene.leave("b", None).unwrap();
    assert_eq!(scene.reply(token), Some(told(joined(2, "a", "a", &["a"]))));
}

#[test]
fn leaving_does_not_shorten_the_initial_delay() {
    let mut scene = Scene::new();
    let stays = scene.join(newcomer("a"));
    scene.join(newcomer("b"));
    scene.leave("b", None).unwrap();
    assert_eq!(scene.reply(stays), None);
    scene.leave("a", None).unwrap();
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    scene.pass(DELAY);
    scene.pass(DELAY);
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::Empty, 1));
}

#[test]
fn nobody_leaves_a_dead_group() {
    let mut scene = Scene::stable(&["a"]);
    let mut effects = Effects::default();
    scene.group.shut(&mut effects, GroupError::NotCoordinator);
    assert_eq!(scene.leave("a", None), Err(GroupError::CoordinatorNotAvailable));
}

#[test]
fn commits_of_clients_without_a_group_are_taken_while_it_has_no_members() {
    let mut scene = Scene::new();
    let now = scene.now();
    assert_eq!(scene.group.check_commit(now, "", None, -1), Ok(()));
    assert_eq!(scene.group.check_commit(now, "x", None, -1), Ok(()));
    assert_eq!(scene.group.check_commit(now, "x", None, 0), Err(GroupError::UnknownMemberId));
    assert!(scene.group.is_simple());
    for mut scene in [Scene::stable(&["a"]), {
        let mut scene = Scene::new();
        scene.join(newcomer("a"));
        scene
    }] {
        let now = scene.now();
        assert_eq!(scene.group.check_commit(now, "", None, -1), Err(GroupError::UnknownMemberId));
    }
}

#[test]
fn commits_of_members_need_the_present_generation() {
    let mut scene = Scene::stable(&["a"]);
    let now = scene.now();
    assert_eq!(scene.group.check_commit(now, "a", None, 1), Ok(()));
    assert_eq!(scene.group.check_commit(now, "a", None, 0), Err(GroupError::IllegalGeneration));
    assert_eq!(scene.group.check_commit(now, "a", None, -1), Err(GroupError::IllegalGeneration));
    assert_eq!(scene.group.check_commit(now, "b", None, 1), Err(GroupError::UnknownMemberId));
    assert_eq!(scene.group.check_commit(now, "", None, 1), Err(GroupError::UnknownMemberId));
    assert_eq!(scene.group.check_commit(now, "a", Some("i"), 1), Err(GroupError::UnknownMemberId));
    let mut effects = Effects::default();
    scene.group.shut(&mut effects, GroupError::NotCoordinator);
    assert_eq!(scene.group.check_commit(now, "a", None, 1), Err(GroupError::CoordinatorNotAvailable));
}

#[test]
fn commits_during_a_rebalance() {
    let mut scene = Scene::stable(&["a"]);
    scene.join(newcomer("b"));
    let now = scene.now();
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.group.check_commit(now, "a", None, 1), Ok(()), "members commit before they join again");
    scene.join(member("a"));
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
    assert_eq!(scene.group.check_commit(now, "a", None, 2), Err(GroupError::RebalanceInProgress));
    assert_eq!(scene.group.check_commit(now, "a", None, 1), Err(GroupError::IllegalGeneration));
}

#[test]
fn commit_shows_that_its_member_lives() {
    let mut scene = Scene::stable(&["a"]);
    scene.pass(secs(9));
    let now = scene.now();
    scene.group.check_commit(now, "a", None, 1).unwrap();
    scene.pass(secs(9));
    assert_eq!(scene.ids(), ["a"]);
    scene.pass(secs(1));
    assert_eq!(scene.ids(), Vec::<String>::new());
}

#[test]
fn group_with_members_is_not_deleted() {
    let mut scene = Scene::stable(&["a"]);
    assert_eq!(scene.group.check_delete(), Err(GroupError::NonEmptyGroup));
    assert_eq!(scene.group.check_offset_delete(), Ok(()));
    scene.leave("a", None).unwrap();
    assert_eq!(scene.group.check_delete(), Ok(()));
    scene.join(JoinRequest { protocol_type: text("connect"), ..newcomer("c") });
    assert_eq!(scene.group.check_offset_delete(), Err(GroupError::NonEmptyGroup));
    let mut effects = Effects::default();
    scene.group.shut(&mut effects, GroupError::NotCoordinator);
    assert_eq!(scene.group.check_delete(), Err(GroupError::GroupIdNotFound));
}
