use super::*;

#[test]
fn silent_member_is_given_up_and_the_others_rebalance() {
    let mut scene = Scene::stable(&["a", "b"]);
    scene.pass_with_heartbeats(secs(9), &["a"]);
    assert_eq!(scene.ids(), ["a", "b"]);
    scene.pass_with_heartbeats(secs(1), &["a"]);
    assert_eq!(scene.ids(), ["a"]);
    assert_eq!(scene.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(scene.heartbeat("a", 1), Err(GroupError::RebalanceInProgress));
    assert_eq!(scene.heartbeat("b", 1), Err(GroupError::UnknownMemberId));
    let token = scene.join(member("a"));
    assert_eq!(scene.reply(token), Some(told(joined(2, "a", "a", &["a"]))));
}

#[test]
fn follower_leads_when_the_leader_is_given_up() {
    let mut scene = Scene::stable(&["a", "b"]);
    scene.pass_with_heartbeats(secs(10), &["b"]);
    assert_eq!(scene.group.leader(), Some(&text("b")));
    let token = scene.join(member("b"));
    assert_eq!(scene.reply(token), Some(told(joined(2, "b", "b", &["b"]))));
}

#[test]
fn heartbeat_in_each_state() {
    let mut scene = Scene::new();
    assert_eq!(scene.heartbeat("a", 0), Err(GroupError::UnknownMemberId));
    scene.join(newcomer("a"));
    assert_eq!(scene.heartbeat("a", 0), Err(GroupError::RebalanceInProgress));
    assert_eq!(scene.heartbeat("a", 1), Err(GroupError::IllegalGeneration));
    scene.pass(DELAY);
    assert_eq!(scene.heartbeat("a", 1), Ok(()), "consumers send heartbeats from their join on");
    scene.complete(&["a"]);
    assert_eq!(scene.heartbeat("a", 1), Ok(()));
    assert_eq!(scene.heartbeat("a", 0), Err(GroupError::IllegalGeneration));
    assert_eq!(scene.heartbeat("x", 1), Err(GroupError::UnknownMemberId));
    let mut effects = Effects::default();
    scene.group.shut(&mut effects, GroupError::NotCoordinator);
    assert_eq!(scene.heartbeat("a", 1), Err(GroupError::CoordinatorNotAvailable));
}

#[test]
fn members_that_do_not_join_again_are_out_after_the_rebalance_timeout() {
    let mut scene = Scene::stable(&["a", "b", "c"]);
    let token = scene.join(member("a"));
    scene.pass_with_heartbeats(secs(59), &["b", "c"]);
    assert_eq!(scene.reply(token), None);
    scene.pass_with_heartbeats(secs(1), &["b", "c"]);
    assert_eq!(scene.reply(token), Some(told(joined(2, "a", "a", &["a"]))));
    assert_eq!(scene.heartbeat("b", 2), Err(GroupError::UnknownMemberId));
    assert_eq!(scene.gone, [("b".into(), GoneWhy::Join), ("c".into(), GoneWhy::Join)]);
}

#[test]
fn the_slowest_member_sets_the_rebalance_timeout() {
    let mut scene = Scene::new();
    scene.join(newcomer("a"));
    scene.join(JoinRequest { rebalance_timeout: secs(90), ..newcomer("b") });
    scene.pass(DELAY);
    scene.pass(DELAY);
    scene.complete(&["a", "b"]);
    let token = scene.join(member("a"));
    scene.pass_with_heartbeats(secs(89), &["b"]);
    assert_eq!(scene.reply(token), None);
    scene.pass_with_heartbeats(secs(1), &["b"]);
    assert_eq!(scene.reply(token), Some(told(joined(2, "a", "a", &["a"]))));
}

#[test]
fn rebalance_that_nobody_joins_ends_in_an_empty_group() {
    let mut scene = Scene::stable(&["a", "b"]);
    assert_eq!(scene.leave("b", None), Ok(text("b")));
    scene.pass_with_heartbeats(REBALANCE, &["a"]);
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::Empty, 2));
    assert_eq!(scene.stores.len(), 1);
    assert_eq!(scene.group.next_deadline(), None);
}

