//! The client behind a proxy that misbehaves: every fault of a network and of a store in a bad hour.

use std::time::Duration;

use bytes::Bytes;
use tidelog_object::{
    Corruption, Expected, GetError, ListError, ObjectClient, PutError, PutMatchError, StoreOptions,
};
use tidelog_runtime::Supervisor;
use tidelog_testkit::{Fault, Rule, S3Config, S3Proxy, S3Server};
use tokio::time::Instant;

use crate::{
    contract::keeps_the_contract,
    support::{options, pattern, payload, s3},
};

struct Rig {
    server: S3Server,
    proxy: S3Proxy,
    client: ObjectClient,
}

async fn rig_with(options: StoreOptions) -> Rig {
    let supervisor = Supervisor::for_test();
    let server = S3Server::start(&supervisor, S3Config::default(), &["bucket"]).await.unwrap();
    let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
    let client = s3(&proxy.endpoint(), "bucket/p", options).await;
    Rig { server, proxy, client }
}

async fn rig() -> Rig {
    rig_with(options()).await
}

/// Options with which a store that stays away is given up soon.
fn impatient() -> StoreOptions {
    StoreOptions { retry_deadline: Duration::from_millis(400), ..options() }
}

fn known(object_bytes: usize) -> Expected {
    Expected { object_bytes: u64::try_from(object_bytes).unwrap(), etag: None }
}

#[tokio::test]
async fn the_proxy_alone_changes_nothing() {
    let rig = rig().await;
    keeps_the_contract(&rig.client).await;
}

#[tokio::test]
async fn throttling_and_errors_are_waited_out() {
    let rig = rig().await;
    rig.proxy.add(Rule::next("PUT", 2, Fault::Status(503, "SlowDown")));
    rig.proxy.add(Rule::next("PUT", 1, Fault::Status(500, "InternalError")));
    rig.proxy.add(Rule::next("GET", 1, Fault::Reset));
    rig.proxy.add(Rule::next("DELETE", 1, Fault::Status(503, "SlowDown")));
    rig.client.put_new("a", payload("x")).await.unwrap();
    assert_eq!(rig.proxy.count("PUT", "/bucket/p/a"), 4);
    assert_eq!(rig.client.get("a", 10).await.unwrap().bytes, "x");
    rig.proxy.add(Rule::next("GET", 2, Fault::Status(503, "SlowDown")));
    assert_eq!(rig.client.list("", None, 10).await.unwrap().objects.len(), 1);
    rig.client.delete("a").await.unwrap();
    assert_eq!(rig.client.usage().failure_count, 7);
}

#[tokio::test]
async fn a_store_that_stays_away_is_given_up_at_the_deadline() {
    let rig = rig_with(impatient()).await;
    rig.proxy.add(Rule::always("GET", Fault::Status(503, "SlowDown")));
    rig.proxy.add(Rule::always("PUT", Fault::Status(503, "SlowDown")));
    assert!(matches!(rig.client.get("a", 10).await, Err(GetError::Retriable(_))));
    assert!(matches!(rig.client.list("", None, 1).await, Err(ListError::Retriable(_))));
    // 503 is an answer: nothing was written.
    let error = rig.client.put_new("a", payload("x")).await.unwrap_err();
    assert!(matches!(error, PutError::Retriable(_)), "{error:?}");
    assert_eq!(rig.client.free_requests(), 64);
}

#[tokio::test]
async fn refusals_are_not_retried_and_say_what_to_do() {
    let rig = rig().await;
    rig.proxy.add(Rule::always("GET", Fault::Status(403, "AccessDenied")));
    rig.proxy.add(Rule::always("PUT", Fault::Status(403, "SignatureDoesNotMatch")));
    let GetError::Refused(refusal) = rig.client.get("a", 10).await.unwrap_err() else { panic!() };
    assert!(refusal.advice.contains("right"), "{refusal}");
    let PutError::Refused(refusal) = rig.client.put_new("a", payload("x")).await.unwrap_err() else {
        panic!()
    };
    assert!(refusal.advice.contains("secret access key"), "{refusal}");
    assert_eq!((rig.proxy.count("GET", ""), rig.proxy.count("PUT", "")), (1, 1));
}

