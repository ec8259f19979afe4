//! librdkafka's own tests: its sources as an npm package carries them, with their tests, compiled once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::{Outcome, Runner, Test, once, run_for};
use crate::{bench::kafka, process};

/// The package that carries the newest librdkafka with its tests: 2.15.1.
const PACKAGE: &str = "@confluentinc/kafka-javascript@1.10.1";
/// The SHA-512 of that package.
const CHECKSUM: &str = "29578f5019f6d44a8254ff667f1cc4b8cdd26091c7105ed7fa2882d9ee374108034b211a92c2279821a8a13df0e6af9c340764482acaef58f42027eaa12a992f";

/// What the machines need not have. TLS is compiled in: no listener here has it, and some tests set up a client with it that asks
/// no broker.
const CONFIGURE: [&str; 4] = ["--disable-gssapi", "--disable-curl", "--disable-zstd", "--disable-lz4-ext"];

/// The version that tests ask for before they use what a broker has.
const KAFKA_VERSION: &str = "4.3.1";

/// A test has 30 seconds by its own clock and may ask for more; 0113 takes more than ten minutes.
const UNIT_SECONDS: u64 = 1200;

/// A part of a test that runs by itself: the sub-tests of which the test says this.
struct Part {
    name: &'static str,
    /// What the names of its sub-tests contain; none where they are called as their function, which is the part's name.
    says: Option<&'static str>,
}

impl Part {
    const fn function(name: &'static str) -> Self {
        Self { name, says: None }
    }

    const fn called(name: &'static str, says: &'static str) -> Self {
        Self { name, says: Some(says) }
    }

    /// What chooses its sub-tests. The name of a function stands before a colon and a line.
    fn sub_tests(&self) -> String {
        self.says.map_or_else(|| format!("{}:", self.name), str::to_owned)
    }
}

/// Tests that are much in one, some of which one node has not yet: their parts run by themselves as well.
const PARTS: [(&str, &[Part]); 4] = [
    (
        "0055_producer_latency",
        &[
            Part::called("standard_settings", "standard settings (linger.ms="),
            Part::called("low_linger", "low linger.ms (0ms)"),
            Part::called("microsecond_linger", "microsecond linger.ms (0.001ms)"),
            Part::called("high_linger", "high linger.ms (3000ms)"),
            Part::called("half_a_second_of_linger", "linger.ms < 1000 (500ms)"),
            Part::called("no_acks", "no acks (0ms)"),
            Part::called("idempotence", "idempotence (10ms)"),
            Part::called("transactions", "transactions (35ms)"),
        ],
    ),
    (
        "0061_consumer_lag",
        &[
            Part::called("without_transactions", "Test consumer lag without transactions"),
            Part::called("with_transactions", "Test consumer lag with transactions"),
        ],
    ),
    (
        "0081_admin",
        &[
            Part::function("do_test_AlterConfigs"),
            Part::function("do_test_AlterConsumerGroupOffsets"),
            Part::function("do_test_CreateAcls"),
            Part::function("do_test_CreatePartitions"),
            Part::function("do_test_CreateTopics"),
            Part::function("do_test_DeleteAcls"),
            Part::function("do_test_DeleteConsumerGroupOffsets"),
            Part::function("do_test_DeleteGroups"),
            Part::function("do_test_DeleteRecords"),
            Part::function("do_test_DeleteTopics"),
            Part::function("do_test_DescribeAcls"),
            Part::function("do_test_DescribeCluster"),
            Part::function("do_test_DescribeConfigs"),
            Part::function("do_test_DescribeConfigs_groups"),
            Part::function("do_test_DescribeConsumerGroups"),
            Part::function("do_test_DescribeConsumerGroups_with_authorized_ops"),
            Part::function("do_test_DescribeTopics"),
            Part::function("do_test_IncrementalAlterConfigs"),
            Part::function("do_test_ListConsumerGroupOffsets"),
            Part::function("do_test_ListConsumerGroups"),
            Part::function("do_test_ListOffsets"),
            Part::function("do_test_UserScramCredentials"),
            Part::function("do_test_unclean_destroy"),
        ],
    ),
    (
        "0137_barrier_batch_consume",
        &[
            Part::function("do_test_consume_batch_control_msgs"),
            Part::function("do_test_consume_batch_eof_position"),
            Part::function("do_test_consume_batch_store_offset"),
            Part::function("do_test_consume_batch_with_pause_and_resume_different_batch"),
            Part::function("do_test_consume_batch_with_pause_and_resume_same_batch"),
            Part::function("do_test_consume_batch_with_seek"),
        ],
    ),
];

