//! A real process of the program, and a folder for its files.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
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

    fn ended(&self, status: ExitStatus) -> Ended {
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

    /// Runs a verb against it and gives its document.
    pub(crate) async fn verb(&self, arguments: &[&str]) -> Value {
        let (flag, address) =
            if arguments[0] == "tier" { ("--admin", self.admin()) } else { ("--bootstrap", self.address()) };
        let ended = run(&[arguments, &[flag, &address, "--json"]].concat()).await;
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        serde_json::from_str(&ended.output).unwrap()
    }

    /// Writes lines to a topic.
    pub(crate) async fn produce(&self, topic: &str, lines: &str) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, lines).unwrap();
        let mut command = tidelog(&["produce", topic, "--bootstrap", &self.address(), "--json"]);
        let done = command.stdin(File::open(&path).unwrap()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
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
