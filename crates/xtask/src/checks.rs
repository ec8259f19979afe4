//! Checks of the repository itself: who depends on whom, which test holds which case, spelling.

mod cases;
mod dependencies;

use std::process::Command;

use anyhow::Result;

use crate::{process, stores};

/// Runs every check.
///
/// # Errors
/// With all findings of the first check that has any.
pub fn run() -> Result<()> {
    dependencies::check()?;
    cases::check()?;
    spelling()
}

fn spelling() -> Result<()> {
    let python = stores::python_environment("typos", &["typos==1.40.0"], None)?;
    let typos = python.with_file_name("typos");
    process::run(Command::new(typos).arg("--config").arg("_typos.toml"))
}
