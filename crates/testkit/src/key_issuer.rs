//! A stand-in for those who issue keys that expire: STS for web identities, and an instance's metadata (IMDSv2).
//!
//! **Owns** the keys that it issued, their ends, and how it misbehaves. **Does not** verify signatures or tokens' contents: a
//! web identity token is accepted if it is the one that is set. [`S3Config::issuer`](crate::S3Config) has a store accept these
//! keys alone, as long as they live.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header::HeaderMap, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tidelog_runtime::{Clock, Supervisor, SystemClock};
use tokio::net::TcpListener;

use crate::{http_date::iso_date, s3_answers::query_value};

/// The role of the instance.
const ROLE: &str = "tidelog-node";

/// What a session with an instance's metadata has to show.
const SESSION: &str = "session-of-the-metadata";

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IssuerManners {
    /// With new keys each time.
    Issues,
    /// With 503.
    Down,
    /// Not at all.
    Hangs,
}

/// What a key is to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyState {
    Alive,
    Expired,
    Unknown,
}

struct State {
    lifetime: Mutex<Duration>,
    manners: Mutex<IssuerManners>,
    /// The web identity token that is accepted.
    identity: Mutex<String>,
    /// Ends of the keys, in milliseconds since 1970.
    issued: Mutex<BTreeMap<String, u64>>,
    refusals: AtomicU64,
    clock: SystemClock,
}

/// A running issuer. Clones are the same. It ends with its supervisor.
#[derive(Clone)]
pub struct KeyIssuer {
    address: SocketAddr,
    state: Arc<State>,
}

impl fmt::Debug for KeyIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyIssuer").field("address", &self.address).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeyIssuer {
    /// Starts one on a free port of the loopback address, whose keys live for `lifetime`.
    ///
    /// # Errors
    /// Where no port can be had.
    pub async fn start(supervisor: &Supervisor, lifetime: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            lifetime: Mutex::new(lifetime),
            manners: Mutex::new(IssuerManners::Issues),
            identity: Mutex::default(),
            issued: Mutex::default(),
            refusals: AtomicU64::new(0),
            clock: SystemClock::new(),
        });
        let (accepting, spawner) = (Arc::clone(&state), supervisor.clone());
        let accept = async move {
            while let Ok((socket, _)) = listener.accept().await {
                let state = Arc::clone(&accepting);
                let serve = async move {
                    let service = service_fn(move |request| {
                        let state = Arc::clone(&state);
                        async move { Ok::<_, Infallible>(state.answer(request).await) }
                    });
                    // A client that goes away is no error of the stand-in.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
                };
                spawner.spawn("key-issuer-connection", serve).detach();
            }
        };
        supervisor.spawn("key-issuer", accept).detach();
        Ok(Self { address, state })
    }

    /// Where it listens, as an endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes how it answers from now on.
    pub fn behave(&self, manners: IssuerManners) {
        *lock(&self.state.manners) = manners;
    }

    /// Changes how long the keys live that it issues from now on.
    pub fn set_lifetime(&self, lifetime: Duration) {
        *lock(&self.state.lifetime) = lifetime;
    }

    /// Changes the web identity token that it accepts.
    pub fn accept_identity(&self, token: &str) {
        token.clone_into(&mut lock(&self.state.identity));
    }

    /// Ends all keys that it issued.
    pub fn expire_all(&self) {
        lock(&self.state.issued).values_mut().for_each(|end| *end = 0);
    }

    /// Keys that it issued.
    #[must_use]
    pub fn issued_count(&self) -> usize {
        lock(&self.state.issued).len()
    }

    /// Requests to the store that had a key which was past its end.
    #[must_use]
    pub fn expired_uses(&self) -> u64 {
        self.state.refusals.load(Ordering::Relaxed)
    }

    pub(crate) fn state_of(&self, id: &str, token: &str) -> KeyState {
        let end = lock(&self.state.issued).get(id).copied();
        match end {
            Some(_) if token != session_token(id) => KeyState::Unknown,
            Some(end) if self.state.clock.wall().as_millis() < end => KeyState::Alive,
            Some(_) => {
                self.state.refusals.fetch_add(1, Ordering::Relaxed);
                KeyState::Expired
            }
            None => KeyState::Unknown,
        }
    }
}

