//! Apache Kafka as the peer: from Maven, in KRaft mode, with its own tiered storage on a folder.
//!
//! One combined node with the settings that it ships with: heap of 1 GiB, G1 as `kafka-server-start.sh` sets it, three network and
//! eight IO threads. Its remote store is `LocalTieredStorage`, which its project uses in its tests: files in a folder, as Tidelog's
//! `file://` is.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::server::{Durability, Kind, Plan, TopicPlan, text};
use crate::process;

/// The peer's version.
pub(super) const VERSION: &str = "4.3.1";

/// What it takes to run it, as Maven names things: artifact, version, classifier.
const ARTIFACTS: [(&str, &str, &str, &str); 5] = [
    ("org.apache.kafka", "kafka_2.13", VERSION, ""),
    ("org.apache.kafka", "kafka-tools", VERSION, ""),
    ("org.apache.kafka", "kafka-storage", VERSION, ""),
    ("org.apache.kafka", "kafka-storage", VERSION, "test"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4", ""),
];

/// As `kafka-run-class.sh` and `kafka-server-start.sh` start it.
const JVM: [&str; 8] = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
];

/// Any cluster's id: 16 bytes in base64url.
const CLUSTER_ID: &str = "dGlkZWxvZy1iZW5jaC1rZg";

/// The jars' folder; installs them where they are missing.
pub(crate) fn install() -> Result<PathBuf> {
    let folder = process::cache()?.join("kafka");
    let (jars, marker) = (folder.join("lib"), folder.join("installed"));
    let pom = pom();
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == pom) && jars.is_dir() {
        return Ok(jars);
    }
    if process::find_program("mvn").is_none() || process::find_program("java").is_none() {
        bail!(
            "the duel needs `java` 17 or newer and `mvn` on the PATH (Debian: apt-get install openjdk-17-jre-headless maven)"
        );
    }
    println!("installing Apache Kafka {VERSION} into {}", folder.display());
    fs::create_dir_all(&folder)?;
    if jars.exists() {
        fs::remove_dir_all(&jars)?;
    }
    let file = folder.join("pom.xml");
    fs::write(&file, &pom)?;
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "-f"]).arg(&file).arg("dependency:copy-dependencies");
    process::run(maven.arg(format!("-DoutputDirectory={}", jars.display())))?;
    fs::write(&marker, pom).context("remember what is installed")?;
    Ok(jars)
}

fn pom() -> String {
    let dependencies: String = ARTIFACTS
        .iter()
        .map(|(group, artifact, version, classifier)| {
            let classifier =
                if classifier.is_empty() { String::new() } else { format!("<classifier>{classifier}</classifier>") };
            format!(
                "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{classifier}\
                 </dependency>\n"
            )
        })
        .collect();
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\n<groupId>tidelog</groupId>\
         <artifactId>bench-peer</artifactId><version>1</version>\n<dependencies>\n{dependencies}</dependencies></project>\n"
    )
}

