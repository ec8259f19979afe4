//! The client against the stand-in for S3, and what it does about a store's manners.

use std::time::Duration;

use tidelog_object::{
    CheckStatus, ChecksumMode, ClaimError, DeleteError, GetError, ListError, ObjectClient, OutageCause,
    PutError, PutMatchError, StoreOptions, StoreUrl, bucket_check, bucket_init, claim_prefix,
};
use tidelog_runtime::Supervisor;
use tidelog_testkit::{Conditions, Fault, ListQuirk, Rule, S3Config, S3Proxy, S3Server};
use tidelog_types::ClusterId;

use crate::{
    contract::keeps_the_contract,
    support::{options, payload, s3},
};

async fn server(config: S3Config) -> S3Server {
    S3Server::start(&Supervisor::for_test(), config, &["bucket"]).await.unwrap()
}

async fn client(server: &S3Server) -> ObjectClient {
    s3(&server.endpoint(), "bucket/some/prefix", options()).await
}

#[tokio::test]
async fn the_stand_in_keeps_the_contract_in_every_checksum_mode() {
    for mode in [ChecksumMode::None, ChecksumMode::Crc64Nvme, ChecksumMode::Sha256] {
        let server = server(S3Config::default()).await;
        let options = StoreOptions { checksum: Some(mode), ..options() };
        let client = s3(&server.endpoint(), "bucket/some/prefix", options).await;
        keeps_the_contract(&client).await;
        let keys = server.keys("bucket");
        assert!(!keys.is_empty() && keys.iter().all(|key| key.starts_with("some/prefix/")), "{keys:?}");
    }
}

#[tokio::test]
async fn requests_are_metered_as_they_are_billed() {
    let server = server(S3Config::default()).await;
    let client = client(&server).await;
    client.put_new("a", payload("12345")).await.unwrap();
    client.get("a", 10).await.unwrap();
    client.head("a").await.unwrap();
    client.list("", None, 10).await.unwrap();
    client.delete("a").await.unwrap();
    let usage = client.usage();
    let counts = (usage.put_count, usage.get_count, usage.head_count, usage.list_count, usage.delete_count);
    assert_eq!(counts, (1, 1, 1, 1, 1));
    assert_eq!((usage.sent_bytes, usage.received_bytes, usage.failure_count), (5, 5, 0));
    assert_eq!(server.request_count(), 5);
}

// B118: no header that those stores refuse is sent to an endpoint that is not Amazon's, unless it is asked for.
#[tokio::test]
async fn a_store_that_refuses_checksums_is_served_by_default_and_named_otherwise() {
    let server = server(S3Config { refuses_checksums: true, ..S3Config::default() }).await;
    keeps_the_contract(&client(&server).await).await;

    let options = StoreOptions { checksum: Some(ChecksumMode::Crc64Nvme), ..options() };
    let client = s3(&server.endpoint(), "bucket/other", options).await;
    let error = client.put_new("a", payload("x")).await.unwrap_err();
    let PutError::Refused(refusal) = error else { panic!("{error:?}") };
    assert!(refusal.advice.contains("checksum mode to none"), "{refusal}");
}

// B121
#[tokio::test]
async fn a_store_that_ignores_conditions_fails_the_check() {
    let server = server(S3Config { conditions: Conditions::Ignored, ..S3Config::default() }).await;
    let report = bucket_check(&client(&server).await).await;
    for name in ["conditional create", "conditional replace", "one winner of eight"] {
        let check = report.check(name).unwrap();
        assert_eq!(check.status, CheckStatus::Failed, "{check:?}");
    }
    assert_eq!(report.status(), CheckStatus::Failed);
}

#[tokio::test]
async fn a_store_without_conditions_is_used_knowingly() {
    let server = server(S3Config { conditions: Conditions::Unsupported, ..S3Config::default() }).await;
    let client = client(&server).await;
    let first = client.put_new("a", payload("first")).await.unwrap();
    let exists = PutError::Exists { key: "a".to_owned(), bytes: 5 };
    assert_eq!(client.put_new("a", payload("other")).await, Err(exists));
    let error = client.put_match("a", payload("other"), &first.etag).await.unwrap_err();
    assert!(matches!(error, PutMatchError::Refused(_)), "{error:?}");
    let report = bucket_check(&client).await;
    for name in ["conditional create", "conditional replace", "one winner of eight"] {
        assert_eq!(report.check(name).unwrap().status, CheckStatus::Advice);
    }
}

