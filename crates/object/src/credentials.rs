//! Keys for S3 as the AWS SDK finds them, renewed ahead of their expiry.
//!
//! **Owns** when keys are asked for: at the first request, again 5 minutes before they expire, and at once after the
//! store called them expired. While the issuer is down, or does not answer, the old keys are used until the store refuses
//! them; from then on the lack of new ones is what a request fails of, and not a refusal that a person must act on. Where keys
//! come from (environment, profile, web identity, container, instance role) is the SDK's provider chain, which reads
//! token files anew each time.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_sdk_s3::config::{ProvideCredentials, SharedCredentialsProvider};
use futures::future::{BoxFuture, Either, select};
use object_store::{CredentialProvider, aws::AwsCredential};
use tidelog_runtime::{
    Clock, Registry,
    metrics::{Counter, Gauge},
};
use tidelog_types::Timestamp;

use crate::limits::{CREDENTIALS_ISSUE_MAX, CREDENTIALS_RENEW_AHEAD, CREDENTIALS_RETRY};

/// Why there are no keys.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no credentials: {reason}")]
pub(crate) struct CredentialFailure {
    /// Nothing that may issue keys is configured: waiting does not help.
    pub(crate) is_final: bool,
    pub(crate) reason: String,
}

impl CredentialFailure {
    fn none() -> Self {
        Self { is_final: false, reason: "none were issued yet".to_owned() }
    }
}

/// Where keys come from.
pub(crate) trait Issuer: Send + Sync + 'static {
    fn issue(&self) -> BoxFuture<'_, Result<Held, CredentialFailure>>;
}

impl Issuer for SharedCredentialsProvider {
    fn issue(&self) -> BoxFuture<'_, Result<Held, CredentialFailure>> {
        Box::pin(async move {
            let keys = self.provide_credentials().await.map_err(|error| {
                let reason = error_chain(&error);
                // The SDK's error type has no name outside of its own crate; its words for these two cases are fixed.
                let is_final = reason.contains("not enabled") || reason.contains("not properly configured");
                CredentialFailure { is_final, reason }
            })?;
            let expires = keys.expiry().and_then(|at| {
                let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
                Some(Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
            });
            let keys = Arc::new(AwsCredential {
                key_id: keys.access_key_id().to_owned(),
                secret_key: keys.secret_access_key().to_owned(),
                token: keys.session_token().map(ToOwned::to_owned),
            });
            Ok(Held { keys, expires })
        })
    }
}

/// Keys, and the end of their life.
#[derive(Clone)]
pub(crate) struct Held {
    keys: Arc<AwsCredential>,
    expires: Option<Timestamp>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// When they were issued, on the monotonic clock.
    issued_at: Duration,
    /// Renewal was forced.
    refused: Option<Refused>,
    /// Before this time on the monotonic clock no renewal is tried, while keys are held.
    retry_at: Duration,
    /// Why the last renewal failed.
    failure: Option<CredentialFailure>,
}

/// What the store said of the held keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// That they may be expired.
    Perhaps,
    /// That they are expired: they are not used again.
    Surely,
}

/// A provider of keys for `object_store` over the SDK's chain.
pub(crate) struct ChainCredentials {
    issuer: Box<dyn Issuer>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// One renewal at a time; those that come meanwhile wait for it.
    renewing: tokio::sync::Mutex<()>,
    seconds_left: Gauge,
    renewals: Counter,
    failures: Counter,
}

impl fmt::Debug for ChainCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainCredentials").finish_non_exhaustive()
    }
}

impl ChainCredentials {
    pub(crate) fn new(issuer: impl Issuer, clock: Arc<dyn Clock>, registry: &Registry) -> Self {
        Self {
            issuer: Box::new(issuer),
            clock,
            state: Mutex::new(State::default()),
            renewing: tokio::sync::Mutex::new(()),
            seconds_left: registry.gauge(
                "object_credentials_left_seconds",
                "How long the store's keys still live; 0 for keys that do not expire",
            ),
            renewals: registry.counter("object_credentials_renewals_total", "Times that keys were issued"),
            failures: registry.counter("object_credentials_failures_total", "Times that no keys were issued"),
        }
    }

