use super::*;

#[test]
fn first_member_leads_the_first_generation_after_the_initial_delay() {
    let mut scene = Scene::new();
    let token = scene.join(newcomer("a"));
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.group.next_deadline(), Some(DELAY));
    scene.pass(ms(2_999));
    assert_eq!(scene.reply(token), None);
    scene.pass(ms(1));
    assert_eq!(scene.reply(token), Some(told(joined(1, "a", "a", &["a"]))));
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
    assert_eq!(scene.group.state_timestamp(), Some(Timestamp::from_millis(WALL + 3_000)));
    assert_eq!(scene.stores, []);
}

#[test]
fn followers_are_told_no_members() {
    let mut scene = Scene::new();
    let first = scene.join(newcomer("b"));
    let second = scene.join(newcomer("a"));
    scene.pass(DELAY);
    scene.pass(DELAY);
    assert_eq!(scene.reply(first), Some(told(joined(1, "b", "b", &["a", "b"]))));
    assert_eq!(scene.reply(second), Some(told(joined(1, "b", "a", &[]))));
}

#[test]
fn initial_delay_goes_on_while_members_come_up_to_the_rebalance_timeout() {
    let mut scene = Scene::new();
    let short = |id: &str| JoinRequest { rebalance_timeout: secs(8), ..newcomer(id) };
    scene.join(short("a"));
    scene.pass(secs(2));
    scene.join(short("b"));
    scene.pass(secs(1));
    assert_eq!(scene.group.next_deadline(), Some(secs(6)));
    scene.join(short("c"));
    scene.pass(secs(3));
    assert_eq!(scene.group.next_deadline(), Some(secs(8)), "only what is left of the rebalance timeout");
    let last = scene.join(short("d"));
    scene.pass(secs(2));
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
    assert_eq!(scene.reply(last), Some(told(joined(1, "a", "d", &[]))));
}

#[test]
fn initial_delay_ends_when_nobody_came_during_it() {
    let mut scene = Scene::new();
    scene.join(newcomer("a"));
    scene.join(newcomer("b"));
    scene.pass(DELAY);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    scene.pass(DELAY);
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
    assert_eq!(scene.group.generation(), 1);
}

#[test]
fn without_initial_delay_the_first_member_is_answered_at_once() {
    let mut scene = Scene::new();
    scene.rules.initial_rebalance_delay = Duration::ZERO;
    let token = scene.join(newcomer("a"));
    assert_eq!(scene.reply(token), Some(told(joined(1, "a", "a", &["a"]))));
}

#[test]
fn dynamic_member_without_id_must_come_again_with_the_one_it_is_given() {
    let mut scene = Scene::new();
    let token = scene.join(JoinRequest { require_known_member_id: true, ..newcomer("a") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::MemberIdRequired, "a")));
    assert_eq!((scene.group.member_count(), scene.group.pending_member_count()), (0, 1));
    assert_eq!(scene.group.state(), ClassicState::Empty);
    assert!(!scene.group.is_simple());
    let token = scene.join(JoinRequest { require_known_member_id: true, ..member("a") });
    assert_eq!((scene.group.member_count(), scene.group.pending_member_count()), (1, 0));
    scene.pass(DELAY);
    assert_eq!(scene.reply(token), Some(told(joined(1, "a", "a", &["a"]))));
}

#[test]
fn member_that_never_comes_back_with_its_id_is_forgotten_after_the_session_timeout() {
    let mut scene = Scene::new();
    scene.join(JoinRequest { require_known_member_id: true, ..newcomer("a") });
    assert_eq!(scene.group.next_deadline(), Some(SESSION));
    scene.pass(SESSION);
    assert_eq!(scene.group.pending_member_count(), 0);
    assert!(scene.group.is_simple());
    assert_eq!(scene.group.next_deadline(), None);
    let token = scene.join(member("a"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "a")));
}