// B119: a conflict is tried again; a lost race is a loss; a missing key is told from a changed one.
#[tokio::test]
async fn conflict_precondition_and_absence_mean_different_things() {
    let rig = rig().await;
    rig.proxy.add(Rule::next("PUT", 2, Fault::Status(409, "ConditionalRequestConflict")).on("/a"));
    let etag = rig.client.put_new("a", payload("first")).await.unwrap().etag;
    assert_eq!(rig.proxy.count("PUT", "/a"), 3);

    rig.proxy.add(Rule::next("PUT", 2, Fault::Status(409, "ConditionalRequestConflict")).on("/a"));
    let etag = rig.client.put_match("a", payload("second"), &etag).await.unwrap().etag;
    assert_eq!(rig.proxy.count("PUT", "/a"), 6);

    // Older MinIO answers 304 for a lost create.
    rig.proxy.add(Rule::next("PUT", 1, Fault::Status(304, "")).on("/a"));
    let exists = PutError::Exists { key: "a".to_owned(), bytes: 6 };
    assert_eq!(rig.client.put_new("a", payload("another")).await, Err(exists));

    rig.client.delete("a").await.unwrap();
    let absent = PutMatchError::Absent { key: "a".to_owned() };
    assert_eq!(rig.client.put_match("a", payload("third"), &etag).await, Err(absent));
}

// B119: the answer to our own success is lost, and the retry meets our own object.
#[tokio::test]
async fn a_put_whose_answer_is_lost_recognises_its_own_object() {
    let rig = rig().await;
    let bytes = Bytes::from(pattern(20_000_000));
    rig.proxy.add(Rule::next("PUT", 1, Fault::ForwardThenDrop));
    let receipt = rig.client.put_new("a", vec![bytes.slice(..5), bytes.slice(5..)]).await.unwrap();
    assert_eq!(rig.client.head("a").await.unwrap().etag, receipt.etag);
    assert_eq!(rig.proxy.count("PUT", "/a"), 2);
    assert_eq!(rig.server.object("bucket", "p/a").unwrap(), bytes);

    // An object of equal length that differs in its last byte is another's.
    let mut other = bytes.to_vec();
    *other.last_mut().unwrap() ^= 1;
    rig.server.put_object("bucket", "p/b", Bytes::from(other));
    let exists = PutError::Exists { key: "b".to_owned(), bytes: 20_000_000 };
    assert_eq!(rig.client.put_new("b", vec![bytes]).await, Err(exists));
}

#[tokio::test]
async fn a_lost_replacement_recognises_its_own_object() {
    let rig = rig().await;
    let first = rig.client.put_new("a", payload("one")).await.unwrap().etag;
    rig.proxy.add(Rule::next("PUT", 1, Fault::ForwardThenDrop));
    let second = rig.client.put_match("a", payload("two"), &first).await.unwrap().etag;
    assert_eq!(rig.client.head("a").await.unwrap().etag, second);
    // Without a lost answer equal content is no success of ours.
    let changed = PutMatchError::Changed { key: "a".to_owned(), current: second };
    assert_eq!(rig.client.put_match("a", payload("two"), &first).await, Err(changed));
}

#[tokio::test]
async fn a_put_that_is_lost_for_good_is_settled_or_unknown() {
    let rig = rig_with(impatient()).await;
    // Done, though no answer ever came: settled by looking.
    rig.proxy.add(Rule::always("PUT", Fault::ForwardThenDrop).on("/a"));
    rig.client.put_new("a", payload("x")).await.unwrap();
    // Never done as far as anyone can see, but it may still arrive.
    rig.proxy.add(Rule::always("PUT", Fault::Reset).on("/b"));
    let error = rig.client.put_new("b", payload("x")).await.unwrap_err();
    assert!(matches!(error, PutError::Unknown(_)), "{error:?}");
}

// B122: a success that carries an error is none.
#[tokio::test]
async fn a_success_with_an_error_inside_is_a_failure() {
    let rig = rig().await;
    rig.proxy.add(Rule::next("PUT", 2, Fault::ErrorInSuccess));
    rig.client.put_new("a", payload("x")).await.unwrap();
    assert_eq!(rig.proxy.count("PUT", "/a"), 3);
    assert_eq!(rig.server.object("bucket", "p/a").unwrap(), "x");
    rig.proxy.add(Rule::next("GET", 1, Fault::ErrorInSuccess));
    let fetched = rig.client.get_range("a", 0..1, known(1)).await.unwrap();
    assert_eq!(fetched.chunks.concat(), b"x");
    rig.proxy.add(Rule::next("GET", 1, Fault::ErrorInSuccess));
    assert_eq!(rig.client.list("", None, 10).await.unwrap().objects.len(), 1);
}

