//! What the machine must have, told in the first second and all at once.

use std::process::Command;

use anyhow::{Result, bail};

use crate::process;

/// A program that a stage needs, and where it comes from.
struct Program {
    name: &'static str,
    needed_for: &'static str,
    package: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "python3",
        needed_for: "the Python clients and LocalStack",
        package: "Debian: python3 (3.11 or newer)",
    },
    Program {
        name: "go",
        needed_for: "the S3 server versitygw",
        package: "Debian: golang-go, or go.dev (1.25 or newer)",
    },
    Program { name: "kcat", needed_for: "the kcat client tests", package: "Debian: kcat" },
    Program { name: "git", needed_for: "the checks of the repository", package: "Debian: git" },
    Program {
        name: "cc",
        needed_for: "building zstd and the TLS library",
        package: "Debian: build-essential",
    },
];

/// Names every program that is missing, with the package that has it.
///
/// # Errors
/// When at least one is missing.
pub fn check() -> Result<()> {
    let mut missing: Vec<String> = PROGRAMS
        .iter()
        .filter(|program| process::find_program(program.name).is_none())
        .map(|program| format!("  {:<10} {} ({})", program.name, program.needed_for, program.package))
        .collect();
    let has_venv = Command::new("python3")
        .args(["-c", "import venv, ensurepip"])
        .output()
        .is_ok_and(|o| o.status.success());
    if process::find_program("python3").is_some() && !has_venv {
        missing.push("  venv       Python's virtual environments (Debian: python3-venv)".to_owned());
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "this machine lacks {} that verify needs:\n{}\n`cargo xtask test` needs Rust alone",
        if missing.len() == 1 { "a program" } else { "programs" },
        missing.join("\n")
    )
}
