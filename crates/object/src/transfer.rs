//! One try at the store, how its failure is understood, and when the next one begins.
//!
//! **Owns** the classification of failures, the pauses, the deadline, and the limits of time of one try: silence, and
//! the time of its bytes at the floor rate. **Does not own** what a failure means to an operation.

use std::{error::Error as _, future::Future, pin::pin, time::Duration};

use futures::future::{Either, select};
use object_store::client::{HttpError, HttpErrorKind};
use tidelog_runtime::{Backoff, BackoffConfig, Clock};

use crate::{
    Corruption, Failure, OutageCause, Refusal,
    credentials::{CredentialFailure, error_chain},
    direct::ConnectFailed,
    http::Exchange,
    limits::{
        BACKOFF_FIRST, BACKOFF_MAX, BACKOFF_THROTTLED_FIRST, EMPTY_BODIES_MAX, ERROR_TEXT_MAX,
        EXPIRED_ADVICE, WRONG_ANSWERS_MAX,
    },
};

/// How one try failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TryError {
    /// The object does not exist.
    NotFound,
    /// A create found an object.
    Exists,
    /// A competing conditional write is in flight.
    Conflict(String),
    /// A condition on the ETag did not hold.
    Precondition,
    /// The store does not know this kind of request.
    Unsupported(String),
    /// The range lies outside of the object.
    OutOfRange,
    /// The object is not the one that is known.
    Corrupt(Corruption),
    /// The body ended early.
    ShortBody(String),
    /// The answer is not one to this request.
    WrongAnswer(String),
    /// The keys are no longer accepted.
    Expired(String),
    /// The store asks for fewer requests.
    Throttled(String),
    /// Anything that may pass.
    Failed { cause: OutageCause, reason: String, may_have_happened: bool },
    /// The store's authoritative no.
    Refused { reason: String, advice: &'static str },
}

impl TryError {
    /// A failure before anything was sent.
    pub(crate) fn failed(cause: OutageCause, reason: &str) -> Self {
        Self::Failed { cause, reason: reason.to_owned(), may_have_happened: false }
    }
}

/// The end of all tries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Gave(Failure),
    Refused(Refusal),
    /// It answers other than it is asked, again and again.
    WrongAnswer(Failure),
}

/// Reads an error of `object_store`, with the status that was seen below it.
pub(crate) fn classify(error: &object_store::Error, status: Option<u16>) -> TryError {
    let reason = error_chain(error);
    let code = code_of(&reason);
    let reason = shorten(reason);
    if let Some(failure) = find_cause::<CredentialFailure>(error) {
        return match failure.is_final {
            true => TryError::Refused { reason, advice: "give credentials as the AWS SDK reads them" },
            false => TryError::Failed { cause: OutageCause::NoKeys, reason, may_have_happened: false },
        };
    }
    match error {
        object_store::Error::NotFound { .. } => not_found(status, &code, reason),
        object_store::Error::AlreadyExists { .. } if status == Some(409) => TryError::Conflict(reason),
        object_store::Error::AlreadyExists { .. } | object_store::Error::NotModified { .. } => {
            TryError::Exists
        }
        object_store::Error::Precondition { .. } => TryError::Precondition,
        object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. } => {
            TryError::Unsupported(reason)
        }
        object_store::Error::PermissionDenied { .. } => classify_status(403, code, reason),
        object_store::Error::Unauthenticated { .. } => classify_status(401, code, reason),
        object_store::Error::InvalidPath { .. } => {
            TryError::Refused { reason, advice: "the key has a form that this store cannot hold" }
        }
        _ => match status {
            // A success whose body broke off: the network, and not the store's manners.
            Some(200..=299) if find_cause::<HttpError>(error).is_some() => {
                TryError::Failed { cause: OutageCause::BreaksOff, reason, may_have_happened: true }
            }
            Some(status) => classify_status(status, code, reason),
            None => classify_unanswered(error, reason),
        },
    }
}

