//! Real S3 servers without containers: installed where they are missing, started on a free port, ended with the value.
//!
//! LocalStack comes from PyPI under the constraint files of `localstack/constraints` (its newer dependencies break
//! it), versitygw from its Go module. MinIO is the user's own program, since its licence does not go with ours.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::process::{self, Background};

/// The stores that a node can be tried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum StoreKind {
    /// A folder.
    File,
    /// LocalStack, the AWS emulator.
    Localstack,
    /// versitygw, an S3 server over a folder.
    Versitygw,
    /// MinIO, where the machine has it.
    Minio,
}

impl StoreKind {
    /// Its name in file names and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Localstack => "localstack",
            Self::Versitygw => "versitygw",
            Self::Minio => "minio",
        }
    }

    /// Whether it refuses keys and secrets that it does not know.
    #[must_use]
    pub const fn checks_keys(self) -> bool {
        !matches!(self, Self::Localstack)
    }

    /// The stores that this machine can run: MinIO only where it is on the PATH.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut kinds = vec![Self::File, Self::Localstack, Self::Versitygw];
        if process::find_program("minio").is_some() {
            kinds.push(Self::Minio);
        }
        kinds
    }
}

const ACCESS_KEY: &str = "tidelog-local";
const SECRET_KEY: &str = "tidelog-local-secret";
const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

