use super::*;

#[test]
fn restored_group_is_what_was_stored() {
    let mut scene = Scene::stable_static();
    scene.join(static_newcomer("i3", "m3-again"));
    let stored = scene.store_done(Ok(()));
    let now = scene.now();
    let restored = ClassicGroup::restore(stored.clone(), now);
    assert_eq!(restored.stored_form(None), stored);
    assert_eq!(restored.state(), ClassicState::Stable);
    assert_eq!(restored.leader(), Some(&text("m1")));
    assert_eq!(restored.subscribed_topics(), Some(&BTreeSet::from([text("t")])));
    assert_eq!(restored.members().collect::<Vec<_>>(), scene.group.members().collect::<Vec<_>>());
}

#[test]
fn restored_members_have_a_session_to_show_up_in() {
    let mut scene = Scene::stable(&["a", "b"]);
    scene.clock = secs(5_000);
    let now = scene.now();
    scene.group = ClassicGroup::restore(scene.group.stored_form(None), now);
    assert_eq!(scene.group.next_deadline(), Some(secs(5_010)));
    assert_eq!(scene.heartbeat("a", 1), Ok(()));
    scene.pass(secs(9));
    assert_eq!(scene.heartbeat("a", 1), Ok(()));
    scene.pass(secs(1));
    assert_eq!(scene.ids(), ["a"]);
    assert_eq!(scene.gone, [("b".into(), GoneWhy::Heartbeat)]);
    let token = scene.join(member("a"));
    assert_eq!(scene.reply(token), Some(told(joined(2, "a", "a", &["a"]))));
}

#[test]
fn restored_empty_group_goes_on_counting() {
    let mut scene = Scene::stable(&["a"]);
    scene.leave("a", None).unwrap();
    let stored = scene.store_done(Ok(()));
    let now = scene.now();
    scene.group = ClassicGroup::restore(stored.clone(), now);
    assert_eq!(scene.group.stored_form(None), stored);
    assert_eq!(scene.group.state(), ClassicState::Empty);
    let token = scene.join(newcomer("b"));
    scene.pass(DELAY);
    assert_eq!(scene.reply(token), Some(told(joined(3, "b", "b", &["b"]))));
}

#[test]
fn record_that_no_group_wrote_is_taken_as_far_as_it_makes_sense() {
    let mut scene = Scene::stable_static();
    let now = scene.now();
    let mut stored = scene.group.stored_form(None);
    stored.generation = -7;
    stored.leader = Some(text("nobody"));
    stored.protocol_type = Some(text(""));
    stored.protocol = None;
    stored.state_timestamp = None;
    stored.members[1].instance_id = Some(text("i1"));
    stored.members.push(stored.members[0].clone());
    scene.group = ClassicGroup::restore(stored, now);
    assert_eq!(scene.ids(), ["m1", "m3"]);
    assert_eq!((scene.group.generation(), scene.group.leader()), (0, Some(&text("m1"))));
    assert_eq!(scene.subscribed(), None);
    let token = scene.join(member("m1"));
    assert_eq!(scene.reply(token), Some(refused(GroupError::InconsistentGroupProtocol, "m1")));
    scene.pass(SESSION);
    scene.pass(REBALANCE);
    assert_eq!((scene.group.state(), scene.group.generation()), (ClassicState::Empty, 1));
}

// B49
#[test]
fn offsets_of_members_do_not_expire_while_they_rebalance() {
    let mut scene = Scene::new();
    assert_eq!(
        scene.group.offset_expiry(),
        OffsetExpiry::SinceCommit,
        "committed by clients without a group"
    );
    scene.join(newcomer("a"));
    assert_eq!(scene.group.offset_expiry(), OffsetExpiry::Never);
    assert_eq!(scene.subscribed(), None, "what it subscribes to is not known yet");
    scene.pass(DELAY);
    assert_eq!(scene.group.offset_expiry(), OffsetExpiry::Never);
    scene.complete(&["a"]);
    assert_eq!(scene.group.offset_expiry(), OffsetExpiry::SinceCommit);
    assert_eq!(scene.subscribed(), Some(vec!["t"]));
    scene.join(newcomer("b"));
    assert_eq!(scene.group.offset_expiry(), OffsetExpiry::Never);
}

