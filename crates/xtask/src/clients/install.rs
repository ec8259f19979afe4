//! The real clients, installed once for each of their lock files under the cache: a second run installs nothing.
//!
//! Sources of packages are those that pip, npm, go and Maven of this machine are set to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use crate::{process, stores};

/// The goal that copies the jars, of the version that Debian's Maven has.
const COPY_JARS: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies";

/// A client that people use, each with a program in `tests/clients`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Client {
    /// kcat, the shell's client.
    Kcat,
    /// confluent-kafka: librdkafka in Python.
    Confluent,
    /// kafka-python.
    KafkaPython,
    /// aiokafka.
    Aiokafka,
    /// kafkajs.
    Kafkajs,
    /// Apache Kafka's own clients and command line tools.
    Java,
    /// franz-go.
    FranzGo,
    /// sarama.
    Sarama,
}

impl Client {
    /// The name of its folder.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kcat => "kcat",
            Self::Confluent => "confluent",
            Self::KafkaPython => "kafka-python",
            Self::Aiokafka => "aiokafka",
            Self::Kafkajs => "kafkajs",
            Self::Java => "java",
            Self::FranzGo => "franz-go",
            Self::Sarama => "sarama",
        }
    }

    fn folder(self) -> PathBuf {
        sources().join(self.name())
    }
}

/// How a client's program is started.
#[derive(Debug, Serialize)]
pub(super) struct Installed {
    command: Vec<String>,
    environment: BTreeMap<&'static str, String>,
}

impl Installed {
    fn of<const N: usize>(command: [String; N]) -> Self {
        Self { command: command.to_vec(), environment: BTreeMap::new() }
    }
}

fn sources() -> PathBuf {
    process::repository().join("tests/clients")
}

/// The Python that has the clients, installed where it is missing.
pub(super) fn python() -> Result<PathBuf> {
    stores::locked_environment("clients", &sources().join("requirements.txt"))
}

/// The Python that has another generation of the same clients, as far back as this machine's Python can run them.
pub(super) fn older_python() -> Result<PathBuf> {
    let lock =
        if stores::python_minor()? <= 11 { "requirements-older.txt" } else { "requirements-older-3.12.txt" };
    stores::locked_environment("older-clients", &sources().join(lock))
}

/// kcat is the machine's: its lock file names the versions of it, and of the library in it, that the tests are known to be right for.
///
/// # Errors
/// When there is none, or another one.
pub fn check_kcat() -> Result<()> {
    process::find_program("kcat").context("kcat is not on the PATH (Debian: kcat)")?;
    let said = process::output(Command::new("kcat").arg("-V"))?;
    let lock = Client::Kcat.folder().join("kcat.lock");
    let locked = fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?;
    let version = kcat_version(&said).with_context(|| format!("no version of kcat in `{}`", said.trim()))?;
    if locked.lines().any(|line| line == version) {
        return Ok(());
    }
    bail!("this machine has {version}, which {} does not name", lock.display())
}

/// `kcat 1.7.1 librdkafka 2.0.2`, of what `kcat -V` says.
fn kcat_version(said: &str) -> Option<String> {
    let number = |mark: &str| {
        let (_, rest) = said.split_once(mark)?;
        rest.split_whitespace().next()
    };
    Some(format!("kcat {} librdkafka {}", number("Version ")?, number("librdkafka ")?))
}

/// Installs what is missing of a client.
pub(super) fn client(client: Client) -> Result<Installed> {
    let folder = client.folder();
    match client {
        Client::Confluent | Client::KafkaPython | Client::Aiokafka => python_program(&folder),
        Client::Kcat => {
            check_kcat()?;
            python_program(&folder)
        }
        Client::Kafkajs => node_program(client, &folder),
        Client::FranzGo | Client::Sarama => go_program(client, &folder),
        Client::Java => java_program(&folder),
    }
    .with_context(|| format!("install the client {}", client.name()))
}

fn python_program(folder: &Path) -> Result<Installed> {
    Ok(Installed::of([text(&python()?)?, text(&folder.join("client.py"))?]))
}

