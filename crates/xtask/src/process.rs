//! Running programs: from the repository's root, with their failure told, and never left behind.

use std::{
    env, fs,
    hash::{BuildHasher as _, RandomState},
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, Signal, kill_process_group},
};

/// The root of the repository.
///
/// # Panics
/// Where this crate was moved out of `crates/xtask`.
#[must_use]
pub fn repository() -> PathBuf {
    // Cargo says where it runs this from: a target directory that several clones share may hold another one's build.
    let built_in = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let own = env::var_os("CARGO_MANIFEST_DIR").map_or_else(built_in, PathBuf::from);
    own.ancestors().nth(2).expect("xtask lies two folders deep").to_owned()
}

/// Where downloaded programs and test environments are kept between runs, outside of the repository.
///
/// # Errors
/// When the folder cannot be made.
pub fn cache() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(env::temp_dir);
    let folder = base.join("tidelog");
    fs::create_dir_all(&folder).with_context(|| format!("make the cache folder {}", folder.display()))?;
    Ok(folder)
}

/// Cargo's target directory as this run uses it.
#[must_use]
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// The built `tidelog` program.
#[must_use]
pub fn tidelog_binary() -> PathBuf {
    target().join("release/tidelog")
}

/// Runs a command from the repository's root and fails when it does.
///
/// # Errors
/// When it cannot be started or does not exit with 0.
pub fn run(command: &mut Command) -> Result<()> {
    command.current_dir(repository()).stdin(Stdio::null());
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Becomes a program, in the repository's root; only a failure returns.
///
/// # Errors
/// When it cannot be started.
pub fn become_program(command: &mut Command) -> Result<()> {
    let error = command.current_dir(repository()).exec();
    Err(error).with_context(|| format!("start {command:?}"))
}

/// The standard output of a command that must succeed; from the repository's root unless it names a folder.
///
/// # Errors
/// When it cannot be started or does not exit with 0; its standard error is in the text.
pub fn output(command: &mut Command) -> Result<String> {
    if command.get_current_dir().is_none() {
        command.current_dir(repository());
    }
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("the output is not UTF-8")
}

/// `cargo` as the one that runs this, and in the environment of its caller: without what cargo tells `xtask` of itself, so that
/// nothing is built otherwise than from the caller's shell.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// The path of a program, if it is on the PATH.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH")?;
    env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A TCP port of the loopback interface that nobody uses at this moment, below those that the kernel gives to sockets of
/// clients: one of these would else take it before the program does that it is for.
///
/// # Errors
/// When the machine gives none.
pub fn free_port() -> Result<u16> {
    let chance = RandomState::new();
    let ports = (0..100_u32).map(|turn| 10_000 + u16::try_from(chance.hash_one(turn) % 22_000).unwrap_or(0));
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().context("no port of a hundred is free")
}

/// Runs a program until it ends or the standard input of this script does, which is when whoever holds the other end of that
/// pipe has ended, however it did.
const WHILE_HELD: &str = r#"exec 3<&0; "$@" 3<&- </dev/null & program=$!
(cat <&3 >/dev/null; kill $program) & wait $program"#;

/// A program in the background, in a process group of its own, which ends with this value, and with this process even where
/// that is killed.
#[derive(Debug)]
pub struct Background {
    name: String,
    child: Child,
}

impl Background {
    /// Starts a program with its output in `log`.
    ///
    /// # Errors
    /// When the log cannot be written or the program not be started.
    pub fn start(name: &str, program: &Command, log: &Path) -> Result<Self> {
        let output = fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
        let mut command = Command::new("sh");
        command.args(["-c", WHILE_HELD, name]).arg(program.get_program()).args(program.get_args());
        for (variable, value) in program.get_envs() {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        if let Some(folder) = program.get_current_dir() {
            command.current_dir(folder);
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}: {program:?}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// Leaves the program to the one that this process becomes by `exec`: it ends when that one does.
    ///
    /// # Errors
    /// When the pipe cannot be passed on.
    pub fn leave_to_successor(mut self) -> Result<()> {
        let held = self.child.stdin.take().context("the program's pipe")?;
        fcntl_setfd(&held, FdFlags::empty()).context("pass the pipe on")?;
        // Neither is ended by this process any more.
        let _left = std::mem::ManuallyDrop::new((self, held));
        Ok(())
    }

    /// How the program ended, where it has.
    ///
    /// # Errors
    /// When that cannot be asked.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("ask for the end of {}", self.name))
    }

    /// Fails when the program has ended.
    ///
    /// # Errors
    /// With its exit status.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended with {status}", self.name),
            None => Ok(()),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        for signal in [Signal::TERM, Signal::KILL] {
            // The program may be gone already; that is what is wanted.
            let _ = group.map(|group| kill_process_group(group, signal));
            for _ in 0..50 {
                if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                    return;
                }
                pause(100);
            }
        }
    }
}

/// Waits for some milliseconds.
#[expect(clippy::disallowed_methods, reason = "xtask polls other programs and is never simulated")]
pub fn pause(milliseconds: u64) {
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}

/// The time now, to measure a stage.
#[expect(clippy::disallowed_methods, reason = "xtask measures real time and is never simulated")]
#[must_use]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_the_background_ends_with_its_value_and_with_the_pipe_of_its_starter() {
        let folder = env::temp_dir().join(format!("tidelog-background-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (log, pid_file) = (folder.join("log"), folder.join("pid"));
        let mut program = Command::new("sh");
        program.args(["-c", "echo $$ > \"$PID_FILE\"; exec sleep 1000"]).env("PID_FILE", &pid_file);
        let ended = |pid: Pid| {
            (0..100).any(|_| {
                rustix::process::test_kill_process(pid).is_err() || {
                    pause(50);
                    false
                }
            })
        };
        for by_pipe in [false, true] {
            let _ = fs::remove_file(&pid_file);
            let mut background = Background::start("sleeper", &program, &log).unwrap();
            let pid = (0..100)
                .find_map(|_| {
                    pause(50);
                    Pid::from_raw(fs::read_to_string(&pid_file).ok()?.trim().parse().ok()?)
                })
                .expect("the program tells its id");
            background.check_alive().unwrap();
            if by_pipe {
                drop(background.child.stdin.take());
                assert!(ended(pid), "it ends where nobody holds it");
            }
            drop(background);
            assert!(ended(pid), "it ends with its value");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
