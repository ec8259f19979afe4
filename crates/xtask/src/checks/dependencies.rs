//! The table of the architecture page against what `cargo metadata` says.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::process;

/// Which of our crates each one may use. `types` may be used everywhere.
const MAY_USE: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("wire", &["types"]),
    ("format", &["types"]),
    ("core", &["format", "types"]),
    ("runtime", &["types"]),
    ("log", &["types", "format", "runtime"]),
    ("object", &["types", "format", "runtime"]),
    ("controller", &["types", "core", "format", "runtime"]),
    ("replica", &["types", "core", "format", "log", "controller", "wire", "runtime"]),
    ("tier", &["types", "core", "format", "replica", "object", "controller", "runtime"]),
    (
        "broker",
        &["types", "wire", "format", "core", "runtime", "log", "object", "controller", "replica", "tier"],
    ),
];

/// Crates without IO, time, chance or tasks.
const PURE: [&str; 4] = ["types", "wire", "format", "core"];

/// What a pure crate may never have among its dependencies.
const IMPURE: [&str; 12] = [
    "tokio",
    "tokio-util",
    "rand",
    "getrandom",
    "uuid",
    "rustix",
    "libc",
    "socket2",
    "hyper",
    "object_store",
    "tempfile",
    "futures",
];

/// Libraries that are behind one crate each.
const ONE_HOME: [(&str, &str); 6] = [
    ("openraft", "controller"),
    ("openraft-rt", "controller"),
    ("foyer", "object"),
    ("object_store", "object"),
    ("aws-sdk-s3", "object"),
    ("parquet", "export"),
];

/// Crates that are never shipped.
const FOR_TESTS: [&str; 5] = ["testkit", "sim", "xtask", "tests", "benches"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

pub(super) fn check() -> Result<()> {
    let text = process::output(process::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("read cargo metadata")?;
    let findings = findings(&metadata);
    if findings.is_empty() {
        Ok(())
    } else {
        bail!("dependencies against the table:\n  {}", findings.join("\n  "))
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("tidelog-").unwrap_or(name)
}

fn findings(metadata: &Metadata) -> Vec<String> {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        MAY_USE.iter().map(|(name, uses)| (*name, uses.iter().copied().collect())).collect();
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let name = short(&package.name);
        for dependency in package.dependencies.iter().filter(|dependency| dependency.kind.is_none()) {
            let used = dependency.name.as_str();
            if let (Some(uses), Some(ours)) = (allowed.get(name), used.strip_prefix("tidelog-"))
                && !uses.contains(ours)
            {
                findings.push(format!("{name} may not use {ours}"));
            }
            if PURE.contains(&name) && IMPURE.contains(&used) {
                findings.push(format!("{name} is pure and may not use {used}"));
            }
            if !FOR_TESTS.contains(&name)
                && let Some((_, home)) = ONE_HOME.iter().find(|(library, _)| *library == used)
                && *home != name
            {
                findings.push(format!("{used} belongs to {home} alone, and {name} uses it"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[&str]) -> Package {
        let dependencies =
            uses.iter().map(|name| Dependency { name: (*name).to_owned(), kind: None }).collect();
        Package { name: name.to_owned(), dependencies }
    }

    #[test]
    fn a_forbidden_arrow_an_impure_library_and_a_second_home_are_found() {
        let metadata = Metadata {
            packages: vec![
                package("tidelog-log", &["tidelog-core", "tidelog-format"]),
                package("tidelog-core", &["tokio"]),
                package("tidelog-tier", &["foyer"]),
                package("tidelog-testkit", &["object_store"]),
            ],
        };
        assert_eq!(
            findings(&metadata),
            [
                "log may not use core",
                "core is pure and may not use tokio",
                "foyer belongs to object alone, and tier uses it"
            ]
        );
    }
}
