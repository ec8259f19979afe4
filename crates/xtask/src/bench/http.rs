//! Requests to servers of this machine: one connection each.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

/// Sends a request and answers its status and body.
pub(super) fn request(address: &str, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    // The length says where the answer ends, for servers that leave the connection open.
    let mut answer = Vec::new();
    let mut chunk = [0; 65_536];
    loop {
        if let Some((status, body)) = whole(&answer) {
            return Ok((status, body));
        }
        match stream.read(&mut chunk).with_context(|| format!("read {path} of {address}"))? {
            0 => break,
            count => answer.extend_from_slice(&chunk[..count]),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("{address} answered no HTTP"))?;
    Ok((status(head).with_context(|| format!("{address} answered no status"))?, body.to_owned()))
}

/// A GET that must answer 200.
pub(super) fn get(address: &str, path: &str) -> Result<String> {
    match request(address, "GET", path, "")? {
        (200, body) => Ok(body),
        (status, body) => bail!("{path} of {address} answered {status}: {body}"),
    }
}

fn status(head: &str) -> Option<u16> {
    head.split(' ').nth(1)?.parse().ok()
}

fn whole(answer: &[u8]) -> Option<(u16, String)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())?;
    let body = answer.get(end + 4..end + 4 + length)?;
    Some((status(head)?, String::from_utf8_lossy(body).into_owned()))
}
