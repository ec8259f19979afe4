//! The command line of `cargo xtask`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{bench, checks, clients, faults, fuzz, local, parity, suites, verify};

/// Developer's commands of Tidelog.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must hold before a change lands: format, lints, tests, real clients, real stores, the demo.
    Verify,
    /// The tests that need Rust alone (and the C compiler that it links with).
    Test {
        /// Seeds of each crash campaign.
        #[arg(long)]
        seeds: Option<u32>,
    },
    /// Real clients against a real node on real stores.
    #[command(subcommand)]
    E2e(E2e),
    /// Starts a store and a node on it, without containers, until Ctrl-C.
    Local(local::Options),
    /// The checks of the repository itself: dependency table, map of cases, spelling, compose files.
    Check,
    /// What is done to a whole node to make it lose something.
    #[command(subcommand)]
    Faults(faults::Faults),
    /// Any bytes into every decoder, guided by coverage.
    Fuzz(fuzz::Options),
    /// Speed and memory, as ratios against a limit or a peer in the same run.
    #[command(subcommand)]
    Bench(bench::Bench),
}

#[derive(Subcommand)]
enum E2e {
    /// The clients that people use, each through its scenarios.
    Clients(clients::Options),
    /// The same scripted exchanges with Apache Kafka and with Tidelog, answers compared field by field.
    Parity(parity::Options),
    /// The test suites of librdkafka and franz-go, brought in at the time, against a node.
    Suites(suites::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Verify => verify::run(),
        Command::Test { seeds } => verify::rust_tests(seeds),
        Command::E2e(E2e::Clients(options)) => clients::run(&options),
        Command::E2e(E2e::Parity(options)) => parity::run(&options),
        Command::E2e(E2e::Suites(options)) => suites::run(&options),
        Command::Bench(bench) => bench::run(&bench),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Faults(faults) => faults::run(&faults),
        Command::Local(options) => local::run(&options),
        Command::Check => checks::all(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
