//! ApiVersions (key 18): what is served.
//!
//! The one API that is answered in every version: a client asks before it can know which there are. A version that is not
//! known gets error 35 in the body of version 0, with the range of ApiVersions alone, so that the client asks again on the same
//! connection.

use tidelog_wire::{
    ApiKey, ErrorCode, Message,
    messages::{ApiVersionsRequest, ApiVersionsResponse},
};

use crate::{
    connection::Answer,
    handlers::{self, BadRequest, Request, announced},
};

/// The highest version.
pub(crate) const VERSION_MAX: i16 = 4;

pub(crate) fn answer(mut request: Request) -> Result<Answer, BadRequest> {
    let mut response = ApiVersionsResponse { api_keys: announced(), ..ApiVersionsResponse::default() };
    if !ApiVersionsRequest::VERSIONS.contains(request.header.version) || request.header.version > VERSION_MAX
    {
        response.error_code = ErrorCode::UnsupportedVersion.code();
        response.api_keys.retain(|range| range.api_key == ApiKey::ApiVersions.key());
        request.header.version = 0;
        return handlers::encode(&request.header, &response);
    }
    let body: ApiVersionsRequest = request.body()?;
    if request.header.version >= 3
        && !(valid(&body.client_software_name) && valid(&body.client_software_version))
    {
        response = ApiVersionsResponse {
            error_code: ErrorCode::InvalidRequest.code(),
            ..ApiVersionsResponse::default()
        };
    }
    handlers::encode(&request.header, &response)
}

/// Kafka's rule for the name and version of a client's software: `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`.
fn valid(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|byte| byte.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_names_follow_kafkas_rule() {
        for good in ["librdkafka", "2.3.0", "a", "apache-kafka-java", "1.0-rc.1"] {
            assert!(valid(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a b", "a_b", "."] {
            assert!(!valid(bad), "{bad}");
        }
    }

    #[test]
    fn the_announced_table_is_the_pages() {
        let table: Vec<_> = announced().iter().map(|r| (r.api_key, r.min_version, r.max_version)).collect();
        assert_eq!(
            table,
            [
                (0, 0, 12),
                (1, 4, 17),
                (2, 1, 11),
                (3, 0, 13),
                (8, 2, 9),
                (9, 1, 9),
                (10, 0, 6),
                (11, 0, 9),
                (12, 0, 4),
                (13, 0, 5),
                (14, 0, 5),
                (15, 0, 6),
                (16, 0, 5),
                (17, 0, 1),
                (18, 0, 4),
                (19, 2, 7),
                (20, 1, 6),
                (21, 0, 2),
                (22, 0, 5),
                (23, 2, 4),
                (32, 1, 4),
                (33, 0, 2),
                (35, 1, 4),
                (36, 0, 2),
                (37, 0, 3),
                (42, 0, 2),
                (43, 0, 2),
                (44, 0, 1),
                (45, 0, 1),
                (46, 0, 0),
                (47, 0, 0),
                (55, 0, 2),
                (57, 0, 2),
                (60, 0, 2),
                (61, 0, 0),
                (64, 0, 0),
                (68, 0, 1),
                (69, 0, 1),
                (74, 0, 1),
                (75, 0, 0),
            ]
        );
    }
}