pub(crate) fn classify_status(status: u16, code: String, reason: String) -> TryError {
    let refused = |advice| TryError::Refused { reason: reason.clone(), advice };
    match (status, code.as_str()) {
        (200..=299, _) => TryError::WrongAnswer(reason),
        (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken") => {
            TryError::Expired(reason)
        }
        // Answers to HEAD have no body, so that an expired key looks like this.
        (400 | 403, "") if is_wordless(&reason) => TryError::Expired(reason),
        (
            _,
            "SlowDown" | "ServiceUnavailable" | "Throttling" | "RequestLimitExceeded" | "TooManyRequests",
        ) => TryError::Throttled(reason),
        (_, "NoSuchBucket") => no_bucket(reason),
        (_, "InvalidBucketName") => refused(BUCKET_NAME_ADVICE),
        (_, "RequestTimeTooSkewed") => refused("the clock of this machine is wrong: synchronise it"),
        (_, "InvalidAccessKeyId" | "XAdminUserNotFound") => refused(UNKNOWN_KEY_ADVICE),
        (_, "SignatureDoesNotMatch") => {
            refused("the secret access key does not fit, or a proxy changes requests")
        }
        (_, "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException")
        | (301 | 307 | 308, _) => refused("the bucket is in another region: set the store's region"),
        (_, "XAmzContentSHA256Mismatch" | "MissingContentLength") => refused(CHECKSUM_ADVICE),
        (400 | 411 | 501, _) if mentions_checksums(&reason) => refused(CHECKSUM_ADVICE),
        (_, "RequestTimeout" | "IncompleteBody" | "BadDigest" | "InternalError" | "OperationAborted") => {
            TryError::Failed { cause: OutageCause::Fails, reason, may_have_happened: true }
        }
        (401 | 403, _) => refused("these credentials lack the right to do this"),
        (409, _) => TryError::Conflict(reason),
        (412, _) => TryError::Precondition,
        (416, _) => TryError::OutOfRange,
        (429 | 503, _) => TryError::Throttled(reason),
        (501, _) | (_, "NotImplemented") => TryError::Unsupported(reason),
        (408 | 425 | 500..=599, _) => {
            TryError::Failed { cause: OutageCause::Fails, reason, may_have_happened: true }
        }
        _ => refused("the store does not accept this request"),
    }
}

const BUCKET_NAME_ADVICE: &str = "no bucket can have this name: 3 to 63 lowercase letters, digits and hyphens, with a letter or digit \
                                  at both ends";

const CHECKSUM_ADVICE: &str =
    "the store refuses checksums of newer clients: set the store's checksum mode to none";

fn mentions_checksums(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ["checksum", "trailer", "aws-chunked", "x-amz-content-sha256"].iter().any(|word| reason.contains(word))
}

/// 404 is the absence of an object only where the answer says so: a missing bucket, a key without a user (versitygw) and
/// the page of a server that is no store have the same status. Answers to HEAD have no body; see [`ObjectClient::head`].
///
/// [`ObjectClient::head`]: crate::ObjectClient::head
fn not_found(status: Option<u16>, code: &str, reason: String) -> TryError {
    let is_silent = code.is_empty() && (status.is_none() || is_wordless(&reason));
    match code {
        _ if is_silent => TryError::NotFound,
        "NoSuchKey" | "NoSuchVersion" | "BlobNotFound" | "ResourceNotFound" => TryError::NotFound,
        "NoSuchBucket" | "ContainerNotFound" => no_bucket(reason),
        "XAdminUserNotFound" => TryError::Refused { reason, advice: UNKNOWN_KEY_ADVICE },
        _ => TryError::Refused {
            reason,
            advice: "what answers knows nothing of this bucket: check the store's endpoint and its keys",
        },
    }
}

const UNKNOWN_KEY_ADVICE: &str = "the store does not know this access key";

fn no_bucket(reason: String) -> TryError {
    TryError::Refused { reason, advice: "the bucket does not exist: create it with `tidelog bucket init`" }
}

/// A failure without an answer: the network, or a local store.
fn classify_unanswered(error: &object_store::Error, reason: String) -> TryError {
    if reason.contains("bytes long") && reason.contains("range") {
        return TryError::OutOfRange;
    }
    if let Some(io) = find_cause::<std::io::Error>(error)
        && io.kind() == std::io::ErrorKind::PermissionDenied
    {
        return TryError::Refused { reason, advice: "this user lacks the right to use that folder" };
    }
    let connected = find_cause::<HttpError>(error).is_none_or(|error| error.kind() != HttpErrorKind::Connect);
    let cause = unanswered_cause(error, connected, &reason);
    TryError::Failed { cause, reason, may_have_happened: connected }
}

