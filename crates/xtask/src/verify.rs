//! The gate: every stage in order, each with its time against its budget.

mod demo;
mod fresh;

use anyhow::{Context as _, Result};

use crate::{checks, clients, faults, parity, preflight, process};

struct Stage {
    name: &'static str,
    budget_seconds: u64,
    run: fn() -> Result<()>,
}

/// In this order; the budgets are for a cold start on two cores and add up to less than an hour.
const STAGES: [Stage; 9] = [
    Stage { name: "format", budget_seconds: 20, run: format },
    Stage { name: "repository", budget_seconds: 90, run: checks::run },
    Stage { name: "build", budget_seconds: 900, run: build_and_check },
    Stage { name: "lints", budget_seconds: 420, run: lints },
    Stage { name: "tests", budget_seconds: 960, run: all_rust_tests },
    Stage { name: "parity", budget_seconds: 120, run: parity::verify },
    Stage { name: "clients", budget_seconds: 600, run: clients::all },
    Stage { name: "faults", budget_seconds: 420, run: faults::verify },
    Stage { name: "demo", budget_seconds: 120, run: demo::run },
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

/// `cargo test` over the workspace: Rust, and the C compiler that it links with.
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

/// The README's program, as `cargo run --release` builds it: once, and right enough for the compose files.
fn build_and_check() -> Result<()> {
    process::run(process::cargo().args(["build", "--release"]))?;
    fresh::check()?;
    checks::compose()
}

fn lints() -> Result<()> {
    let mut command = process::cargo();
    command.args(["clippy", "--release", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    process::run(&mut command)
}