/// A sub-test that skips itself anywhere, and does not count as one that did: it asks for an empty `sasl.mechanism`, of which the
/// library's default is GSSAPI.
const SKIPPED_ANYWHERE: &str = "[ o_java_interop:";

/// The compiled tests.
pub(super) struct Librdkafka {
    tests: PathBuf,
    /// A folder whose `bin` has Kafka's command line tools, which some tests call.
    tools: PathBuf,
}

/// Brings in the sources and compiles them with their tests, where that is not done.
pub(super) fn install() -> Result<Librdkafka> {
    let wanted = format!("{PACKAGE} {}", CONFIGURE.join(" "));
    let folder = once("librdkafka", &wanted, |folder| {
        let mut npm = Command::new("npm");
        npm.args(["pack", PACKAGE, "--silent", "--pack-destination"]).arg(folder).current_dir(folder);
        let name = process::output(&mut npm).context("fetch librdkafka's package with npm")?;
        let package = folder.join(name.trim());
        let sum = process::output(Command::new("sha512sum").arg(&package))?;
        if sum.split_whitespace().next() != Some(CHECKSUM) {
            bail!("{} is not the package that was pinned: {sum}", package.display());
        }
        let mut unpack = Command::new("tar");
        unpack.args(["--strip-components=3", "-xzf"]).arg(&package).arg("package/deps/librdkafka");
        process::output(unpack.current_dir(folder))?;
        process::output(Command::new("./configure").args(CONFIGURE).current_dir(folder))?;
        check_found(&fs::read_to_string(folder.join("config.h"))?)?;
        process::output(Command::new("make").args(["-j2", "libs"]).current_dir(folder))?;
        process::output(Command::new("make").args(["-j2", "-C", "tests", "build"]).current_dir(folder))?;
        Ok(())
    })?;
    let tools = folder.join("kafka");
    write_tools(&tools)?;
    Ok(Librdkafka { tests: folder.join("tests"), tools })
}

/// Kafka's tools as the tests call them: scripts in a folder `bin`, over the jars of the real one.
fn write_tools(folder: &Path) -> Result<()> {
    let jars = kafka::install()?.join("*");
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("make {}", bin.display()))?;
    let tools = [
        ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
        ("kafka-configs.sh", "kafka.admin.ConfigCommand"),
    ];
    for (name, class) in tools {
        let script = bin.join(name);
        let java = "exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC";
        fs::write(&script, format!("#!/bin/sh\n{java} -cp '{}' {class} \"$@\"\n", jars.display()))?;
        process::output(Command::new("chmod").arg("u+x").arg(&script))?;
    }
    Ok(())
}

/// Whether configuring found what some tests would else skip themselves without.
fn check_found(config: &str) -> Result<()> {
    let libraries =
        [("WITH_SSL", "libssl-dev"), ("WITH_ZLIB", "zlib1g-dev"), ("WITH_RAPIDJSON", "rapidjson-dev")];
    for (define, package) in libraries {
        if !config.contains(&format!("#define {define} 1")) {
            bail!("librdkafka's tests need the headers of a library (Debian: {package})");
        }
    }
    Ok(())
}

/// The report that a run writes.
#[derive(Deserialize)]
struct Report {
    tests: BTreeMap<String, ReportedTest>,
}

#[derive(Deserialize)]
struct ReportedTest {
    state: String,
}

impl Runner for Librdkafka {
    fn tests(&self) -> Result<Vec<Test>> {
        let file = self.tests.join("test.c");
        let source = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        for (test, parts) in PARTS.iter().filter(|(_, parts)| parts.iter().all(|part| part.says.is_none())) {
            let file = self.tests.join(format!("{}.c", test.replacen('_', "-", 1)));
            let source = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            check_parts(test, parts, &source)?;
        }
        listed(&source)
    }

