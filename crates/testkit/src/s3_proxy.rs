//! A proxy that misbehaves on demand, before any server that speaks HTTP/1.1 in plain text.
//!
//! **Owns** the faults between a client and a store: statuses, delays, silence, bodies cut short, lost answers, headers
//! stripped or changed, ranges ignored or moved, bytes changed, a port that nobody listens on. It forwards heads as they come, so
//! that signatures, which cover `Host`, hold wherever a fault does not change what is signed. Every request is logged. **Does
//! not** know S3, but for the keys of a [`KeyIssuer`]: where it is given one it refuses those that are past their end.
//!
//! ```text
//! client -- request --> [first rule that matches, if any left] --> server
//!        <-- answer --- [its fault]                            <--
//! ```

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use object_store::aws::AwsCredential;
use tidelog_runtime::{Supervisor, Task, watch};
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::{KeyIssuer, key_issuer::KeyState};
use exchange::{Exchange, Next, PIECE_BYTES, Server};
use head::{Head, read_head};
use signing::signed_anew;

mod exchange;
mod head;
mod signing;

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is not forwarded; this status and an S3 error of this code answer it.
    Status(u16, &'static str),
    /// It is forwarded after this time.
    Delay(Duration),
    /// It is read, and nothing answers it.
    Silence,
    /// Its connection is closed before an answer.
    Reset,
    /// The answer's body ends after this many bytes, and the connection with it.
    CutBody(u64),
    /// The answer's body stops after this many bytes; the connection stays open.
    FreezeBody(u64),
    /// It is forwarded and done, and the answer is lost with the connection.
    ForwardThenDrop,
    /// It is forwarded and done, and nothing answers it.
    ForwardThenSilence,
    /// Headers that begin with one of these are not forwarded.
    StripHeaders(Vec<&'static str>),
    /// It is answered with 400 if it has a header that begins with one of these, else forwarded.
    RejectHeaders(Vec<&'static str>),
    /// The `Range` header is not forwarded: the whole object comes with 200.
    IgnoreRange,
    /// The `Range` is forwarded with both ends moved on by this many bytes, and the answer says so.
    OtherRange(u64),
    /// The same, and the answer claims the range that was asked for.
    LyingRange(u64),
    /// The answer to a range lacks this many of its first bytes, and says so: another range than the one asked for. Unlike
    /// those above it changes nothing that is signed.
    MovedAnswer(u64),
    /// The answer to a range has this many of its first bytes at its end, under the right name.
    LyingAnswer(u64),
    /// The answer to a range claims to be the whole object.
    WholeAnswer,
    /// A header of the answer has another value.
    AnswerHeader(&'static str, String),
    /// 200 with an error document, and nothing is forwarded.
    ErrorInSuccess,
    /// One byte of the answer's body, at this position, is changed.
    WrongByte(u64),
    /// Bodies pass at this rate in bytes per second, in both directions.
    Rate(u64),
    /// All bodies together pass at this rate, as over one link.
    SharedRate(u64),
    /// The request's body is read up to this many bytes, and then nothing more.
    FreezeUpload(u64),
}

/// A fault, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The method; any if none.
    pub method: Option<&'static str>,
    /// What the target, path and query, must contain.
    pub target: String,
    /// Matching requests that pass before the first is hit.
    pub skip: u32,
    /// How many are hit.
    pub count: u32,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// Hits every request of a method.
    #[must_use]
    pub fn always(method: &'static str, fault: Fault) -> Self {
        Self { method: Some(method), target: String::new(), skip: 0, count: u32::MAX, fault }
    }

    /// Hits the next `count` requests of a method.
    #[must_use]
    pub fn next(method: &'static str, count: u32, fault: Fault) -> Self {
        Self { count, ..Self::always(method, fault) }
    }

    /// Only targets that contain a text.
    #[must_use]
    pub fn on(self, target: &str) -> Self {
        Self { target: target.to_owned(), ..self }
    }
}

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Its method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names in lower case, in the order in which they came.
    pub headers: Vec<(String, String)>,
    /// The fault that hit it.
    pub fault: Option<Fault>,
    /// The status that answered it, where one did.
    pub status: Option<u16>,
}

impl LoggedRequest {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Vec<Rule>>,
    log: Mutex<Log>,
    /// Whose keys are looked at.
    issuer: Mutex<Option<KeyIssuer>>,
    /// What requests are signed with anew.
    keys: Mutex<Option<Arc<AwsCredential>>>,
    /// When the link of [`Fault::SharedRate`] is free.
    link: Mutex<Option<Instant>>,
    /// Changes when all connections end.
    cut: watch::Sender<u64>,
}

#[derive(Default)]
struct Log {
    /// Requests that were forgotten.
    forgotten: usize,
    requests: Vec<LoggedRequest>,
}

impl Log {
    fn take(&mut self) -> Vec<LoggedRequest> {
        self.forgotten += self.requests.len();
        std::mem::take(&mut self.requests)
    }
}

/// A running proxy. It ends with its supervisor, or when it is dropped.
pub struct S3Proxy {
    address: SocketAddr,
    upstream: SocketAddr,
    shared: Arc<Shared>,
    supervisor: Supervisor,
    accepting: Mutex<Option<Task<()>>>,
}

impl Drop for S3Proxy {
    fn drop(&mut self) {
        self.shut();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl S3Proxy {
    /// Starts one on a free port of the loopback address, before the server at `upstream`.
    ///
    /// # Errors
    /// Where no port can be had.
    pub async fn start(supervisor: &Supervisor, upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (shared, supervisor) = (Arc::new(Shared::default()), supervisor.clone());
        let proxy = Self { address, upstream, shared, supervisor, accepting: Mutex::default() };
        proxy.accept(listener);
        Ok(proxy)
    }

    fn accept(&self, listener: TcpListener) {
        let (accepting, spawner, upstream) =
            (Arc::clone(&self.shared), self.supervisor.clone(), self.upstream);
        let task = self.supervisor.spawn("s3-proxy", async move {
            while let Ok((socket, _)) = listener.accept().await {
                // Delays are the rules' alone.
                let _ = socket.set_nodelay(true);
                let shared = Arc::clone(&accepting);
                let mut cut = shared.cut.subscribe();
                let serve = async move {
                    // Connections end in every way here; none of them is the proxy's error.
                    tokio::select! {
                        // What is answered first is answered, also in the moment of a cut.
                        biased;
                        _ = serve(&shared, socket, upstream) => {}
                        _ = cut.changed() => {}
                    }
                };
                spawner.spawn("s3-proxy-connection", serve).detach();
            }
        });
        *lock(&self.accepting) = Some(task);
    }

    /// Ends all connections, and listens no more: new ones are refused.
    pub fn shut(&self) {
        if let Some(task) = lock(&self.accepting).take() {
            task.abort();
        }
        self.shared.cut.send_modify(|cut| *cut += 1);
    }

    /// Listens again where it did before it was shut.
    ///
    /// # Errors
    /// Where another has the port, or it still listens.
    pub async fn listen_again(&self) -> io::Result<()> {
        self.accept(TcpListener::bind(self.address).await?);
        Ok(())
    }

    /// Refuses keys of `issuer` that are past their end, and keys that are not its.
    pub fn look_at_keys_of(&self, issuer: &KeyIssuer) {
        *lock(&self.shared.issuer) = Some(issuer.clone());
    }

    /// Signs what passes with a server's own keys, whose it was before: the server knows no others, and no tokens.
    pub fn sign_with(&self, id: &str, secret: &str) {
        let keys = AwsCredential { key_id: id.to_owned(), secret_key: secret.to_owned(), token: None };
        *lock(&self.shared.keys) = Some(Arc::new(keys));
    }

    /// Where it listens, as an endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule after those that are there.
    pub fn add(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
    }

    /// The requests so far.
    #[must_use]
    pub fn log(&self) -> Vec<LoggedRequest> {
        lock(&self.shared.log).requests.clone()
    }

    /// How many requests of a method came whose target contains a text.
    #[must_use]
    pub fn count(&self, method: &str, target: &str) -> usize {
        let log = lock(&self.shared.log);
        log.requests
            .iter()
            .filter(|request| request.method == method && request.target.contains(target))
            .count()
    }

    /// Forgets the requests so far.
    pub fn clear_log(&self) {
        let _forgotten = self.take_log();
    }

    /// The requests since the last time, which are forgotten.
    #[must_use = "they are forgotten"]
    pub fn take_log(&self) -> Vec<LoggedRequest> {
        lock(&self.shared.log).take()
    }
}

async fn serve(shared: &Shared, client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
    let (client_read, mut client_write) = client.into_split();
    let mut client_read = BufReader::with_capacity(PIECE_BYTES, client_read);
    let mut server: Option<Server> = None;
    while let Some(mut head) = read_head(&mut client_read).await? {
        let (at, fault) = shared.note(&head);
        let keys = lock(&shared.keys).clone();
        if let Some(keys) = keys {
            head = signed_anew(head, &keys);
        }
        let exchange = Exchange { shared, at, fault: fault.as_ref() };
        match exchange.run(head, &mut client_read, &mut client_write, &mut server, upstream).await? {
            Next::Continue => {}
            Next::Close => return Ok(()),
        }
    }
    Ok(())
}

impl Shared {
    /// Logs a request and finds the fault that hits it.
    fn note(&self, head: &Head) -> (usize, Option<Fault>) {
        let mut words = head.first.split(' ');
        let (method, target) = (words.next().unwrap_or("").to_owned(), words.next().unwrap_or("").to_owned());
        let mut fault = self.refused_key(head);
        for rule in lock(&self.rules).iter_mut() {
            if fault.is_some() {
                break;
            }
            let matches = rule.method.is_none_or(|wanted| wanted == method) && target.contains(&rule.target);
            if !matches {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if rule.count > 0 {
                rule.count -= 1;
                fault = Some(rule.fault.clone());
            }
        }
        let headers =
            head.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        let mut log = lock(&self.log);
        log.requests.push(LoggedRequest { method, target, headers, fault: fault.clone(), status: None });
        (log.forgotten + log.requests.len() - 1, fault)
    }

    /// What answers a request whose key is no good.
    fn refused_key(&self, head: &Head) -> Option<Fault> {
        let issuer = lock(&self.issuer);
        let issuer = issuer.as_ref()?;
        let id = head.header("authorization").and_then(|text| text.split_once("Credential="));
        let id = id.and_then(|(_, rest)| rest.split_once('/')).map_or("", |(id, _)| id);
        match issuer.state_of(id, head.header("x-amz-security-token").unwrap_or("")) {
            KeyState::Alive => None,
            KeyState::Expired => Some(Fault::Status(400, "ExpiredToken")),
            KeyState::Unknown => Some(Fault::Status(403, "InvalidAccessKeyId")),
        }
    }

    fn note_status(&self, at: usize, status: Option<u16>) {
        let mut log = lock(&self.log);
        // It may be forgotten by now.
        if let Some(at) = at.checked_sub(log.forgotten)
            && let Some(request) = log.requests.get_mut(at)
        {
            request.status = status;
        }
    }
}
