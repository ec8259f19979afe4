//! The gate: every stage in order, each with its time against its budget.

use anyhow::{Context as _, Result, bail};

use crate::{checks, clients, preflight, process, stores::StoreKind};

struct Stage {
    name: &'static str,
    budget_seconds: u64,
    run: fn() -> Result<()>,
}

/// In this order; the budgets are for a cold start on two cores and add up to less than an hour.
const STAGES: [Stage; 7] = [
    Stage { name: "format", budget_seconds: 20, run: format },
    Stage { name: "repository", budget_seconds: 90, run: checks::run },
    Stage { name: "build", budget_seconds: 900, run: build },
    Stage { name: "lints", budget_seconds: 600, run: lints },
    Stage { name: "tests", budget_seconds: 1200, run: all_rust_tests },
    Stage { name: "clients", budget_seconds: 600, run: all_clients },
    Stage { name: "demo", budget_seconds: 120, run: demo },
];

/// Runs every stage; the first failure ends it.
///
/// # Errors
/// With the stage that failed.
pub fn run() -> Result<()> {
    preflight::check()?;
    let mut report = Vec::new();
    for stage in &STAGES {
        println!("== {} (budget {} s)", stage.name, stage.budget_seconds);
        let begun = process::now();
        let outcome = (stage.run)();
        let seconds = begun.elapsed().as_secs_f64();
        let verdict = match &outcome {
            Err(_) => "FAILED",
            Ok(()) if begun.elapsed().as_secs() > stage.budget_seconds => "over budget",
            Ok(()) => "ok",
        };
        report
            .push(format!("{:<12} {seconds:>8.1} s of {:>5} s  {verdict}", stage.name, stage.budget_seconds));
        if let Err(error) = outcome {
            println!("\n{}", report.join("\n"));
            return Err(error).with_context(|| format!("stage {}", stage.name));
        }
    }
    println!("\n{}", report.join("\n"));
    Ok(())
}

/// `cargo test` over the workspace: Rust alone.
///
/// # Errors
/// When a test fails.
pub fn rust_tests(seeds: Option<u32>) -> Result<()> {
    let mut command = process::cargo();
    command.args(["test", "--release", "--workspace", "--quiet"]);
    if let Some(seeds) = seeds {
        command.env("TIDELOG_SEEDS", seeds.to_string());
    }
    process::run(&mut command)
}

fn all_rust_tests() -> Result<()> {
    rust_tests(None)
}

fn format() -> Result<()> {
    process::run(process::cargo().args(["fmt", "--all", "--check"]))
}

fn build() -> Result<()> {
    process::run(process::cargo().args(["build", "--release"]))
}

fn lints() -> Result<()> {
    let mut command = process::cargo();
    command.args(["clippy", "--release", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    process::run(&mut command)
}

fn all_clients() -> Result<()> {
    clients::run(&StoreKind::available(), None)
}

/// The README's main command, twice on one data directory, with its promises checked.
fn demo() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tidelog-demo-{}", std::process::id()));
    for round in ["first", "second"] {
        let mut command = process::cargo();
        command
            .args(["run", "--release", "--quiet", "--", "demo", "--exit", "--json", "--data-dir"])
            .arg(&folder);
        let text = process::output(&mut command)?;
        println!("{round} run: {}", text.trim());
        let report: serde_json::Value =
            serde_json::from_str(&text).context("the demo's report is not one JSON document")?;
        let number =
            |field: &str| report[field].as_u64().with_context(|| format!("the report has no {field}"));
        let (produced, replayed) = (number("records_produced")?, number("records_replayed")?);
        let mismatched = number("records_mismatched")?;
        if report["flights_produced"] != 336_776
            || report["flights_replayed"] != 336_776
            || produced != replayed
            || mismatched != 0
        {
            bail!("the {round} run lost or changed records");
        }
        if number("local_bytes")? >= number("bucket_bytes")? {
            bail!("the {round} run kept more on local disk than in the bucket");
        }
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))
}
