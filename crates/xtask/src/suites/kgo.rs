//! The tests of franz-go's package `kgo`: its module as the proxy of Go's modules has it, its tests compiled once.

use std::{
    collections::{BTreeMap, BTreeSet},
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

/// Where the tests read the broker's address.
const ADDRESS: &str = "KGO_SEEDS";

/// A test that does not run in parallel to others, and asks the broker which protocols it has.
const ASKING_FIRST: &str = "TestClient_ProduceLargeMessages";
/// A test that skips its half with the consumer protocol where nobody has asked before in its process.
const ASKED_BEFORE: &str = "TestGroupSimple";

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
        let sources = sources_of_tests(&self.sources)?;
        let asking = asking(&sources);
        if asking.len() == 1 {
            bail!("no function of the tests reads {ADDRESS}");
        }
        let test = |name: &str| Test {
            name: name.to_owned(),
            unit: name.to_owned(),
            is_local: !asking.contains(name),
            auto_create: true,
        };
        Ok(names.lines().map(str::trim).filter(|name| name.starts_with("Test")).map(test).collect())
    }

    fn run(&self, unit: &[&Test], address: &str, folder: &Path) -> Result<BTreeMap<String, Outcome>> {
        let test = unit.first().context("a unit without tests")?;
        let log = folder.join(format!("{}.log", test.name));
        let before = if test.name == ASKED_BEFORE { format!("{ASKING_FIRST}|") } else { String::new() };
        let mut command = Command::new(&self.program);
        command
            .args(["-test.v", "-test.count=1", "-test.run", &format!("^({before}{})$", test.name)])
            .current_dir(&self.sources)
            .env(ADDRESS, address)
            .env("KGO_TEST_RF", "1")
            .env("KGO_LOG_LEVEL", "none");
        let status = run_for(&command, &log, TEST_SECONDS)?;
        let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let is_success = status.is_some_and(|status| status.success());
        let outcome = outcome(&test.name, &String::from_utf8_lossy(&text), is_success);
        Ok(BTreeMap::from([(test.name.clone(), outcome)]))
    }
}

/// The package's own source of its tests.
fn sources_of_tests(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with("_test.go") {
            text += &fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        }
    }
    Ok(text)
}

/// The functions that come, by names in their bodies, to the one that reads the broker's address. Functions begin and end at the
/// beginning of a line, as gofmt has it.
fn asking(source: &str) -> BTreeSet<&str> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut bodies: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut function = None;
    for line in source.lines() {
        let mut rest = line;
        if let Some(head) = line.strip_prefix("func ") {
            // A method's receiver stands before its name.
            let head =
                head.strip_prefix('(').and_then(|head| head.split_once(") ")).map_or(head, |(_, head)| head);
            let name = head.split(|letter| !is_name(letter)).next().unwrap_or_default();
            (function, rest) = (Some(name), head.get(name.len()..).unwrap_or_default());
        }
        if let Some(name) = function {
            let names = rest.split(|letter| !is_name(letter)).filter(|name| !name.is_empty());
            bodies.entry(name).or_default().extend(names);
        }
        if line.starts_with('}') {
            function = None;
        }
    }
    let mut asking = BTreeSet::from([ADDRESS]);
    loop {
        let is_new =
            |(name, body): &(&&str, &BTreeSet<&str>)| !asking.contains(**name) && !body.is_disjoint(&asking);
        let more: Vec<&str> = bodies.iter().filter(is_new).map(|(name, _)| *name).collect();
        if more.is_empty() {
            return asking;
        }
        asking.extend(more);
    }
}

/// What the lines of `go test -v` say of a test; of the tests within it the worst counts.
fn outcome(name: &str, text: &str, is_success: bool) -> Outcome {
    let says = |verdict: &str| text.lines().any(|line| line.starts_with(&format!("--- {verdict}: {name} ")));
    let skipped = [' ', '/'].map(|end| format!("--- SKIP: {name}{end}"));
    let is_any_skipped =
        text.lines().any(|line| skipped.iter().any(|skipped| line.trim_start().starts_with(skipped)));
    match (is_success, says("PASS") || says("SKIP"), is_any_skipped) {
        (true, true, false) => Outcome::Passed,
        (true, true, true) => Outcome::Skipped,
        _ => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_run_tell_the_outcome() {
        let text = "=== RUN   TestA\n--- PASS: TestA (0.1s)\n    --- PASS: TestA/b (0.0s)\nPASS\n";
        assert_eq!(outcome("TestA", text, true), Outcome::Passed);
        assert_eq!(outcome("TestA", text, false), Outcome::Failed, "a race, or a leak after it");
        assert_eq!(outcome("Test", text, true), Outcome::Failed);
        assert_eq!(outcome("TestA", "--- SKIP: TestA (0.0s)\n", true), Outcome::Skipped);
        let text = "--- PASS: TestA (0.1s)\n    --- PASS: TestA/b (0.0s)\n    --- SKIP: TestA/c (0.0s)\n";
        assert_eq!(outcome("TestA", text, true), Outcome::Skipped);
    }

    #[test]
    fn whoever_comes_to_the_address_asks_a_broker() {
        let source = "func getSeedBrokers() Opt {\n\treturn os.Getenv(\"KGO_SEEDS\")\n}\nfunc newTestClient() *Client {\n\treturn of(getSeedBrokers())\n}\nfunc (c *chain) run() {\n\tcl, _ := newTestClient()\n}\nfunc TestA(t *testing.T) {\n\tc.run()\n}\nfunc TestB(t *testing.T) {\n\tnewTestClients()\n}\n";
        let asking = asking(source);
        assert!(asking.contains("TestA") && !asking.contains("TestB"), "{asking:?}");
    }
}
