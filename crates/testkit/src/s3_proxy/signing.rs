//! Requests signed anew, for a server that knows no keys with tokens.

use hyper::{
    Request,
    header::{HeaderName, HeaderValue},
};
use object_store::{
    aws::{AwsAuthorizer, AwsCredential},
    client::HttpRequestBody,
};

use super::head::Head;

/// The region that every signature here is for.
const REGION: &str = "us-east-1";

/// Signed with `keys` in place of what it was signed with; as it is, where it cannot be understood.
pub(super) fn signed_anew(head: Head, keys: &AwsCredential) -> Head {
    let Some(request) = signed(&head, keys) else { return head };
    let headers = request.headers().iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?;
        Some((name.as_str().to_owned(), value.to_owned()))
    });
    // The signer leaves it to whoever sends the request.
    let host = head.header("host").map(|host| ("host".to_owned(), host.to_owned()));
    Head { headers: host.into_iter().chain(headers).collect(), ..head }
}

fn signed(head: &Head, keys: &AwsCredential) -> Option<Request<HttpRequestBody>> {
    let mut words = head.first.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let uri = format!("http://{}{target}", head.header("host")?);
    let mut request = Request::builder().method(method).uri(uri).body(HttpRequestBody::empty()).ok()?;
    for (name, value) in &head.headers {
        let name: HeaderName = name.parse().ok()?;
        let is_signing = name == "authorization" || name == "x-amz-security-token" || name == "x-amz-date";
        if !is_signing {
            request.headers_mut().append(name, HeaderValue::from_str(value).ok()?);
        }
    }
    let digest = head.header("x-amz-content-sha256").and_then(bytes_of_hex);
    let signer = AwsAuthorizer::new(keys, "s3", REGION).with_sign_payload(digest.is_some());
    signer.try_authorize(&mut request, digest.as_deref()).ok()?;
    Some(request)
}

/// `None` for what is no digest, such as `UNSIGNED-PAYLOAD`.
fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    digits?.chunks(2).map(|pair| u8::try_from(pair.first()? * 16 + pair.get(1)?).ok()).collect()
}