fn session_token(id: &str) -> String {
    format!("token-of-{id}")
}

impl State {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return plain(400, "the body ended early") };
        let manners = *lock(&self.manners);
        match manners {
            IssuerManners::Issues => {}
            IssuerManners::Down => return plain(503, "the issuer is down"),
            IssuerManners::Hangs => return std::future::pending().await,
        }
        let path = parts.uri.path();
        match (&parts.method, path.strip_prefix("/latest/")) {
            (&Method::POST, None) => self.answer_sts(&String::from_utf8_lossy(&body.to_bytes())),
            (&Method::PUT, Some("api/token")) => {
                let mut answer = plain(200, SESSION);
                if let Ok(value) = "21600".parse() {
                    answer.headers_mut().insert("x-aws-ec2-metadata-token-ttl-seconds", value);
                }
                answer
            }
            (&Method::GET, Some(what)) => self.answer_metadata(what, &parts.headers),
            _ => plain(404, "not here"),
        }
    }

    fn answer_metadata(&self, what: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let session = headers.get("x-aws-ec2-metadata-token").and_then(|token| token.to_str().ok());
        // The second version of the protocol, and nothing else.
        if session != Some(SESSION) {
            return plain(401, "no session");
        }
        match what.strip_prefix("meta-data/iam/security-credentials/") {
            Some("") => plain(200, ROLE),
            Some(ROLE) => {
                let (id, end) = self.issue();
                let token = session_token(&id);
                let document = serde_json::json!({
                    "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z",
                    "AccessKeyId": id, "SecretAccessKey": "secret", "Token": token, "Expiration": end,
                });
                plain(200, &document.to_string())
            }
            _ => plain(404, "not here"),
        }
    }

    fn answer_sts(&self, form: &str) -> Response<Full<Bytes>> {
        if query_value(form, "Action").as_deref() != Some("AssumeRoleWithWebIdentity") {
            return plain(400, &sts_error("InvalidAction"));
        }
        let identity = lock(&self.identity).clone();
        if query_value(form, "WebIdentityToken") != Some(identity) {
            return plain(400, &sts_error("InvalidIdentityToken"));
        }
        let (id, end) = self.issue();
        let token = session_token(&id);
        plain(
            200,
            &format!(
                "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
                 <AssumeRoleWithWebIdentityResult><AssumedRoleUser><AssumedRoleId>AROA:{ROLE}</AssumedRoleId>\
                 <Arn>arn:aws:sts::1:assumed-role/{ROLE}/session</Arn></AssumedRoleUser><Credentials>\
                 <AccessKeyId>{id}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>\
                 <SessionToken>{token}</SessionToken><Expiration>{end}</Expiration></Credentials>\
                 </AssumeRoleWithWebIdentityResult><ResponseMetadata><RequestId>0</RequestId></ResponseMetadata>\
                 </AssumeRoleWithWebIdentityResponse>"
            ),
        )
    }

    /// New keys: their id, and their end as the answers write it.
    fn issue(&self) -> (String, String) {
        let lifetime = u64::try_from(lock(&self.lifetime).as_millis()).unwrap_or(u64::MAX);
        let end = self.clock.wall().as_millis().saturating_add(lifetime);
        let mut issued = lock(&self.issued);
        let id = format!("ASIA{:04}", issued.len() + 1);
        issued.insert(id.clone(), end);
        (id, iso_date(end))
    }
}

fn sts_error(code: &str) -> String {
    format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>{code}</Code>\
         <Message>refused</Message></Error><RequestId>0</RequestId></ErrorResponse>"
    )
}

fn plain(status: u16, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response
}
