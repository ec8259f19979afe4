//! The program `tidelog-bench`: the stand-in and the loops as processes of their own.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{http, tied, usage};
use crate::process;

fn command() -> Command {
    tied(&process::target().join("release/tidelog-bench"))
}

/// Runs a part to its end and answers its figures.
pub(super) fn run(arguments: &[&str]) -> Result<Value> {
    let text = process::output(command().args(arguments))?;
    serde_json::from_str(text.trim()).with_context(|| format!("tidelog-bench {arguments:?} printed `{text}`"))
}

/// A probe that waits for a broker, begun before the broker is.
pub(super) struct Probe(Child);

impl Probe {
    pub(super) fn begin(broker: &str, topic: &str, partitions: u32, seconds: u64) -> Result<Self> {
        let child = command()
            .args(["probe", "--broker", broker, "--topic", topic])
            .args(["--partitions", &partitions.to_string(), "--seconds", &seconds.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start the probe")?;
        Ok(Self(child))
    }

    pub(super) fn finish(self) -> Result<Value> {
        let output = self.0.wait_with_output().context("wait for the probe")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("read the probe's figures")
    }
}

/// A part that serves; it ends with this value.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let mut line = String::new();
        let output = child.stdout.take().context("the part's output")?;
        let mut part = Self { child, address: String::new() };
        BufReader::new(output).read_line(&mut line).context("read the part's address")?;
        let hello: Value =
            serde_json::from_str(&line).with_context(|| format!("{command:?} did not start"))?;
        hello["address"].as_str().context("the part named no address")?.clone_into(&mut part.address);
        Ok(part)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A broker of canned answers: the consuming driver's ceiling.
pub(super) struct Canned(Serving);

impl Canned {
    /// The topic that it has.
    pub(super) const TOPIC: &str = "canned";

    /// The same shape as a topic of `messages` records of 1 KiB in batches of 256 KiB.
    pub(super) fn start(partitions: u32, messages: u64) -> Result<Self> {
        let records = messages / u64::from(partitions.max(1));
        let mut command = command();
        command.args(["canned", "--partitions", &partitions.to_string(), "--records", &records.to_string()]);
        Ok(Self(Serving::start(&mut command)?))
    }

    pub(super) fn address(&self) -> &str {
        &self.0.address
    }
}

/// The S3 stand-in; it ends with this value.
pub(super) struct StandIn(Serving);

/// The bucket that every stand-in has.
pub(super) const BUCKET: &str = "bench";

impl StandIn {
    pub(super) fn start(knobs: &[(&str, u64)]) -> Result<Self> {
        let mut command = command();
        command.args(["s3", "--bucket", BUCKET]);
        for (name, value) in knobs {
            command.arg("--knob").arg(format!("{name}={value}"));
        }
        Ok(Self(Serving::start(&mut command)?))
    }

    pub(super) fn address(&self) -> &str {
        &self.0.address
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.0.address)
    }

    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        usage::cpu_seconds(self.0.child.id())
    }

    pub(super) fn set(&self, knobs: &[(&str, u64)]) -> Result<()> {
        let lines: String = knobs.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        self.control("POST", "/_bench/config", &lines).map(drop)
    }

    pub(super) fn reset(&self) -> Result<()> {
        self.control("POST", "/_bench/reset", "").map(drop)
    }

    /// The ranges that were read since the last reset, as the GET loop takes them.
    pub(super) fn gets(&self) -> Result<String> {
        self.control("GET", "/_bench/gets", "")
    }

    pub(super) fn stats(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.control("GET", "/_bench/stats", "")?)?)
    }

    fn control(&self, method: &str, path: &str, body: &str) -> Result<String> {
        match http::request(&self.0.address, method, path, body)? {
            (200, body) => Ok(body),
            (status, body) => bail!("the stand-in answered {status} to {path}: {body}"),
        }
    }
}
