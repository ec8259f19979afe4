//! CPU seconds of this process or thread, as the kernel counts them.

use std::fs;

use anyhow::{Context as _, Result};

/// Clock ticks of `/proc/…/stat` in a second: a constant of Linux's interface (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system seconds of the process so far.
///
/// # Errors
/// Where `/proc` is not Linux's.
pub fn process_seconds() -> Result<f64> {
    seconds("/proc/self/stat")
}

/// User and system seconds of the calling thread so far, in units of a nanosecond where the kernel keeps them.
///
/// # Errors
/// Where `/proc` is not Linux's.
pub fn thread_seconds() -> Result<f64> {
    // The first field of schedstat is the time on the CPU in nanoseconds.
    let text = fs::read_to_string("/proc/thread-self/schedstat");
    match text.ok().and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok()) {
        Some(nanoseconds) => Ok(nanoseconds / 1e9),
        None => seconds("/proc/thread-self/stat"),
    }
}

fn seconds(path: &str) -> Result<f64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    // The program's name stands in parentheses and may hold blanks.
    let (_, rest) = text.rsplit_once(')').with_context(|| format!("{path} has no name"))?;
    let mut ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    let mut next =
        || ticks.next().with_context(|| format!("{path} ends early"))?.context("a number of ticks");
    Ok((next()? + next()?) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_some_time_and_never_less_than_before() {
        let before = process_seconds().unwrap();
        let after = process_seconds().unwrap();
        assert!(after >= before);
        assert!(thread_seconds().unwrap() > 0.0);
    }
}
