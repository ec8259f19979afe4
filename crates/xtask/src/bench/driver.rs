//! The driver: librdkafka in C, one process for each thing it does.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{librdkafka, tied};

/// A load to produce.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Load {
    pub(super) partitions: u32,
    /// Bytes of a record's value.
    pub(super) size: u32,
    pub(super) acks: i8,
    /// Bytes of a batch.
    pub(super) batch: u32,
    pub(super) linger_ms: f64,
    pub(super) amount: Amount,
    /// Records per second; none is as fast as it goes.
    pub(super) rate: Option<f64>,
}

/// How much of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Amount {
    Bytes(u64),
    /// After so many seconds of warming up, so many that are measured.
    Seconds {
        warmup: f64,
        measured: f64,
    },
}

impl Load {
    pub(super) fn messages(&self) -> Option<u64> {
        match self.amount {
            Amount::Bytes(bytes) => Some(bytes / u64::from(self.size.max(1))),
            Amount::Seconds { .. } => None,
        }
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = Vec::new();
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        add("--partitions", self.partitions.to_string());
        add("--size", self.size.to_string());
        add("--acks", self.acks.to_string());
        add("--batch", self.batch.to_string());
        add("--linger", self.linger_ms.to_string());
        match self.amount {
            Amount::Bytes(_) => add("--messages", self.messages().unwrap_or(0).max(1).to_string()),
            Amount::Seconds { warmup, measured } => {
                add("--warmup", warmup.to_string());
                add("--seconds", (warmup + measured).to_string());
            }
        }
        if let Some(rate) = self.rate {
            add("--rate", rate.to_string());
        }
        arguments
    }
}

/// The compiled program.
#[derive(Debug, Clone)]
pub(super) struct Driver {
    program: PathBuf,
}

/// A driver that works in the background; dropped, it is killed.
#[derive(Debug)]
pub(super) struct Working(Option<Child>);

impl Working {
    /// Waits for its end and its figures.
    pub(super) fn finish(mut self) -> Result<Value> {
        let Some(child) = self.0.take() else { bail!("the driver was waited for already") };
        let output = child.wait_with_output().context("wait for the driver")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("the driver ended with {}: {text} {errors}", output.status);
        }
        let last = text.lines().last().unwrap_or("");
        serde_json::from_str(last).with_context(|| format!("the driver printed `{last}`: {errors}"))
    }

    pub(super) fn is_done(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Driver {
    pub(super) fn install() -> Result<Self> {
        Ok(Self { program: librdkafka::driver()? })
    }

    pub(super) fn version(&self) -> Result<String> {
        let version = self.run("version", &[])?;
        Ok(version["librdkafka"].as_str().unwrap_or("unknown").to_owned())
    }

    fn spawn(&self, mode: &str, arguments: &[String]) -> Result<Working> {
        let mut command: Command = tied(&self.program);
        command.arg(mode).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        Ok(Working(Some(child)))
    }

    fn run(&self, mode: &str, arguments: &[String]) -> Result<Value> {
        self.spawn(mode, arguments)?.finish().with_context(|| format!("{mode} {}", arguments.join(" ")))
    }

    pub(super) fn create(
        &self,
        brokers: &str,
        topic: &str,
        partitions: u32,
        settings: &[(&str, String)],
    ) -> Result<()> {
        let mut arguments = named(brokers, topic);
        arguments.extend(["--partitions".to_owned(), partitions.to_string()]);
        for (key, value) in settings {
            arguments.extend(["--config".to_owned(), format!("{key}={value}")]);
        }
        self.run("create", &arguments).map(drop)
    }

    pub(super) fn delete(&self, brokers: &str, topic: &str) -> Result<()> {
        self.run("delete", &named(brokers, topic)).map(drop)
    }

    pub(super) fn produce(&self, brokers: &str, topic: &str, load: &Load) -> Result<Value> {
        self.begin_produce(brokers, topic, load)?.finish()
    }

    pub(super) fn begin_produce(&self, brokers: &str, topic: &str, load: &Load) -> Result<Working> {
        let mut arguments = named(brokers, topic);
        arguments.extend(load.arguments());
        self.spawn("produce", &arguments)
    }

    /// The same load against librdkafka's own mock cluster: what the driver can do at best.
    pub(super) fn ceiling(&self, load: &Load) -> Result<Value> {
        let mut arguments = vec!["--mock".to_owned()];
        // The mock refuses more partitions than it was made for, and knows no fixed rate's latency.
        arguments.extend(load.arguments());
        self.run("produce", &arguments)
    }

    pub(super) fn begin_consume(
        &self,
        brokers: &str,
        topic: &str,
        partitions: u32,
        messages: u64,
    ) -> Result<Working> {
        let mut arguments = named(brokers, topic);
        arguments.extend(["--partitions".to_owned(), partitions.to_string()]);
        arguments.extend(["--messages".to_owned(), messages.to_string()]);
        arguments.extend(["--seconds".to_owned(), "600".to_owned()]);
        self.spawn("consume", &arguments)
    }

    /// Reads from offset 0 until so many records were read or every partition ended.
    pub(super) fn consume(
        &self,
        brokers: &str,
        topic: &str,
        partitions: u32,
        messages: u64,
    ) -> Result<Value> {
        let figures = self.begin_consume(brokers, topic, partitions, messages)?.finish()?;
        for wrong in ["gaps", "errors"] {
            if figures[wrong].as_u64() != Some(0) {
                bail!("the consumer saw {wrong}: {figures}");
            }
        }
        Ok(figures)
    }
}

fn named(brokers: &str, topic: &str) -> Vec<String> {
    ["--brokers", brokers, "--topic", topic].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_becomes_the_drivers_arguments() {
        let load = Load {
            partitions: 6,
            size: 1024,
            acks: -1,
            batch: 16_384,
            linger_ms: 1.0,
            amount: Amount::Bytes(4096),
            rate: None,
        };
        let text = "--partitions 6 --size 1024 --acks -1 --batch 16384 --linger 1 --messages 4";
        assert_eq!(load.arguments().join(" "), text);
        let amount = Amount::Seconds { warmup: 2.0, measured: 10.0 };
        let fixed = Load { amount, rate: Some(100.0), ..load };
        assert!(fixed.arguments().join(" ").ends_with("--warmup 2 --seconds 12 --rate 100"));
    }
}