#[test]
fn rebalance_waits_for_a_member_that_was_given_an_id() {
    let mut scene = Scene::stable(&["a"]);
    scene.join(JoinRequest { require_known_member_id: true, ..newcomer("b") });
    assert_eq!(scene.group.state(), ClassicState::Stable, "an id alone is no reason to rebalance");
    let again = scene.join(member("a"));
    assert_eq!(scene.reply(again), None);
    let second = scene.join(member("b"));
    assert_eq!(scene.reply(again), Some(told(joined(2, "a", "a", &["a", "b"]))));
    assert_eq!(scene.reply(second), Some(told(joined(2, "a", "b", &[]))));
}

#[test]
fn rebalance_goes_on_when_the_awaited_member_is_forgotten() {
    let mut scene = Scene::stable(&["a"]);
    scene.join(JoinRequest { require_known_member_id: true, ..newcomer("b") });
    let again = scene.join(member("a"));
    scene.pass(SESSION);
    assert_eq!(scene.reply(again), Some(told(joined(2, "a", "a", &["a"]))));
}

#[test]
fn pending_members_have_a_bound() {
    let mut scene = Scene::new();
    for number in 0..limits::GROUP_PENDING_MEMBERS_MAX {
        scene.join(JoinRequest { require_known_member_id: true, ..newcomer(&format!("m{number}")) });
    }
    let token = scene.join(JoinRequest { require_known_member_id: true, ..newcomer("one-more") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::GroupMaxSizeReached, "")));
    assert_eq!(scene.group.pending_member_count(), limits::GROUP_PENDING_MEMBERS_MAX);
}

#[test]
fn session_timeout_outside_the_bounds_is_refused() {
    let mut scene = Scene::new();
    for (millis, right) in [(5_999, false), (6_000, true), (1_800_000, true), (1_800_001, false)] {
        let token = scene.join(JoinRequest { session_timeout: ms(millis), ..member("x") });
        let error = if right { GroupError::UnknownMemberId } else { GroupError::InvalidSessionTimeout };
        assert_eq!(scene.reply(token), Some(refused(error, "x")), "{millis}");
    }
}

#[test]
fn unknown_member_id_is_refused_in_every_state() {
    let mut scene = Scene::new();
    let token = scene.join(member("x"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "x")));
    scene.join(newcomer("a"));
    let token = scene.join(member("x"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "x")));
    scene.pass(DELAY);
    let token = scene.join(member("x"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "x")));
    scene.complete(&["a"]);
    let token = scene.join(member("x"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "x")));
    assert_eq!(scene.group.generation(), 1);
}

#[test]
fn new_group_needs_a_protocol_type_and_a_protocol() {
    let mut scene = Scene::new();
    let token = scene.join(JoinRequest { protocols: Vec::new(), ..newcomer("a") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::InconsistentGroupProtocol, "")));
    let token = scene.join(JoinRequest { protocol_type: text(""), ..newcomer("a") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::InconsistentGroupProtocol, "")));
    assert_eq!(scene.group.state(), ClassicState::Empty);
}

#[test]
fn member_must_speak_as_the_others_do() {
    let mut scene = Scene::stable(&["a"]);
    let token = scene.join(JoinRequest { protocol_type: text("connect"), ..newcomer("b") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::InconsistentGroupProtocol, "")));
    let token = scene.join(JoinRequest { protocols: protocols(&["sticky"]), ..newcomer("b") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::InconsistentGroupProtocol, "")));
    let token = scene.join(JoinRequest { protocols: Vec::new(), ..member("a") });
    assert_eq!(scene.reply(token), Some(refused(GroupError::InconsistentGroupProtocol, "a")));
    assert_eq!(scene.group.state(), ClassicState::Stable);
}

