//! A real process of the program, and a folder for its files.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// How long a process may take that has nothing to wait for: a loaded machine is slow, and what hangs, hangs longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The program without what the test's own environment would configure.
pub(crate) fn tidelog(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog"));
    for (name, _) in std::env::vars() {
        if name.starts_with("TIDELOG_") || name.starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    // No file and no address of the machine gives keys: what a test means, it says.
    command.env("AWS_CONFIG_FILE", "/nowhere").env("AWS_SHARED_CREDENTIALS_FILE", "/nowhere");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    command.args(arguments);
    command
}

/// What a process that ended left.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) took: Duration,
}

/// Runs the program to its end, at most [`PATIENCE`] long.
pub(crate) async fn run(arguments: &[&str]) -> Ended {
    run_command(tidelog(arguments)).await
}

/// The same for a command that is prepared.
pub(crate) async fn run_command(command: Command) -> Ended {
    let mut process = Process::spawn(command);
    let status = process.wait(PATIENCE).await;
    process.ended(status)
}

/// A process with its output in files; it ends with the value.
pub(crate) struct Process {
    child: Child,
    folder: TempDir,
    begun: tokio::time::Instant,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub(crate) fn spawn(mut command: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(folder.path().join(name)).unwrap();
        command.stdin(Stdio::null()).stdout(file("output")).stderr(file("errors"));
        let child = command.spawn().unwrap();
        Self { child, folder, begun: tokio::time::Instant::now() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).unwrap()
    }

    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("errors")).unwrap()
    }

    pub(crate) fn ended(&self, status: ExitStatus) -> Ended {
        Ended {
            code: status.code(),
            output: self.output(),
            errors: self.errors(),
            took: self.begun.elapsed(),
        }
    }

    /// Waits for its end.
    pub(crate) async fn wait(&mut self, patience: Duration) -> ExitStatus {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "it did not end: {}", self.errors());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

/// Waits until `condition` gives something.
pub(crate) async fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A node that serves.
pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) report: Value,
}

/// What every `serve` of these tests is given: free ports, and a directory.
pub(crate) fn serve(data_dir: &Path, more: &[&str]) -> Command {
    let mut arguments =
        vec!["serve", "--json", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir"];
    arguments.push(data_dir.to_str().unwrap());
    arguments.extend(more);
    tidelog(&arguments)
}

impl Node {
    /// Starts a node and waits until it serves.
    pub(crate) async fn start(command: Command) -> Self {
        let mut process = Process::spawn(command);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let report = loop {
            if let Ok(report) = serde_json::from_str(&process.output()) {
                break report;
            }
            assert!(process.child.try_wait().unwrap().is_none(), "it ended: {}", process.errors());
            assert!(tokio::time::Instant::now() < deadline, "it does not serve: {}", process.errors());
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        Self { process, report }
    }

    pub(crate) fn address(&self) -> String {
        self.report["listeners"][0][1].as_str().unwrap().to_owned()
    }

    pub(crate) fn admin(&self) -> String {
        self.report["admin"].as_str().unwrap().to_owned()
    }

    /// Runs a verb against it to its end, with its document on standard output.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Ended {
        let asks_admin = matches!(arguments, ["tier", ..] | ["cluster", "fences" | "lift-fence", ..]);
        let (flag, address) =
            if asks_admin { ("--admin", self.admin()) } else { ("--bootstrap", self.address()) };
        run(&[arguments, &[flag, &address, "--json"]].concat()).await
    }

    /// The same, as a person sees it.
    pub(crate) async fn run_plain(&self, arguments: &[&str]) -> Ended {
        run(&[arguments, &["--bootstrap", &self.address()]].concat()).await
    }

    /// Runs a verb against it and gives its document.
    pub(crate) async fn verb(&self, arguments: &[&str]) -> Value {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        serde_json::from_str(&ended.output).unwrap()
    }

    /// A metric without labels, as it is now.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.admin()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name}")).trim().parse().unwrap()
    }

    /// The values of a topic's records.
    pub(crate) async fn values(&self, topic: &str) -> Vec<String> {
        let read = self.verb(&["consume", topic]).await;
        let records = read["records"].as_array().unwrap();
        records.iter().map(|record| record["value"].as_str().unwrap().to_owned()).collect()
    }

    /// Writes lines to a topic.
    pub(crate) async fn produce(&self, topic: &str, lines: &str) {
        let done = self.try_produce(topic, lines);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// The same where it may fail.
    pub(crate) fn try_produce(&self, topic: &str, lines: &str) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, lines).unwrap();
        let mut command = tidelog(&["produce", topic, "--bootstrap", &self.address(), "--json"]);
        command.stdin(File::open(&path).unwrap()).output().unwrap()
    }

    /// Waits for its end, which it comes to by itself.
    pub(crate) async fn end(mut self) -> Ended {
        let status = self.process.wait(Duration::from_secs(40)).await;
        self.process.ended(status)
    }

    /// SIGTERM, and its end.
    pub(crate) async fn stop(mut self) -> Ended {
        self.process.signal("-TERM");
        let status = self.process.wait(Duration::from_secs(30)).await;
        self.process.ended(status)
    }
}

/// A folder for data directories.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A store in it.
    pub(crate) fn store(&self, name: &str) -> String {
        format!("file://{}", self.path(name).display())
    }
}