// B101: cut bodies are resumed from the break, under the same ETag, and are never returned.
#[tokio::test]
async fn a_body_that_is_cut_is_resumed_and_comes_whole() {
    let rig = rig().await;
    let bytes = pattern(3_000_000);
    rig.client.put_new("a", vec![Bytes::from(bytes.clone())]).await.unwrap();
    for cut in [0, 1, 700_000, 999_999] {
        rig.proxy.clear_log();
        rig.proxy.add(Rule::next("GET", 2, Fault::CutBody(cut)));
        let fetched = rig.client.get_range("a", 500_000..2_500_000, known(3_000_000)).await.unwrap();
        assert!(fetched.chunks.concat() == bytes[500_000..2_500_000], "cut at {cut}");
        let log = rig.proxy.log();
        assert_eq!(log.len(), 3);
        assert_eq!(log[0].header("range"), Some("bytes=500000-2499999"));
        let resumed = format!("bytes={}-2499999", 500_000 + 2 * cut);
        assert_eq!(log[2].header("range"), Some(resumed.as_str()));
        assert_eq!(log[2].header("if-match"), Some(fetched.etag.as_str()));
    }
    rig.proxy.add(Rule::next("GET", 1, Fault::CutBody(1_000_000)));
    assert!(rig.client.get("a", 3_000_000).await.unwrap().bytes == bytes);
}

#[tokio::test]
async fn an_object_replaced_between_the_parts_of_a_body_is_corrupt() {
    let rig = rig_with(StoreOptions { requests_max: 1, ..options() }).await;
    rig.client.put_new("a", vec![Bytes::from(pattern(100_000))]).await.unwrap();
    let etag = rig.client.head("a").await.unwrap().etag;
    rig.server.put_object("bucket", "p/a", Bytes::from(pattern(100_000)));
    let expect = Expected { object_bytes: 100_000, etag: Some(etag) };
    let error = rig.client.get_range("a", 0..100_000, expect).await.unwrap_err();
    assert!(matches!(error, GetError::Corrupt { what: Corruption::ETag { .. }, .. }), "{error:?}");
    // B101: a shorter object is a data error, reported once.
    rig.server.put_object("bucket", "p/a", Bytes::from(pattern(50_000)));
    rig.proxy.clear_log();
    let error = rig.client.get_range("a", 10..60_000, known(100_000)).await.unwrap_err();
    assert!(matches!(error, GetError::Corrupt { .. }), "{error:?}");
    let error = rig.client.get_range("a", 60_000..70_000, known(100_000)).await.unwrap_err();
    assert!(matches!(error, GetError::Corrupt { .. }), "{error:?}");
    assert_eq!(rig.proxy.count("GET", "/a"), 2);
}

#[tokio::test]
async fn a_whole_object_in_place_of_a_range_is_never_taken() {
    let rig = rig().await;
    let bytes = pattern(10_000);
    rig.client.put_new("a", vec![Bytes::from(bytes.clone())]).await.unwrap();
    rig.proxy.add(Rule::next("GET", 2, Fault::IgnoreRange));
    let fetched = rig.client.get_range("a", 5..9_000, known(10_000)).await.unwrap();
    assert!(fetched.chunks.concat() == bytes[5..9_000]);
    assert_eq!(rig.proxy.count("GET", "/a"), 3);

    // A store that always does it is not asked for ever.
    rig.proxy.clear_log();
    rig.proxy.add(Rule::always("GET", Fault::IgnoreRange));
    let error = rig.client.get_range("a", 5..9_000, known(10_000)).await.unwrap_err();
    let GetError::Retriable(failure) = error else { panic!("{error:?}") };
    assert!(failure.reason.starts_with("it answers other than it is asked"), "{failure}");
    assert_eq!((rig.proxy.count("GET", "/a"), failure.tries), (4, 4));
}

#[tokio::test]
async fn a_server_that_listens_no_more_is_asked_until_it_does() {
    let rig = rig().await;
    rig.client.put_new("a", vec![Bytes::from(pattern(100))]).await.unwrap();
    rig.proxy.shut();
    let reading = rig.client.get("a", 100);
    let opening = async {
        while rig.client.health().failures().is_none() {
            tokio::task::yield_now().await;
        }
        rig.proxy.listen_again().await.unwrap();
    };
    let (read, ()) = tokio::join!(reading, opening);
    assert!(read.unwrap().bytes == pattern(100));
}