    fn run(&self, unit: &[&Test], address: &str, folder: &Path) -> Result<BTreeMap<String, Outcome>> {
        let first = unit.first().context("a unit without tests")?;
        let conf = folder.join("test.conf");
        fs::write(&conf, format!("bootstrap.servers={address}\ntest.topic.random=true\n"))?;
        let report = folder.join(format!("{}.json", first.unit));
        let libraries = ["../src", "../src-cpp"].map(|name| self.tests.join(name).display().to_string());
        let mut command = Command::new(self.tests.join("test-runner"));
        // Where it runs from matters: some tests read files of the sources beside it.
        command.arg("-p1").current_dir(&self.tests).env_remove("CI");
        if unit.iter().all(|test| !test.is_local) {
            command.arg("-L");
        }
        command
            .env("TESTS", number(&first.name))
            .env("TEST_SCENARIO", if first.auto_create { "default" } else { "noautocreate" })
            .env("TEST_KAFKA_VERSION", KAFKA_VERSION)
            .env("TEST_REPORT", &report)
            .env("RDKAFKA_TEST_CONF", &conf)
            // For tests that call Kafka's tools.
            .env("KAFKA_PATH", &self.tools)
            .env("BROKERS", address)
            .env("LD_LIBRARY_PATH", libraries.join(":"));
        let part = part(&first.name);
        if let Some(part) = part {
            command.env("SUBTESTS", part.sub_tests());
        }
        let log = folder.join(format!("{}.log", first.unit));
        run_for(&command, &log, UNIT_SECONDS)?;
        let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        let told = fs::read_to_string(&report).unwrap_or_default();
        let states = serde_json::from_str::<Report>(&told).map(|report| report.tests).unwrap_or_default();
        let outcome = |test: &&Test| {
            // A run that was ended or has aborted leaves no report, or one in which a test still runs.
            let whole = test.name.split('/').next().unwrap_or_default();
            let outcome = match states.get(whole).map(|test| test.state.as_str()) {
                Some("PASSED") => passed(whole, part, &text),
                Some("SKIPPED") => Outcome::Skipped,
                _ => Outcome::Failed,
            };
            (test.name.clone(), outcome)
        };
        Ok(unit.iter().map(outcome).collect())
    }
}

/// The part that a name is of.
fn part(name: &str) -> Option<&'static Part> {
    let (whole, name) = name.split_once('/')?;
    let (_, parts) = PARTS.iter().find(|(of, _)| *of == whole)?;
    parts.iter().find(|part| part.name == name)
}

/// What it comes to when a test calls itself passed. It does so too where no sub-test was chosen, and where one skipped itself.
fn passed(test: &str, part: Option<&Part>, text: &str) -> Outcome {
    let of_test = |line: &&str| line.contains(&format!("[{test} ")) || line.contains(&format!("[{test}/"));
    let says = |line: &str, verdict: &str| line.contains("[ ") && line.contains(verdict);
    let mut lines = text.lines().filter(of_test);
    if lines.clone().any(|line| says(line, ": SKIP: ") && !line.contains(SKIPPED_ANYWHERE)) {
        return Outcome::Skipped;
    }
    let is_there = |part: &Part| {
        let chosen = part.sub_tests();
        lines.any(|line| says(line, ": PASS (") && line.contains(&chosen))
    };
    if part.is_none_or(is_there) { Outcome::Passed } else { Outcome::Failed }
}

/// Fails where the parts of a test are not the functions of its source that are sub-tests.
fn check_parts(test: &str, parts: &[Part], source: &str) -> Result<()> {
    let (mut function, mut functions) = ("", BTreeSet::new());
    for line in source.lines() {
        if line.starts_with(|first: char| first.is_ascii_alphabetic()) {
            if let Some((head, _)) = line.split_once('(') {
                function = head.rsplit([' ', '*']).next().unwrap_or_default();
            }
        } else if line.contains("SUB_TEST(") || line.contains("SUB_TEST_QUICK(") {
            functions.insert(function);
        }
    }
    let parts: BTreeSet<_> = parts.iter().map(|part| part.name).collect();
    if parts != functions {
        let differing: Vec<_> = parts.symmetric_difference(&functions).copied().collect();
        bail!("{test}: its sub-tests and its parts differ by {}", differing.join(", "));
    }
    Ok(())
}

/// Tests are chosen by what stands before the first `_`.
fn number(name: &str) -> &str {
    name.split('_').next().unwrap_or(name)
}

/// The tests of the table in `test.c`, without those that are run by hand.
fn listed(source: &str) -> Result<Vec<Test>> {
    let table = source.split_once("struct test tests[]").context("the table of the tests")?.1;
    let table = table.split_once("{NULL}").context("the end of the table")?.0;
    let rows = table.split("_TEST(").skip(1);
    let rows = rows.filter(|row| !row.contains("TEST_F_MANUAL"));
    Ok(rows.filter_map(of_row).flatten().collect())
}

