//! The client against a real server: runs where `TIDELOG_TEST_S3_ENDPOINT` names one, with the keys that the AWS SDK
//! reads. `cargo xtask verify` starts one and sets it.

use tidelog_object::{CheckStatus, ChecksumMode, StoreOptions, StoreUrl, bucket_check, bucket_init};
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