#[tokio::test]
async fn silence_is_dropped_within_the_limit_and_asked_again() {
    let rig = rig_with(StoreOptions { silence_timeout: Duration::from_millis(400), ..options() }).await;
    let bytes = Bytes::from(pattern(30_000_000));
    // C7: it freezes in the middle of its body, beyond what loopback's buffers hide.
    rig.proxy.add(Rule::next("PUT", 1, Fault::FreezeUpload(2_000_000)));
    let begun = Instant::now();
    rig.client.put_new("a", vec![bytes.clone()]).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(400) && begun.elapsed() < Duration::from_secs(10));
    assert_eq!(rig.proxy.count("PUT", "/a"), 2);
    rig.proxy.add(Rule::next("GET", 1, Fault::Silence));
    rig.proxy.add(Rule::next("GET", 1, Fault::FreezeBody(1_000_000)));
    assert!(rig.client.get("a", 30_000_000).await.unwrap().bytes == bytes);
    assert_eq!(rig.proxy.count("GET", "/a"), 3);
    assert_eq!(rig.client.free_requests(), 64);
}

// C7: what moves is left alone, however long it takes: many times the limit on silence.
#[tokio::test]
async fn a_slow_transfer_that_moves_is_one_request() {
    // Long enough for what loopback's buffers hide at this rate, and short against the transfer.
    let silence_timeout = Duration::from_secs(1);
    let rig = rig_with(StoreOptions { silence_timeout, floor_rate_bytes: 256 * 1024, ..options() }).await;
    let bytes = Bytes::from(pattern(16_000_000));
    rig.proxy.add(Rule::always("PUT", Fault::Rate(4_000_000)));
    rig.proxy.add(Rule::always("GET", Fault::Rate(4_000_000)));
    let begun = Instant::now();
    rig.client.put_new("a", vec![bytes.clone()]).await.unwrap();
    assert!(begun.elapsed() > 2 * silence_timeout);
    assert!(rig.client.get("a", 16_000_000).await.unwrap().bytes == bytes);
    assert_eq!((rig.proxy.count("PUT", "/a"), rig.proxy.count("GET", "/a")), (1, 1));
}

// B94, B95: whatever happens to requests, and whoever drops them, no permit is kept and no more than the limit run.
#[tokio::test]
async fn no_permit_leaks_through_errors_and_dropped_requests() {
    let rig = rig_with(StoreOptions {
        requests_max: 4,
        silence_timeout: Duration::from_millis(300),
        retry_deadline: Duration::from_millis(300),
        ..options()
    })
    .await;
    rig.client.put_new("a", vec![Bytes::from(pattern(200_000))]).await.unwrap();
    for (count, fault) in [
        (3, Fault::Status(500, "InternalError")),
        (3, Fault::Reset),
        (3, Fault::CutBody(1000)),
        (3, Fault::Silence),
    ] {
        rig.proxy.add(Rule::next("GET", count, fault));
    }
    let reads = (0..40).map(|read| {
        let client = rig.client.clone();
        async move {
            let range = client.get_range("a", 0..200_000, known(200_000));
            let patience = Duration::from_millis(if read % 4 == 0 { 1 } else { 5000 });
            tokio::time::timeout(patience, range).await
        }
    });
    futures::future::join_all(reads).await;
    assert_eq!(rig.client.free_requests(), 4);
    rig.proxy.clear();
    let fetched = rig.client.get_range("a", 0..200_000, known(200_000)).await.unwrap();
    assert!(fetched.chunks.concat() == pattern(200_000));
}

// B124: what needs a condition is one put, of any size.
#[tokio::test]
async fn a_large_conditional_put_is_one_request_with_its_condition() {
    let rig = rig().await;
    let bytes = Bytes::from(pattern(20 * 1024 * 1024));
    let etag = rig.client.put_new("a", vec![bytes.clone()]).await.unwrap().etag;
    rig.client.put_match("a", vec![bytes.slice(1..)], &etag).await.unwrap();
    let log = rig.proxy.log();
    assert_eq!(log.len(), 2);
    assert_eq!((log[0].method.as_str(), log[0].header("if-none-match")), ("PUT", Some("*")));
    assert_eq!((log[1].method.as_str(), log[1].header("if-match")), ("PUT", Some(etag.as_str())));
    let changed = rig.client.put_match("a", vec![bytes], &etag).await;
    assert!(matches!(changed, Err(PutMatchError::Changed { .. })));
}

