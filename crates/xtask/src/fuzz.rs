//! `cargo xtask fuzz`: libFuzzer over the targets of `tests/src/fuzz.rs`, one after the other.
//!
//! Coverage is counted in this repository's crates alone: a wrapper adds the flags for it to them, and cargo keeps what a
//! wrapper built apart, so that neither the dependencies nor the workspace are built anew. The corpus of a target grows in the
//! cache folder from run to run; `--keep` writes the smallest inputs that together reach everything reached so far to
//! `tests/corpus`, under the comments and the inputs that are there.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::process;

/// What is counted: each edge with a counter of eight bits, and what is compared with what.
const COVERAGE: &str = "\
-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=on";

/// Numbers at which sums and products go wrong, for libFuzzer to put anywhere, and what structures begin with.
const DICTIONARY: &str = r#"
"\x7f\xff\xff\xff"
"\x80\x00\x00\x00"
"\xff\xff\xff\xff"
"\x3f\xff\xff\xff\xff\xff\xff\xff"
"\x7f\xff\xff\xff\xff\xff\xff\xff"
"\x80\x00\x00\x00\x00\x00\x00\x00"
"\xff\xff\xff\xff\xff\xff\x00\x00"
"\xff\xff\xff\xff\xff\xff\xff\xff"
"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"TLJF"
"TLJR"
"JE\x01\x01"
"TREC"
"TLSE"
"\x82SNAPPY\x00"
"\x04\x22\x4d\x18"
"\x28\xb5\x2f\xfd"
"\x1f\x8b\x08"
"#;

/// What `--keep` adds to a target's corpus at most, as bytes of inputs.
const KEPT_BYTES_MAX: usize = 8 * 1024;

/// Which targets, and for how long.
#[derive(Debug, Args)]
pub struct Options {
    /// Only these targets; all when none is named.
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Adds what was found worth keeping to `tests/corpus`.
    #[arg(long)]
    keep: bool,
}

struct Target {
    name: String,
    bytes_max: usize,
}

/// Runs them.
///
/// # Errors
/// When the build fails, a target is not known, or an input makes one fail: all are run, and the inputs are named.
pub fn run(options: &Options) -> Result<()> {
    let home = process::cache()?.join("fuzz");
    let binary = build(&home)?;
    let known = targets(&binary)?;
    if let Some(unknown) =
        options.targets.iter().find(|name| known.iter().all(|target| target.name != **name))
    {
        let names: Vec<&str> = known.iter().map(|target| target.name.as_str()).collect();
        bail!("there is no target `{unknown}`: {}", names.join(", "));
    }
    let chosen =
        known.iter().filter(|target| options.targets.is_empty() || options.targets.contains(&target.name));
    let mut failed = Vec::new();
    println!(
        "{:<16} {:>7} {:>12} {:>10} {:>10} {:>8}  found",
        "target", "seconds", "executions", "features", "at start", "corpus"
    );
    for target in chosen {
        let folder = home.join(&target.name);
        let found = fuzz(&binary, target, &folder, options.seconds)?;
        if options.keep && found.is_empty() {
            keep(&binary, target, &folder)?;
        }
        failed.extend(found);
    }
    if failed.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = failed.iter().map(|path| path.display().to_string()).collect();
    bail!("inputs that make their target fail, each with its log beside it:\n  {}", shown.join("\n  "))
}

/// Builds the binary with coverage.
fn build(home: &Path) -> Result<PathBuf> {
    fs::create_dir_all(home).with_context(|| format!("make {}", home.display()))?;
    let wrapper = home.join("rustc");
    fs::write(&wrapper, format!("#!/bin/sh\nexec \"$@\" {COVERAGE}\n"))
        .and_then(|()| fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("write {}", wrapper.display()))?;
    let dictionary = home.join("dictionary");
    fs::write(&dictionary, DICTIONARY).with_context(|| format!("write {}", dictionary.display()))?;
    let mut cargo = process::cargo();
    cargo.args(["build", "--release", "--package", "tidelog-tests", "--bin", "fuzz", "--features", "fuzz"]);
    process::run(cargo.env("RUSTC_WORKSPACE_WRAPPER", &wrapper))?;
    Ok(process::target().join("release/fuzz"))
}

fn targets(binary: &Path) -> Result<Vec<Target>> {
    let text = process::output(Command::new(binary).env("TIDELOG_FUZZ_LIST", "1"))?;
    text.lines()
        .map(|line| {
            let (name, bytes_max) = line.split_once(' ').context("a line of the list of targets")?;
            Ok(Target { name: name.to_owned(), bytes_max: bytes_max.parse()? })
        })
        .collect()
}