/// A store that runs as long as this value lives.
#[derive(Debug)]
pub struct RunningStore {
    /// Which one.
    pub kind: StoreKind,
    /// What `--store` takes.
    pub url: String,
    /// What `--store-endpoint` takes; none for a folder.
    pub endpoint: Option<String>,
    /// Credentials and region, as the AWS SDK reads them.
    pub environment: Vec<(&'static str, String)>,
    server: Option<Background>,
}

impl RunningStore {
    /// Leaves the server to the program that this process becomes.
    ///
    /// # Errors
    /// When that cannot be arranged.
    pub fn leave_to_successor(self) -> Result<()> {
        self.server.map_or(Ok(()), Background::leave_to_successor)
    }
}

/// Installs what is missing and starts a store with its files under `folder`. The bucket `bucket` is named, not made.
///
/// # Errors
/// With what could not be installed, or why the server did not answer within its time.
pub fn start(kind: StoreKind, folder: &Path, bucket: &str) -> Result<RunningStore> {
    // Said before a folder is made for it.
    let minio = if kind == StoreKind::Minio { Some(minio_program()?) } else { None };
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let port = process::free_port()?;
    let (server, health, seconds) = match kind {
        StoreKind::File => {
            let root = folder.join(bucket);
            let url = format!("file://{}", root.display());
            return Ok(RunningStore { kind, url, endpoint: None, environment: Vec::new(), server: None });
        }
        StoreKind::Localstack => (start_localstack(folder, port)?, "/_localstack/health", 120),
        StoreKind::Versitygw => (start_versitygw(folder, port)?, "/", 30),
        StoreKind::Minio => {
            (start_minio(&minio.unwrap_or_default(), folder, port)?, "/minio/health/live", 30)
        }
    };
    let mut server = server;
    wait_for_http(&mut server, port, health, seconds)
        .with_context(|| format!("{} did not answer; its log is in {}", kind.name(), folder.display()))?;
    Ok(RunningStore {
        kind,
        url: format!("s3://{bucket}/{}", kind.name()),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        environment: vec![
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ],
        server: Some(server),
    })
}

/// Makes a virtual environment under the cache, once for each list of what is in it, and gives its `python`.
///
/// # Errors
/// When Python or a package cannot be had.
pub fn python_environment(name: &str, requirements: &[&str], constraints: Option<&Path>) -> Result<PathBuf> {
    let wanted = requirements.join("\n");
    environment_once(name, &wanted, &requirements.join(", "), |pip| {
        if let Some(constraints) = constraints {
            pip.arg("-c").arg(constraints);
        }
        pip.args(requirements);
    })
}

/// As [`python_environment`], of what a lock file names, each package by its version and by the hashes of its archives.
///
/// # Errors
/// As there, and when an archive is another one.
pub fn locked_environment(name: &str, lock: &Path) -> Result<PathBuf> {
    let wanted = fs::read_to_string(lock).with_context(|| format!("read {}", lock.display()))?;
    environment_once(name, &wanted, &lock.display().to_string(), |pip| {
        // An archive of the machine's own has another hash than the one that is locked, and would be taken first.
        pip.args(["--require-hashes", "-r"]).arg(lock).env_remove("PIP_FIND_LINKS");
    })
}

fn environment_once(name: &str, wanted: &str, what: &str, say: impl FnOnce(&mut Command)) -> Result<PathBuf> {
    let folder = process::cache()?.join(format!("venv-{name}"));
    let python = folder.join("bin/python");
    let marker = folder.join("requirements.installed");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    println!("installing {what} into {}", folder.display());
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    say(&mut pip);
    process::run(&mut pip)?;
    fs::write(&marker, wanted).context("remember what is installed")?;
    Ok(python)
}

/// The second number of Python's version.
///
/// # Errors
/// When there is no Python.
pub fn python_minor() -> Result<u32> {
    let minor =
        process::output(Command::new("python3").args(["-c", "import sys; print(sys.version_info[1])"]))?;
    minor.trim().parse().context("Python's version")
}

fn start_localstack(folder: &Path, port: u16) -> Result<Background> {
    let (version, constraints) = match python_minor()? {
        0..=10 => bail!("LocalStack needs Python 3.11 or newer"),
        11 => ("localstack-core[runtime]==4.13.1", "ls-constraints-4.13.1-py311.txt"),
        _ => ("localstack-core[runtime]==4.14.0", "ls-constraints-4.14.0-py313.txt"),
    };
    let constraints = process::repository().join("localstack/constraints").join(constraints);
    let python = python_environment("localstack", &[version], Some(&constraints))?;
    let mut command = Command::new(python);
    command
        .args(["-m", "localstack.runtime.main"])
        .current_dir(folder)
        .env("SERVICES", "s3")
        .env("EAGER_SERVICE_LOADING", "1")
        .env("DISABLE_EVENTS", "1")
        .env("SKIP_SSL_CERT_DOWNLOAD", "1")
        .env("DNS_ADDRESS", "0")
        .env("GATEWAY_LISTEN", format!("127.0.0.1:{port}"))
        .env("LOCALSTACK_VOLUME_DIR", folder.join("volume"))
        .env("FILESYSTEM_ROOT", folder.join("files"));
    Background::start("localstack", &command, &folder.join("localstack.log"))
}

fn start_versitygw(folder: &Path, port: u16) -> Result<Background> {
    let programs = process::cache()?.join("bin");
    let program = programs.join("versitygw");
    if !program.is_file() {
        println!("building {VERSITYGW} into {}", programs.display());
        process::run(Command::new("go").args(["install", VERSITYGW]).env("GOBIN", &programs))?;
    }
    let objects = folder.join("objects");
    let attributes = folder.join("attributes");
    fs::create_dir_all(&objects)?;
    fs::create_dir_all(&attributes)?;
    let mut command = Command::new(program);
    command
        .arg("--port")
        .arg(format!("127.0.0.1:{port}"))
        .args(["posix", "--sidecar"])
        .arg(&attributes)
        .arg(&objects)
        .env("ROOT_ACCESS_KEY", ACCESS_KEY)
        .env("ROOT_SECRET_KEY", SECRET_KEY);
    Background::start("versitygw", &command, &folder.join("versitygw.log"))
}

fn minio_program() -> Result<PathBuf> {
    process::find_program("minio").context(
        "there is no `minio` on the PATH. MinIO is licensed under the AGPL, so Tidelog neither ships nor installs it: \
         `go install github.com/minio/minio@latest` builds one, or use `--store versitygw`",
    )
}

fn start_minio(program: &Path, folder: &Path, port: u16) -> Result<Background> {
    let objects = folder.join("objects");
    fs::create_dir_all(&objects)?;
    let mut command = Command::new(program);
    command
        .args(["server", "--address", &format!("127.0.0.1:{port}")])
        .arg(&objects)
        .env("MINIO_ROOT_USER", ACCESS_KEY)
        .env("MINIO_ROOT_PASSWORD", SECRET_KEY);
    Background::start("minio", &command, &folder.join("minio.log"))
}

/// Waits until a server answers HTTP at all: 403 is an answer.
fn wait_for_http(server: &mut Background, port: u16, path: &str, seconds: u64) -> Result<()> {
    for _ in 0..seconds * 5 {
        server.check_alive()?;
        if answers_http(port, path) {
            return Ok(());
        }
        process::pause(200);
    }
    bail!("no answer on 127.0.0.1:{port}{path} within {seconds} s")
}

/// Whether an HTTP server answers on a port of the loopback interface.
#[must_use]
pub fn answers_http(port: u16, path: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let limit = Some(Duration::from_secs(5));
    if stream.set_read_timeout(limit).is_err() || stream.set_write_timeout(limit).is_err() {
        return false;
    }
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    let mut answer = [0_u8; 5];
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && &answer == b"HTTP/"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_not_there_leaves_nothing() {
        if process::find_program("minio").is_some() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("tidelog-no-minio-{}", std::process::id()));
        let told = start(StoreKind::Minio, &folder, "b").unwrap_err().to_string();
        assert!(told.contains("no `minio` on the PATH"), "{told}");
        assert!(!folder.exists());
    }
}
