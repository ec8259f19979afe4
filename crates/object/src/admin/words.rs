//! What an error of the AWS SDK says to a person.
//!
//! The SDK's own text of an answer that it has no type for is `unhandled error`, whatever the store said: the words are in
//! the answer's metadata. What they mean is what they mean to the client of objects, [`classify_status`].

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use crate::{
    credentials::error_chain,
    transfer::{TryError, classify_status},
};

/// What the store answered, by code, message and status, with what a person must do where that is known; or why there was no
/// answer.
pub(super) fn words<E>(error: &SdkError<E>) -> String
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let status = error.raw_response().map(|response| response.status().as_u16());
    match (error, status) {
        (SdkError::ServiceError(answer), Some(status)) => answered(status, answer.err()),
        (SdkError::ResponseError(_), Some(status)) => {
            format!("what answers is no S3 store (status {status}): {}", error_chain(error))
        }
        (SdkError::TimeoutError(_), _) => {
            "it did not answer in time: check its endpoint and the network".to_owned()
        }
        _ => error_chain(error),
    }
}

fn answered(status: u16, said: &impl ProvideErrorMetadata) -> String {
    let code = said.code().unwrap_or_default();
    let words = match (code, said.message().unwrap_or_default()) {
        ("", "") => format!("status {status}, without a word"),
        ("", message) => format!("status {status}: {message}"),
        (code, "") => format!("{code} (status {status})"),
        (code, message) => format!("{code}: {message} (status {status})"),
    };
    match classify_status(status, code.to_owned(), words.clone()) {
        TryError::Refused { advice, .. } => format!("{advice} ({words})"),
        TryError::Expired(_) => format!("its keys are expired ({words})"),
        TryError::Throttled(_) => format!("it throttles ({words})"),
        _ => format!("the store answered {words}"),
    }
}

/// The store's code for why it refused, where it had one.
pub(super) fn code<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Option<&str> {
    error.as_service_error().and_then(ProvideErrorMetadata::code)
}

/// The status of the answer, where there was one.
pub(super) fn status<E>(error: &SdkError<E>) -> Option<u16> {
    error.raw_response().map(|response| response.status().as_u16())
}