#[test]
fn protocol_is_the_one_most_members_like_best_of_those_all_speak() {
    let mut scene = Scene::new();
    scene.join(JoinRequest { protocols: protocols(&["own-a", "range", "sticky"]), ..newcomer("a") });
    scene.join(JoinRequest { protocols: protocols(&["sticky", "range"]), ..newcomer("b") });
    scene.join(JoinRequest { protocols: protocols(&["sticky", "range", "own-c"]), ..newcomer("c") });
    scene.pass(DELAY);
    scene.pass(DELAY);
    assert_eq!(scene.group.protocol(), Some(&text("sticky")));
}

#[test]
fn leader_decides_between_protocols_with_equal_votes() {
    for (first, second, chosen) in [("range", "sticky", "range"), ("sticky", "range", "sticky")] {
        let mut scene = Scene::new();
        scene.join(JoinRequest { protocols: protocols(&[first, second]), ..newcomer("a") });
        scene.join(JoinRequest { protocols: protocols(&[second, first]), ..newcomer("b") });
        scene.pass(DELAY);
        scene.pass(DELAY);
        assert_eq!(scene.group.protocol(), Some(&text(chosen)));
    }
}

#[test]
fn protocol_named_twice_counts_once() {
    let mut scene = Scene::new();
    let twice = vec![(text("range"), subscription(&["first"])), (text("range"), subscription(&["second"]))];
    let token = scene.join(JoinRequest { protocols: twice, ..newcomer("a") });
    scene.join(newcomer("b"));
    scene.pass(DELAY);
    scene.pass(DELAY);
    let Some(Reply::Join(Ok(joined))) = scene.reply(token) else { panic!("joined") };
    assert_eq!(joined.members[0].metadata, subscription(&["first"]));
    assert_eq!(joined.members.len(), 2);
}

#[test]
fn full_group_takes_nobody_more() {
    let mut scene = Scene::stable(&["a", "b"]);
    scene.rules.size_max = 2;
    let token = scene.join(newcomer("c"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::GroupMaxSizeReached, "")));
    assert_eq!(scene.group.state(), ClassicState::Stable);
    let token = scene.join(member("b"));
    assert_eq!(scene.reply(token), Some(told(joined(1, "a", "b", &[]))));
}

#[test]
fn group_that_became_too_large_loses_who_comes_last() {
    let mut scene = Scene::stable(&["a", "b", "c"]);
    scene.rules.size_max = 2;
    let mut effects = Effects::default();
    let now = scene.now();
    scene.group.loaded(now, &scene.rules, &mut effects);
    scene.take_in(effects);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    let first = scene.join(member("c"));
    let second = scene.join(member("a"));
    let third = scene.join(member("b"));
    assert_eq!(scene.reply(third), Some(refused(GroupError::GroupMaxSizeReached, "")));
    assert_eq!(scene.reply(first), Some(told(joined(2, "a", "c", &[]))));
    assert_eq!(scene.reply(second), Some(told(joined(2, "a", "a", &["a", "c"]))));
}

#[test]
fn member_that_waits_is_not_turned_away_from_a_full_group() {
    let mut scene = Scene::new();
    scene.rules.size_max = 1;
    let first = scene.join(newcomer("a"));
    let second = scene.join(newcomer("b"));
    assert_eq!(scene.reply(second), Some(refused(GroupError::GroupMaxSizeReached, "")));
    let again = scene.join(member("a"));
    assert_eq!(scene.reply(first), Some(refused(GroupError::RebalanceInProgress, "a")));
    scene.pass(DELAY);
    assert_eq!(scene.reply(again), Some(told(joined(1, "a", "a", &["a"]))));
}

#[test]
fn follower_that_joins_again_unchanged_gets_the_present_generation() {
    let mut scene = Scene::stable(&["a", "b"]);
    let token = scene.join(member("b"));
    assert_eq!(scene.reply(token), Some(told(joined(1, "a", "b", &[]))));
    assert_eq!(scene.group.state(), ClassicState::Stable);
}