fn unanswered_cause(error: &object_store::Error, connected: bool, reason: &str) -> OutageCause {
    let timed_out = find_cause::<reqwest::Error>(error)
        .map(reqwest::Error::is_timeout)
        .or_else(|| find_cause::<ConnectFailed>(error).map(|failed| failed.timed_out));
    let Some(timed_out) = timed_out else {
        return match find_cause::<HttpError>(error) {
            Some(_) => OutageCause::BreaksOff,
            None => OutageCause::Folder,
        };
    };
    let refused = find_cause::<std::io::Error>(error)
        .is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
    match connected {
        true => OutageCause::BreaksOff,
        false if refused => OutageCause::ConnectionRefused,
        false if timed_out => OutageCause::ConnectTimeout,
        // The resolver's error has no name outside of its crate; this is what it says of itself.
        false if reason.contains("dns error") => OutageCause::NameNotResolved,
        false => OutageCause::NotConnected,
    }
}

fn find_cause<E: std::error::Error + 'static>(error: &object_store::Error) -> Option<&E> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(found) = inner.downcast_ref::<E>() {
            return Some(found);
        }
        cause = inner.source();
    }
    None
}

/// Whether this is a failed HEAD, whose answer has no body that could say why.
pub(crate) fn is_wordless(reason: &str) -> bool {
    reason.contains("Error performing HEAD")
}

/// The code in S3's error document, empty where there is none.
fn code_of(reason: &str) -> String {
    let code = reason.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    code.map_or_else(String::new, |(code, _)| code.trim().to_owned())
}

