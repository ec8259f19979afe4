//! `bucket init` on stores that refuse what newer SDKs send by default.

use tidelog_object::{CheckStatus, StoreOptions, StoreUrl, bucket_check, bucket_init};
use tidelog_runtime::Supervisor;
use tidelog_testkit::{Fault, Rule, S3Config, S3Proxy, S3Server};

use crate::support::{folder, options, payload, s3};

// B118: the bucket is made, what cannot be had is advice, and what is uploaded then is plain.
#[tokio::test]
async fn a_bucket_is_made_on_a_store_that_refuses_checksums() {
    let config = S3Config { refuses_checksums: true, ..S3Config::default() };
    let server = S3Server::start(&Supervisor::for_test(), config, &[]).await.unwrap();
    let with_endpoint = StoreOptions { endpoint: Some(server.endpoint()), ..options() };
    let url: StoreUrl = "s3://made-here/p".parse().unwrap();
    let report = bucket_init(&url, &with_endpoint).await.unwrap();
    assert!(report.created, "{report:?}");
    assert_ne!(report.lifecycle.status, CheckStatus::Failed, "{report:?}");
    assert!(!bucket_init(&url, &with_endpoint).await.unwrap().created);
    let client = s3(&server.endpoint(), "made-here/p", options()).await;
    client.put_new("a", payload("x")).await.unwrap();
    let report = bucket_check(&client).await;
    assert_ne!(report.status(), CheckStatus::Failed, "{report:?}");
}

#[tokio::test]
async fn a_check_of_a_folder_leaves_no_folders() {
    let root = tempfile::tempdir().unwrap();
    let client = folder(root.path()).await;
    let report = bucket_check(&client).await;
    assert_eq!(report.status(), CheckStatus::Ok, "{report:?}");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    // What is not the check's stays.
    std::fs::create_dir_all(root.path().join("tidelog-check/other/empty")).unwrap();
    bucket_check(&client).await;
    assert!(root.path().join("tidelog-check/other/empty").is_dir());
}

// The SDK has no type for most answers and calls them unhandled: a person is told what the store said, and what to do.
#[tokio::test]
async fn why_no_bucket_was_made_is_told_in_the_stores_words() {
    let supervisor = Supervisor::for_test();
    let server = S3Server::start(&supervisor, S3Config::default(), &[]).await.unwrap();
    let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
    let through = StoreOptions { endpoint: Some(proxy.endpoint()), ..options() };
    let url: StoreUrl = "s3://made-here/p".parse().unwrap();
    for (status, code, told) in [
        (400, "InvalidBucketName", "no bucket can have this name: 3 to 63 lowercase letters"),
        (403, "InvalidAccessKeyId", "the store does not know this access key (InvalidAccessKeyId: injected"),
        (403, "SignatureDoesNotMatch", "the secret access key does not fit"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (403, "AccessDenied", "belongs to another account, or these credentials have no right to it"),
        (400, "ExpiredToken", "its keys are expired (ExpiredToken: injected (status 400))"),
        (400, "NobodyKnows", "the store does not accept this request (NobodyKnows: injected (status 400))"),
    ] {
        // To HEAD, whose answer has no words, and where the store answers HEAD that there is no such bucket.
        for method in [None, Some("PUT")] {
            if method.is_some() && code == "AccessDenied" {
                continue;
            }
            proxy.clear();
            proxy.add(Rule { method, ..Rule::always("GET", Fault::Status(status, code)) });
            let error = bucket_init(&url, &through).await.unwrap_err().to_string();
            assert!(error.contains(told), "{code}, {method:?}: {error}");
            assert!(!error.contains("unhandled"), "{code}, {method:?}: {error}");
        }
    }
    proxy.clear();
    proxy.add(Rule::always("PUT", Fault::Status(501, "NotImplemented")).on("?lifecycle"));
    let report = bucket_init(&url, &through).await.unwrap();
    assert!(report.created, "{report:?}");
    assert!(report.lifecycle.detail.contains("NotImplemented: injected (status 501)"), "{report:?}");
    assert!(!report.lifecycle.detail.contains("unhandled"), "{report:?}");
}
