use tidelog_testkit::VirtualClock;

use super::*;

struct Rig {
    clock: VirtualClock,
    registry: Registry,
    health: StoreHealth,
}

fn rig(clock: &VirtualClock) -> Rig {
    let registry = Registry::new();
    let health = StoreHealth::new("s3://bucket".to_owned(), Arc::new(clock.clone()), &registry);
    Rig { clock: clock.clone(), registry, health }
}

impl Rig {
    fn note(&self, kind: RequestKind, result: Result<(), TryError>) {
        self.health.note(kind, self.clock.monotonic(), &result);
    }

    fn metric(&self, name: &str) -> String {
        let text = self.registry.encode();
        let line = text.lines().find(|line| line.starts_with(name));
        line.map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned()).unwrap_or_default()
    }
}

fn failed(cause: OutageCause) -> Result<(), TryError> {
    Err(TryError::Failed { cause, reason: "because".to_owned(), may_have_happened: false })
}

fn refused() -> Result<(), TryError> {
    Err(TryError::Refused { reason: "AccessDenied".to_owned(), advice: "give the right" })
}

fn on_virtual_time<F: Future<Output = ()>>(test: impl FnOnce(Rig) -> F) {
    let clock = VirtualClock::new();
    clock.run(test(rig(&clock)));
}

#[test]
fn three_failures_in_a_row_are_an_outage_and_one_success_ends_it() {
    on_virtual_time(|rig| async move {
        rig.note(RequestKind::Get, Ok(()));
        rig.note(RequestKind::Get, failed(OutageCause::ConnectionRefused));
        rig.note(RequestKind::Get, failed(OutageCause::ConnectionRefused));
        assert_eq!(rig.health.outage(), None);
        assert_eq!(rig.health.failures().unwrap().failure_count, 2);
        rig.clock.advance(Duration::from_secs(1));
        rig.note(RequestKind::Get, failed(OutageCause::ConnectionRefused));
        let outage = rig.health.reads_outage().unwrap();
        assert_eq!(
            (outage.lasts, outage.failure_count, outage.operation, outage.cause),
            (Duration::from_secs(1), 3, "get", OutageCause::ConnectionRefused)
        );
        assert!(outage.to_string().contains("the connection is refused"), "{outage}");
        assert_eq!(rig.metric("object_store_up"), "0");
        rig.clock.advance(Duration::from_secs(6));
        assert_eq!(rig.metric("object_store_success_age_seconds"), "7");
        rig.note(RequestKind::Get, Err(TryError::NotFound));
        assert_eq!((rig.health.outage(), rig.health.failures()), (None, None));
        assert_eq!((rig.metric("object_store_up").as_str(), rig.health.success_age()), ("1", Duration::ZERO));
    });
}

#[test]
fn one_silent_request_is_an_outage_only_where_nothing_else_succeeded_meanwhile() {
    on_virtual_time(|rig| async move {
        let begun = rig.clock.monotonic();
        rig.clock.advance(Duration::from_secs(20));
        rig.note(RequestKind::Put, Ok(()));
        rig.health.note(RequestKind::Put, begun, &failed(OutageCause::Silent));
        assert_eq!(rig.health.outage(), None);
        let begun = rig.clock.monotonic();
        rig.clock.advance(Duration::from_secs(20));
        rig.health.note(RequestKind::Put, begun, &failed(OutageCause::Silent));
        assert_eq!(rig.health.outage().unwrap().lasts, Duration::from_secs(20));
    });
}

#[test]
fn a_refusal_is_of_its_operation_alone_and_ends_with_its_success() {
    on_virtual_time(|rig| async move {
        rig.note(RequestKind::Put, refused());
        rig.note(RequestKind::Get, Ok(()));
        assert_eq!(rig.health.reads_outage(), None);
        let outage = rig.health.writes_outage().unwrap();
        assert_eq!((outage.cause, outage.failure_count), (OutageCause::Refuses, 1));
        assert_eq!(outage.reason.as_ref(), "give the right (AccessDenied)");
        assert_eq!(rig.metric("object_store_up"), "0");
        assert_eq!(rig.metric("object_refusals_total{kind=\"put\"}"), "1");
        rig.note(RequestKind::Put, Ok(()));
        assert_eq!((rig.health.outage(), rig.metric("object_store_up").as_str()), (None, "1"));
    });
}

#[test]
fn a_store_that_was_away_and_refuses_now_is_not_away() {
    on_virtual_time(|rig| async move {
        for _ in 0..3 {
            rig.note(RequestKind::Get, failed(OutageCause::Fails));
        }
        rig.note(RequestKind::Put, refused());
        assert_eq!(rig.health.writes_outage().unwrap().cause, OutageCause::Refuses);
        rig.note(RequestKind::Get, refused());
        assert_eq!(rig.health.reads_outage().unwrap().cause, OutageCause::Refuses);
    });
}

#[test]
fn one_operation_that_fails_among_others_that_do_not_is_one_outage_until_it_is_heard_of_no_more() {
    on_virtual_time(|rig| async move {
        for _ in 0..10 {
            rig.clock.advance(Duration::from_secs(2));
            rig.note(RequestKind::Put, failed(OutageCause::Fails));
            rig.note(RequestKind::List, Ok(()));
            rig.clock.advance(Duration::from_secs(2));
            rig.note(RequestKind::List, Ok(()));
        }
        assert_eq!(rig.health.writes_outage().unwrap().failure_count, 10);
        assert_eq!(rig.health.reads_outage(), None);
        rig.clock.advance(Duration::from_secs(3));
        rig.note(RequestKind::List, Ok(()));
        assert_eq!((rig.health.outage(), rig.metric("object_store_up").as_str()), (None, "1"));
    });
}

#[test]
fn who_waits_for_reads_to_fail_is_woken() {
    on_virtual_time(|rig| async move {
        let mut waiting = Box::pin(rig.health.reads_fail());
        assert!(futures::poll!(&mut waiting).is_pending());
        rig.note(RequestKind::Put, refused());
        assert!(futures::poll!(&mut waiting).is_pending(), "reads are not refused");
        rig.note(RequestKind::Get, refused());
        assert_eq!(waiting.await.operation, "get");
    });
}