// B118: nothing that those stores refuse is on the wire.
#[tokio::test]
async fn puts_to_other_stores_are_plain() {
    let rig = rig().await;
    let refused = vec!["x-amz-trailer", "x-amz-sdk-checksum", "x-amz-checksum"];
    for method in ["PUT", "GET", "HEAD", "DELETE"] {
        rig.proxy.add(Rule::always(method, Fault::RejectHeaders(refused.clone())));
    }
    keeps_the_contract(&rig.client).await;
    let put = rig.proxy.log().into_iter().find(|request| request.method == "PUT").unwrap();
    assert!(put.header("content-length").is_some());
    assert!(put.header("x-amz-content-sha256").is_some_and(|hash| hash.len() == 64), "{put:?}");
    assert_eq!(put.header("content-encoding"), None);
}

// B121
#[tokio::test]
async fn a_proxy_that_strips_conditions_is_found_out() {
    let rig = rig().await;
    rig.proxy.add(Rule::always("PUT", Fault::StripHeaders(vec!["if-"])));
    let report = tidelog_object::bucket_check(&rig.client).await;
    let check = report.check("conditional create").unwrap();
    assert_eq!(check.status, tidelog_object::CheckStatus::Failed, "{check:?}");
}

#[tokio::test]
async fn an_upload_that_is_changed_on_the_way_is_refused_by_its_checksum() {
    // The proxy cannot change a request's body; the store's refusal of one is what is tried again.
    let rig = rig().await;
    rig.proxy.add(Rule::next("PUT", 1, Fault::Status(400, "BadDigest")));
    rig.client.put_new("a", payload("x")).await.unwrap();
    assert_eq!(rig.proxy.count("PUT", "/a"), 2);
}

// C7: a page of a listing is read whole before it is believed, and moves meanwhile.
#[tokio::test]
async fn a_slow_listing_that_moves_is_one_request() {
    let rig = rig_with(StoreOptions { silence_timeout: Duration::from_millis(400), ..options() }).await;
    for number in 0..1000 {
        let key = format!("p/{}/{number:04}", "k".repeat(100));
        rig.server.put_object("bucket", &key, Bytes::from_static(b"x"));
    }
    rig.proxy.add(Rule::always("GET", Fault::Rate(200_000)));
    let begun = Instant::now();
    assert_eq!(rig.client.list("", None, 1000).await.unwrap().objects.len(), 1000);
    assert!(begun.elapsed() > Duration::from_millis(800), "{:?}", begun.elapsed());
    assert_eq!(rig.proxy.count("GET", ""), 1);
}

// A read that hangs costs the time of a first byte once; a store that is slow to begin is waited for by the next try.
#[tokio::test]
async fn a_read_whose_answer_does_not_begin_is_asked_again_soon() {
    let options = StoreOptions {
        first_byte_timeout: Duration::from_millis(200),
        silence_timeout: Duration::from_secs(10),
        ..options()
    };
    let rig = rig_with(options).await;
    rig.client.put_new("a", payload("x")).await.unwrap();
    rig.proxy.add(Rule::next("GET", 1, Fault::Silence));
    let begun = Instant::now();
    assert_eq!(rig.client.get("a", 10).await.unwrap().bytes, "x");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    rig.proxy.clear_log();
    rig.proxy.add(Rule::always("GET", Fault::Delay(Duration::from_millis(600))));
    assert_eq!(rig.client.get("a", 10).await.unwrap().bytes, "x");
    assert_eq!(rig.proxy.count("GET", "/a"), 2);
    // A body that has begun has the whole limit on silence.
    rig.proxy.clear();
    rig.proxy.clear_log();
    let bytes = Bytes::from(pattern(1_000_000));
    rig.client.put_new("b", vec![bytes.clone()]).await.unwrap();
    rig.proxy.add(Rule::always("GET", Fault::Rate(1_000_000)));
    assert!(rig.client.get("b", 1_000_000).await.unwrap().bytes == bytes);
    assert_eq!(rig.proxy.count("GET", "/b"), 1);
}
