//! The turns of a row: one server, one topic, one sample.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{
    Duel, Outcome, rows,
    rows::{Row, Work},
};
use crate::{
    bench::{
        driver::{Amount, Load},
        kafka,
        measures::{Sample, number},
        node,
        part::{self, Canned, Probe},
        server::{Durability, Kind, Plan, Server, TopicPlan},
        usage,
    },
    process,
};

/// Records of the produces that are not themselves measured.
const FILL_SIZE: u32 = 1024;

/// The most of a replayed topic that is read: what is left is about the active segments.
const REPLAYED_PERCENT: u64 = 90;

/// Partitions of the rows about many of them.
const MANY: u32 = 1000;

/// Both servers of a row.
pub(super) struct Pair {
    pub(super) kafka: Server,
    pub(super) tidelog: Server,
}

impl Pair {
    pub(super) fn of(&mut self, kind: Kind) -> &mut Server {
        match kind {
            Kind::Kafka => &mut self.kafka,
            Kind::Tidelog => &mut self.tidelog,
        }
    }
}

/// The order of a pair.
pub(super) const TURNS: [Kind; 2] = [Kind::Kafka, Kind::Tidelog];

impl Duel<'_> {
    pub(super) fn turns(&self, row: &Row, folder: &Path) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        if matches!(row.work, Work::Memory | Work::Start { .. }) {
            for pair in 0..self.common.pairs() {
                for kind in TURNS {
                    let place = folder.join(format!("{}-{pair}", kind.name()));
                    let plan = self.plan(kind, &place, row.durability())?;
                    let sample = match row.work {
                        Work::Start { killed } => self.start(&plan, killed),
                        _ => self.memory(&plan),
                    };
                    let sample = sample.with_context(|| kind.name())?;
                    say(kind, &sample);
                    outcome.of(kind).push(sample);
                    fs::remove_dir_all(&place).with_context(|| format!("remove {}", place.display()))?;
                }
            }
            return Ok(outcome);
        }
        let mut servers = Pair {
            kafka: self.plan(Kind::Kafka, &folder.join("kafka"), row.durability())?.start()?,
            tidelog: self.plan(Kind::Tidelog, &folder.join("tidelog"), row.durability())?.start()?,
        };
        self.warm_up(row, &mut servers)?;
        if let Work::Latency { durability, part, with_replay } = row.work {
            self.latency(&mut servers, &mut outcome, durability, part, with_replay)?;
            return Ok(outcome);
        }
        for pair in 0..self.common.pairs() {
            for kind in TURNS {
                let topic = format!("turn-{pair}");
                let server = servers.of(kind);
                let sample = match row.work {
                    Work::HotConsume { partitions } => self.hot_consume(server, &topic, partitions),
                    Work::ColdReplay { partitions } => self.cold_replay(server, &topic, partitions),
                    Work::Held => self.held(server, &topic),
                    _ => self.produce(server, &topic, &self.load(row), row.durability()),
                };
                let sample = sample.with_context(|| kind.name())?;
                say(kind, &sample);
                outcome.of(kind).push(sample);
                self.driver.delete(server.address(), &topic)?;
            }
            let ceiling = match row.work {
                Work::Produce { .. } => Some(self.driver.ceiling(&self.load(row))?),
                Work::HotConsume { partitions } | Work::ColdReplay { partitions } => {
                    let messages = self.bytes / u64::from(FILL_SIZE);
                    let canned = Canned::start(partitions, messages)?;
                    Some(self.driver.consume(canned.address(), Canned::TOPIC, partitions, messages)?)
                }
                _ => None,
            };
            let mut limit = ceiling
                .map(|figures| Sample::from([("MB/s", number(&figures, "/mb_per_s"))]))
                .unwrap_or_default();
            if matches!(row.work, Work::HotConsume { .. } | Work::ColdReplay { .. }) {
                limit.insert("CPU s/GB", bare_loop(&folder.join("bare"))?);
            }
            if !limit.is_empty() {
                outcome.ceiling.push(limit);
            }
        }
        Ok(outcome)
    }

    fn plan(&self, kind: Kind, folder: &Path, durability: Durability) -> Result<Plan> {
        match kind {
            Kind::Kafka => kafka::plan(&self.jars, folder),
            Kind::Tidelog => node::plan(
                self.common.program(),
                folder,
                &node::Store::Folder,
                &[node::durability(durability)],
            ),
        }
    }

    fn load(&self, row: &Row) -> Load {
        match row.work {
            Work::Produce { durability, size, partitions, batch } => {
                rows::load(durability, size, partitions, batch, self.bytes)
            }
            _ => rows::load(Durability::Written, FILL_SIZE, 6, 262_144, self.bytes),
        }
    }

    /// Segments so large that most of what a turn writes is sealed and sent.
    pub(super) fn topic(&self, partitions: u32, durability: Durability, evicts: bool) -> TopicPlan {
        let segment_bytes = (self.bytes / u64::from(partitions) / 8).clamp(4 << 20, 64 << 20);
        TopicPlan { partitions, segment_bytes, durability, evicts }
    }

    /// Lets the peer's compiler see the work before it counts.
    fn warm_up(&self, row: &Row, servers: &mut Pair) -> Result<()> {
        let mut load = self.load(row);
        load.amount = Amount::Bytes((self.bytes / 2).min(512 << 20));
        for kind in TURNS {
            let server = servers.of(kind);
            let plan = self.topic(load.partitions, row.durability(), true);
            server.create(&self.driver, "warm-up", plan)?;
            self.driver.produce(server.address(), "warm-up", &load)?;
            server.drain("warm-up", plan, load.size)?;
            if matches!(row.work, Work::HotConsume { .. } | Work::ColdReplay { .. } | Work::Latency { .. }) {
                let messages = load.messages().unwrap_or(0) / 2;
                self.driver.consume(server.address(), "warm-up", load.partitions, messages)?;
            }
            self.driver.delete(server.address(), "warm-up")?;
        }
        Ok(())
    }

    fn produce(
        &self,
        server: &mut Server,
        topic: &str,
        load: &Load,
        durability: Durability,
    ) -> Result<Sample> {
        let plan = self.topic(load.partitions, durability, false);
        server.create(&self.driver, topic, plan)?;
        let cpu = server.cpu_seconds()?;
        let figures = self.driver.produce(server.address(), topic, load)?;
        let acknowledged = server.cpu_seconds()? - cpu;
        server.drain(topic, plan, load.size)?;
        let drained = server.cpu_seconds()? - cpu;
        let gigabytes = number(&figures, "/bytes") / 1e9;
        Ok(Sample::from([
            ("MB/s", number(&figures, "/mb_per_s")),
            ("messages/s", number(&figures, "/messages_per_s")),
            ("CPU s/GB", drained / gigabytes),
            ("CPU s/GB before uploads", acknowledged / gigabytes),
        ]))
    }

    /// Writes what is to be read and waits for its uploads.
    pub(super) fn fill(&self, server: &mut Server, topic: &str, plan: TopicPlan) -> Result<u64> {
        server.create(&self.driver, topic, plan)?;
        let load = rows::load(Durability::Written, FILL_SIZE, plan.partitions, 262_144, self.bytes);
        self.driver.produce(server.address(), topic, &load)?;
        server.drain(topic, plan, FILL_SIZE)?;
        Ok(load.messages().unwrap_or(0))
    }

    fn consume(&self, server: &Server, topic: &str, partitions: u32, messages: u64) -> Result<Sample> {
        let cpu = server.cpu_seconds()?;
        let figures = self.driver.consume(server.address(), topic, partitions, messages)?;
        let cpu = server.cpu_seconds()? - cpu;
        Ok(Sample::from([
            ("MB/s", number(&figures, "/mb_per_s")),
            ("CPU s/GB", cpu / (number(&figures, "/bytes") / 1e9)),
            ("first record ms", number(&figures, "/first_ms")),
        ]))
    }

    fn hot_consume(&self, server: &mut Server, topic: &str, partitions: u32) -> Result<Sample> {
        let messages = self.fill(server, topic, self.topic(partitions, Durability::Written, false))?;
        self.consume(server, topic, partitions, messages)
    }

    fn cold_replay(&self, server: &mut Server, topic: &str, partitions: u32) -> Result<Sample> {
        let messages = self.fill(server, topic, self.topic(partitions, Durability::Written, true))?;
        self.consume(server, topic, partitions, messages * REPLAYED_PERCENT / 100)
    }

    fn held(&self, server: &mut Server, topic: &str) -> Result<Sample> {
        let partitions = 16;
        let plan = self.topic(partitions, Durability::Written, false);
        server.create(&self.driver, topic, plan)?;
        let load = Load {
            partitions,
            size: 100,
            acks: 1,
            batch: 262_144,
            linger_ms: 5.0,
            amount: Amount::Seconds { warmup: 0.0, measured: self.common.pick(60.0, 5.0) },
            rate: Some(rows::HELD_RATE),
        };
        let cpu = server.cpu_seconds()?;
        let figures = self.driver.produce(server.address(), topic, &load)?;
        server.drain(topic, plan, load.size)?;
        let cpu = server.cpu_seconds()? - cpu;
        Ok(Sample::from([
            ("messages/s", number(&figures, "/messages_per_s")),
            ("p99 ms", number(&figures, "/latency_us/p99") / 1e3),
            ("sent late at most ms", number(&figures, "/send_late_max_us") / 1e3),
            ("CPU s/GB", cpu / (number(&figures, "/bytes") / 1e9)),
        ]))
    }

    fn memory(&self, plan: &Plan) -> Result<Sample> {
        let server = plan.start()?;
        process::pause(self.common.pick(10_000, 3000));
        let idle = server.resident_mib()?;
        let cache = usage::page_cache_mib()?;
        self.many_partitions(&server)?;
        process::pause(self.common.pick(10_000, 3000));
        Ok(Sample::from([
            ("idle MiB", idle),
            ("1,000 partitions MiB", server.resident_mib()?),
            ("page cache of the machine MiB", cache),
        ]))
    }

    /// A topic of 1,000 partitions, each of which has taken a record.
    fn many_partitions(&self, server: &Server) -> Result<()> {
        let plan = TopicPlan {
            partitions: MANY,
            segment_bytes: 32 << 20,
            durability: Durability::Written,
            evicts: false,
        };
        server.create(&self.driver, "many", plan)?;
        Probe::begin(server.address(), "many", MANY, 120)?.finish().map(drop)
    }

    fn start(&self, plan: &Plan, killed: bool) -> Result<Sample> {
        let server = plan.start()?;
        self.many_partitions(&server)?;
        let load = rows::load(Durability::Written, FILL_SIZE, MANY, 16_384, self.bytes / 8);
        self.driver.produce(server.address(), "many", &load)?;
        if killed {
            server.kill()?
        } else {
            server.stop()?
        }
        let probe = Probe::begin(&plan.address, "many", MANY, 180)?;
        let server = plan.spawn()?;
        let figures = probe.finish()?;
        drop(server);
        Ok(Sample::from([
            ("first append ms", number(&figures, "/first_append_ms")),
            ("all appends ms", number(&figures, "/all_appends_ms")),
        ]))
    }
}

/// CPU seconds for 10⁹ bytes of a loop that reads a file and sends it: no server that copies can do with less.
fn bare_loop(path: &Path) -> Result<f64> {
    fs::write(path, vec![0x5a; 512 << 20])?;
    let figures = part::run(&["send", "--file", &path.display().to_string()])?;
    fs::remove_file(path)?;
    Ok(number(&figures, "/cpu_s_per_gb"))
}

pub(super) fn say(kind: Kind, sample: &Sample) {
    let figures: Vec<String> = sample
        .iter()
        .map(|(measure, value)| format!("{measure} {}", crate::bench::measures::figure(*value)))
        .collect();
    println!("  {:8}{}", kind.name(), figures.join(", "));
}
