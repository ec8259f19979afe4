//! The rows of the duel, by name.

use anyhow::{Result, bail};

use crate::bench::{
    driver::{Amount, Load},
    server::Durability,
};

/// 80 billion records of 100 B in a day.
pub(super) const HELD_RATE: f64 = 925_926.0;

/// What a row does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Work {
    /// As fast as it goes, with uploads drained inside the CPU count.
    Produce { durability: Durability, size: u32, partitions: u32, batch: u32 },
    /// Read from local disk or page cache, just written.
    HotConsume { partitions: u32 },
    /// Read from the remote store alone, but for the active segment.
    ColdReplay { partitions: u32 },
    /// At a fixed rate: a part of the lower of the two maxima. With a cold replay beside it, once more.
    Latency { durability: Durability, part: f64, with_replay: bool },
    /// 925,926 records of 100 B each second.
    Held,
    /// Resident memory, idle and with 1,000 partitions.
    Memory,
    /// A start with 1,000 partitions, after a clean stop or a kill.
    Start { killed: bool },
}

/// A row with its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) work: Work,
}

impl Row {
    pub(super) fn what(&self) -> &'static str {
        match self.work {
            Work::Produce { .. } => "produce as fast as it goes, uploads drained inside the CPU count",
            Work::HotConsume { .. } => "read what was just written, beyond the tail's budget",
            Work::ColdReplay { .. } => "read from the remote store",
            Work::Latency { with_replay: true, .. } => {
                "produce at a fixed rate, alone and beside a cold replay"
            }
            Work::Latency { .. } => "produce at a fixed rate",
            Work::Held => "925,926 records of 100 B each second",
            Work::Memory => "resident memory, idle and with 1,000 partitions",
            Work::Start { killed: false } => "start with 1,000 partitions after a clean stop",
            Work::Start { killed: true } => "start with 1,000 partitions after kill -9",
        }
    }

    /// What the servers must promise.
    pub(super) fn durability(&self) -> Durability {
        match self.work {
            Work::Produce { durability, .. } | Work::Latency { durability, .. } => durability,
            _ => Durability::Written,
        }
    }
}

/// The load of a produce row.
pub(super) fn load(durability: Durability, size: u32, partitions: u32, batch: u32, bytes: u64) -> Load {
    let amount = Amount::Bytes(bytes);
    Load { partitions, size, acks: durability.acks(), batch, linger_ms: 5.0, amount, rate: None }
}

fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: String, work: Work| rows.push(Row { name, work });
    for size in [100, 1024] {
        for partitions in [1, 16, 256] {
            for (batch, label) in [(16_384, "16k"), (262_144, "256k")] {
                add(
                    format!("produce-acks1-{size}b-{partitions}p-{label}"),
                    Work::Produce { durability: Durability::Written, size, partitions, batch },
                );
            }
        }
    }
    for partitions in [1, 256] {
        for (batch, label) in [(16_384, "16k"), (262_144, "256k")] {
            add(
                format!("produce-acksall-1024b-{partitions}p-{label}"),
                Work::Produce { durability: Durability::Synced, size: 1024, partitions, batch },
            );
        }
    }
    for partitions in [1, 6] {
        add(format!("hot-consume-{partitions}p"), Work::HotConsume { partitions });
    }
    for partitions in [1, 6] {
        add(format!("cold-replay-{partitions}p"), Work::ColdReplay { partitions });
    }
    for (durability, label) in [(Durability::Written, "acks1"), (Durability::Synced, "acksall")] {
        for percent in [50_u32, 25, 10] {
            let work =
                Work::Latency { durability, part: f64::from(percent) / 100.0, with_replay: percent == 50 };
            add(format!("latency-{label}-{percent}"), work);
        }
    }
    add("held".to_owned(), Work::Held);
    add("memory".to_owned(), Work::Memory);
    add("start-clean".to_owned(), Work::Start { killed: false });
    add("start-killed".to_owned(), Work::Start { killed: true });
    rows
}

/// The rows whose names begin with one of `prefixes`; all where none is named.
pub(super) fn select(prefixes: &[String]) -> Result<Vec<Row>> {
    let rows = all();
    if prefixes.is_empty() {
        return Ok(rows);
    }
    for prefix in prefixes {
        if !rows.iter().any(|row| row.name.starts_with(prefix.as_str())) {
            bail!("no row begins with `{prefix}`; `bench duel --list` names them");
        }
    }
    Ok(rows
        .into_iter()
        .filter(|row| prefixes.iter().any(|prefix| row.name.starts_with(prefix.as_str())))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_the_beginning_of_their_names() {
        let names = |prefixes: &[&str]| {
            let prefixes: Vec<String> = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
            select(&prefixes).map(|rows| rows.into_iter().map(|row| row.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["cold", "memory"]).unwrap(), ["cold-replay-1p", "cold-replay-6p", "memory"]);
        assert_eq!(names(&["produce-acks1-"]).unwrap().len(), 12);
        assert_eq!(names(&["produce-acksall"]).unwrap().len(), 4);
        assert!(names(&["warm"]).is_err());
        assert_eq!(select(&[]).unwrap().len(), 30);
    }
}