#[test]
fn follower_that_joins_with_other_metadata_causes_a_rebalance() {
    let mut scene = Scene::stable(&["a", "b"]);
    let changed = vec![(text("range"), subscription(&["other"]))];
    let token = scene.join(JoinRequest { protocols: changed, ..member("b") });
    assert_eq!(scene.reply(token), None);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    let leader = scene.join(member("a"));
    let Some(Reply::Join(Ok(told_leader))) = scene.reply(leader) else { panic!("joined") };
    assert_eq!(told_leader.members[1].metadata, subscription(&["other"]));
    assert_eq!(scene.reply(token), Some(told(joined(2, "a", "b", &[]))));
}

#[test]
fn leader_that_joins_again_causes_a_rebalance() {
    let mut scene = Scene::stable(&["a", "b"]);
    let leader = scene.join(member("a"));
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.heartbeat("b", 1), Err(GroupError::RebalanceInProgress));
    let follower = scene.join(member("b"));
    assert_eq!(scene.reply(leader), Some(told(joined(2, "a", "a", &["a", "b"]))));
    assert_eq!(scene.reply(follower), Some(told(joined(2, "a", "b", &[]))));
}

#[test]
fn join_is_answered_again_while_the_assignment_is_awaited() {
    let mut scene = Scene::new();
    scene.join(newcomer("a"));
    scene.join(newcomer("b"));
    scene.pass(DELAY);
    scene.pass(DELAY);
    let leader = scene.join(member("a"));
    let follower = scene.join(member("b"));
    assert_eq!(scene.reply(leader), Some(told(joined(1, "a", "a", &["a", "b"]))));
    assert_eq!(scene.reply(follower), Some(told(joined(1, "a", "b", &[]))));
    assert_eq!(scene.group.state(), ClassicState::CompletingRebalance);
}

#[test]
fn changed_join_while_the_assignment_is_awaited_begins_anew() {
    let mut scene = Scene::new();
    scene.join(newcomer("a"));
    scene.join(newcomer("b"));
    scene.pass(DELAY);
    scene.pass(DELAY);
    let waiting = scene.sync(sync_of("b", 1));
    scene.join(JoinRequest { protocols: protocols(&["range", "sticky"]), ..member("a") });
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.reply(waiting), Some(Reply::Sync(Err(GroupError::RebalanceInProgress))));
}

#[test]
fn second_join_of_a_waiting_member_takes_the_place_of_the_first() {
    let mut scene = Scene::stable(&["a", "b"]);
    let first = scene.join(member("a"));
    let second = scene.join(member("a"));
    assert_eq!(scene.reply(first), Some(refused(GroupError::RebalanceInProgress, "a")));
    scene.join(member("b"));
    assert_eq!(scene.reply(second), Some(told(joined(2, "a", "a", &["a", "b"]))));
    assert_eq!(scene.group.awaiting_join_count(), 0);
}

#[test]
fn member_whose_client_is_gone_counts_as_joined() {
    let mut scene = Scene::stable(&["a", "b"]);
    let gone = scene.join(member("a"));
    scene.group.forget(gone);
    let other = scene.join(member("b"));
    assert_eq!(scene.reply(gone), None);
    assert_eq!(scene.reply(other), Some(told(joined(2, "a", "b", &[]))));
    assert_eq!(scene.ids(), ["a", "b"]);
}

#[test]
fn newcomer_that_waits_too_long_is_dropped() {
    let mut scene = Scene::stable(&["a"]);
    scene.group.members.change("a", |member| member.identity.rebalance_timeout = secs(3_000)).unwrap();
    let token = scene.join(newcomer("b"));
    scene.pass_with_heartbeats(secs(299), &["a"]);
    assert_eq!(scene.reply(token), None);
    scene.pass_with_heartbeats(secs(1), &["a"]);
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownMemberId, "")));
    assert_eq!(scene.ids(), ["a"]);
}

#[test]
fn id_that_is_taken_is_not_given_out_again() {
    let mut scene = Scene::stable(&["a"]);
    let token = scene.join(newcomer("a"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::UnknownServer, "")));
    assert_eq!(scene.group.state(), ClassicState::Stable);
}
