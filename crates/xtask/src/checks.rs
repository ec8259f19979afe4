//! Checks of the repository itself: who depends on whom, which test holds which case, which metrics the
//! operator's page names, that no `select!` draws, that the lists of suites have the passes they state, spelling, compose files.

mod cases;
mod compose;
mod dependencies;
mod metrics;
mod selects;

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{process, stores, suites};

/// Runs every check that needs no built program.
///
/// # Errors
/// With all findings of the first check that has any.
pub fn run() -> Result<()> {
    dependencies::check()?;
    cases::check()?;
    metrics::check()?;
    selects::check()?;
    suites::check_lists()?;
    spelling()
}

/// Compares the compose files with what the built program takes.
///
/// # Errors
/// With all findings.
pub fn compose() -> Result<()> {
    compose::check()
}

/// Builds the program, then runs every check.
///
/// # Errors
/// With all findings of the first check that has any.
pub fn all() -> Result<()> {
    run()?;
    process::run(process::cargo().args(["build", "--release"]))?;
    compose()
}

/// Python with what the checks need.
fn python() -> Result<PathBuf> {
    stores::python_environment("checks", &["typos==1.40.0", "PyYAML==6.0.3"], None)
}

fn spelling() -> Result<()> {
    let typos = python()?.with_file_name("typos");
    process::run(Command::new(typos).arg("--config").arg("_typos.toml"))
}
