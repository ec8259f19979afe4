//! The crash model of a whole node, and that it finds every deliberate mistake.
//!
//! `TIDELOG_SEEDS` says how many seeds, `TIDELOG_SEED` which one alone; `cargo xtask faults model` runs longer ones.

use tidelog_tests::model::{Counts, Mistake, Plan, run};

/// Seeds of the default run.
const SEEDS: u64 = 40;

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
