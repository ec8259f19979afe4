//! `bucket init` on stores that refuse what newer SDKs send by default.

use tidelog_object::{CheckStatus, StoreOptions, StoreUrl, bucket_check, bucket_init};
use tidelog_runtime::Supervisor;
use tidelog_testkit::{S3Config, S3Server};

use crate::support::{options, payload, s3};

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
