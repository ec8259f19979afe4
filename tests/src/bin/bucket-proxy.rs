//! A proxy before a real S3 server that misbehaves when it is told to, and who issues the keys that pass it.
//!
//! Its first line on standard output is JSON: where it listens, where it takes orders, and where keys are issued (an STS for
//! web identities). Then each line that comes over a connection to the second is an order, as JSON, and is answered by one line.
//! It runs until it is ended.

use std::{collections::BTreeMap, net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use serde::Deserialize;
use serde_json::{Value, json};
use tidelog_runtime::{Registry, Runtimes, RuntimesConfig, Supervisor};
use tidelog_testkit::{Fault, IssuerManners, KeyIssuer, Rule, S3Proxy};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

/// A proxy that misbehaves.
#[derive(Debug, Parser)]
struct Options {
    /// Where the S3 server listens.
    #[arg(long)]
    upstream: SocketAddr,
    /// The keys of that server, with which everything that passes is signed.
    #[arg(long, env = "AWS_ACCESS_KEY_ID")]
    access_key: String,
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY")]
    secret_key: String,
    /// The web identity token for which keys are issued.
    #[arg(long)]
    identity: String,
    /// How long issued keys live.
    #[arg(long, default_value_t = 3600)]
    key_seconds: u64,
}

/// What it may be told.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Order {
    /// Adds a rule behind those that are there.
    Add {
        fault: Misbehaviour,
        /// Any, if none.
        #[serde(default)]
        method: Option<String>,
        /// What the target must contain.
        #[serde(default)]
        target: String,
        #[serde(default = "for_ever")]
        count: u32,
    },
    /// Removes all rules.
    Clear,
    /// Refuses connections.
    Shut,
    /// Takes them again.
    Open,
    /// How keys are issued from now on: issues, down or hangs.
    Issue(String),
    /// Ends all keys that were issued.
    ExpireKeys,
    /// Tells what was asked and hit since the last time.
    Tell,
}

const fn for_ever() -> u32 {
    u32::MAX
}

/// The testkit's faults, as they are told.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Misbehaviour {
    Status(u16, String),
    DelayMs(u64),
    Silence,
    Reset,
    CutBody(u64),
    FreezeBody(u64),
    ForwardThenDrop,
    ForwardThenSilence,
    AnswerHeader(String, String),
    ErrorInSuccess,
    WrongByte(u64),
    Rate(u64),
    SharedRate(u64),
    FreezeUpload(u64),
    MovedAnswer(u64),
    LyingAnswer(u64),
    WholeAnswer,
}

/// The words that orders may use where the testkit wants them for ever.
const WORDS: [&str; 16] = [
    "GET",
    "PUT",
    "HEAD",
    "DELETE",
    "etag",
    "content-length",
    "content-range",
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "ConditionalRequestConflict",
    "PreconditionFailed",
    "ExpiredToken",
    "AccessDenied",
    "RequestTimeout",
    "BadDigest",
];

fn word(text: &str) -> Result<&'static str> {
    let known = WORDS.into_iter().find(|word| *word == text);
    known.with_context(|| format!("`{text}` is none of {}", WORDS.join(", ")))
}

impl Misbehaviour {
    fn fault(self) -> Result<Fault> {
        Ok(match self {
            Self::Status(status, code) => Fault::Status(status, word(&code)?),
            Self::DelayMs(millis) => Fault::Delay(Duration::from_millis(millis)),
            Self::Silence => Fault::Silence,
            Self::Reset => Fault::Reset,
            Self::CutBody(bytes) => Fault::CutBody(bytes),
            Self::FreezeBody(bytes) => Fault::FreezeBody(bytes),
            Self::ForwardThenDrop => Fault::ForwardThenDrop,
            Self::ForwardThenSilence => Fault::ForwardThenSilence,
            Self::AnswerHeader(name, value) => Fault::AnswerHeader(word(&name)?, value),
            Self::ErrorInSuccess => Fault::ErrorInSuccess,
            Self::WrongByte(at) => Fault::WrongByte(at),
            Self::Rate(rate) => Fault::Rate(rate),
            Self::SharedRate(rate) => Fault::SharedRate(rate),
            Self::FreezeUpload(bytes) => Fault::FreezeUpload(bytes),
            Self::MovedAnswer(by) => Fault::MovedAnswer(by),
            Self::LyingAnswer(by) => Fault::LyingAnswer(by),
            Self::WholeAnswer => Fault::WholeAnswer,
        })
    }
}

#[allow(clippy::print_stderr, reason = "there is nobody else to tell")]
fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let runtimes = Runtimes::start(RuntimesConfig::default()).context("start threads")?;
    let supervisor = Supervisor::new(runtimes.front().clone(), runtimes.back().clone(), &Registry::new());
    let outcome = runtimes.front().block_on(serve(options, &supervisor));
    runtimes.shutdown(Duration::from_secs(1));
    outcome
}

#[allow(clippy::print_stdout, reason = "its address is what it was started for")]
async fn serve(options: &Options, supervisor: &Supervisor) -> Result<()> {
    let proxy = S3Proxy::start(supervisor, options.upstream).await.context("listen")?;
    let lifetime = Duration::from_secs(options.key_seconds);
    let issuer = KeyIssuer::start(supervisor, lifetime).await?;
    issuer.accept_identity(&options.identity);
    proxy.look_at_keys_of(&issuer);
    proxy.sign_with(&options.access_key, &options.secret_key);
    let orders = TcpListener::bind("127.0.0.1:0").await.context("listen for orders")?;
    let place = json!({
        "store": proxy.endpoint(), "orders": orders.local_addr()?.to_string(), "issuer": issuer.endpoint(),
    });
    println!("{place}");
    loop {
        let (caller, _) = orders.accept().await.context("take orders")?;
        // One at a time: whoever gives orders waits for the answer. Its end is no error.
        let _ = take_orders(&proxy, &issuer, caller).await;
    }
}

async fn take_orders(proxy: &S3Proxy, issuer: &KeyIssuer, caller: TcpStream) -> Result<()> {
    let (read, mut write) = caller.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = match obey(proxy, issuer, &line).await {
            Ok(answer) => answer,
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        write.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

async fn obey(proxy: &S3Proxy, issuer: &KeyIssuer, line: &str) -> Result<Value> {
    match serde_json::from_str(line).with_context(|| format!("no order: {line}"))? {
        Order::Add { fault, method, target, count } => {
            let method = method.as_deref().map(word).transpose()?;
            proxy.add(Rule { method, target, skip: 0, count, fault: fault.fault()? });
        }
        Order::Clear => proxy.clear(),
        Order::Shut => proxy.shut(),
        Order::Open => proxy.listen_again().await.context("listen again")?,
        Order::Issue(how) => issuer.behave(match how.as_str() {
            "issues" => IssuerManners::Issues,
            "down" => IssuerManners::Down,
            "hangs" => IssuerManners::Hangs,
            _ => bail!("`{how}` is none of issues, down and hangs"),
        }),
        Order::ExpireKeys => issuer.expire_all(),
        Order::Tell => return Ok(told(proxy)),
    }
    Ok(json!({}))
}

/// Requests by method since the last time, and by method and fault those that were hit.
fn told(proxy: &S3Proxy) -> Value {
    let (mut asked, mut hit) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for request in proxy.take_log() {
        if let Some(fault) = &request.fault {
            *hit.entry(format!("{} {fault:?}", request.method)).or_default() += 1;
        }
        *asked.entry(request.method).or_default() += 1;
    }
    json!({ "asked": asked, "hit": hit })
}