#[tokio::test]
async fn a_missing_bucket_is_refused_with_what_to_do_and_init_makes_it() {
    let server = server(S3Config::default()).await;
    let options = options();
    let client = s3(&server.endpoint(), "new-bucket/p", options.clone()).await;
    let error = client.get("a", 10).await.unwrap_err();
    let GetError::Refused(refusal) = error else { panic!("{error:?}") };
    assert!(refusal.advice.contains("tidelog bucket init"), "{refusal}");
    assert!(matches!(client.put_new("a", payload("x")).await, Err(PutError::Refused(_))));
    assert!(matches!(client.list("", None, 1).await, Err(ListError::Refused(_))));
    let report = bucket_check(&client).await;
    assert_eq!(report.checks.len(), 1, "{report:?}");
    assert_eq!(report.status(), CheckStatus::Failed);

    let url: StoreUrl = "s3://new-bucket/p".parse().unwrap();
    let options = StoreOptions { endpoint: Some(server.endpoint()), ..options };
    let first = bucket_init(&url, &options).await.unwrap();
    assert_eq!((first.created, first.lifecycle.status), (true, CheckStatus::Ok), "{first:?}");
    assert_eq!(server.buckets(), ["bucket", "new-bucket"]);
    let again = bucket_init(&url, &options).await.unwrap();
    assert_eq!((again.created, again.lifecycle.status), (false, CheckStatus::Ok), "{again:?}");
    let report = bucket_check(&client).await;
    assert_eq!(report.status(), CheckStatus::Ok, "{report:?}");
}

#[tokio::test]
async fn a_store_without_lifecycle_gives_advice() {
    let server = server(S3Config { has_lifecycle: false, ..S3Config::default() }).await;
    let options = StoreOptions { endpoint: Some(server.endpoint()), ..options() };
    let report = bucket_init(&"s3://new-bucket".parse().unwrap(), &options).await.unwrap();
    assert_eq!((report.created, report.lifecycle.status), (true, CheckStatus::Advice), "{report:?}");
    let report = bucket_check(&client(&server).await).await;
    assert_eq!(report.status(), CheckStatus::Advice);
    assert_eq!(report.check("lifecycle").unwrap().status, CheckStatus::Advice);
}

#[tokio::test]
async fn the_clocks_of_store_and_machine_are_compared() {
    let ahead = Duration::from_secs(60);
    let server = server(S3Config { clock_ahead: ahead, ..S3Config::default() }).await;
    let client = client(&server).await;
    client.put_new("a", payload("x")).await.unwrap();
    let page = client.list("", None, 10).await.unwrap();
    // Both stamps are the store's own, so that ages do not depend on this machine's clock.
    let age_ms = page.store_time.millis_since(page.objects[0].modified);
    assert!(age_ms < 20_000, "{age_ms}");
    let check = bucket_check(&client).await;
    assert_eq!(check.check("clock").unwrap().status, CheckStatus::Advice);

    server.configure(|config| config.clock_ahead = Duration::from_secs(3600));
    let check = bucket_check(&client).await;
    assert_eq!(check.check("clock").unwrap().status, CheckStatus::Failed);
}

// B125
#[tokio::test]
async fn a_listing_that_returns_the_start_key_again_is_read_right() {
    let server = server(S3Config { list_quirk: ListQuirk::InclusiveStartAfter, ..S3Config::default() }).await;
    let client = client(&server).await;
    for key in ["k/a", "k/b", "k/c"] {
        client.put_new(key, payload("x")).await.unwrap();
    }
    let mut seen = Vec::new();
    loop {
        let page = client.list("k/", seen.last().map(String::as_str), 2).await.unwrap();
        seen.extend(page.objects.into_iter().map(|object| object.key));
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, ["k/a", "k/b", "k/c"]);
}

// B125
#[tokio::test]
async fn a_listing_that_does_not_advance_is_an_error_and_no_absence() {
    for quirk in [ListQuirk::NeverAdvances, ListQuirk::Descending] {
        let server = server(S3Config { list_quirk: quirk, ..S3Config::default() }).await;
        let client = client(&server).await;
        for key in ["k/a", "k/b", "k/c"] {
            client.put_new(key, payload("x")).await.unwrap();
        }
        let mut after = None;
        let error = loop {
            match client.list("k/", after.as_deref(), 2).await {
                Ok(page) => after = page.objects.last().map(|object| object.key.clone()),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ListError::Untrustworthy { .. }), "{error:?}");
    }
}

// B125: 3000 keys in the style of partitioned tables.
#[tokio::test]
async fn three_thousand_keys_with_equals_signs_are_listed_whole() {
    let server = server(S3Config::default()).await;
    let client = client(&server).await;
    let keys: Vec<String> = (0..3000).map(|file| format!("topic=x/date=2026-01-01/part-{file:05}")).collect();
    for key in &keys {
        server.put_object("bucket", &format!("some/prefix/{key}"), bytes::Bytes::from_static(b"x"));
    }
    let mut seen: Vec<String> = Vec::new();
    loop {
        let page = client.list("topic=x/", seen.last().map(String::as_str), 1000).await.unwrap();
        seen.extend(page.objects.into_iter().map(|object| object.key));
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, keys);
    assert_eq!(client.usage().list_count, 3);
}

