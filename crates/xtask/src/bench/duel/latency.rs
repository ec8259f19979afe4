//! Latency at a fixed rate, alone and while a replay runs.

use anyhow::{Context as _, Result};

use super::{
    Duel, Outcome,
    work::{Pair, TURNS, say},
};
use crate::bench::{
    driver::{Amount, Load},
    measures::{Sample, number},
    server::{Durability, Server},
};

/// Partitions of the load and of the replay.
const PARTITIONS: u32 = 6;

impl Duel<'_> {
    pub(super) fn latency(
        &self,
        servers: &mut Pair,
        outcome: &mut Outcome,
        durability: Durability,
        part: f64,
        with_replay: bool,
    ) -> Result<()> {
        let maximum = self.maximum(servers, durability)?;
        let rate = (maximum * part).max(1.0);
        println!("  {rate:.0} records of 1 KiB a second, of a maximum of {maximum:.0}");
        if with_replay {
            for kind in TURNS {
                let plan = self.topic(PARTITIONS, Durability::Written, true);
                self.fill(servers.of(kind), "replayed", plan)?;
            }
        }
        let load = Load {
            amount: Amount::Seconds {
                warmup: self.common.pick(5.0, 1.0),
                measured: self.common.pick(60.0, 5.0),
            },
            rate: Some(rate),
            ..base(durability)
        };
        for pair in 0..self.common.pairs() {
            for kind in TURNS {
                let server = servers.of(kind);
                let mut sample = self
                    .fixed(server, &format!("alone-{pair}"), &load, durability)
                    .with_context(|| kind.name())?;
                sample.insert("rate", rate);
                if with_replay {
                    let beside = self
                        .beside_replay(server, &format!("beside-{pair}"), &load, durability)
                        .with_context(|| kind.name())?;
                    let ratio = beside["p99 ms"] / sample["p99 ms"];
                    sample.insert("p99 ms beside a replay", beside["p99 ms"]);
                    sample.insert("p99 beside / alone", ratio);
                    sample.insert("MB/s beside / alone", beside["MB/s"] / sample["MB/s"]);
                    sample.insert("replay MB/s", beside["replay MB/s"]);
                }
                say(kind, &sample);
                outcome.of(kind).push(sample);
            }
        }
        Ok(())
    }

    /// The lower of the two maxima with this load, found once: both sides are then asked for the same rate.
    fn maximum(&self, servers: &mut Pair, durability: Durability) -> Result<f64> {
        if let Some(known) = self.maxima.borrow().get(&durability) {
            return Ok(*known);
        }
        let load = Load { amount: Amount::Bytes(self.bytes / 4), ..base(durability) };
        let mut lowest = f64::INFINITY;
        for kind in TURNS {
            let server = servers.of(kind);
            let plan = self.topic(PARTITIONS, durability, false);
            server.create(&self.driver, "maximum", plan)?;
            let figures = self.driver.produce(server.address(), "maximum", &load)?;
            lowest = lowest.min(number(&figures, "/messages_per_s"));
            server.drain("maximum", plan, load.size)?;
            self.driver.delete(server.address(), "maximum")?;
        }
        self.maxima.borrow_mut().insert(durability, lowest);
        Ok(lowest)
    }

    fn fixed(&self, server: &mut Server, topic: &str, load: &Load, durability: Durability) -> Result<Sample> {
        let plan = self.topic(PARTITIONS, durability, false);
        server.create(&self.driver, topic, plan)?;
        let figures = self.driver.produce(server.address(), topic, load)?;
        server.drain(topic, plan, load.size)?;
        self.driver.delete(server.address(), topic)?;
        let milliseconds = |quantile: &str| number(&figures, &format!("/latency_us/{quantile}")) / 1e3;
        Ok(Sample::from([
            ("MB/s", number(&figures, "/mb_per_s")),
            ("p50 ms", milliseconds("p50")),
            ("p99 ms", milliseconds("p99")),
            ("p99.9 ms", milliseconds("p999")),
        ]))
    }

    /// The same while consumers read the tiered topic from its start, one after another.
    fn beside_replay(
        &self,
        server: &mut Server,
        topic: &str,
        load: &Load,
        durability: Durability,
    ) -> Result<Sample> {
        let plan = self.topic(PARTITIONS, durability, false);
        server.create(&self.driver, topic, plan)?;
        let messages = self.bytes / 1024 * 9 / 10;
        let begin = || self.driver.begin_consume(server.address(), "replayed", PARTITIONS, messages);
        let mut producing = self.driver.begin_produce(server.address(), topic, load)?;
        let mut replay = begin()?;
        let (mut bytes, mut seconds) = (0.0, 0.0);
        while !producing.is_done() {
            if replay.is_done() {
                let figures = std::mem::replace(&mut replay, begin()?).finish()?;
                bytes += number(&figures, "/bytes");
                seconds += number(&figures, "/seconds");
            }
            crate::process::pause(20);
        }
        let figures = producing.finish()?;
        drop(replay);
        server.drain(topic, plan, load.size)?;
        self.driver.delete(server.address(), topic)?;
        Ok(Sample::from([
            ("MB/s", number(&figures, "/mb_per_s")),
            ("p99 ms", number(&figures, "/latency_us/p99") / 1e3),
            ("replay MB/s", if seconds > 0.0 { bytes / seconds / 1e6 } else { f64::NAN }),
        ]))
    }
}

/// Batches of 16 KiB that wait a millisecond: a producer that cares for latency.
fn base(durability: Durability) -> Load {
    Load {
        partitions: PARTITIONS,
        size: 1024,
        acks: durability.acks(),
        batch: 16_384,
        linger_ms: 1.0,
        amount: Amount::Bytes(0),
        rate: None,
    }
}
