//! The client against a real server: runs where `TIDELOG_TEST_S3_ENDPOINT` names one, with the keys that the AWS SDK
//! reads. `cargo xtask verify` starts one and sets it.

use tidelog_object::{
    CheckStatus, ChecksumMode, DeleteError, GetError, ListError, OutageCause, PutError, StaticCredentials,
    StoreOptions, StoreUrl, bucket_check, bucket_init,
};
use tidelog_runtime::{Rng, SystemRng};

use crate::{contract::keeps_the_contract, support};

fn endpoint() -> Option<String> {
    std::env::var("TIDELOG_TEST_S3_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty())
}

#[tokio::test]
async fn a_real_server_keeps_the_contract_in_every_checksum_mode() {
    let Some(endpoint) = endpoint() else { return };
    let bucket = format!("tidelog-test-{:08x}", SystemRng.next_u64() >> 32);
    let options = StoreOptions { endpoint: Some(endpoint.clone()), credentials: None, ..support::options() };
    let report = bucket_init(&format!("s3://{bucket}").parse::<StoreUrl>().unwrap(), &options).await.unwrap();
    assert!(report.created, "{report:?}");
    assert_ne!(report.lifecycle.status, CheckStatus::Failed, "{report:?}");
    let again = bucket_init(&format!("s3://{bucket}").parse::<StoreUrl>().unwrap(), &options).await.unwrap();
    assert!(!again.created, "{again:?}");
    for mode in [ChecksumMode::None, ChecksumMode::Crc64Nvme, ChecksumMode::Sha256] {
        let options = StoreOptions { checksum: Some(mode), ..options.clone() };
        let client = support::s3(&endpoint, &format!("{bucket}/{mode}"), options).await;
        keeps_the_contract(&client).await;
        let report = bucket_check(&client).await;
        assert_ne!(report.status(), CheckStatus::Failed, "{report:?}");
    }
}

/// A client of `place` that every operation refuses for good, with `advice`.
async fn refuses(endpoint: &str, place: &str, options: StoreOptions, advice: &str) {
    let client = support::s3(endpoint, &format!("{place}/p"), options).await;
    let Err(GetError::Refused(refusal)) = client.get("a", 10).await else { panic!("get, {advice}") };
    assert!(refusal.advice.contains(advice), "{refusal}");
    assert!(matches!(client.head("a").await, Err(GetError::Refused(_))), "head, {advice}");
    let put = client.put_new("a", support::payload("x")).await;
    assert!(matches!(put, Err(PutError::Refused(_))), "{put:?}");
    let list = client.list("", None, 1).await;
    assert!(matches!(list, Err(ListError::Refused(_))), "{list:?}");
    let delete = client.delete("a").await;
    assert!(matches!(delete, Err(DeleteError::Refused(_))), "{delete:?}");
    assert_eq!(client.health().outage().unwrap().cause, OutageCause::Refuses);
}

#[tokio::test]
async fn a_real_server_refuses_a_missing_bucket_for_good() {
    let Some(endpoint) = endpoint() else { return };
    let bucket = format!("tidelog-test-{:08x}-missing", SystemRng.next_u64() >> 32);
    let options = StoreOptions { endpoint: Some(endpoint.clone()), credentials: None, ..support::options() };
    refuses(&endpoint, &bucket, options, "the bucket does not exist").await;
}

// Whatever status a server gives them, wrong keys are refusals at once. LocalStack takes any key, so it cannot be asked.
#[tokio::test]
async fn a_real_server_refuses_unknown_keys_and_wrong_secrets_for_good() {
    let Some(endpoint) = endpoint() else { return };
    if std::env::var("TIDELOG_TEST_S3_KEYS").is_ok_and(|keys| keys == "any") {
        return;
    }
    let bucket = format!("tidelog-test-{:08x}", SystemRng.next_u64() >> 32);
    let options = StoreOptions { endpoint: Some(endpoint.clone()), credentials: None, ..support::options() };
    bucket_init(&format!("s3://{bucket}").parse::<StoreUrl>().unwrap(), &options).await.unwrap();
    let known = std::env::var("AWS_ACCESS_KEY_ID").unwrap();
    for (id, advice) in
        [("NOBODYSKEY", "does not know this access key"), (&known, "secret access key does not fit")]
    {
        let secret_access_key = "not-the-secret".to_owned();
        let credentials = Some(StaticCredentials { access_key_id: id.to_owned(), secret_access_key });
        refuses(&endpoint, &bucket, StoreOptions { credentials, ..options.clone() }, advice).await;
    }
}

#[tokio::test]
async fn a_name_that_no_bucket_can_have_is_told_as_one() {
    let Some(endpoint) = endpoint() else { return };
    let options = StoreOptions { endpoint: Some(endpoint), credentials: None, ..support::options() };
    let error = bucket_init(&"s3://-no-name-".parse().unwrap(), &options).await.unwrap_err().to_string();
    assert!(error.contains("no bucket can have this name"), "{error}");
}
