use tidelog_runtime::SeededRng;
use tidelog_testkit::VirtualClock;

use super::*;

fn on_virtual_time<F: Future<Output = ()>>(test: impl FnOnce(VirtualClock) -> F) {
    let clock = VirtualClock::new();
    clock.run(test(clock.clone()));
}

fn limits(total: Duration, sent_bytes: u64) -> TimeLimits {
    TimeLimits {
        silence: Duration::from_secs(20),
        total,
        sent_bytes,
        first: None,
        unseen: Duration::from_secs(60),
    }
}

fn answer(status: u16, body: &str) -> TryError {
    let source = format!(
        "Error performing PUT http://s/b/k in 1ms - Server returned non-2xx status code: {status}: {body}"
    );
    classify(&object_store::Error::Generic { store: "S3", source: source.into() }, Some(status))
}

fn document(code: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message></Error>")
}

fn advice(error: &TryError) -> &str {
    match error {
        TryError::Refused { advice, .. } => advice,
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn throttling_and_server_errors_pass_and_refusals_do_not() {
    assert!(matches!(answer(503, &document("SlowDown")), TryError::Throttled(_)));
    assert!(matches!(answer(429, ""), TryError::Throttled(_)));
    assert!(matches!(answer(400, &document("SlowDown")), TryError::Throttled(_)));
    assert!(matches!(
        answer(500, &document("InternalError")),
        TryError::Failed { may_have_happened: true, .. }
    ));
    assert!(matches!(answer(400, &document("RequestTimeout")), TryError::Failed { .. }));
    assert!(matches!(answer(400, &document("BadDigest")), TryError::Failed { .. }));
    assert_eq!(
        advice(&answer(403, &document("AccessDenied"))),
        "these credentials lack the right to do this"
    );
    assert_eq!(
        advice(&answer(403, &document("RequestTimeTooSkewed"))),
        "the clock of this machine is wrong: synchronise it"
    );
    assert!(advice(&answer(404, &document("NoSuchBucket"))).contains("tidelog bucket init"));
    assert!(advice(&answer(301, &document("PermanentRedirect"))).contains("region"));
    assert!(matches!(answer(501, &document("NotImplemented")), TryError::Unsupported(_)));
    assert!(matches!(answer(400, &document("NotImplemented")), TryError::Unsupported(_)));
    assert_eq!(answer(416, ""), TryError::OutOfRange);
}

// C22
#[test]
fn expired_keys_are_told_from_lacking_rights() {
    assert!(matches!(answer(400, &document("ExpiredToken")), TryError::Expired(_)));
    assert!(matches!(answer(403, &document("ExpiredToken")), TryError::Expired(_)));
    assert!(matches!(answer(403, &document("AccessDenied")), TryError::Refused { .. }));
}

#[test]
fn a_404_is_an_absence_only_where_it_says_so() {
    let answer = |body: &str, method: &str| {
        let source = format!("Error performing {method} http://s/b/k in 1ms - Server returned 404: {body}");
        let error = object_store::Error::NotFound { path: "k".to_owned(), source: source.into() };
        classify(&error, Some(404))
    };
    assert_eq!(answer(&document("NoSuchKey"), "GET"), TryError::NotFound);
    assert_eq!(answer("", "HEAD"), TryError::NotFound);
    assert_eq!(advice(&answer(&document("XAdminUserNotFound"), "PUT")), UNKNOWN_KEY_ADVICE);
    assert!(advice(&answer(&document("NoSuchBucket"), "GET")).contains("tidelog bucket init"));
    assert!(advice(&answer("<html>404</html>", "GET")).contains("endpoint"));
    let memory = object_store::Error::NotFound { path: "k".to_owned(), source: "absent".into() };
    assert_eq!(classify(&memory, None), TryError::NotFound);
}

// B118
#[test]
fn a_store_that_refuses_checksums_is_met_with_the_setting_to_change() {
    for (status, body) in [
        (400, document("XAmzContentSHA256Mismatch")),
        (400, document("InvalidRequest").replace(">m<", ">trailing checksum not supported<")),
        (411, document("MissingContentLength")),
        (501, document("NotImplemented").replace(">m<", ">x-amz-checksum-crc64nvme implies functionality<")),
    ] {
        assert!(advice(&answer(status, &body)).contains("checksum mode to none"), "{status} {body}");
    }
}

// B119
#[test]
fn a_conflict_is_not_taken_for_a_winner() {
    let error = |status| {
        let error = object_store::Error::AlreadyExists { path: "k".to_owned(), source: "x".into() };
        classify(&error, Some(status))
    };
    assert!(matches!(error(409), TryError::Conflict(_)));
    assert_eq!(error(412), TryError::Exists);
    assert_eq!(error(304), TryError::Exists);
}

#[test]
fn a_try_that_moves_lives_and_a_silent_one_is_dropped_within_the_limit() {
    on_virtual_time(|clock| async move {
        let limits = limits(Duration::from_secs(1000), 0);
        let exchange = Exchange::new();
        let moving = async {
            for _ in 0..30 {
                clock.sleep(Duration::from_secs(15)).await;
                exchange.note_moved(1);
            }
            Ok(())
        };
        assert_eq!(within(&clock, limits, &exchange, moving).await, Ok(()));

        // C7: it freezes after half of its body.
        let begun = clock.monotonic();
        let frozen = async {
            clock.sleep(Duration::from_secs(15)).await;
            exchange.note_moved(1);
            std::future::pending::<Result<(), TryError>>().await
        };
        let error = within(&clock, limits, &exchange, frozen).await.unwrap_err();
        assert!(matches!(error, TryError::Failed { may_have_happened: true, .. }), "{error:?}");
        let took = clock.monotonic() - begun;
        assert!(took <= Duration::from_secs(15 + 25), "{took:?}");
    });
}

#[test]
fn a_trickle_below_the_floor_rate_ends() {
    on_virtual_time(|clock| async move {
        let limits = limits(Duration::from_secs(100), 0);
        let exchange = Exchange::new();
        let trickle = async {
            loop {
                clock.sleep(Duration::from_secs(10)).await;
                exchange.note_moved(1);
            }
        };
        let error: Result<(), _> = within(&clock, limits, &exchange, trickle).await;
        assert!(matches!(error, Err(TryError::Failed { .. })), "{error:?}");
    });
}

#[test]
fn tries_end_at_the_deadline_and_never_after_it() {
    on_virtual_time(|clock| async move {
        let rng = SeededRng::new(3);
        let begun = clock.monotonic();
        let mut tries = Tries::new(&clock, &rng, "k", Duration::from_secs(60));
        let ended = loop {
            if let Err(ended) = tries.after(TryError::Throttled("slow down".to_owned())).await {
                break ended;
            }
        };
        let Ended::Gave(failure) = ended else { panic!("{ended:?}") };
        assert_eq!(failure.reason, "slow down");
        assert!((10..40).contains(&failure.tries), "{failure:?}");
        let took = clock.monotonic() - begun;
        assert!(took > Duration::from_secs(50) && took < Duration::from_secs(60), "{took:?}");
    });
}

#[test]
fn wrong_answers_and_refused_renewals_end_early() {
    on_virtual_time(|clock| async move {
        let rng = SeededRng::new(3);
        let mut tries = Tries::new(&clock, &rng, "k", Duration::from_secs(60));
        for _ in 0..3 {
            assert_eq!(tries.after(TryError::WrongAnswer("200".to_owned())).await, Ok(()));
        }
        assert_eq!(
            tries.after(TryError::WrongAnswer("200".to_owned())).await,
            Err(Ended::WrongAnswer(Failure {
                key: "k".to_owned(),
                tries: WRONG_ANSWERS_MAX,
                reason: "it answers other than it is asked: 200".to_owned(),
            }))
        );
        assert_eq!(tries.after(TryError::Expired("old".to_owned())).await, Ok(()));
        assert!(matches!(tries.after(TryError::Expired("old".to_owned())).await, Err(Ended::Refused(_))));
    });
}

#[test]
fn a_body_that_was_taken_whole_may_travel_unseen_for_longer() {
    on_virtual_time(|clock| async move {
        let limits = limits(Duration::from_secs(1000), 10);
        let exchange = Exchange::new();
        let slow = async {
            exchange.note_moved(10);
            clock.sleep(Duration::from_secs(70)).await;
            Ok(())
        };
        assert_eq!(within(&clock, limits, &exchange, slow).await, Ok(()));
        // Half of a body that hangs gets no more than the limit.
        let begun = clock.monotonic();
        let exchange = Exchange::new();
        exchange.note_moved(9);
        let error = within(&clock, limits, &exchange, std::future::pending::<Result<(), TryError>>()).await;
        assert!(matches!(error, Err(TryError::Failed { .. })), "{error:?}");
        assert_eq!(clock.monotonic() - begun, Duration::from_secs(20));
    });
}