    /// The store called the keys of a request expired that began at `begun`: the next request asks for new ones.
    pub(crate) fn refused(&self, begun: Duration, surely: bool) {
        let mut state = self.lock();
        // It was about the keys before these.
        if begun < state.issued_at {
            return;
        }
        if state.refused.is_none() {
            state.retry_at = Duration::ZERO;
        }
        if surely || state.refused.is_none() {
            state.refused = Some(if surely { Refused::Surely } else { Refused::Perhaps });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The held keys, and whether they should be renewed now.
    fn held(&self) -> (Option<Held>, bool) {
        let state = self.lock();
        let Some(held) = state.held.clone() else { return (None, true) };
        let left = held.expires.map(|expires| expires.millis_since(self.clock.wall()));
        if let Some(left) = left {
            self.seconds_left.set(left / 1000);
        }
        let ahead = u64::try_from(CREDENTIALS_RENEW_AHEAD.as_millis()).unwrap_or(u64::MAX);
        let is_due = state.refused.is_some() || left.is_some_and(|left| left <= ahead);
        (Some(held), is_due && self.clock.monotonic() >= state.retry_at)
    }

    pub(crate) async fn current(&self) -> Result<Arc<AwsCredential>, CredentialFailure> {
        let (held, is_due) = self.held();
        if let (Some(held), false) = (&held, is_due) {
            return self.usable(held);
        }
        let _one = match self.renewing.try_lock() {
            Ok(one) => one,
            // Who renews them may wait for long; keys that live serve the others meanwhile.
            Err(_) if held.as_ref().is_some_and(|held| self.lives(held)) => {
                return held.map_or_else(|| Err(CredentialFailure::none()), |held| self.usable(&held));
            }
            Err(_) => self.renewing.lock().await,
        };
        let (held, is_due) = self.held();
        if let (Some(held), false) = (&held, is_due) {
            return self.usable(held);
        }
        match self.issue().await.and_then(|issued| self.checked(held.as_ref(), issued)) {
            Ok(issued) => Ok(self.keep(issued)),
            Err(failure) => {
                self.failures.inc();
                self.lock().failure = Some(failure.clone());
                let Some(held) = held else { return Err(failure) };
                tracing::warn!(reason = %failure.reason, "keys for the store were not renewed");
                self.usable(&held)
            }
        }
    }

    /// Asks for keys once. Whoever asks may go away meanwhile: the next does not ask again at once.
    async fn issue(&self) -> Result<Held, CredentialFailure> {
        self.lock().retry_at = self.clock.monotonic().saturating_add(CREDENTIALS_RETRY);
        match select(self.issuer.issue(), self.clock.sleep(CREDENTIALS_ISSUE_MAX)).await {
            Either::Left((issued, _)) => issued,
            Either::Right(((), _)) => {
                let reason = format!("the issuer of keys did not answer within {CREDENTIALS_ISSUE_MAX:?}");
                Err(CredentialFailure { is_final: false, reason })
            }
        }
    }

    /// The SDK answers with the keys of last time where instance metadata is away. Those that the store called expired are no
    /// new ones; keys without an expiry are a person's to change, and a refusal of them is to be told as one.
    fn checked(&self, held: Option<&Held>, issued: Held) -> Result<Held, CredentialFailure> {
        // An issuer may give one id again, with another token.
        let is_old = held.is_some_and(|held| {
            (&held.keys.key_id, &held.keys.token) == (&issued.keys.key_id, &issued.keys.token)
        });
        if is_old && issued.expires.is_some() && self.lock().refused == Some(Refused::Surely) {
            let reason = "the issuer has no others".to_owned();
            return Err(CredentialFailure { is_final: false, reason });
        }
        Ok(issued)
    }

    /// Whether keys are neither refused nor past their end.
    fn lives(&self, held: &Held) -> bool {
        let refused = self.lock().refused;
        refused != Some(Refused::Surely) && held.expires.is_none_or(|expires| expires > self.clock.wall())
    }

    /// The held keys, unless the store called them expired.
    fn usable(&self, held: &Held) -> Result<Arc<AwsCredential>, CredentialFailure> {
        let state = self.lock();
        if state.refused != Some(Refused::Surely) {
            return Ok(Arc::clone(&held.keys));
        }
        // Who asked for others may have gone away before there was an answer.
        let why = state.failure.as_ref().map_or("they are asked for", |failure| failure.reason.as_str());
        let reason = format!("the store calls them expired, and none are issued: {why}");
        Err(CredentialFailure { is_final: false, reason })
    }

    fn keep(&self, issued: Held) -> Arc<AwsCredential> {
        self.renewals.inc();
        let keys = Arc::clone(&issued.keys);
        let now = self.clock.monotonic();
        let mut state = self.lock();
        (state.refused, state.failure, state.issued_at) = (None, None, now);
        // Keys that are issued with less than the margin left are not asked for again at every request.
        state.retry_at = now.saturating_add(CREDENTIALS_RETRY);
        state.held = Some(issued);
        keys
    }
}

impl CredentialProvider for ChainCredentials {
    type Credential = AwsCredential;

    fn get_credential<'this, 'call>(
        &'this self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<AwsCredential>>> + Send + 'call>>
    where
        'this: 'call,
        Self: 'call,
    {
        Box::pin(async move {
            self.current().await.map_err(|failure| object_store::Error::Generic {
                store: "credentials",
                source: Box::new(failure),
            })
        })
    }
}

/// An error with its causes, in one line.
pub(crate) fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use tidelog_testkit::VirtualClock;

    use super::*;

    fn on_virtual_time<F: Future<Output = ()>>(test: impl FnOnce(VirtualClock) -> F) {
        let clock = VirtualClock::new();
        clock.run(test(clock.clone()));
    }

    /// Issues keys `key-1`, `key-2`, …; fails where told to.
    #[derive(Clone)]
    struct Counting {
        issued: Arc<AtomicU64>,
        down: Arc<AtomicBool>,
        hangs: Arc<AtomicBool>,
        /// All keys have one id, and differ in their tokens.
        lends: Arc<AtomicBool>,
        expires: Timestamp,
    }

    impl Issuer for Counting {
        fn issue(&self) -> BoxFuture<'_, Result<Held, CredentialFailure>> {
            if self.hangs.load(Ordering::Relaxed) {
                return Box::pin(std::future::pending());
            }
            let issued = if self.down.load(Ordering::Relaxed) {
                Err(CredentialFailure { is_final: false, reason: "the issuer is down".to_owned() })
            } else {
                let number = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
                let lends = self.lends.load(Ordering::Relaxed);
                let keys = AwsCredential {
                    key_id: if lends { "lent".to_owned() } else { format!("key-{number}") },
                    secret_key: "s".to_owned(),
                    token: lends.then(|| format!("token-{number}")),
                };
                Ok(Held { keys: Arc::new(keys), expires: Some(self.expires) })
            };
            Box::pin(std::future::ready(issued))
        }
    }

    fn chain(clock: &VirtualClock, lifetime: Duration) -> (Counting, ChainCredentials) {
        let lifetime = u64::try_from(lifetime.as_millis()).unwrap();
        let expires = Timestamp::from_millis(clock.wall().as_millis() + lifetime);
        let issuer = Counting {
            issued: Arc::default(),
            down: Arc::default(),
            hangs: Arc::default(),
            lends: Arc::default(),
            expires,
        };
        (issuer.clone(), ChainCredentials::new(issuer, Arc::new(clock.clone()), &Registry::new()))
    }

    // C22
    #[test]
    fn keys_are_asked_for_once_until_they_near_their_end() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(3600));
            for _ in 0..3 {
                assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            }
            assert_eq!(issuer.issued.load(Ordering::Relaxed), 1);
        });
    }

    // C22
    #[test]
    fn keys_with_little_time_left_are_renewed_but_not_at_every_request() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(60));
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            clock.advance(CREDENTIALS_RETRY);
            assert_eq!(chain.current().await.unwrap().key_id, "key-2");
            assert_eq!(issuer.issued.load(Ordering::Relaxed), 2);
        });
    }

    // C22
    #[test]
    fn keys_that_may_be_refused_are_renewed_at_once_and_serve_while_the_issuer_is_down() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(3600));
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            chain.refused(clock.monotonic(), false);
            issuer.down.store(true, Ordering::Relaxed);
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            issuer.down.store(false, Ordering::Relaxed);
            // Another refusal of the same keys does not have a failing issuer asked at every request.
            chain.refused(clock.monotonic(), false);
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            clock.advance(CREDENTIALS_RETRY);
            assert_eq!(chain.current().await.unwrap().key_id, "key-2");
            assert_eq!(chain.current().await.unwrap().key_id, "key-2");
        });
    }

    // C22: no keys are a failure that passes; a refusal would be a person's to end.
    #[test]
    fn refused_keys_are_used_no_more_and_the_issuer_is_named_while_it_is_down() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(3600));
            clock.advance(Duration::from_secs(1));
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            chain.refused(Duration::ZERO, true);
            assert_eq!(chain.current().await.unwrap().key_id, "key-1", "that was of the keys before");
            chain.refused(clock.monotonic(), true);
            issuer.down.store(true, Ordering::Relaxed);
            for _ in 0..2 {
                let failure = chain.current().await.unwrap_err();
                assert!(!failure.is_final);
                assert!(
                    failure.reason.ends_with("none are issued: the issuer is down"),
                    "{}",
                    failure.reason
                );
            }
            assert_eq!(chain.failures.get(), 1);
            issuer.down.store(false, Ordering::Relaxed);
            clock.advance(CREDENTIALS_RETRY);
            assert_eq!(chain.current().await.unwrap().key_id, "key-2");
        });
    }

    // C22: the SDK gives the last keys again where instance metadata is away.
    #[test]
    fn refused_keys_that_are_issued_again_are_no_renewal() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(3600));
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            chain.refused(clock.monotonic(), true);
            issuer.issued.store(0, Ordering::Relaxed);
            let failure = chain.current().await.unwrap_err();
            assert!(failure.reason.ends_with("the issuer has no others"), "{}", failure.reason);
            assert!(!failure.is_final);
            clock.advance(CREDENTIALS_RETRY);
            assert_eq!(chain.current().await.unwrap().key_id, "key-2");
        });
    }

    // C22: one that lends a store's own keys tells them apart by their tokens.
    #[test]
    fn keys_of_one_id_with_another_token_are_a_renewal() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(3600));
            issuer.lends.store(true, Ordering::Relaxed);
            assert_eq!(chain.current().await.unwrap().token.as_deref(), Some("token-1"));
            chain.refused(clock.monotonic(), true);
            let keys = chain.current().await.unwrap();
            assert_eq!((keys.key_id.as_str(), keys.token.as_deref()), ("lent", Some("token-2")));
            // The same token again is none.
            issuer.issued.store(1, Ordering::Relaxed);
            clock.advance(CREDENTIALS_RETRY);
            chain.refused(clock.monotonic(), true);
            let failure = chain.current().await.unwrap_err();
            assert!(failure.reason.ends_with("the issuer has no others"), "{}", failure.reason);
        });
    }

    // C22: an issuer that hangs costs one request a few seconds, and the others nothing while the keys live.
    #[test]
    fn an_issuer_that_hangs_holds_up_nobody_whose_keys_live() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(600));
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            clock.advance(Duration::from_secs(400));
            issuer.hangs.store(true, Ordering::Relaxed);
            let begun = clock.monotonic();
            let mut renewing = Box::pin(chain.current());
            assert!(futures::poll!(&mut renewing).is_pending());
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            assert_eq!(clock.monotonic(), begun);
            assert_eq!(renewing.await.unwrap().key_id, "key-1");
            assert_eq!(clock.monotonic() - begun, CREDENTIALS_ISSUE_MAX);
            // Who asked and went away had it asked for all.
            clock.advance(CREDENTIALS_RETRY);
            let mut renewing = Box::pin(chain.current());
            assert!(futures::poll!(&mut renewing).is_pending());
            drop(renewing);
            assert_eq!(chain.current().await.unwrap().key_id, "key-1");
            issuer.hangs.store(false, Ordering::Relaxed);
            clock.advance(CREDENTIALS_RETRY);
            assert_eq!(chain.current().await.unwrap().key_id, "key-2");
        });
    }

    #[test]
    fn without_any_keys_the_failure_says_whether_waiting_helps() {
        on_virtual_time(|clock| async move {
            let (issuer, chain) = chain(&clock, Duration::from_secs(3600));
            issuer.down.store(true, Ordering::Relaxed);
            let failure = chain.current().await.unwrap_err();
            assert!(!failure.is_final);
            assert!(failure.reason.contains("the issuer is down"), "{}", failure.reason);
        });
    }
}
