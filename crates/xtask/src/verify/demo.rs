//! The demo, twice on one data directory, with its promises checked on its report.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::process;

/// Departures in the data that the program brings.
const FLIGHTS: u64 = 336_776;

/// What the demo must tell, and is checked here.
#[derive(Debug, Clone, Deserialize)]
struct Report {
    records_produced: u64,
    records_replayed: u64,
    records_mismatched: u64,
    local_bytes: u64,
    bucket_bytes: u64,
    bucket_objects: u64,
    cold_read_bytes: u64,
    cold_bytes: u64,
    produce_records_per_s: f64,
    replay_records_per_s: f64,
    wall_s: f64,
}

/// Runs it as the README says, and again on what the first run left.
pub(super) fn run() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tidelog-demo-{}", std::process::id()));
    for round in ["first", "second"] {
        let mut command = process::cargo();
        command
            .args(["run", "--release", "--quiet", "--", "demo", "--exit", "--json", "--data-dir"])
            .arg(&folder);
        let text = process::output(&mut command)?;
        println!("{round} run: {}", text.trim());
        let report: Report = serde_json::from_str(&text).context("read the demo's report")?;
        check(&report).with_context(|| format!("the {round} run of the demo"))?;
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))
}

fn check(report: &Report) -> Result<()> {
    ensure!(
        (report.records_produced, report.records_replayed) == (FLIGHTS, FLIGHTS),
        "{} records were produced and {} replayed, not {FLIGHTS}",
        report.records_produced,
        report.records_replayed
    );
    ensure!(report.records_mismatched == 0, "{} records differ from their source", report.records_mismatched);
    ensure!(
        report.local_bytes < report.bucket_bytes && report.bucket_objects > 0,
        "{} bytes are on local disk, {} in {} objects of the bucket",
        report.local_bytes,
        report.bucket_bytes,
        report.bucket_objects
    );
    let least = report.cold_bytes / 10 * 9;
    ensure!(
        report.cold_bytes > 0 && report.cold_read_bytes >= least,
        "{} bytes came from the bucket, of {} below the local log starts",
        report.cold_read_bytes,
        report.cold_bytes
    );
    let rates = [report.produce_records_per_s, report.replay_records_per_s, report.wall_s];
    ensure!(rates.iter().all(|rate| *rate > 0.0), "a rate or the time is nothing: {rates:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        Report {
            records_produced: FLIGHTS,
            records_replayed: FLIGHTS,
            records_mismatched: 0,
            local_bytes: 1_000,
            bucket_bytes: 2_000,
            bucket_objects: 3,
            cold_read_bytes: 900,
            cold_bytes: 1_000,
            produce_records_per_s: 1.0,
            replay_records_per_s: 1.0,
            wall_s: 1.0,
        }
    }

    #[test]
    fn a_report_that_breaks_a_promise_is_refused() {
        check(&good()).unwrap();
        for bad in [
            Report { records_produced: FLIGHTS - 1, ..good() },
            Report { records_replayed: FLIGHTS - 1, ..good() },
            Report { records_mismatched: 1, ..good() },
            Report { local_bytes: 2_000, ..good() },
            Report { bucket_objects: 0, ..good() },
            Report { cold_read_bytes: 899, ..good() },
            Report { cold_bytes: 0, ..good() },
            Report { wall_s: 0.0, ..good() },
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
    }
}
