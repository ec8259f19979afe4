use super::*;

fn heartbeat(scene: &mut Scene, member_id: &str, instance_id: &str) -> Result<(), GroupError> {
    let (now, generation) = (scene.now(), scene.group.generation());
    scene.group.heartbeat(now, member_id, Some(instance_id), generation)
}

fn static_sync(member_id: &str, instance_id: &str, generation: i32) -> SyncRequest {
    SyncRequest { instance_id: Some(text(instance_id)), ..sync_of(member_id, generation) }
}

fn static_joined(generation: i32, leader: &str, member_id: &str) -> Joined {
    joined(generation, leader, member_id, &[])
}

// B52
#[test]
fn restarted_static_follower_keeps_its_assignment_and_the_others_notice_nothing() {
    let mut scene = Scene::stable_static();
    let token = scene.join(static_newcomer("i2", "m2-again"));
    assert_eq!(scene.reply(token), None, "the new id is stored before it is told");
    assert_eq!(heartbeat(&mut scene, "m2", "i2"), Err(GroupError::FencedInstanceId));
    let stored = scene.store_done(Ok(()));
    let ids: Vec<_> = stored.members.iter().map(|member| &*member.member_id).collect();
    assert_eq!((stored.generation, ids), (1, vec!["m1", "m2-again", "m3"]));
    assert_eq!(stored.members[1].assignment, bytes("to-m2"));
    assert_eq!(scene.reply(token), Some(told(static_joined(1, "m1", "m2-again"))));
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::Stable, 1));
    let token = scene.sync(static_sync("m2-again", "i2", 1));
    assert_eq!(scene.reply(token), Some(synced("to-m2")));
    assert_eq!(heartbeat(&mut scene, "m1", "i1"), Ok(()));
    assert_eq!(heartbeat(&mut scene, "m2-again", "i2"), Ok(()));
}

// B52
#[test]
fn old_member_id_of_a_restarted_static_member_is_fenced_everywhere() {
    let mut scene = Scene::stable_static();
    scene.join(static_newcomer("i2", "m2-again"));
    scene.store_done(Ok(()));
    assert_eq!(heartbeat(&mut scene, "m2", "i2"), Err(GroupError::FencedInstanceId));
    let token = scene.sync(static_sync("m2", "i2", 1));
    assert_eq!(scene.reply(token), Some(Reply::Sync(Err(GroupError::FencedInstanceId))));
    let token = scene.join(JoinRequest { instance_id: Some(text("i2")), ..member("m2") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::FencedInstanceId, "m2")));
    let now = scene.now();
    assert_eq!(scene.group.check_commit(now, "m2", Some("i2"), 1), Err(GroupError::FencedInstanceId));
    assert_eq!(scene.leave("m2", Some("i2")), Err(GroupError::FencedInstanceId));
    // Without its instance id it is a member that nobody knows.
    assert_eq!(scene.heartbeat("m2", 1), Err(GroupError::UnknownMemberId));
    assert_eq!((scene.group.state(), scene.group.member_count()), (ClassicState::Stable, 3));
}

// B52
#[test]
fn restarted_static_leader_of_version_9_gets_the_members_and_skips_the_assignment() {
    let mut scene = Scene::stable_static();
    let token = scene.join(static_newcomer("i1", "m1-again"));
    let stored = scene.store_done(Ok(()));
    assert_eq!(stored.leader, Some(text("m1-again")));
    let members = [("m1-again", "i1"), ("m2", "i2"), ("m3", "i3")];
    let expected = Joined {
        skip_assignment: true,
        members: members.iter().map(|(id, instance)| joined_member(id, Some(instance))).collect(),
        ..static_joined(1, "m1-again", "m1-again")
    };
    assert_eq!(scene.reply(token), Some(told(expected)));
    let token = scene.sync(static_sync("m1-again", "i1", 1));
    assert_eq!(scene.reply(token), Some(synced("to-m1")));
}

