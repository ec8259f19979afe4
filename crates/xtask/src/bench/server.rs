//! The servers that are measured: a Tidelog node or an Apache Kafka node, started again and again from the same folder.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{driver::Driver, kafka, node, usage};
use crate::process;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Kafka,
    Tidelog,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Tidelog => "tidelog",
        }
    }
}

/// What an acknowledgement promises; the same on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Durability {
    /// acks=1, and nobody waits for a sync.
    Written,
    /// acks=all, and a sync before every answer.
    Synced,
}

impl Durability {
    pub(super) const fn acks(self) -> i8 {
        match self {
            Self::Written => 1,
            Self::Synced => -1,
        }
    }
}

/// What a topic is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicPlan {
    pub(super) partitions: u32,
    pub(super) segment_bytes: u64,
    pub(super) durability: Durability,
    /// Whether tiered segments leave local disk at once.
    pub(super) evicts: bool,
}

/// How to start a server; its files stay between starts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) folder: PathBuf,
    /// Its Kafka listener.
    pub(crate) address: String,
    /// Tidelog's admin listener, Kafka's controller listener.
    pub(crate) second_address: String,
    /// Arguments of the program.
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) program: PathBuf,
}

impl Plan {
    /// Starts the process and does not wait until it serves.
    pub(super) fn spawn(&self) -> Result<Server> {
        let log = self.folder.join(format!("{}.log", self.kind.name()));
        let output = fs::File::options().create(true).append(true).open(&log)?;
        let mut command: Command = super::tied(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        Ok(Server { plan: self.clone(), child, log })
    }

    /// Starts it and waits until it serves.
    pub(super) fn start(&self) -> Result<Server> {
        let mut server = self.spawn()?;
        server.wait_until(120, "it does not serve", Server::serves)?;
        Ok(server)
    }
}

/// A running server; dropped, it is killed.
#[derive(Debug)]
pub(super) struct Server {
    plan: Plan,
    child: Child,
    log: PathBuf,
}

impl Server {
    pub(super) fn address(&self) -> &str {
        &self.plan.address
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        usage::cpu_seconds(self.id())
            .with_context(|| format!("{} is gone; {}", self.plan.kind.name(), self.last_words()))
    }

    pub(super) fn resident_mib(&self) -> Result<f64> {
        usage::status_mib(self.id(), "VmRSS")
    }

    fn serves(&self) -> Result<bool> {
        match self.plan.kind {
            Kind::Tidelog => Ok(node::is_ready(&self.plan.second_address)),
            Kind::Kafka => Ok(TcpStream::connect(&self.plan.address).is_ok()),
        }
    }

    /// Creates a topic; a server that has just started may need some tries.
    pub(super) fn create(&self, driver: &Driver, topic: &str, plan: TopicPlan) -> Result<()> {
        let settings = match self.plan.kind {
            Kind::Tidelog => node::topic_settings(plan),
            Kind::Kafka => kafka::topic_settings(plan),
        };
        let mut tries = 0;
        loop {
            match driver.create(&self.plan.address, topic, plan.partitions, &settings) {
                Ok(()) => return Ok(()),
                Err(error) if tries >= 20 => {
                    return Err(error.context(format!("create {topic}; {}", self.last_words())));
                }
                Err(_) => {
                    tries += 1;
                    process::pause(500);
                }
            }
        }
    }

    /// Whether everything sealed of a topic is in its remote store and, where the topic evicts, gone from local disk.
    fn is_drained(&self, topic: &str, plan: TopicPlan, record_bytes: u32) -> Result<bool> {
        match self.plan.kind {
            Kind::Tidelog => node::is_drained(&self.plan.second_address, topic, plan, record_bytes),
            Kind::Kafka => kafka::is_drained(&self.plan.folder, topic, plan),
        }
    }

    /// Waits until the uploads of a topic with records of this size are done.
    pub(super) fn drain(&mut self, topic: &str, plan: TopicPlan, record_bytes: u32) -> Result<()> {
        self.wait_until(600, "uploads are not drained", move |server| {
            // Twice, since a segment may be sealed between two looks.
            if !server.is_drained(topic, plan, record_bytes)? {
                return Ok(false);
            }
            process::pause(300);
            server.is_drained(topic, plan, record_bytes)
        })
    }

    fn wait_until(
        &mut self,
        seconds: u64,
        otherwise: &str,
        is_so: impl Fn(&Self) -> Result<bool>,
    ) -> Result<()> {
        let begun = process::now();
        while begun.elapsed().as_secs() < seconds {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}; {}", self.plan.kind.name(), self.last_words());
            }
            if is_so(self)? {
                return Ok(());
            }
            process::pause(if begun.elapsed().as_secs() < 5 { 50 } else { 300 });
        }
        bail!("{}: {otherwise} after {seconds} s; {}", self.plan.kind.name(), self.last_words())
    }

    /// Ends it in order, as an operator would.
    pub(super) fn stop(mut self) -> Result<()> {
        let id = self.child.id().to_string();
        process::run(Command::new("kill").args(["-TERM", &id]))?;
        for _ in 0..1200 {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            process::pause(100);
        }
        bail!("{} did not end within 120 s of SIGTERM", self.plan.kind.name())
    }

    /// Ends it as a crash of the process does.
    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill the server")?;
        self.child.wait().context("wait for the killed server")?;
        Ok(())
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(8).collect();
        format!("its log ends with:\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path as text.
pub(super) fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().with_context(|| format!("{} is no text", path.display()))?.to_owned())
}