// B49
#[test]
fn retention_of_an_empty_groups_offsets_counts_from_when_it_became_empty() {
    let mut scene = Scene::stable(&["a"]);
    scene.pass(secs(2));
    scene.leave("a", None).unwrap();
    let emptied = Timestamp::from_millis(WALL + 5_000);
    assert_eq!(scene.group.offset_expiry(), OffsetExpiry::SinceEmpty(emptied));
    assert_eq!(scene.subscribed(), Some(vec![]));
    let mut stored = scene.store_done(Ok(()));
    let now = Now { monotonic: secs(900), wall: Timestamp::from_millis(WALL + 900_000) };
    let restored = ClassicGroup::restore(stored.clone(), now);
    assert_eq!(restored.offset_expiry(), OffsetExpiry::SinceEmpty(emptied));
    stored.state_timestamp = None;
    assert_eq!(ClassicGroup::restore(stored, now).offset_expiry(), OffsetExpiry::SinceCommit);
}

// B49
#[test]
fn offsets_of_members_whose_topics_nobody_knows_do_not_expire() {
    let mut scene = Scene::new();
    scene.join(JoinRequest { protocols: vec![(text("range"), bytes("?"))], ..newcomer("a") });
    scene.pass(DELAY);
    scene.complete(&["a"]);
    assert_eq!(scene.subscribed(), None);
    assert_eq!(scene.group.offset_expiry(), OffsetExpiry::Never);

    let mut scene = Scene::new();
    scene.join(JoinRequest { protocol_type: text("connect"), ..newcomer("a") });
    scene.pass(DELAY);
    let token = scene.sync(SyncRequest { protocol_type: None, ..sync_of("a", 1) });
    scene.store_done(Ok(()));
    assert!(matches!(scene.reply(token), Some(Reply::Sync(Ok(_)))));
    assert_eq!(scene.group.offset_expiry(), OffsetExpiry::Never);
    assert!(!scene.group.uses_consumer_protocol());
}

#[test]
fn topics_of_all_members_are_subscribed() {
    let mut scene = Scene::new();
    let of = |topics: &[&str]| vec![(text("range"), subscription(topics))];
    scene.join(JoinRequest { protocols: of(&["x", "y"]), ..newcomer("a") });
    scene.join(JoinRequest { protocols: of(&["y", "z"]), ..newcomer("b") });
    scene.pass(DELAY);
    scene.pass(DELAY);
    assert_eq!(scene.group.subscribed_topics(), Some(&BTreeSet::from([text("x"), text("y"), text("z")])));
}

#[test]
fn metadata_that_is_cut_off_or_strange_names_no_topics() {
    let whole = subscription(&["one", "two"]);
    let topics = |raw: &[u8]| {
        let mut topics = BTreeSet::new();
        subscription::add_topics(raw, &mut topics).map(|()| topics)
    };
    assert_eq!(topics(&whole), Some(BTreeSet::from([text("one"), text("two")])));
    for end in 0..whole.len() {
        assert_eq!(topics(&whole[..end]), None, "{end}");
    }
    let mut longer = whole.to_vec();
    longer.extend([0; 9]);
    assert_eq!(topics(&longer), topics(&whole), "later versions add to it");
    for (at, value) in [(0, 0xFF), (2, 0xFF), (2, 0x7F), (6, 0xFF), (8, 0xFF), (whole.len() - 4, 0x7F)] {
        let mut wrong = whole.to_vec();
        wrong[at] = value;
        assert_eq!(topics(&wrong), None, "{at}");
    }
}

#[test]
fn members_are_described_with_metadata_only_when_stable() {
    let mut scene = Scene::stable(&["a"]);
    let described = DescribedMember {
        member_id: text("a"),
        instance_id: None,
        client_id: text("client"),
        client_host: text("/10.0.0.1"),
        metadata: subscription(&["t"]),
        assignment: bytes("to-a"),
    };
    assert_eq!(scene.group.members().collect::<Vec<_>>(), std::slice::from_ref(&described));
    scene.join(newcomer("b"));
    let first = scene.group.members().next();
    assert_eq!(first, Some(DescribedMember { metadata: Bytes::new(), ..described }));
}

#[test]
fn what_a_group_holds_is_counted_and_given_back() {
    let mut scene = Scene::new();
    let empty = scene.group.bytes();
    let large = vec![(text("range"), Bytes::from(vec![0; 100_000]))];
    scene.join(JoinRequest { protocols: large, ..newcomer("a") });
    assert!((100_000..102_000).contains(&(scene.group.bytes() - empty)));
    scene.pass(DELAY);
    let assignments = vec![(text("a"), Bytes::from(vec![0; 50_000]))];
    scene.sync(SyncRequest { assignments, ..sync_of("a", 1) });
    assert!(scene.group.bytes() - empty > 150_000);
    scene.store_done(Ok(()));
    assert!((150_000..152_000).contains(&(scene.group.bytes() - empty)));
    scene.leave("a", None).unwrap();
    assert_eq!(scene.group.bytes(), empty);
}