fn shorten(mut text: String) -> String {
    if text.len() > ERROR_TEXT_MAX {
        let end = (0..=ERROR_TEXT_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Limits of time of one try.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimits {
    pub(crate) silence: Duration,
    pub(crate) total: Duration,
    /// The length of the body that is sent.
    pub(crate) sent_bytes: u64,
    /// How long the answer may take to begin, where that is less than silence.
    pub(crate) first: Option<Duration>,
    /// How much longer silence may be once the whole body was taken: what the system holds of it still travels unseen.
    pub(crate) unseen: Duration,
}

impl TimeLimits {
    fn silence_now(&self, exchange: &Exchange) -> Duration {
        let travels_unseen =
            self.sent_bytes > 0 && exchange.moved_bytes() >= self.sent_bytes && exchange.status().is_none();
        let begins = exchange.status().is_some() || exchange.moved_bytes() > 0;
        match self.first {
            Some(first) if !begins => first.min(self.silence),
            _ if travels_unseen => self.silence.saturating_add(self.unseen),
            _ => self.silence,
        }
    }
}

/// Runs one try until it ends, falls silent or takes longer than its bytes may.
pub(crate) async fn within<T>(
    clock: &dyn Clock,
    limits: TimeLimits,
    exchange: &Exchange,
    work: impl Future<Output = Result<T, TryError>>,
) -> Result<T, TryError> {
    let mut work = pin!(work);
    let begun = clock.monotonic();
    let (mut moved, mut moved_at) = (exchange.moved_bytes(), begun);
    let tick = (limits.first.unwrap_or(limits.silence).min(limits.silence) / 4).max(Duration::from_millis(1));
    loop {
        match select(work.as_mut(), clock.sleep(tick)).await {
            Either::Left((result, _)) => return result,
            Either::Right(((), _)) => {}
        }
        let now = clock.monotonic();
        if exchange.moved_bytes() != moved {
            (moved, moved_at) = (exchange.moved_bytes(), now);
        }
        let silence = limits.silence_now(exchange);
        let stopped = if now.saturating_sub(moved_at) >= silence {
            Some((OutageCause::Silent, format!("no byte moved for {silence:?}, {moved} had")))
        } else if now.saturating_sub(begun) >= limits.total {
            Some((OutageCause::Slow, format!("only {moved} bytes moved in {:?}", limits.total)))
        } else {
            None
        };
        if let Some((cause, reason)) = stopped {
            return Err(TryError::Failed { cause, reason, may_have_happened: true });
        }
    }
}

/// Decides after each failed try whether another one begins, and waits for it.
pub(crate) struct Tries<'a> {
    clock: &'a dyn Clock,
    rng: &'a dyn tidelog_runtime::Rng,
    key: String,
    until: Duration,
    count: u32,
    backoff: Backoff,
    throttled: Backoff,
    wrong_answers: u32,
    empty_bodies: u32,
    renewed: bool,
    /// Whether a write may have happened although its try failed.
    pub(crate) may_have_happened: bool,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(
        clock: &'a dyn Clock,
        rng: &'a dyn tidelog_runtime::Rng,
        key: &str,
        limit: Duration,
    ) -> Self {
        let config = |first| BackoffConfig { first, max: BACKOFF_MAX };
        Self {
            clock,
            rng,
            key: key.to_owned(),
            until: clock.monotonic().saturating_add(limit),
            count: 0,
            backoff: Backoff::new(config(BACKOFF_FIRST)),
            throttled: Backoff::new(config(BACKOFF_THROTTLED_FIRST)),
            wrong_answers: 0,
            empty_bodies: 0,
            renewed: false,
            may_have_happened: false,
        }
    }

    /// Whether no try has failed yet.
    pub(crate) fn is_first(&self) -> bool {
        self.count == 0
    }

    /// New bytes arrived: what failed before does not count against the next try.
    pub(crate) fn progressed(&mut self) {
        self.backoff.reset();
        self.empty_bodies = 0;
        self.wrong_answers = 0;
    }

    /// Waits for the next try.
    ///
    /// # Errors
    /// Where there is none.
    pub(crate) async fn after(&mut self, error: TryError) -> Result<(), Ended> {
        self.count = self.count.saturating_add(1);
        let (reason, is_throttled) = match error {
            TryError::Refused { reason, advice } => return Err(self.refused(reason, advice)),
            TryError::Unsupported(reason) => {
                return Err(self.refused(reason, "this store cannot do what is asked of it"));
            }
            TryError::Expired(reason) if self.renewed => {
                return Err(self.refused(reason, EXPIRED_ADVICE));
            }
            TryError::Expired(reason) => {
                self.renewed = true;
                (reason, false)
            }
            TryError::WrongAnswer(reason) => {
                self.may_have_happened = true;
                self.wrong_answers += 1;
                if self.wrong_answers >= WRONG_ANSWERS_MAX {
                    return Err(Ended::WrongAnswer(
                        self.failure(format!("{}: {reason}", OutageCause::WrongAnswers)),
                    ));
                }
                (reason, false)
            }
            TryError::ShortBody(reason) => {
                self.empty_bodies += 1;
                if self.empty_bodies >= EMPTY_BODIES_MAX {
                    return Err(self.gave(reason));
                }
                (reason, false)
            }
            TryError::Throttled(reason) => (reason, true),
            TryError::Failed { cause, reason, may_have_happened } => {
                self.may_have_happened |= may_have_happened;
                (format!("{cause}: {reason}"), false)
            }
            TryError::Conflict(reason) => (reason, false),
            TryError::NotFound => ("it is gone".to_owned(), false),
            TryError::Exists => ("it exists".to_owned(), false),
            TryError::Precondition => ("it changed".to_owned(), false),
            TryError::OutOfRange => ("the range is refused".to_owned(), false),
            TryError::Corrupt(what) => (what.to_string(), false),
        };
        let backoff = if is_throttled { &mut self.throttled } else { &mut self.backoff };
        let pause = backoff.next_delay(self.rng);
        if self.clock.monotonic().saturating_add(pause) >= self.until {
            return Err(self.gave(reason));
        }
        tracing::debug!(key = %self.key, tries = self.count, %reason, ?pause, "the store failed, it is asked again");
        self.clock.sleep(pause).await;
        Ok(())
    }

    fn gave(&self, reason: String) -> Ended {
        Ended::Gave(self.failure(reason))
    }

    fn failure(&self, reason: String) -> Failure {
        Failure { key: self.key.clone(), tries: self.count, reason }
    }

    fn refused(&self, reason: String, advice: &str) -> Ended {
        Ended::Refused(Refusal { key: self.key.clone(), reason, advice: advice.to_owned() })
    }
}

#[cfg(test)]
mod tests;