#[test]
fn member_that_waits_for_the_join_phase_does_not_expire() {
    let mut scene = Scene::stable(&["a", "b"]);
    let token = scene.join(member("a"));
    scene.pass_with_heartbeats(secs(40), &["b"]);
    assert_eq!(scene.ids(), ["a", "b"]);
    scene.join(member("b"));
    assert_eq!(scene.reply(token), Some(told(joined(2, "a", "a", &["a", "b"]))));
    scene.pass(secs(9));
    assert_eq!(scene.ids(), ["a", "b"], "its session begins with the reply");
    scene.pass(secs(1));
    assert_eq!(scene.ids(), Vec::<String>::new());
}

#[test]
fn newcomer_makes_the_others_join_again() {
    let mut scene = Scene::stable(&["a"]);
    let newcomer = scene.join(newcomer("b"));
    assert_eq!(scene.heartbeat("a", 1), Err(GroupError::RebalanceInProgress));
    let old = scene.join(member("a"));
    assert_eq!(scene.reply(old), Some(told(joined(2, "a", "a", &["a", "b"]))));
    assert_eq!(scene.reply(newcomer), Some(told(joined(2, "a", "b", &[]))));
}

// B50
#[test]
fn members_of_version_0_rejoin_within_a_session_timeout() {
    let first = |request: JoinRequest| JoinRequest { rebalance_timeout: SESSION, ..request };
    let mut scene = Scene::new();
    scene.join(first(newcomer("a")));
    scene.pass(DELAY);
    scene.complete(&["a"]);
    let second = scene.join(first(newcomer("b")));
    scene.pass(secs(3));
    assert_eq!(scene.heartbeat("a", 1), Err(GroupError::RebalanceInProgress));
    let again = scene.join(first(member("a")));
    assert_eq!(scene.reply(again), Some(told(joined(2, "a", "a", &["a", "b"]))));
    assert_eq!(scene.reply(second), Some(told(joined(2, "a", "b", &[]))));
    scene.complete(&["a", "b"]);
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::Stable, 2));
    assert!(scene.clock < DELAY + SESSION);
}

#[test]
fn generation_past_the_largest_number_begins_anew_above_zero() {
    let mut scene = Scene::stable(&["a"]);
    scene.group.generation = i32::MAX;
    let token = scene.join(member("a"));
    assert_eq!(scene.reply(token), Some(told(joined(1, "a", "a", &["a"]))));
}

#[test]
fn timeouts_of_zero_and_of_forever_do_no_harm() {
    let mut scene = Scene::new();
    scene.rules.session_timeout_max = Duration::MAX;
    let none = JoinRequest { rebalance_timeout: Duration::ZERO, ..static_newcomer("i", "a") };
    scene.join(none.clone());
    scene.pass(DELAY);
    assert_eq!(scene.group.state(), ClassicState::Empty, "it had no time to sync");
    scene.stores.clear();
    let forever =
        JoinRequest { session_timeout: Duration::MAX, rebalance_timeout: Duration::MAX, ..newcomer("b") };
    scene.join(forever);
    scene.pass(DELAY);
    scene.complete(&["b"]);
    assert_eq!(scene.group.next_deadline(), Some(Duration::MAX));
}

#[test]
fn empty_group_that_fills_again_counts_on() {
    let mut scene = Scene::stable(&["a"]);
    scene.leave("a", None).unwrap();
    assert_eq!(scene.group.generation(), 2);
    let token = scene.join(JoinRequest { protocol_type: text("connect"), ..newcomer("b") });
    scene.pass(DELAY);
    let expected = Joined { protocol_type: Some(text("connect")), ..joined(3, "b", "b", &["b"]) };
    assert_eq!(scene.reply(token), Some(told(expected)));
}

#[test]
fn states_have_kafkas_names() {
    let names = [
        (ClassicState::Empty, "Empty"),
        (ClassicState::PreparingRebalance, "PreparingRebalance"),
        (ClassicState::CompletingRebalance, "CompletingRebalance"),
        (ClassicState::Stable, "Stable"),
        (ClassicState::Dead, "Dead"),
    ];
    for (state, name) in names {
        assert_eq!(state.as_str(), name);
    }
}
