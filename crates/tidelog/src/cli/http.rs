//! What verbs ask the admin HTTP listener.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How long the listener may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Gets a JSON document.
///
/// # Errors
/// Where nobody listens, or the answer is not 200 with JSON.
pub(crate) async fn get_json(address: &str, path: &str) -> Result<serde_json::Value> {
    ask(address, "GET", path).await
}

/// Has something done; the answer is a JSON document too.
///
/// # Errors
/// As [`get_json`]. Where no answer came, it may have been done.
pub(crate) async fn post_json(address: &str, path: &str) -> Result<serde_json::Value> {
    ask(address, "POST", path).await
}

async fn ask(address: &str, method: &str, path: &str) -> Result<serde_json::Value> {
    let body = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    let exchange = async {
        let mut stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("connect to the admin listener {address}"))?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n{body}Connection: close\r\n\r\n"
        );
        let mut answer = Vec::new();
        let exchanged = async {
            stream.write_all(request.as_bytes()).await?;
            stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await
        };
        exchanged.await.with_context(|| not_admin(address))?;
        Ok::<_, anyhow::Error>(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, exchange)
        .await
        .with_context(|| format!("{address} does not answer"))??;
    let (status, body) = parse(&answer).with_context(|| not_admin(address))?;
    if status != 200 {
        bail!(refusal(address, path, status, &body));
    }
    serde_json::from_slice(&body).with_context(|| not_admin(address))
}

fn not_admin(address: &str) -> String {
    format!("{address} does not answer as a node's admin listener does")
}

/// Why a document was refused: in the listener's words where it gave some.
fn refusal(address: &str, path: &str, status: u16, body: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    match document.as_ref().and_then(|document| document["error"].as_str()) {
        Some(why) => why.to_owned(),
        None => format!("{address}{path} answered {status}: {}", String::from_utf8_lossy(body).trim()),
    }
}

/// Takes an HTTP/1.1 answer apart: status and body, chunked or not.
fn parse(answer: &[u8]) -> Result<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("the answer is not HTTP")?;
    let head = std::str::from_utf8(&answer[..end]).context("the answer is not HTTP")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let status = status.context("the answer is not HTTP")?;
    let chunked = lines.any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("transfer-encoding:") && line.contains("chunked")
    });
    let body = &answer[end + 4..];
    Ok((status, if chunked { join_chunks(body)? } else { body.to_vec() }))
}

/// As a verb reads the answer of an admin listener: the status, if it is one.
#[doc(hidden)]
#[must_use]
pub fn admin_answer(bytes: &[u8]) -> Option<u16> {
    let (status, body) = parse(bytes).ok()?;
    if status == 200 {
        return serde_json::from_slice::<serde_json::Value>(&body).is_ok().then_some(status);
    }
    let _told = refusal("host:1", "/", status, &body);
    Some(status)
}

fn join_chunks(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").context("the answer is cut short")?;
        let size = std::str::from_utf8(&rest[..end])?.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size.trim(), 16).context("the answer's chunks are wrong")?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Ok(body);
        }
        let chunk = rest.get(..size).context("the answer is cut short")?;
        body.extend_from_slice(chunk);
        rest = rest
            .get(size..)
            .and_then(|rest| rest.strip_prefix(b"\r\n"))
            .context("the answer is cut short")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_listeners_words() {
        assert_eq!(
            refusal("a:1", "/x", 404, b"{\"error\":\"topic `t` does not exist\"}\n"),
            "topic `t` does not exist"
        );
        assert_eq!(refusal("a:1", "/x", 404, b"no such page\n"), "a:1/x answered 404: no such page");
    }

    #[test]
    fn plain_and_chunked_answers_are_read() {
        let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(parse(plain).unwrap(), (200, b"{}".to_vec()));
        let chunked = b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).unwrap(), (503, b"abc".to_vec()));
        for cut in 0..chunked.len() - 4 {
            assert!(parse(&chunked[..cut]).is_err(), "cut at {cut}");
        }
    }
}
