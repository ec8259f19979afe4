//! The crash model of a whole node, that it finds every deliberate mistake, and that a seed is one run.
//!
//! `TIDELOG_SEEDS` says how many seeds, `TIDELOG_SEED` which one alone; `cargo xtask faults model` runs longer ones.

use std::{collections::BTreeSet, process::Command};

use tidelog_tests::model::{Counts, Mistake, Outcome, Plan, run};

/// Seeds of the default run.
const SEEDS: u64 = 40;

/// Seeds of which each is run again.
const SEEDS_AGAIN: u64 = 6;

/// Seeds within which a mistake must be found.
const SEEDS_OF_MISTAKES: u64 = 100;

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("TIDELOG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TIDELOG_SEEDS").unwrap_or(default),
    }
}

#[test]
fn nothing_is_lost_or_left_behind_by_a_node_that_ends_anywhere() {
    let mut counts = Counts::default();
    for seed in seeds(SEEDS) {
        let outcome = run(seed, &Plan::default());
        assert_eq!(outcome.finding, None, "seed {seed}: cargo xtask faults model --seed {seed}");
        counts.merge(&outcome.counts);
    }
    if std::env::var_os("TIDELOG_SEED").is_none() {
        // A model that does nothing would find nothing.
        for name in [
            "batches acknowledged",
            "duplicates answered",
            "cold reads",
            "DeleteRecords",
            "topics deleted",
            "lives ended by a power cut",
            "lives ended by a kill",
            "lives that stopped",
            "deletions judged",
            "bucket is done late",
        ] {
            assert!(counts.get(name) > 0, "{name} never happened");
        }
    }
}

#[test]
fn every_mistake_is_found() {
    let mut unseen = Vec::new();
    for mistake in Mistake::ALL {
        let plan = Plan { mistake: Some(*mistake), ..Plan::default() };
        let found = (0..SEEDS_OF_MISTAKES).find_map(|seed| Some((seed, run(seed, &plan).finding?)));
        match found {
            Some((seed, finding)) => {
                println!("{mistake}: by seed {seed}: {}", finding.lines().next().unwrap_or(""))
            }
            None => unseen.push(mistake.name()),
        }
    }
    assert_eq!(unseen, Vec::<&str>::new());
}

fn assert_same(seed: u64, first: &Outcome, again: &Outcome) {
    if let Some(difference) = first.parts_from(again) {
        panic!("seed {seed}: a second run is another one:\n{difference}");
    }
}

#[test]
fn a_seed_is_one_run_byte_for_byte() {
    let mut hashes = BTreeSet::new();
    for seed in seeds(SEEDS_AGAIN) {
        let first = run(seed, &Plan::default());
        assert_same(seed, &first, &run(seed, &Plan::default()));
        assert!(first.trace.len() > 10_000, "seed {seed}: {} lines", first.trace.len());
        assert!(hashes.insert(first.trace_hash), "seed {seed} is another seed's run");
    }
}

#[test]
fn a_mistake_is_found_again_in_the_same_way() {
    for (mistake, seed) in Mistake::ALL.iter().zip(0..) {
        let plan = Plan { lives: 4, mistake: Some(*mistake), ..Plan::default() };
        assert_same(seed, &run(seed, &plan), &run(seed, &plan));
    }
}

#[test]
fn a_seed_is_the_same_run_in_another_process() {
    // Another allocator, other addresses, other threads, other keys of hash maps.
    let seeds = 0..SEEDS_AGAIN;
    let mut model = Command::new(env!("CARGO_BIN_EXE_model"));
    let there = model.args(["--hashes", "--seeds", &SEEDS_AGAIN.to_string()]).output().unwrap();
    let there = String::from_utf8(there.stdout).unwrap();
    let here = seeds.map(|seed| {
        let outcome = run(seed, &Plan::default());
        format!("seed {seed}: trace {:016x}, {} lines", outcome.trace_hash, outcome.trace.len())
    });
    assert_eq!(
        there.lines().filter(|line| line.starts_with("seed ")).collect::<Vec<_>>(),
        here.collect::<Vec<_>>(),
    );
}

#[test]
fn the_first_line_that_differs_is_named() {
    let first = run(1, &Plan { lives: 0, steps: 1, mistake: None });
    let mut other = first.clone();
    other.trace[7] = "something else".to_owned();
    let difference = first.parts_from(&other).unwrap();
    assert!(
        difference.ends_with(&format!("line 7 is `{}`, and in another run `something else`", first.trace[7]))
    );
    assert_eq!(first.parts_from(&first), None);
}
