//! Standard output, and what is printed there where a verb fails.
//!
//! With `--json` a failure is one JSON document too: `{"error": "…", "code": "…"}`, the code being Kafka's name of the error
//! where a broker refused, else `null`. The same words go to standard error.

use std::io::{self, Write as _};

use anyhow::Result;
use serde_json::json;
use thiserror::Error;

use crate::client::ClientError;

/// Whoever read standard output has enough: `tidelog … | head`. No failure, and nobody to tell more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("standard output is closed")]
pub(crate) struct OutputClosed;

/// Tells a reader that went away from a failure.
pub(crate) fn written(result: io::Result<()>) -> Result<()> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => anyhow::Error::from(error).context("write to standard output"),
    })
}

/// Prints on standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    written(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

/// A failure as a JSON object.
pub(crate) fn error_fields(error: &anyhow::Error) -> String {
    let code = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>()?.code());
    json!({ "error": format!("{error:#}"), "code": code.map(|code| code.to_string()) }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_told_from_a_failure() {
        let closed = written(Err(io::ErrorKind::BrokenPipe.into())).unwrap_err();
        assert!(closed.is::<OutputClosed>());
        assert!(!written(Err(io::ErrorKind::StorageFull.into())).unwrap_err().is::<OutputClosed>());
    }

    #[test]
    fn a_refusal_carries_kafkas_name() {
        let refused = ClientError::Refused { what: "topic t".to_owned(), code: 3, message: None };
        let told: serde_json::Value =
            serde_json::from_str(&error_fields(&anyhow::Error::from(refused).context("outer"))).unwrap();
        assert_eq!(told["code"], "UNKNOWN_TOPIC_OR_PARTITION");
        assert_eq!(told["error"], "outer: topic t: UNKNOWN_TOPIC_OR_PARTITION");
        let other: serde_json::Value = serde_json::from_str(&error_fields(&anyhow::anyhow!("x"))).unwrap();
        assert_eq!(other, json!({ "error": "x", "code": null }));
    }
}