// C22: a refusal of expired keys causes one renewal, and is final only if the new ones are refused too.
#[tokio::test]
async fn keys_that_stay_expired_are_refused_at_last() {
    let server = server(S3Config { access_key: Some("another".to_owned()), ..S3Config::default() }).await;
    let client = client(&server).await;
    let error = client.get("a", 10).await.unwrap_err();
    let GetError::Refused(refusal) = error else { panic!("{error:?}") };
    assert!(refusal.advice.contains("newly issued"), "{refusal}");
    assert_eq!(server.request_count(), 2);
    server.configure(|config| config.access_key = Some("test".to_owned()));
    client.put_new("a", payload("x")).await.unwrap();
}

// Authoritative refusals are told apart from absence, whatever their status, and asked once.
#[tokio::test]
async fn an_unknown_access_key_is_a_refusal_and_no_absence() {
    for refusal in [(404, "XAdminUserNotFound"), (403, "InvalidAccessKeyId")] {
        let config = S3Config { access_refusal: refusal, ..S3Config::default() };
        let server = server(S3Config { access_key: Some("another".to_owned()), ..config }).await;
        let client = client(&server).await;
        let says =
            |refusal: &tidelog_object::Refusal| refusal.advice.contains("does not know this access key");
        let Err(GetError::Refused(refusal)) = client.get("a", 10).await else { panic!() };
        assert!(says(&refusal), "{refusal}");
        let Err(PutError::Refused(refusal)) = client.put_new("a", payload("x")).await else { panic!() };
        assert!(says(&refusal), "{refusal}");
        let Err(ListError::Refused(refusal)) = client.list("", None, 1).await else { panic!() };
        assert!(says(&refusal), "{refusal}");
        let Err(DeleteError::Refused(refusal)) = client.delete("a").await else { panic!() };
        assert!(says(&refusal), "{refusal}");
        assert_eq!(server.request_count(), 4, "none is asked twice");
        // An answer to HEAD has no words; the refusal is found nonetheless.
        assert!(matches!(client.head("a").await, Err(GetError::Refused(_))));
        let ours = ClusterId::from_bytes([1; 16]);
        assert!(matches!(claim_prefix(&client, ours, true).await, Err(ClaimError::Refused(_))));
        assert!(client.usage().failure_count >= 5, "{:?}", client.usage());

        let outage = client.health().writes_outage().unwrap();
        assert_eq!((outage.cause, outage.operation), (OutageCause::Refuses, "put"));
        // Keys are put right while the client runs.
        server.configure(|config| config.access_key = Some("test".to_owned()));
        client.put_new("a", payload("x")).await.unwrap();
        client.get("a", 10).await.unwrap();
        assert_eq!((client.health().writes_outage(), client.health().reads_outage()), (None, None));
    }
}

#[tokio::test]
async fn a_page_that_no_store_wrote_is_not_an_absence() {
    let supervisor = Supervisor::for_test();
    let server = server(S3Config::default()).await;
    let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
    let client = s3(&proxy.endpoint(), "bucket/p", options()).await;
    assert!(matches!(client.get("a", 10).await, Err(GetError::NotFound { .. })));
    assert!(matches!(client.head("a").await, Err(GetError::NotFound { .. })));
    proxy.add(Rule::always("GET", Fault::Status(404, "")));
    proxy.add(Rule::always("HEAD", Fault::Status(404, "")));
    let Err(GetError::Refused(refusal)) = client.get("a", 10).await else { panic!() };
    assert!(refusal.advice.contains("endpoint"), "{refusal}");
    assert!(matches!(client.head("a").await, Err(GetError::Refused(_))));
}

#[tokio::test]
async fn what_keeps_a_store_from_answering_is_told_apart() {
    let supervisor = Supervisor::for_test();
    let server = server(S3Config::default()).await;
    let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
    let options = StoreOptions {
        silence_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(300),
        retry_deadline: Duration::from_millis(500),
        ..options()
    };
    let failure = async |client: ObjectClient| {
        let Err(GetError::Retriable(failure)) = client.get("a", 10).await else { panic!() };
        (client.health().failures().unwrap().cause, failure.reason)
    };
    for (fault, cause) in [
        (Fault::Status(503, "SlowDown"), OutageCause::Throttles),
        (Fault::Status(500, "InternalError"), OutageCause::Fails),
        (Fault::Silence, OutageCause::Silent),
        (Fault::Reset, OutageCause::BreaksOff),
    ] {
        proxy.clear();
        proxy.add(Rule::always("GET", fault));
        let (found, reason) = failure(s3(&proxy.endpoint(), "bucket/p", options.clone()).await).await;
        assert_eq!(found, cause, "{reason}");
    }
    // A port that was free a moment ago, and a name that is reserved not to exist (RFC 6761).
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (found, reason) = failure(s3(&format!("http://{free}"), "bucket/p", options.clone()).await).await;
    assert_eq!(found, OutageCause::ConnectionRefused, "{reason}");
    assert!(reason.starts_with("the connection is refused: "), "{reason}");
    let (found, reason) = failure(s3("http://store.invalid:9000", "bucket/p", options).await).await;
    assert_eq!(found, OutageCause::NameNotResolved, "{reason}");
}
