//! Bounds of this crate that are no settings, with their reasons.

use std::time::Duration;

/// The first pause between two tries; it doubles up to [`BACKOFF_MAX`], with full jitter.
pub(crate) const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// The first pause after the store asked for less.
pub(crate) const BACKOFF_THROTTLED_FIRST: Duration = Duration::from_millis(250);

/// The longest pause: a store that comes back is noticed within it.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Failures in a row, of whatever operations, after which the store is said to be away: one or two are every day's.
pub(crate) const AWAY_AFTER_FAILURES: u64 = 3;

/// Nothing but failure for this long says the same: a request that hangs counts once and takes its time.
pub(crate) const AWAY_AFTER: Duration = Duration::from_secs(5);

/// A refusal that lasts is logged again after this time.
pub(crate) const REFUSAL_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Answers in a row that broke the protocol (200 for a range, a wrong `Content-Range`) before that is an error: a proxy
/// may do it once, a store that always does it must not be asked for ever.
pub(crate) const WRONG_ANSWERS_MAX: u32 = 4;

/// Bodies cut short in a row without a single new byte before that is an error.
pub(crate) const EMPTY_BODIES_MAX: u32 = 8;

/// Keys in one page of a listing: what S3 returns at most.
pub(crate) const LIST_PAGE_KEYS_MAX: usize = 1000;

/// A put's body is handed to the socket in slices of this size, so that its progress is seen.
pub(crate) const UPLOAD_SLICE_BYTES: usize = 256 * 1024;

/// What the system holds of a body that it took and has not delivered: Linux' default for one socket's send buffer.
pub(crate) const SOCKET_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The body of an answer to a put is read up to this size in search of an error.
pub(crate) const PUT_ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// A page of a listing is read up to this size: a thousand keys of the longest kind have under 2 MiB.
pub(crate) const LIST_ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The text of an error is cut here before it is kept.
pub(crate) const ERROR_TEXT_MAX: usize = 600;

/// What a person is told of keys that stay expired.
pub(crate) const EXPIRED_ADVICE: &str = "these credentials are refused, and so were newly issued ones";

/// Keys are renewed when they live no longer than this.
pub(crate) const CREDENTIALS_RENEW_AHEAD: Duration = Duration::from_secs(300);

/// An issuer of keys that does not answer within this time has failed: within the limits of time of a request, which would
/// tell nothing of the issuer.
pub(crate) const CREDENTIALS_ISSUE_MAX: Duration = Duration::from_secs(4);

/// After a failed renewal the next one waits this long: for as long, held keys are used, or their lack is told.
pub(crate) const CREDENTIALS_RETRY: Duration = Duration::from_secs(10);