/// A test, and those of its parts that run by themselves.
fn of_row(row: &str) -> Option<Vec<Test>> {
    let name = row.split([',', ')']).next()?.trim();
    let scenario = row.split_once(".scenario = \"").and_then(|(_, rest)| rest.split('"').next());
    let auto_create = scenario.is_none_or(|scenario| scenario.contains("default"));
    let unit = format!("{}{}", number(name), if auto_create { "" } else { "-noautocreate" });
    let is_local = row.contains("TEST_F_LOCAL");
    let whole = Test { name: name.to_owned(), unit: unit.clone(), is_local, auto_create };
    let parts = PARTS.iter().filter(|(of, _)| *of == name).flat_map(|(_, parts)| parts.iter());
    let parts = parts.map(|part| Test {
        name: format!("{name}/{}", part.name),
        unit: format!("{unit}-{}", part.name),
        is_local,
        auto_create,
    });
    Some(std::iter::once(whole).chain(parts).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_tests_is_read() {
        let source = r#"struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0004_conf, TEST_F_LOCAL),
    _TEST(0045_update,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
    _TEST(0081_admin, 0),
    _TEST(0103_both, 0, .scenario = "default,ak23"),
    _TEST(8000_idle, TEST_F_MANUAL),
    {NULL}};"#;
        let mut tests = listed(source).unwrap();
        let parts: Vec<_> =
            tests.extract_if(.., |test| test.name.contains('/')).map(|test| test.unit).collect();
        assert_eq!(parts.len(), PARTS[2].1.len());
        assert_eq!(parts[0], "0081-do_test_AlterConfigs");
        let told: Vec<_> = tests
            .iter()
            .map(|test| (test.name.as_str(), test.unit.as_str(), test.is_local, test.auto_create))
            .collect();
        assert_eq!(
            told,
            [
                ("0004_conf", "0004", true, true),
                ("0045_update", "0045-noautocreate", false, false),
                ("0081_admin", "0081", false, true),
                ("0103_both", "0103", false, true)
            ]
        );
        assert!(listed("something else").is_err());
    }

    #[test]
    fn a_test_that_passes_says_so_of_each_chosen_sub_test() {
        let line = |test: &str, told: &str| format!("\u{1b}[36m[{test:<28}/  1.200s] \u{1b}[32m[ {told} ]\n");
        let part = &Part::function("do_test_A");
        let text = line("0081_admin", "do_test_A:70: queue: PASS (0.10s)");
        assert_eq!(passed("0081_admin", Some(part), &text), Outcome::Passed);
        assert_eq!(passed("0081_admin", None, ""), Outcome::Passed, "a test need not have sub-tests");
        assert_eq!(passed("0081_admin", Some(part), ""), Outcome::Failed, "nothing was chosen");
        let other = line("0081_admin", "do_test_A_more:70: PASS (0.10s)");
        assert_eq!(passed("0081_admin", Some(part), &other), Outcome::Failed);
        let skipped = format!("{text}{}", line("0081_admin", "do_test_A:90: queue: SKIP: not here"));
        assert_eq!(passed("0081_admin", Some(part), &skipped), Outcome::Skipped);
        assert_eq!(passed("0081_admin", None, &skipped), Outcome::Skipped);
        assert_eq!(passed("0081_admin_mock", None, &skipped), Outcome::Passed, "another's line");
        let skipped =
            line("0113_cooperative_rebalance", "o_java_interop:2089: SKIP: Cluster is set up for SASL");
        assert_eq!(passed("0113_cooperative_rebalance", None, &skipped), Outcome::Passed);
    }

    #[test]
    fn parts_are_the_sub_tests_of_the_source() {
        let source = "static void do_test_A(int a,\n                      int b) {\n        SUB_TEST_QUICK(\n            \"x\");\n        SUB_TEST_PASS();\n}\nstatic void\ndo_test_B(void) {\n        SUB_TEST();\n}\nint main_0(int argc) {\n}\n";
        let (a, b) = (Part::function("do_test_A"), Part::function("do_test_B"));
        check_parts("0", &[a, b], source).unwrap();
        let told = check_parts("0", &[Part::function("do_test_A")], source).unwrap_err().to_string();
        assert_eq!(told, "0: its sub-tests and its parts differ by do_test_B");
    }
}
