//! Everything a figure was measured under.

use std::{fs, path::Path, process::Command};

use serde_json::{Map, Value, json};

use crate::process;

/// The machine, the software, the moment. What cannot be learned is left out.
pub(super) fn conditions(scratch: &Path) -> Map<String, Value> {
    let mut found = Map::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()) {
            found.insert(name.to_owned(), json!(value));
        }
    };
    add("date", output("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]));
    add("commit", commit());
    add("cpu", field("/proc/cpuinfo", "model name"));
    add("cores", output("nproc", &[]));
    add("memory", field("/proc/meminfo", "MemTotal"));
    add("kernel", fs::read_to_string("/proc/sys/kernel/osrelease").ok());
    add("rustc", output("rustc", &["--version"]));
    add("file_system", file_system(scratch));
    add("load_before", fs::read_to_string("/proc/loadavg").ok());
    add("governor", fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok());
    add("transparent_huge_pages", fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok());
    add("dirty_ratio", fs::read_to_string("/proc/sys/vm/dirty_ratio").ok());
    add("arguments", Some(std::env::args().skip(1).collect::<Vec<_>>().join(" ")));
    found
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    process::output(Command::new(program).args(arguments)).ok()
}

fn commit() -> Option<String> {
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changed = output("git", &["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changed.trim().is_empty() { "" } else { " with uncommitted changes" };
    Some(format!("{}{mark}", commit.trim()))
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(field, _)| field.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.to_str()?;
    let line = output("df", &["--output=source,fstype,avail", "-BG", folder])?;
    Some(line.lines().nth(1)?.split_whitespace().collect::<Vec<_>>().join(" "))
}
