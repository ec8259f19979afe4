//! What every store must do, run on each of them.

use bytes::Bytes;
use tidelog_format::broker_json::{BrokerJson, KnownClaims};
use tidelog_object::{
    BrokerClaimError, CheckStatus, ClaimError, Corruption, ETag, Expected, GetError, ObjectClient, PutError,
    PutMatchError, claim_prefix, find_broker_claim,
};
use tidelog_types::{BrokerId, BrokerIncarnation, ClaimId, ClusterId};

use crate::support::{folder, memory, pattern, payload};

#[tokio::test]
async fn memory_keeps_the_contract() {
    keeps_the_contract(&memory().await).await;
}

#[tokio::test]
async fn a_folder_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    keeps_the_contract(&folder(dir.path()).await).await;
}

/// All of the contract, one part after the other, each under keys of its own.
pub(crate) async fn keeps_the_contract(client: &ObjectClient) {
    what_is_put_is_read_back(client).await;
    ranges_are_exact(client).await;
    a_create_never_overwrites(client).await;
    a_repeated_create_is_its_own_success(client).await;
    a_replacement_asks_for_the_etag(client).await;
    pages_follow_one_another(client).await;
    deletion_is_idempotent(client).await;
    one_of_many_creators_wins(client).await;
    a_prefix_belongs_to_one_cluster(client).await;
    a_prefix_belongs_to_one_data_directory(client).await;
    a_check_finds_nothing_to_do(client).await;
    assert_eq!(client.free_requests(), client.options().requests_max, "no permit outlives its request");
}

async fn what_is_put_is_read_back(client: &ObjectClient) {
    let bytes = pattern(300_000);
    let chunks = vec![Bytes::from(bytes[..7].to_vec()), Bytes::new(), Bytes::from(bytes[7..].to_vec())];
    let receipt = client.put_new("whole/a", chunks).await.unwrap();
    let fetched = client.get("whole/a", 300_000).await.unwrap();
    assert_eq!(fetched.bytes, bytes);
    assert_eq!(fetched.etag, receipt.etag);
    let head = client.head("whole/a").await.unwrap();
    assert_eq!((head.bytes, head.etag), (300_000, receipt.etag));
    assert!(head.modified.as_millis() > 1_600_000_000_000);

    client.put_new("whole/empty", vec![]).await.unwrap();
    assert_eq!(client.get("whole/empty", 10).await.unwrap().bytes, Bytes::new());

    assert_eq!(client.get("whole/none", 10).await, Err(GetError::NotFound { key: "whole/none".to_owned() }));
    assert_eq!(client.head("whole/none").await, Err(GetError::NotFound { key: "whole/none".to_owned() }));
    let too_long = Corruption::TooLong { limit: 299_999, actual: 300_000 };
    assert_eq!(
        client.get("whole/a", 299_999).await,
        Err(GetError::Corrupt { key: "whole/a".to_owned(), what: too_long })
    );
}

async fn ranges_are_exact(client: &ObjectClient) {
    let bytes = pattern(100_000);
    let receipt = client.put_new("ranges/a", vec![Bytes::from(bytes.clone())]).await.unwrap();
    let known = Expected { object_bytes: 100_000, etag: Some(receipt.etag.clone()) };
    for (from, to) in [(0, 100_000), (0, 1), (99_999, 100_000), (50_000, 70_001), (5, 5)] {
        let range = u64::try_from(from).unwrap()..u64::try_from(to).unwrap();
        let fetched = client.get_range("ranges/a", range, known.clone()).await.unwrap();
        assert_eq!(fetched.chunks.concat(), bytes[from..to]);
        assert_eq!(fetched.etag, receipt.etag);
    }
    let unknown_etag = Expected { object_bytes: 100_000, etag: None };
    assert_eq!(client.get_range("ranges/a", 1..9, unknown_etag).await.unwrap().etag, receipt.etag);

    // B101: another length than the manifest's is a data error, and so is a range beyond it.
    let corrupt = |what| Err(GetError::Corrupt { key: "ranges/a".to_owned(), what });
    let longer = Expected { object_bytes: 100_001, etag: None };
    assert_eq!(
        client.get_range("ranges/a", 0..10, longer).await,
        corrupt(Corruption::Length { expected: 100_001, actual: 100_000 })
    );
    assert_eq!(
        client.get_range("ranges/a", 0..100_001, known.clone()).await,
        corrupt(Corruption::OutOfRange { from: 0, to: 100_001, object_bytes: 100_000 })
    );
    let far = Expected { object_bytes: 300_000, etag: None };
    let error = client.get_range("ranges/a", 200_000..200_010, far).await.unwrap_err();
    assert!(matches!(error, GetError::Corrupt { .. }), "{error:?}");
    let other = Expected { object_bytes: 100_000, etag: Some(ETag::new("\"other\"")) };
    let error = client.get_range("ranges/a", 0..10, other).await.unwrap_err();
    assert!(matches!(error, GetError::Corrupt { what: Corruption::ETag { .. }, .. }), "{error:?}");
    let known_none = Expected { object_bytes: 10, etag: None };
    let error = client.get_range("ranges/none", 0..10, known_none).await.unwrap_err();
    assert_eq!(error, GetError::NotFound { key: "ranges/none".to_owned() });
}