/// Runs a target, prints its line of the table, and answers the inputs that made it fail.
fn fuzz(binary: &Path, target: &Target, folder: &Path, seconds: u64) -> Result<Vec<PathBuf>> {
    let [seeds, corpus, found] = ["seeds", "corpus", "found"].map(|name| folder.join(name));
    let _ = fs::remove_dir_all(&seeds);
    for folder in [&seeds, &corpus, &found] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let before = files(&found)?;
    let log = folder.join("log");
    let output = fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
    let mut command = Command::new(binary);
    command
        .args([
            "-timeout=10",
            "-rss_limit_mb=1024",
            "-print_final_stats=1",
            "-reload=0",
            "-use_value_profile=1",
        ])
        .arg(format!("-dict={}", folder.with_file_name("dictionary").display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={}", target.bytes_max))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args([&corpus, &seeds])
        .env("TIDELOG_FUZZ_TARGET", &target.name)
        .env("TIDELOG_FUZZ_SEEDS", &seeds)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output);
    let status = command.status().with_context(|| format!("start {}", binary.display()))?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let new: Vec<PathBuf> = files(&found)?.difference(&before).cloned().collect();
    let told = Told::read(&text);
    println!(
        "{:<16} {seconds:>7} {:>12} {:>10} {:>10} {:>8}  {}",
        target.name,
        told.executions,
        told.features,
        told.features_at_start,
        files(&corpus)?.len(),
        new.len()
    );
    if !status.success() && new.is_empty() {
        bail!("{} ended with {status} and left no input: see {}", target.name, log.display());
    }
    for path in &new {
        fs::copy(&log, path.with_extension("log"))
            .with_context(|| format!("keep the log of {}", path.display()))?;
    }
    Ok(new)
}

/// What libFuzzer tells of its run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    executions: u64,
    features: u64,
    features_at_start: u64,
}

impl Told {
    fn read(text: &str) -> Self {
        let mut told = Self::default();
        for line in text.lines() {
            let number = |name: &str| -> Option<u64> {
                line.split_once(name)?.1.split_whitespace().next()?.parse().ok()
            };
            if let Some(executions) = line.strip_prefix('#').and_then(|rest| rest.split_whitespace().next()) {
                told.executions = executions.parse().unwrap_or(told.executions);
            }
            if let Some(executions) = number("stat::number_of_executed_units:") {
                told.executions = executions;
            }
            if let Some(features) = number(" ft: ") {
                if line.contains("INITED") {
                    told.features_at_start = features;
                }
                told.features = features;
            }
        }
        told
    }
}

fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: BTreeSet<PathBuf> = paths.collect::<std::io::Result<_>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_none()).collect())
}

/// Adds the smallest inputs of the merged corpus to the repository's, up to the limit.
fn keep(binary: &Path, target: &Target, folder: &Path) -> Result<()> {
    let [seeds, corpus, merged] = ["seeds", "corpus", "merged"].map(|name| folder.join(name));
    let _ = fs::remove_dir_all(&merged);
    fs::create_dir_all(&merged).with_context(|| format!("make {}", merged.display()))?;
    // The seeds come first: what they reach needs no other input.
    let mut command = Command::new(binary);
    command
        .args(["-merge=1", "-timeout=10", "-rss_limit_mb=1024"])
        .arg(format!("-max_len={}", target.bytes_max))
        .args([&merged, &seeds, &corpus])
        .env("TIDELOG_FUZZ_TARGET", &target.name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    process::run(&mut command)?;
    let known: BTreeSet<Vec<u8>> = files(&seeds)?.iter().map(fs::read).collect::<std::io::Result<_>>()?;
    let mut inputs: Vec<Vec<u8>> = files(&merged)?.iter().map(fs::read).collect::<std::io::Result<_>>()?;
    inputs.retain(|input| !known.contains(input) && !input.is_empty());
    inputs.sort_by_key(|input| (input.len(), input.clone()));
    let path = process::repository().join(format!("tests/corpus/{}.txt", target.name));
    let mut text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut bytes = 0;
    for input in inputs {
        bytes += input.len();
        if bytes > KEPT_BYTES_MAX {
            break;
        }
        text.extend(input.iter().map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_from_what_libfuzzer_says() {
        let text = "#2\tINITED cov: 9 ft: 11 corp: 1/1b exec/s: 0 rss: 40Mb\n#70\tNEW    cov: 9 ft: 15 corp: 2/5b lim: 4\n\
                    Done 81 runs in 2 second(s)\nstat::number_of_executed_units: 81\n";
        assert_eq!(Told::read(text), Told { executions: 81, features: 15, features_at_start: 11 });
        let crashed =
            "#2\tINITED cov: 9 ft: 11 corp: 1/1b\n#512\tpulse  cov: 9 ft: 11 corp: 1/1b\nthread panicked\n";
        assert_eq!(Told::read(crashed), Told { executions: 512, features: 11, features_at_start: 11 });
    }
}