// B52
#[test]
fn restarted_static_leader_of_an_older_version_is_told_that_its_old_id_leads() {
    let mut scene = Scene::stable_static();
    let request = JoinRequest { supports_skip_assignment: false, ..static_newcomer("i1", "m1-again") };
    let token = scene.join(request);
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(token), Some(told(static_joined(1, "m1", "m1-again"))));
    assert_eq!(scene.group.leader(), Some(&text("m1-again")));
}

// B52
#[test]
fn static_member_restarted_while_the_others_join_is_replaced_and_its_first_request_fenced() {
    let mut scene = Scene::stable_static();
    scene.join(JoinRequest { instance_id: Some(text("i1")), ..member("m1") });
    let first = scene.join(JoinRequest { instance_id: Some(text("i2")), ..member("m2") });
    let second = scene.join(static_newcomer("i2", "m2-again"));
    assert_eq!(scene.reply(first), Some(refused(GroupError::FencedInstanceId, "m2")));
    assert_eq!(heartbeat(&mut scene, "m2", "i2"), Err(GroupError::FencedInstanceId));
    assert_eq!(scene.reply(second), None);
    scene.join(JoinRequest { instance_id: Some(text("i3")), ..member("m3") });
    assert_eq!(scene.reply(second), Some(told(static_joined(2, "m1", "m2-again"))));
    assert_eq!(scene.ids(), ["m1", "m2-again", "m3"]);
    assert_eq!(scene.stores, [], "only the assignment of the generation is stored");
}

// B52
#[test]
fn static_member_restarted_while_the_assignment_is_awaited_begins_a_new_generation() {
    let mut scene = Scene::stable_static();
    for number in 1..=3 {
        let request = member(&format!("m{number}"));
        scene.join(JoinRequest { instance_id: Some(text(&format!("i{number}"))), ..request });
    }
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::CompletingRebalance, 2));
    let old = scene.sync(static_sync("m2", "i2", 2));
    let other = scene.sync(static_sync("m3", "i3", 2));
    scene.join(static_newcomer("i2", "m2-again"));
    assert_eq!(scene.reply(old), Some(Reply::Sync(Err(GroupError::FencedInstanceId))));
    assert_eq!(scene.reply(other), Some(Reply::Sync(Err(GroupError::RebalanceInProgress))));
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.ids(), ["m1", "m2-again", "m3"]);
}

#[test]
fn restart_that_changes_the_chosen_protocol_causes_a_rebalance() {
    let mut scene = Scene::new();
    let both = protocols(&["range", "sticky"]);
    scene.join(JoinRequest { protocols: both.clone(), ..static_newcomer("i1", "m1") });
    scene.join(JoinRequest { protocols: both, ..static_newcomer("i2", "m2") });
    scene.pass(DELAY);
    scene.pass(DELAY);
    scene.complete(&["m1", "m2"]);
    let token =
        scene.join(JoinRequest { protocols: protocols(&["sticky"]), ..static_newcomer("i2", "m2-again") });
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.stores, []);
    let both = protocols(&["range", "sticky"]);
    scene.join(JoinRequest { instance_id: Some(text("i1")), protocols: both, ..member("m1") });
    let expected = Joined { protocol_name: Some(text("sticky")), ..static_joined(2, "m1", "m2-again") };
    assert_eq!(scene.reply(token), Some(told(expected)));
}

#[test]
fn restart_whose_write_fails_leaves_the_old_member_in_place() {
    let mut scene = Scene::stable_static();
    let before = scene.group.stored_form(None);
    let other = vec![(text("range"), subscription(&["other"]))];
    let token = scene.join(JoinRequest { protocols: other, ..static_newcomer("i1", "m1-again") });
    assert_eq!(scene.subscribed(), Some(vec!["other", "t"]));
    scene.store_done(Err(GroupError::NotCoordinator));
    assert_eq!(scene.reply(token), Some(refused(GroupError::NotCoordinator, "")));
    assert_eq!(scene.group.stored_form(None), before);
    assert_eq!(scene.subscribed(), Some(vec!["t"]));
    assert_eq!(heartbeat(&mut scene, "m1", "i1"), Ok(()));
    assert_eq!(heartbeat(&mut scene, "m1-again", "i1"), Err(GroupError::FencedInstanceId));
}