async fn a_create_never_overwrites(client: &ObjectClient) {
    client.put_new("create/a", payload("first")).await.unwrap();
    let exists = |bytes| Err(PutError::Exists { key: "create/a".to_owned(), bytes });
    assert_eq!(client.put_new("create/a", payload("a longer one")).await, exists(5));
    assert_eq!(client.put_new("create/a", payload("other")).await, exists(5));
    assert_eq!(client.get("create/a", 100).await.unwrap().bytes, "first");
}

async fn a_repeated_create_is_its_own_success(client: &ObjectClient) {
    let first = client.put_new("create/b", payload("same")).await.unwrap();
    assert_eq!(client.put_new("create/b", payload("same")).await.unwrap(), first);
}

async fn a_replacement_asks_for_the_etag(client: &ObjectClient) {
    let first = client.put_new("match/a", payload("one")).await.unwrap().etag;
    let second = client.put_match("match/a", payload("two!"), &first).await.unwrap().etag;
    assert_ne!(first, second);
    let changed = PutMatchError::Changed { key: "match/a".to_owned(), current: second };
    assert_eq!(client.put_match("match/a", payload("three"), &first).await, Err(changed));
    assert_eq!(client.get("match/a", 100).await.unwrap().bytes, "two!");
    // B119: a missing object is told from a changed one.
    let absent = PutMatchError::Absent { key: "match/none".to_owned() };
    assert_eq!(client.put_match("match/none", payload("x"), &first).await, Err(absent));
}

async fn pages_follow_one_another(client: &ObjectClient) {
    // B125: keys with `=`, more than one page, a neighbour whose name begins alike.
    let mut keys: Vec<String> = (0..7).map(|day| format!("list/date=2026-01-0{day}/x")).collect();
    keys.push("list/zz".to_owned());
    for key in keys.iter().rev() {
        client.put_new(key, payload("x")).await.unwrap();
    }
    client.put_new("list-other/x", payload("x")).await.unwrap();
    let mut seen = Vec::new();
    let mut pages = 0;
    loop {
        let page = client.list("list/", seen.last().map(String::as_str), 3).await.unwrap();
        pages += 1;
        assert!(page.objects.iter().all(|object| object.bytes == 1));
        assert!(page.store_time.as_millis() > 1_600_000_000_000);
        seen.extend(page.objects.into_iter().map(|object| object.key));
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, keys);
    assert_eq!(pages, 3);
    let page = client.list("list/date=2026-01-03", None, 10).await.unwrap();
    assert_eq!(
        page.objects.iter().map(|object| object.key.as_str()).collect::<Vec<_>>(),
        ["list/date=2026-01-03/x"]
    );
    let page = client.list("list/none", None, 10).await.unwrap();
    assert_eq!((page.objects.len(), page.more), (0, false));
    let page = client.list("no-such-folder/", None, 10).await.unwrap();
    assert_eq!((page.objects.len(), page.more), (0, false));
}

async fn deletion_is_idempotent(client: &ObjectClient) {
    client.put_new("delete/a", payload("x")).await.unwrap();
    client.delete("delete/a").await.unwrap();
    assert_eq!(client.head("delete/a").await, Err(GetError::NotFound { key: "delete/a".to_owned() }));
    client.delete("delete/a").await.unwrap();
}