/// Which Java runs it.
pub(super) fn java_version() -> String {
    let output = Command::new("java").arg("-version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

/// What a bench sets beside: nothing is made by asking, and what waits for a timer is seen within seconds.
const BENCH: [(&str, &str); 5] = [
    ("auto.create.topics.enable", "false"),
    ("log.retention.check.interval.ms", "1000"),
    ("log.segment.delete.delay.ms", "1000"),
    // The first look for segments to delete comes after 30 s by default.
    ("log.initial.task.delay.ms", "500"),
    ("remote.log.manager.task.interval.ms", "500"),
];

/// How to start a node in a folder as it is measured; formats its storage.
pub(super) fn plan(jars: &Path, folder: &Path) -> Result<Plan> {
    plan_with(jars, folder, &BENCH)
}

/// How to start a node in a folder with these settings beside those that one node needs; formats its storage.
pub(crate) fn plan_with(jars: &Path, folder: &Path, beside: &[(&str, &str)]) -> Result<Plan> {
    fs::create_dir_all(folder)?;
    let address = format!("127.0.0.1:{}", process::free_port()?);
    let controller = format!("127.0.0.1:{}", process::free_port()?);
    fs::create_dir_all(folder.join("remote"))?;
    let properties = folder.join("server.properties");
    let needed = needed_settings(jars, folder, &address, &controller)?;
    let needed = needed.iter().map(|(key, value)| format!("{key}={value}\n"));
    let lines: String = needed.chain(beside.iter().map(|(key, value)| format!("{key}={value}\n"))).collect();
    fs::write(&properties, lines)?;
    let class_path = text(&jars.join("*"))?;
    let mut format = Command::new("java");
    format
        .args(["-cp", &class_path, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"])
        .arg(&properties)
        .current_dir(folder);
    process::output(&mut format).context("format Kafka's storage")?;
    let mut arguments: Vec<String> = JVM.iter().map(|flag| (*flag).to_owned()).collect();
    arguments.extend(["-cp".to_owned(), class_path, "kafka.Kafka".to_owned(), text(&properties)?]);
    let program = process::find_program("java").context("find java on the PATH")?;
    Ok(Plan {
        kind: Kind::Kafka,
        folder: folder.to_owned(),
        address,
        second_address: controller,
        arguments,
        environment: Vec::new(),
        program,
    })
}

/// One node that is everything, with its remote store on a folder.
fn needed_settings(
    jars: &Path,
    folder: &Path,
    address: &str,
    controller: &str,
) -> Result<Vec<(&'static str, String)>> {
    let test_jar = jars.join(format!("kafka-storage-{VERSION}-test.jar"));
    Ok(vec![
        ("process.roles", "broker,controller".to_owned()),
        ("node.id", "1".to_owned()),
        ("controller.quorum.voters", format!("1@{controller}")),
        ("listeners", format!("PLAINTEXT://{address},CONTROLLER://{controller}")),
        ("advertised.listeners", format!("PLAINTEXT://{address}")),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("log.dirs", text(&folder.join("data"))?),
        ("offsets.topic.replication.factor", "1".to_owned()),
        ("transaction.state.log.replication.factor", "1".to_owned()),
        ("transaction.state.log.min.isr", "1".to_owned()),
        ("share.coordinator.state.topic.replication.factor", "1".to_owned()),
        ("share.coordinator.state.topic.min.isr", "1".to_owned()),
        ("remote.log.storage.system.enable", "true".to_owned()),
        (
            "remote.log.storage.manager.class.name",
            "org.apache.kafka.server.log.remote.storage.LocalTieredStorage".to_owned(),
        ),
        ("remote.log.storage.manager.class.path", text(&test_jar)?),
        ("remote.log.storage.manager.impl.prefix", "rsm.config.".to_owned()),
        ("rsm.config.dir", text(&folder.join("remote"))?),
        ("remote.log.metadata.manager.listener.name", "PLAINTEXT".to_owned()),
        ("remote.log.metadata.manager.impl.prefix", "rlmm.config.".to_owned()),
        ("rlmm.config.remote.log.metadata.topic.replication.factor", "1".to_owned()),
        ("rlmm.config.remote.log.metadata.topic.num.partitions", "5".to_owned()),
    ])
}

pub(super) fn topic_settings(plan: TopicPlan) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("remote.storage.enable", "true".to_owned()),
        ("segment.bytes", plan.segment_bytes.to_string()),
        ("file.delete.delay.ms", "1000".to_owned()),
    ];
    if plan.durability == Durability::Synced {
        settings.push(("flush.messages", "1".to_owned()));
    }
    if plan.evicts {
        settings.push(("local.retention.bytes", "1".to_owned()));
    }
    settings
}

/// By the files: a broker's metrics would need a JMX client. Every sealed local segment has its copy; where all had to go, only the
/// active one is left.
pub(super) fn is_drained(folder: &Path, topic: &str, plan: TopicPlan) -> Result<bool> {
    let remote = remote_logs(&folder.join("remote"))?;
    for partition in 0..plan.partitions {
        let name = format!("{topic}-{partition}");
        let local = log_files(&folder.join("data").join(&name))?;
        let sealed = local.saturating_sub(1);
        let prefix = format!("{name}-");
        let copies = remote.iter().filter(|folder| folder.starts_with(&prefix)).count();
        if local == 0 || copies < sealed || (plan.evicts && sealed > 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// For each remote copy of a segment's records, the name of its partition's folder: `topic-0-<id>`.
fn remote_logs(remote: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let Ok(stores) = fs::read_dir(remote) else { return Ok(found) };
    for store in stores.flatten() {
        let Ok(folders) = fs::read_dir(store.path()) else { continue };
        for folder in folders.flatten() {
            let name = folder.file_name().to_string_lossy().into_owned();
            let count = log_files(&folder.path())?;
            found.extend(std::iter::repeat_n(name, count));
        }
    }
    Ok(found)
}

fn log_files(folder: &Path) -> Result<usize> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(0) };
    Ok(entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "log"))
        .count())
}