// B52
#[test]
fn of_two_restarts_of_one_instance_the_last_survives() {
    let mut scene = Scene::stable_static();
    let first = scene.join(static_newcomer("i2", "m2-b"));
    let second = scene.join(static_newcomer("i2", "m2-c"));
    assert_eq!(scene.reply(first), Some(refused(GroupError::FencedInstanceId, "m2-b")));
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(second), None);
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(second), Some(told(static_joined(1, "m1", "m2-c"))));
    assert_eq!(scene.ids(), ["m1", "m2-c", "m3"]);
}

#[test]
fn two_restarts_whose_writes_both_fail_lead_back_to_the_id_in_the_log() {
    let mut scene = Scene::stable_static();
    let before = scene.group.stored_form(None);
    scene.join(static_newcomer("i2", "m2-b"));
    let second = scene.join(static_newcomer("i2", "m2-c"));
    scene.store_done(Err(GroupError::CoordinatorNotAvailable));
    scene.store_done(Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(scene.reply(second), Some(refused(GroupError::CoordinatorNotAvailable, "")));
    assert_eq!(scene.group.stored_form(None), before);
}

#[test]
fn rebalance_during_the_write_of_a_restart_takes_the_member_along() {
    let mut scene = Scene::stable_static();
    let token = scene.join(static_newcomer("i2", "m2-again"));
    scene.join(JoinRequest { instance_id: Some(text("i1")), ..member("m1") });
    scene.store_done(Ok(()));
    assert_eq!(scene.reply(token), None);
    scene.join(JoinRequest { instance_id: Some(text("i3")), ..member("m3") });
    assert_eq!(scene.reply(token), Some(told(static_joined(2, "m1", "m2-again"))));
}

#[test]
fn late_failure_of_a_restarts_write_does_not_touch_the_next_generation() {
    let mut scene = Scene::stable_static();
    let token = scene.join(static_newcomer("i2", "m2-again"));
    scene.join(JoinRequest { instance_id: Some(text("i1")), ..member("m1") });
    scene.join(JoinRequest { instance_id: Some(text("i3")), ..member("m3") });
    assert_eq!(scene.reply(token), Some(told(static_joined(2, "m1", "m2-again"))));
    scene.store_done(Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(scene.ids(), ["m1", "m2-again", "m3"]);
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
}

#[test]
fn restarted_member_lives_on_from_its_reply() {
    let mut scene = Scene::stable_static();
    scene.join(static_newcomer("i2", "m2-again"));
    // The write takes longer than a session: who waits for the broker is not silent.
    for _ in 0..12 {
        heartbeat(&mut scene, "m1", "i1").unwrap();
        heartbeat(&mut scene, "m3", "i3").unwrap();
        scene.pass(secs(1));
    }
    assert_eq!(scene.ids(), ["m1", "m2-again", "m3"]);
    scene.store_done(Ok(()));
    for _ in 0..9 {
        heartbeat(&mut scene, "m1", "i1").unwrap();
        heartbeat(&mut scene, "m3", "i3").unwrap();
        scene.pass(secs(1));
    }
    assert_eq!(scene.ids(), ["m1", "m2-again", "m3"]);
    scene.pass(secs(1));
    assert_eq!(scene.ids(), ["m1", "m3"]);
}

#[test]
fn unsynced_static_member_that_restarts_must_still_sync() {
    let mut scene = Scene::stable_static();
    for number in 1..=3 {
        let request = member(&format!("m{number}"));
        scene.join(JoinRequest { instance_id: Some(text(&format!("i{number}"))), ..request });
    }
    scene.sync(static_sync("m3", "i3", 2));
    scene.sync_leader(&["m1", "m2", "m3"]);
    scene.store_done(Ok(()));
    scene.join(static_newcomer("i2", "m2-again"));
    scene.store_done(Ok(()));
    let token = scene.sync(static_sync("m2-again", "i2", 2));
    assert_eq!(scene.reply(token), Some(synced("to-m2")));
    assert_eq!(scene.group.sync_deadline, None, "all of the generation have synced");
}

#[test]
fn static_member_that_does_not_join_again_stays() {
    let mut scene = Scene::stable_static();
    let long = |request: JoinRequest| JoinRequest { session_timeout: secs(600), ..request };
    // m2 and m3 get sessions longer than the rebalance timeout.
    for number in 1..=3 {
        let request = long(member(&format!("m{number}")));
        scene.join(JoinRequest { instance_id: Some(text(&format!("i{number}"))), ..request });
    }
    scene.complete(&["m1", "m2", "m3"]);
    let leader = scene.join(JoinRequest { instance_id: Some(text("i1")), ..long(member("m1")) });
    scene.pass(REBALANCE);
    let members = [("m1", "i1"), ("m2", "i2"), ("m3", "i3")];
    let expected = Joined {
        members: members.iter().map(|(id, instance)| joined_member(id, Some(instance))).collect(),
        ..static_joined(3, "m1", "m1")
    };
    assert_eq!(scene.reply(leader), Some(told(expected)));
    // They have until the end of the sync phase.
    scene.sync_leader(&["m1", "m2", "m3"]);
    scene.store_done(Ok(()));
    scene.pass(REBALANCE);
    assert_eq!(scene.ids(), ["m1"]);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
}

#[test]
fn leader_that_did_not_join_again_loses_its_office() {
    let mut scene = Scene::stable_static();
    let long = |number: u32| JoinRequest {
        instance_id: Some(text(&format!("i{number}"))),
        session_timeout: secs(600),
        ..member(&format!("m{number}"))
    };
    for number in 1..=3 {
        scene.join(long(number));
    }
    scene.complete(&["m1", "m2", "m3"]);
    let changed = vec![(text("range"), subscription(&["other"]))];
    let token = scene.join(JoinRequest { protocols: changed, ..long(3) });
    scene.pass(REBALANCE);
    let Some(Reply::Join(Ok(told))) = scene.reply(token) else { panic!("joined") };
    assert_eq!((told.leader, told.generation, told.members.len()), (text("m3"), 3, 3));
}

#[test]
fn static_members_that_nobody_joins_for_are_waited_for_until_their_sessions_end() {
    let mut scene = Scene::stable_static();
    let request = |number: u32| JoinRequest {
        instance_id: Some(text(&format!("i{number}"))),
        session_timeout: secs(100),
        ..member(&format!("m{number}"))
    };
    for number in 1..=3 {
        scene.join(request(number));
    }
    scene.complete(&["m1", "m2", "m3"]);
    assert_eq!(scene.leave("m1", Some("i1")), Ok(text("m1")));
    scene.pass(REBALANCE);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.ids(), ["m2", "m3"]);
    scene.pass(secs(40));
    assert_eq!(scene.group.state(), ClassicState::Empty);
    assert_eq!(scene.group.generation(), 3);
}

#[test]
fn administrator_removes_a_static_member_by_its_instance_id() {
    let mut scene = Scene::stable_static();
    assert_eq!(scene.leave("", Some("i2")), Ok(text("m2")));
    assert_eq!(scene.ids(), ["m1", "m3"]);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.leave("", Some("i2")), Err(GroupError::UnknownMemberId));
    assert_eq!(scene.leave("", None), Err(GroupError::UnknownMemberId));
}

#[test]
fn unknown_instance_id_is_an_unknown_member() {
    let mut scene = Scene::stable_static();
    assert_eq!(heartbeat(&mut scene, "m1", "nobody"), Err(GroupError::UnknownMemberId));
    let token = scene.join(JoinRequest { instance_id: Some(text("nobody")), ..member("m1") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "m1")));
}