/// B119: of many creators exactly one wins, and none is stuck.
async fn one_of_many_creators_wins(client: &ObjectClient) {
    for round in 0..10 {
        let key = format!("race/{round}");
        let texts: Vec<String> = (0..32).map(|racer| format!("racer {racer:02}")).collect();
        let puts = texts.iter().map(|text| client.put_new(&key, payload(text)));
        let results = futures::future::join_all(puts).await;
        let winners: Vec<usize> = (0..32).filter(|racer| results[*racer].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        assert_eq!(client.get(&key, 100).await.unwrap().bytes, texts[winners[0]]);
        for (racer, result) in results.iter().enumerate() {
            if racer != winners[0] {
                assert_eq!(result, &Err(PutError::Exists { key: key.clone(), bytes: 8 }));
            }
        }
    }
}

async fn a_prefix_belongs_to_one_cluster(client: &ObjectClient) {
    let (ours, theirs) = (ClusterId::from_bytes([1; 16]), ClusterId::from_bytes([2; 16]));
    // A cluster that has data elsewhere takes none, and leaves nothing behind that a second try would believe.
    for _ in 0..2 {
        let refused = claim_prefix(client, ours, false).await;
        assert_eq!(refused, Err(ClaimError::Nobodys { prefix: client.url().to_string() }));
    }
    assert_eq!(claim_prefix(client, ours, true).await, Ok(()));
    for may_take in [true, false] {
        assert_eq!(claim_prefix(client, ours, may_take).await, Ok(()), "it has been ours");
    }
    let error = claim_prefix(client, theirs, true).await.unwrap_err();
    assert_eq!(error, ClaimError::OtherCluster { prefix: client.url().to_string(), owner: ours });
    assert!(error.to_string().contains(&ours.to_string()), "{error}");
}

async fn a_prefix_belongs_to_one_data_directory(client: &ObjectClient) {
    let own = |incarnation, claim| BrokerJson {
        broker: BrokerId(1),
        incarnation: BrokerIncarnation(incarnation),
        claim: ClaimId::from_bytes([claim; 16]),
    };
    let known = |former: u8, newest: u8| {
        let former = Some(ClaimId::from_bytes([former; 16]));
        Some(KnownClaims { former, newest: ClaimId::from_bytes([newest; 16]) })
    };
    let first = find_broker_claim(client, own(1, 1), None).await.unwrap();
    assert_eq!((first.former(), first.is_ours()), (None, false));
    let first = first.take().await.unwrap();
    assert_eq!(first.check().await, Ok(()));
    // A try whose answer was lost is tried again.
    assert!(find_broker_claim(client, own(1, 1), known(0, 1)).await.unwrap().is_ours());
    // Two that know the first start at once: one of them is let in.
    let second = find_broker_claim(client, own(2, 2), known(0, 1)).await.unwrap();
    let third = find_broker_claim(client, own(2, 3), known(1, 9)).await.unwrap();
    assert_eq!(second.former(), Some(ClaimId::from_bytes([1; 16])));
    let second = second.take().await.unwrap();
    let other = |found| {
        move |error: BrokerClaimError| match error {
            BrokerClaimError::OtherDirectory { key, found: incarnation, .. } => {
                assert_eq!((key.as_str(), incarnation), ("brokers/1.json", BrokerIncarnation(found)));
            }
            error => panic!("{error}"),
        }
    };
    third.take().await.map(drop).map_err(other(2)).unwrap_err();
    first.check().await.map_err(other(2)).unwrap_err();
    assert_eq!(second.check().await, Ok(()));
    // Whoever knows neither is refused at any incarnation; a directory that knows nothing must be newer.
    find_broker_claim(client, own(9, 4), known(1, 4)).await.map(drop).map_err(other(2)).unwrap_err();
    find_broker_claim(client, own(2, 4), None).await.map(drop).map_err(other(2)).unwrap_err();
    assert!(find_broker_claim(client, own(3, 4), None).await.is_ok());
    client.delete("brokers/1.json").await.unwrap();
    assert_eq!(second.check().await, Ok(()), "a claim that a person lifted is nobody's");
    assert!(find_broker_claim(client, own(1, 5), known(7, 8)).await.is_ok());
}

async fn a_check_finds_nothing_to_do(client: &ObjectClient) {
    let report = tidelog_object::admin::bucket_check(client).await;
    for check in &report.checks {
        // Not every store has lifecycle rules.
        assert!(check.status == CheckStatus::Ok || check.name == "lifecycle", "{check:?}");
    }
    let names: Vec<&str> = report.checks.iter().map(|check| check.name).collect();
    assert_eq!(
        names,
        [
            "reachable",
            "conditional create",
            "conditional replace",
            "one winner of eight",
            "checksum",
            "ranged get",
            "list",
            "delete",
            "lifecycle",
            "clock"
        ]
    );
    let left = client.list("tidelog-check/", None, 10).await.unwrap();
    assert_eq!(left.objects, [], "nothing of the check is left");
}