fn node_program(client: Client, folder: &Path) -> Result<Installed> {
    let locks = [folder.join("package.json"), folder.join("package-lock.json")];
    let modules = once(client.name(), &locks, |made| {
        for lock in &locks {
            fs::copy(lock, made.join(lock.file_name().unwrap_or_default()))?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix"])
            .arg(made);
        process::run(&mut npm)
    })?;
    let mut installed = Installed::of(["node".to_owned(), text(&folder.join("client.js"))?]);
    installed.environment.insert("NODE_PATH", text(&modules.join("node_modules"))?);
    Ok(installed)
}

fn go_program(client: Client, folder: &Path) -> Result<Installed> {
    let shared = sources().join("scenario-go");
    let own = ["go.mod", "go.sum", "main.go"].map(|name| folder.join(name));
    let all =
        [&own[..], &["go.mod", "scenario.go", "administration.go"].map(|name| shared.join(name))].concat();
    let built = once(client.name(), &all, |made| {
        let mut go = Command::new("go");
        go.arg("-C").arg(folder).args(["build", "-buildvcs=false", "-o"]).arg(made.join("client")).arg(".");
        process::run(&mut go)
    })?;
    Ok(Installed::of([text(&built.join("client"))?]))
}

fn java_locks() -> [PathBuf; 2] {
    ["pom.xml", "artifacts.sha256"].map(|name| Client::Java.folder().join(name))
}

/// The jars of Apache Kafka: clients, tools, and the server for the comparison.
pub(super) fn jars() -> Result<PathBuf> {
    let locks = java_locks();
    let [pom, checksums] = &locks;
    let folder = once("java-jars", &locks, |made| {
        let lib = made.join("lib");
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "-f"]).arg(pom).arg(COPY_JARS);
        process::run(maven.arg(format!("-DoutputDirectory={}", lib.display())))?;
        check_jars(&lib, checksums)
    })?;
    Ok(folder.join("lib"))
}

/// Maven pins versions, and takes what its repository has of them: the jars must be those of the list, and no others.
fn check_jars(lib: &Path, checksums: &Path) -> Result<()> {
    let text = fs::read_to_string(checksums).with_context(|| format!("read {}", checksums.display()))?;
    let listed: BTreeSet<&str> = text.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    for entry in fs::read_dir(lib).with_context(|| format!("read {}", lib.display()))? {
        let name = entry?.file_name();
        if !name.to_str().is_some_and(|name| listed.contains(name)) {
            bail!("{} is not in {}", name.display(), checksums.display());
        }
    }
    let mut check = Command::new("sha256sum");
    check.current_dir(lib).args(["--check", "--strict", "--quiet"]).arg(checksums);
    process::output(&mut check).map(drop)
}

fn java_program(folder: &Path) -> Result<Installed> {
    let jars = text(&jars()?.join("*"))?;
    let sources = ["Client", "Groups", "Member", "Run", "Scenarios", "Tools"]
        .map(|name| folder.join(format!("{name}.java")));
    let all = [&sources[..], &java_locks()].concat();
    let classes = once("java", &all, |made| {
        let mut compiler = Command::new("javac");
        compiler.args(["-Xlint:all,-processing,-classfile,-serial", "-Werror", "-cp", &jars, "-d"]).arg(made);
        process::run(compiler.args(&sources))
    })?;
    let class_path = format!("{}:{jars}", text(&classes)?);
    // Started once and gone in two minutes: the second compiler would only take its processors from the node.
    let machine =
        ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"].map(str::to_owned);
    let [java, heap, collector, compiler, flag] = machine;
    Ok(Installed::of([java, heap, collector, compiler, flag, class_path, "Client".to_owned()]))
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A folder of the cache that is made once for what these files hold. A part of it does not pass for the whole.
fn once(name: &str, locks: &[PathBuf], make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    for lock in locks {
        fs::read(lock).with_context(|| format!("read {}", lock.display()))?.hash(&mut hash);
    }
    let clients = process::cache()?.join("clients");
    let folder = clients.join(format!("{name}-{:016x}", hash.finish()));
    if folder.is_dir() {
        return Ok(folder);
    }
    println!("installing the client {name} into {}", folder.display());
    let part = clients.join(format!("{name}.part-{}", std::process::id()));
    fs::create_dir_all(&part)?;
    let made = make(&part);
    if let Err(error) = made {
        fs::remove_dir_all(&part)?;
        return Err(error);
    }
    // Another run may have been faster: what is there is as good.
    if fs::rename(&part, &folder).is_err() {
        fs::remove_dir_all(&part)?;
        if !folder.is_dir() {
            bail!("{} could not be moved to {}", part.display(), folder.display());
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jars_are_those_of_the_list_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let (lib, list) = (folder.path().join("lib"), folder.path().join("artifacts.sha256"));
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join("a.jar"), "a").unwrap();
        let sum = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        fs::write(&list, format!("{sum}  a.jar\n")).unwrap();
        check_jars(&lib, &list).unwrap();
        fs::write(lib.join("b.jar"), "b").unwrap();
        assert!(check_jars(&lib, &list).unwrap_err().to_string().starts_with("b.jar is not in "));
        fs::remove_file(lib.join("b.jar")).unwrap();
        fs::write(lib.join("a.jar"), "another").unwrap();
        assert!(check_jars(&lib, &list).is_err(), "its checksum");
        fs::remove_file(lib.join("a.jar")).unwrap();
        assert!(check_jars(&lib, &list).is_err(), "it is missing");
    }

    #[test]
    fn the_version_of_kcat_is_read_from_what_it_says() {
        let said = "kcat - Apache Kafka producer and consumer tool\nVersion 1.7.1 (JSON, librdkafka 2.0.2 builtin.features=gzip)\n";
        assert_eq!(kcat_version(said).as_deref(), Some("kcat 1.7.1 librdkafka 2.0.2"));
        assert_eq!(kcat_version("kcat"), None);
    }
}
