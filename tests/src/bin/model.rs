//! `cargo xtask faults model`: many seeds of the crash model of a whole node, with their counts.

#![allow(clippy::print_stdout, reason = "what a campaign found and did is its output")]

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use clap::Parser;
use mimalloc::MiMalloc;
use tidelog_tests::model::{Counts, Mistake, Plan, run};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The crash model of a whole node.
#[derive(Debug, Parser)]
struct Options {
    /// How many seeds.
    #[arg(long, default_value_t = 40)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// One seed alone, with its trace where it finds something.
    #[arg(long)]
    seed: Option<u64>,
    /// Lives that may be cut short.
    #[arg(long, default_value_t = Plan::default().lives)]
    lives: u64,
    /// Steps of each client in a life.
    #[arg(long, default_value_t = Plan::default().steps)]
    steps: u64,
    /// Prints the trace.
    #[arg(long)]
    trace: bool,
    /// Prints the hash of each seed's trace.
    #[arg(long)]
    hashes: bool,
    /// Runs each seed twice and compares the traces.
    #[arg(long)]
    twice: bool,
    /// A deliberate mistake: it ends at the first seed that finds it, and fails where none does.
    #[arg(long)]
    mistake: Option<Mistake>,
    /// Every deliberate mistake, one after another.
    #[arg(long)]
    mistakes: bool,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let red = match (options.mistakes, options.mistake) {
        (true, _) => Mistake::ALL.iter().filter(|mistake| !prove(&options, **mistake)).count() > 0,
        (false, Some(mistake)) => !prove(&options, mistake),
        (false, None) => campaign(&options) > 0,
    };
    if red { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn plan(options: &Options, mistake: Option<Mistake>) -> Plan {
    Plan { lives: options.lives, steps: options.steps, mistake }
}

/// Whether a mistake is found within the seeds.
fn prove(options: &Options, mistake: Mistake) -> bool {
    let plan = plan(options, Some(mistake));
    let seeds = options.seed.map_or(0..options.seeds.max(100), |seed| seed..seed + 1);
    for seed in seeds {
        let outcome = run(seed, &plan);
        if let Some(finding) = outcome.finding {
            if options.seed.is_some() {
                outcome.trace.iter().for_each(|line| println!("{line}"));
            }
            let short: String = finding.chars().take(220).collect();
            println!("{mistake}: found by seed {seed}: {short}");
            return true;
        }
    }
    println!("{mistake}: NOT FOUND ({})", mistake.what());
    false
}

/// Runs the seeds; how many found something.
fn campaign(options: &Options) -> u64 {
    let plan = plan(options, None);
    let seeds = options.seed.map_or(options.from..options.from + options.seeds, |seed| seed..seed + 1);
    let (next, findings) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let counts = Mutex::new(Counts::default());
    let hashes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, 64) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = run(seed, &plan);
                    if options.twice
                        && let Some(where_) = run(seed, &plan).parts_from(&outcome)
                    {
                        findings.fetch_add(1, Ordering::Relaxed);
                        println!("FINDING: seed {seed}: a second run is another one:\n{where_}");
                    }
                    if let Ok(mut hashes) = hashes.lock() {
                        hashes.insert(seed, (outcome.trace_hash, outcome.trace.len()));
                    }
                    if let Some(finding) = &outcome.finding {
                        findings.fetch_add(1, Ordering::Relaxed);
                        println!("FINDING: seed {seed}: {finding}");
                    }
                    if options.trace || options.seed.is_some() && outcome.finding.is_some() {
                        outcome.trace.iter().for_each(|line| println!("{line}"));
                    }
                    if let Ok(mut counts) = counts.lock() {
                        counts.merge(&outcome.counts);
                    }
                }
            });
        }
    });
    let findings = findings.into_inner();
    let counts = counts.into_inner().unwrap_or_default();
    for (name, count) in counts.iter() {
        println!("{name:<42} {count:>12}");
    }
    let all: serde_json::Map<String, serde_json::Value> =
        counts.iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
    let hashes = hashes.into_inner().unwrap_or_default();
    if options.hashes {
        for (seed, (hash, lines)) in &hashes {
            println!("seed {seed}: trace {hash:016x}, {lines} lines");
        }
    }
    let together: Vec<u8> = hashes.values().flat_map(|(hash, _)| hash.to_be_bytes()).collect();
    let trace = format!("{:016x}", tidelog_sim::digest(&together));
    let seeds = seeds.end - seeds.start;
    println!(
        "{}",
        serde_json::json!({ "seeds": seeds, "findings": findings, "trace": trace, "counts": all })
    );
    findings
}
