//! How a store is spoken to: endpoint, checksums, limits of time and of requests.

use std::{fmt, str::FromStr, time::Duration};

use tokio::runtime::Handle;

/// Which checksum goes with a put, for the store to verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumMode {
    /// `x-amz-checksum-crc64nvme`: the cheapest that Amazon S3 verifies.
    Crc64Nvme,
    /// `x-amz-checksum-sha256`.
    Sha256,
    /// No header beyond S3's first version: a plain put with a length and a signed SHA-256 of the body, which every
    /// store verifies. What several S3-compatible stores refuse otherwise.
    None,
}

/// A checksum mode that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no checksum mode: use crc64nvme, sha256 or none")]
pub struct ChecksumModeError(String);

impl FromStr for ChecksumMode {
    type Err = ChecksumModeError;

    fn from_str(text: &str) -> Result<Self, ChecksumModeError> {
        match text.to_ascii_lowercase().as_str() {
            "crc64nvme" => Ok(Self::Crc64Nvme),
            "sha256" => Ok(Self::Sha256),
            "none" => Ok(Self::None),
            _ => Err(ChecksumModeError(text.to_owned())),
        }
    }
}

impl fmt::Display for ChecksumMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crc64Nvme => "crc64nvme",
            Self::Sha256 => "sha256",
            Self::None => "none",
        })
    }
}

/// Keys that are given and not found as the AWS SDK finds them. For tests and tools.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticCredentials {
    /// The access key's id.
    pub access_key_id: String,
    /// The secret that signs.
    pub secret_access_key: String,
}

impl fmt::Debug for StaticCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticCredentials")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// Settings of a store. The defaults are right for Amazon S3 and, with an endpoint, for stores that speak its protocol.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where the store listens, if not where its name says: `http://127.0.0.1:9000`. None reads `AWS_ENDPOINT_URL_S3`
    /// and `AWS_ENDPOINT_URL`.
    pub endpoint: Option<String>,
    /// The region. None reads it as the AWS SDK does; with an endpoint, `us-east-1` if there is none.
    pub region: Option<String>,
    /// Whether the bucket stands in the path and not in the host name. None: where an endpoint is given.
    pub path_style: Option<bool>,
    /// Whether plain HTTP is allowed. None: where the endpoint says `http://`.
    pub allow_http: Option<bool>,
    /// The checksum of puts. None: CRC64NVME at Amazon, none elsewhere.
    pub checksum: Option<ChecksumMode>,
    /// Keys to use; none finds them as the AWS SDK does.
    pub credentials: Option<StaticCredentials>,
    /// A connection that is not up within this time is given up. 5 s.
    pub connect_timeout: Duration,
    /// A request on which no byte moves for this long, in either direction, is given up. 20 s.
    pub silence_timeout: Duration,
    /// The first try of a read whose answer has not begun within this time is given up: one that hangs costs a reader no
    /// more. The tries after it wait for [`StoreOptions::silence_timeout`], as for a store that is slow. 5 s.
    pub first_byte_timeout: Duration,
    /// A transfer gets the silence limit and the time that its bytes take at this rate, in bytes per second. 64 KiB/s.
    pub floor_rate_bytes: u64,
    /// No further try begins after this time. 60 s.
    pub retry_deadline: Duration,
    /// Requests at once to this store. 64.
    pub requests_max: usize,
    /// Where connections to the store are driven. None: where the request is made that opens one.
    pub runtime: Option<Handle>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            path_style: None,
            allow_http: None,
            checksum: None,
            credentials: None,
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(20),
            first_byte_timeout: Duration::from_secs(5),
            floor_rate_bytes: 64 * 1024,
            retry_deadline: Duration::from_secs(60),
            requests_max: 64,
            runtime: None,
        }
    }
}

impl StoreOptions {
    /// The checksum in use, given the endpoint in use.
    #[must_use]
    pub fn effective_checksum(&self, endpoint: Option<&str>) -> ChecksumMode {
        self.checksum.unwrap_or(match endpoint {
            Some(endpoint) if !is_amazon(endpoint) => ChecksumMode::None,
            _ => ChecksumMode::Crc64Nvme,
        })
    }

    /// The longest that one try may take which moves `bytes`.
    #[must_use]
    pub fn transfer_limit(&self, bytes: u64) -> Duration {
        let at_floor = Duration::from_millis(bytes.saturating_mul(1000) / self.floor_rate_bytes.max(1));
        self.silence_timeout.saturating_add(at_floor)
    }
}

/// Whether an endpoint is Amazon's own, such as a VPC's.
pub(crate) fn is_amazon(endpoint: &str) -> bool {
    let host = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let host = host.split(['/', ':']).next().unwrap_or(host);
    host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
}

#[cfg(test)]
mod tests {
    use super::*;

    // B118: what Amazon added by default is refused by stores that only speak its protocol.
    #[test]
    fn checksum_headers_go_to_amazon_only_unless_asked_for() {
        let options = StoreOptions::default();
        assert_eq!(options.effective_checksum(None), ChecksumMode::Crc64Nvme);
        assert_eq!(options.effective_checksum(Some("http://127.0.0.1:9000")), ChecksumMode::None);
        assert_eq!(
            options.effective_checksum(Some("https://bucket.vpce-1.s3.eu-west-1.vpce.amazonaws.com")),
            ChecksumMode::Crc64Nvme
        );
        assert_eq!(
            options.effective_checksum(Some("https://amazonaws.com.evil.example")),
            ChecksumMode::None
        );
        let forced = StoreOptions { checksum: Some(ChecksumMode::Sha256), ..StoreOptions::default() };
        assert_eq!(forced.effective_checksum(Some("http://127.0.0.1:9000")), ChecksumMode::Sha256);
    }

    // C7: 128 MiB at 1 MiB/s takes 128 s and is one put.
    #[test]
    fn a_transfer_that_moves_is_given_the_time_of_its_size() {
        let options = StoreOptions::default();
        assert_eq!(options.transfer_limit(0), Duration::from_secs(20));
        assert_eq!(options.transfer_limit(128 * 1024 * 1024), Duration::from_secs(20 + 2048));
        assert_eq!(
            StoreOptions { floor_rate_bytes: 0, ..options }.transfer_limit(1),
            Duration::from_secs(21)
        );
    }

    #[test]
    fn a_secret_is_never_printed() {
        let keys =
            StaticCredentials { access_key_id: "AKIA".to_owned(), secret_access_key: "hunter2".to_owned() };
        assert_eq!(format!("{keys:?}"), "StaticCredentials { access_key_id: \"AKIA\", .. }");
    }
}
