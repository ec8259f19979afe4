//! The tests of franz-go's package `kgo`: its module as the proxy of Go's modules has it, its tests compiled once.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::{Outcome, Runner, Test, once, run_for};
use crate::process;

/// The module, and the checksum that `go.sum` files have for it.
const MODULE: &str = "github.com/twmb/franz-go@v1.22.3";
const CHECKSUM: &str = "h1:RHe35s34pKefMLyL+ZYJ6mQVtfFZz4zHDHVkTyACur0=";

/// How many records the chains of groups pass on; 500,000 where nobody says.
const RECORDS: &str = "20000";

const TEST_SECONDS: u64 = 400;

/// The compiled tests.
pub(super) struct Kgo {
    program: PathBuf,
    /// Where the sources lie: tests read files beside them.
    sources: PathBuf,
}

/// What `go mod download -json` says.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Downloaded {
    dir: PathBuf,
    sum: String,
}

/// Brings in the module and compiles its tests, where that is not done.
pub(super) fn install() -> Result<Kgo> {
    if process::find_program("go").is_none() {
        bail!("go is not on the PATH (Debian 13: golang-go)");
    }
    let mut download = Command::new("go");
    // The module's own checksum is compared; outside of a module there is no go.sum that would do it.
    download.args(["mod", "download", "-json", MODULE]).current_dir(process::cache()?);
    let told = process::output(&mut download).context("fetch franz-go's module")?;
    let downloaded: Downloaded = serde_json::from_str(&told).context("what `go mod download` says")?;
    if downloaded.sum != CHECKSUM {
        bail!("{MODULE} is not the module that was pinned: {}", downloaded.sum);
    }
    let sources = downloaded.dir.join("pkg/kgo");
    let folder = once("kgo", MODULE, |folder| {
        let mut compile = Command::new("go");
        compile.args(["test", "-c", "-o"]).arg(folder.join("kgo.test")).arg(".").current_dir(&sources);
        process::output(&mut compile).context("compile the tests of kgo")?;
        Ok(())
    })?;
    Ok(Kgo { program: folder.join("kgo.test"), sources })
}

impl Runner for Kgo {
    fn tests(&self) -> Result<Vec<Test>> {
        let mut list = Command::new(&self.program);
        let names = process::output(list.args(["-test.list", "^Test"]).current_dir(&self.sources))?;
        let test = |name: &str| Test {
            name: name.to_owned(),
            unit: name.to_owned(),
            is_local: false,
            auto_create: true,
        };
        Ok(names.lines().map(str::trim).filter(|name| name.starts_with("Test")).map(test).collect())
    }

    fn run(&self, unit: &[&Test], address: &str, folder: &Path) -> Result<BTreeMap<String, Outcome>> {
        let test = unit.first().context("a unit without tests")?;
        let log = folder.join(format!("{}.log", test.name));
        let mut command = Command::new(&self.program);
        command
            .args(["-test.v", "-test.count=1", "-test.run", &format!("^{}$", test.name)])
            .current_dir(&self.sources)
            .env("KGO_SEEDS", address)
            .env("KGO_TEST_RF", "1")
            .env("KGO_TEST_RECORDS", RECORDS)
            .env("KGO_TEST_MAX_TOPIC_PARTS", "11")
            .env("KGO_LOG_LEVEL", "none");
        let status = run_for(&command, &log, TEST_SECONDS)?;
        let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let is_success = status.is_some_and(|status| status.success());
        let outcome = outcome(&test.name, &String::from_utf8_lossy(&text), is_success);
        Ok(BTreeMap::from([(test.name.clone(), outcome)]))
    }
}

/// What the lines of `go test -v` say of a test; of the tests within it the worst counts.
fn outcome(name: &str, text: &str, is_success: bool) -> Outcome {
    let says = |verdict: &str| text.lines().any(|line| line.starts_with(&format!("--- {verdict}: {name} ")));
    match (is_success, says("PASS"), says("SKIP")) {
        (true, true, _) => Outcome::Passed,
        (true, _, true) => Outcome::Skipped,
        _ => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_run_tell_the_outcome() {
        let text = "=== RUN   TestA\n--- PASS: TestA (0.1s)\n    --- SKIP: TestA/b (0.0s)\nPASS\n";
        assert_eq!(outcome("TestA", text, true), Outcome::Passed);
        assert_eq!(outcome("TestA", text, false), Outcome::Failed, "a race, or a leak after it");
        assert_eq!(outcome("Test", text, true), Outcome::Failed);
        assert_eq!(outcome("TestA", "--- SKIP: TestA (0.0s)\n", true), Outcome::Skipped);
    }
}
