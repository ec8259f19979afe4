//! A Tidelog node as it is measured.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    http,
    part::{BUCKET, StandIn},
    server::{Durability, Kind, Plan, TopicPlan, text},
};
use crate::process;

/// Where the node keeps its objects.
pub(super) enum Store<'a> {
    /// A folder beside its data.
    Folder,
    /// The stand-in.
    StandIn(&'a StandIn),
}

/// Settings that let a bench see uploads, evictions and deletions within seconds.
const QUICK: [(&str, &str); 2] = [("tier.check.interval.ms", "500"), ("tier.delete.grace.ms", "1000")];

/// How to start the program as a node in a folder, with these broker settings; makes the bucket.
pub(super) fn plan(
    program: PathBuf,
    folder: &Path,
    store: &Store<'_>,
    settings: &[(&str, String)],
) -> Result<Plan> {
    fs::create_dir_all(folder)?;
    let address = format!("127.0.0.1:{}", process::free_port()?);
    let admin = format!("127.0.0.1:{}", process::free_port()?);
    let (mut flags, mut environment) = (Vec::new(), Vec::new());
    match store {
        Store::Folder => flags.push(format!("--store=file://{}", text(&folder.join("bucket"))?)),
        Store::StandIn(server) => {
            flags.push(format!("--store=s3://{BUCKET}/tidelog"));
            flags.push(format!("--store-endpoint={}", server.endpoint()));
            for (name, value) in [
                ("AWS_ACCESS_KEY_ID", "bench"),
                ("AWS_SECRET_ACCESS_KEY", "bench"),
                ("AWS_REGION", "us-east-1"),
            ] {
                environment.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    let mut init = Command::new(&program);
    init.args(["bucket", "init"]).args(&flags);
    init.envs(environment.iter().map(|(name, value)| (name, value)));
    process::output(&mut init).context("make the bucket")?;
    let mut arguments = vec!["serve".to_owned(), format!("--data-dir={}", text(&folder.join("data"))?)];
    arguments.extend([format!("--listen={address}"), format!("--admin-listen={admin}")]);
    arguments.append(&mut flags);
    let quick = QUICK.iter().map(|(key, value)| (*key, (*value).to_owned()));
    for (key, value) in quick.chain(settings.iter().cloned()) {
        arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    Ok(Plan {
        kind: Kind::Tidelog,
        folder: folder.to_owned(),
        address,
        second_address: admin,
        arguments,
        environment,
        program,
    })
}

/// The broker setting that makes acks mean what the row says.
pub(super) fn durability(durability: Durability) -> (&'static str, String) {
    let value = match durability {
        Durability::Written => "replicated",
        Durability::Synced => "synced",
    };
    ("log.flush.default", value.to_owned())
}

pub(super) fn topic_settings(plan: TopicPlan) -> Vec<(&'static str, String)> {
    let mut settings = vec![("segment.bytes", plan.segment_bytes.to_string())];
    if plan.evicts {
        settings.push(("local.retention.bytes", "1".to_owned()));
    }
    settings
}

pub(super) fn is_ready(admin: &str) -> bool {
    http::request(admin, "GET", "/readyz", "").is_ok_and(|(status, _)| status == 200)
}

/// The sum of a metric over its labels.
pub(super) fn metric(admin: &str, name: &str) -> Result<f64> {
    let text = http::get(admin, "/metrics")?;
    Ok(text
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum())
}

/// By offsets: what is received but not yet in a segment file is not known as sealed, so the lag alone would say too soon
/// that nothing is left. An active segment holds less than `segment_bytes`.
pub(super) fn is_drained(admin: &str, topic: &str, plan: TopicPlan, record_bytes: u32) -> Result<bool> {
    let text = http::get(admin, "/v1/tier/status")?;
    let status: Value = serde_json::from_str(&text).context("read the tier's status")?;
    let topics = status["topics"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(found) = topics.iter().find(|found| found["topic"] == topic) else { return Ok(false) };
    let partitions = found["partitions"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(partitions.iter().all(|partition| is_partition_drained(partition, plan, record_bytes)))
}

fn is_partition_drained(partition: &Value, plan: TopicPlan, record_bytes: u32) -> bool {
    let offset = |name: &str| partition[name].as_u64().unwrap_or(0);
    let unsent = offset("log_end").saturating_sub(offset("tiered_end"));
    let is_sent =
        offset("lag_bytes") == 0 && unsent.saturating_mul(u64::from(record_bytes)) < plan.segment_bytes;
    let is_gone = offset("local_log_start") >= offset("tiered_end");
    is_sent && (is_gone || !plan.evicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_drained_when_only_its_active_segment_is_not_in_the_bucket() {
        let partition = |lag_bytes: u64, tiered_end: u64, local_log_start: u64| {
            serde_json::json!({
                "log_end": 100,
                "tiered_end": tiered_end,
                "local_log_start": local_log_start,
                "lag_bytes": lag_bytes,
            })
        };
        let plan =
            TopicPlan { partitions: 1, segment_bytes: 1000, durability: Durability::Written, evicts: true };
        assert!(is_partition_drained(&partition(0, 91, 91), plan, 100));
        assert!(
            !is_partition_drained(&partition(0, 50, 50), plan, 100),
            "what is in memory is not sealed yet"
        );
        assert!(!is_partition_drained(&partition(900, 91, 91), plan, 100));
        assert!(!is_partition_drained(&partition(0, 91, 0), plan, 100), "not evicted");
        assert!(is_partition_drained(&partition(0, 91, 0), TopicPlan { evicts: false, ..plan }, 100));
    }
}
