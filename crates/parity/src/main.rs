//! The command line of the parity set; `cargo xtask e2e parity` starts the brokers and then this.

#![allow(clippy::print_stdout, reason = "a command for people and CI speaks on standard output")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};
use parity::{
    differences::{self, Differences, ranges},
    normalise::Rules,
    recorded,
    run::{Answers, Place, Runner},
    script::{self, Script},
};
use tidelog_wire::{ApiKey, Versions};

#[derive(Parser)]
#[command(name = "parity", about = "The same scripted exchanges with Apache Kafka and with Tidelog")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The scripts, the rules and the list of differences.
    #[arg(long, global = true, default_value = "tests/parity")]
    folder: PathBuf,
    /// Where Apache Kafka's answers are; `recorded` in the folder of the scripts by default.
    #[arg(long, global = true)]
    recorded: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Asks an Apache Kafka and writes its answers.
    Record {
        /// Its address.
        #[arg(long)]
        bootstrap: String,
    },
    /// Asks a broker and compares its answers with the recorded ones.
    Compare(Compare),
}

#[derive(Args)]
struct Compare {
    /// Its address.
    #[arg(long)]
    bootstrap: String,
    /// Only files of this name and scenarios whose `file: name` contains this; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// It is another Apache Kafka: no difference is known.
    #[arg(long)]
    same: bool,
    /// Prints differences without a row as rows.
    #[arg(long)]
    rows: bool,
    /// Writes all its answers into this folder too.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let folder = &arguments.folder;
    let answers = arguments.recorded.clone().unwrap_or_else(|| folder.join("recorded"));
    let outcome = match &arguments.command {
        Command::Record { bootstrap } => record(folder, &answers, bootstrap),
        Command::Compare(options) => compare(folder, &answers, options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

fn scripts(folder: &Path) -> Result<Vec<Script>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("read {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "parity"))
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| {
            let name = file.file_stem().and_then(|name| name.to_str()).context("a file has a name")?;
            script::parse(name, &read(file)?)
        })
        .collect()
}

fn record(folder: &Path, into: &Path, bootstrap: &str) -> Result<()> {
    let rules = Rules::parse(&read(&folder.join("normalise.rules"))?)?;
    let mut runner = Runner::new(bootstrap, &rules, true)?;
    let theirs = runner.announced().clone();
    for (number, script) in scripts(folder)?.iter().enumerate() {
        runner.run(number, script, |_| true, |api| asked(api, theirs.get(&api).copied()))?;
    }
    println!("{} answers of {bootstrap}", runner.answers().len());
    if let Some((missing, _)) = runner.waiting.first_key_value() {
        bail!("it does not announce {missing}");
    }
    recorded::write(into, &theirs, runner.answers())
}

/// The versions that both a broker and the table have.
fn asked(api: ApiKey, announced: Option<Versions>) -> Versions {
    let (ours, theirs) = (api.codec_versions(), announced.unwrap_or(Versions::NONE));
    Versions { min: ours.min.max(theirs.min), max: ours.max.min(theirs.max) }
}

fn compare(folder: &Path, recorded: &Path, options: &Compare) -> Result<()> {
    let rules = Rules::parse(&read(&folder.join("normalise.rules"))?)?;
    let (kafkas, kafka) = recorded::read(recorded)?;
    let mut runner = Runner::new(&options.bootstrap, &rules, false)?;
    let announced = runner.announced().clone();
    let scripts = scripts(folder)?;
    let is_wanted = |script: &str, scenario: &str| {
        options.only.is_empty()
            || options
                .only
                .iter()
                .any(|only| script == only || format!("{script}: {scenario}").contains(only))
    };
    for (number, script) in scripts.iter().enumerate() {
        // As Kafka was asked: what only one of them announces is told apart.
        let versions = |api| asked(api, kafkas.get(&api).copied());
        runner.run(number, script, |scenario| is_wanted(&script.name, &scenario.name), versions)?;
    }
    if let Some(into) = &options.write {
        recorded::write(into, &announced, runner.answers())?;
    }
    let (waiting, failures) = (runner.waiting.clone(), runner.failures.clone());
    let answers = runner.into_answers();
    let ran: BTreeSet<(&str, &str, i16)> =
        answers.keys().map(|place| (place.script.as_str(), place.scenario.as_str(), place.version)).collect();
    let is_run =
        |place: &Place| ran.contains(&(place.script.as_str(), place.scenario.as_str(), place.version));
    let found = differences::compare(&rules, &kafka, &answers, is_run);
    let wrong = judge(folder, options, &found, is_wanted)?;
    let uncovered = coverage(&answers, &announced);
    for (api, count) in &waiting {
        println!("{count} scenarios wait for {api}, which is not announced");
    }
    for failure in &failures {
        println!("not finished: {failure}");
    }
    // An unfinished scenario has differences, which may be listed.
    match (wrong, uncovered) {
        (0, 0) => Ok(()),
        // Of another Kafka it is not asked whether each of its APIs is covered: some are not announced here.
        (0, _) if options.same || !options.only.is_empty() => Ok(()),
        (wrong, uncovered) => {
            bail!("{wrong} lines above are wrong, {uncovered} announced versions are not covered")
        }
    }
}

/// Prints what is not as listed; answers how much that is.
fn judge(
    folder: &Path,
    options: &Compare,
    found: &Differences,
    is_wanted: impl Fn(&str, &str) -> bool,
) -> Result<usize> {
    let file = folder.join("differences.md");
    let text = if options.same { String::new() } else { read(&file)? };
    let rows = differences::rows(&text)?;
    let (unlisted, unused) = differences::unlisted(found, &rows);
    for (difference, versions) in &unlisted {
        if options.rows {
            println!("{}", differences::row_text(difference));
        } else {
            let versions = ranges(versions);
            println!(
                "DIFFERENCE {}, step {}, {} {versions}: {}\n    Kafka {}\n    ours  {}",
                difference.place,
                difference.step,
                difference.api,
                difference.field,
                difference.kafka,
                difference.tidelog
            );
        }
    }
    // Rows of scenarios that were left out may meet nothing.
    let is_partial = !options.only.is_empty() && !options.only.iter().all(|only| is_wanted(only, ""));
    let unused: Vec<_> = unused
        .into_iter()
        .filter(|row| {
            !is_partial
                && (options.only.is_empty()
                    || options.only.iter().any(|only| row.is_of(&format!("{only}: "))))
        })
        .collect();
    for row in &unused {
        println!("NO LONGER A DIFFERENCE differences.md, {row}");
    }
    println!(
        "{} differences, {} of them listed by {} rows",
        found.len(),
        found.keys().filter(|difference| !unlisted.contains_key(*difference)).count(),
        rows.len()
    );
    Ok(unlisted.len() + unused.len())
}

/// Prints how much was compared; answers how many announced versions nothing asked.
fn coverage(answers: &Answers, announced: &BTreeMap<ApiKey, Versions>) -> usize {
    let covered: BTreeSet<(ApiKey, i16)> =
        answers.values().map(|answer| (answer.api, answer.version)).collect();
    let all = announced.iter().flat_map(|(api, range)| range.iter().map(|version| (*api, version)));
    let (all, mut missing) = (all.collect::<Vec<_>>(), BTreeMap::<ApiKey, Vec<i16>>::new());
    for (api, version) in all.iter().filter(|pair| !covered.contains(pair)) {
        missing.entry(*api).or_default().push(*version);
    }
    let uncovered: usize = missing.values().map(Vec::len).sum();
    println!(
        "{} exchanges; {} of {} announced APIs x versions covered ({} APIs)",
        answers.len(),
        all.len() - uncovered,
        all.len(),
        announced.len()
    );
    for (api, versions) in missing {
        println!("not covered: {api} {}", ranges(&versions));
    }
    uncovered
}
