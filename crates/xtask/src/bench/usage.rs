//! What a process has used, from `/proc/PID`.

use std::fs;

use anyhow::{Context as _, Result};

/// Clock ticks in a second: a constant of Linux's interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system CPU seconds of a process so far, all threads.
pub(super) fn cpu_seconds(id: u32) -> Result<f64> {
    let path = format!("/proc/{id}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    stat_seconds(&text).with_context(|| format!("understand {path}"))
}

fn stat_seconds(text: &str) -> Option<f64> {
    // The program's name stands in parentheses and may hold blanks; user and system time are the 14th and 15th field.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// A field of `/proc/PID/status` in MiB: `VmRSS`, `VmHWM`, `RssAnon`, `RssFile`.
pub(super) fn status_mib(id: u32, field: &str) -> Result<f64> {
    let path = format!("/proc/{id}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    kib(&text, field).map(|kib| kib / 1024.0).with_context(|| format!("{path} has no {field}"))
}

/// The page cache of the machine in MiB.
pub(super) fn page_cache_mib() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    kib(&text, "Cached").map(|kib| kib / 1024.0).context("/proc/meminfo has no Cached")
}

/// Starts the measure of the peak anew: `VmHWM` is then of what follows.
pub(super) fn reset_peak(id: u32) -> Result<()> {
    fs::write(format!("/proc/{id}/clear_refs"), "5").context("reset the peak of resident memory")
}

fn kib(text: &str, field: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_behind_a_name_with_blanks_and_parentheses() {
        let line = "42 (a (b) c) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 9 0";
        assert_eq!(stat_seconds(line), Some(2.0));
        assert_eq!(stat_seconds("42 (x) S"), None);
    }

    #[test]
    fn sizes_are_found_by_their_whole_name() {
        let text = "VmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kib(text, "VmRSS"), Some(1024.0));
        assert_eq!(kib(text, "Vm"), None);
    }
}
