//! What the machine must have, told in the first second and all at once.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{clients, process};

/// A program that a stage needs, and where it comes from.
struct Program {
    name: &'static str,
    needed_for: &'static str,
    package: &'static str,
}

/// Nothing else is needed: the TLS library, zstd and the allocator are built by `cc` alone, without cmake.
const PROGRAMS: [Program; 8] = [
    Program {
        name: "cc",
        needed_for: "linking, and the C of zstd, the allocator and the TLS library",
        package: "Debian: build-essential",
    },
    Program {
        name: "python3",
        needed_for: "the Python clients, LocalStack and the spelling",
        package: "Debian: python3, 3.11 or newer",
    },
    Program {
        name: "go",
        needed_for: "the S3 server versitygw and the Go clients",
        package: "Debian 13: golang-go, or go.dev; 1.21 or newer",
    },
    Program { name: "kcat", needed_for: "the kcat client tests", package: "Debian: kcat" },
    Program { name: "npm", needed_for: "the JavaScript client", package: "Debian: nodejs, npm" },
    Program {
        name: "javac",
        needed_for: "the Java client and Kafka's tools",
        package: "Debian: default-jdk-headless, 17 or newer",
    },
    Program { name: "mvn", needed_for: "the Java client and Kafka's tools", package: "Debian: maven" },
    Program { name: "node", needed_for: "the JavaScript client", package: "Debian: nodejs, 18.3 or newer" },
];

/// The oldest Python with a LocalStack, and what it must bring.
const PYTHON_MINOR_MIN: u32 = 11;
/// The oldest Go that fetches the version that a module asks for.
const GO_MINOR_MIN: u32 = 21;

/// Names every program that is missing or too old, with the package that has it.
///
/// # Errors
/// When at least one is.
pub fn check() -> Result<()> {
    let is_there = |name: &str| process::find_program(name).is_some();
    let mut missing: Vec<String> = PROGRAMS
        .iter()
        .filter(|program| !is_there(program.name))
        .map(|program| line(program.name, program.needed_for, program.package))
        .collect();
    if is_there("python3") {
        missing.extend(lacking_in_python(|code| said_by("python3", &["-c", code])));
    }
    if is_there("go") {
        missing.extend(lacking_in_go(said_by("go", &["env", "GOVERSION"]).as_deref()));
    }
    if is_there("kcat")
        && let Err(error) = clients::check_kcat()
    {
        missing.push(line("kcat", &error.to_string(), "Debian 12: kcat"));
    }
    if is_there("python3") {
        missing.extend(lacking_small_disk());
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "this machine lacks {} that verify needs:\n{}\n`cargo xtask test` needs Rust and cc alone",
        if missing.len() == 1 { "something" } else { "things" },
        missing.join("\n")
    )
}

fn line(name: &str, needed_for: &str, package: &str) -> String {
    format!("  {name:<10} {needed_for} ({package})")
}

/// What a program prints, where it succeeds.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What Python lacks: `run` gives what a line of code prints.
fn lacking_in_python(run: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut lacking = Vec::new();
    let version = run("import sys; print('3.%d' % sys.version_info[1])");
    if version.as_deref().and_then(minor).is_none_or(|minor| minor < PYTHON_MINOR_MIN) {
        let found =
            format!("{} is too old for LocalStack", version.as_deref().unwrap_or("an unknown version"));
        lacking.push(line("python3", &found, "Debian 12 or newer: python3"));
    }
    if run("import venv, ensurepip").is_none() {
        lacking.push(line("venv", "Python's virtual environments", "Debian: python3-venv"));
    }
    lacking
}

/// Why the campaign of a full disk cannot have a small file system of its own here.
fn lacking_small_disk() -> Option<String> {
    let script = process::repository().join("tests/faults/small_disk.py");
    let output = Command::new("python3").arg("-B").arg(script).output().ok()?;
    if output.status.success() {
        return None;
    }
    let why = String::from_utf8_lossy(&output.stdout);
    let what = format!("a tmpfs in a mount namespace, for the campaign of a full disk: {}", why.trim());
    Some(line("mount", &what, "as root, or with user namespaces: sysctl kernel.unprivileged_userns_clone=1"))
}

/// Whether Go is too old: `version` is what `go env GOVERSION` prints.
fn lacking_in_go(version: Option<&str>) -> Option<String> {
    let minor = version.and_then(|version| minor(version.strip_prefix("go")?));
    let found = version.unwrap_or("an unknown version");
    minor.is_none_or(|minor| minor < GO_MINOR_MIN).then(|| {
        line(
            "go",
            &format!("{found} is too old for versitygw"),
            "Debian 13: golang-go, or go.dev; 1.21 or newer",
        )
    })
}

/// The second number of a version.
fn minor(version: &str) -> Option<u32> {
    let second = version.split('.').nth(1)?;
    second.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_go_is_told_and_a_new_one_is_not() {
        for good in ["go1.21.0", "go1.26.8", "go1.25rc1"] {
            assert_eq!(lacking_in_go(Some(good)), None, "{good}");
        }
        for bad in [Some("go1.19.8"), Some("devel"), None] {
            assert!(lacking_in_go(bad).is_some_and(|line| line.contains("golang-go")), "{bad:?}");
        }
    }

    #[test]
    fn an_old_python_and_one_without_environments_are_told() {
        let python = |version: &'static str, venv: bool| {
            lacking_in_python(move |code| {
                if code.contains("venv") { venv.then(String::new) } else { Some(version.to_owned()) }
            })
        };
        assert_eq!(python("3.11", true), Vec::<String>::new());
        assert_eq!(python("3.13", true), Vec::<String>::new());
        assert_eq!(python("3.9", true).len(), 1);
        assert!(python("3.12", false)[0].contains("python3-venv"));
    }
}
