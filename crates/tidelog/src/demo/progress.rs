//! Progress on standard error: bars on a terminal, plain lines elsewhere.

use std::{fmt, io::IsTerminal as _};

use indicatif::{HumanFloatCount, ProgressBar, ProgressState, ProgressStyle};

/// Where the demo tells what it does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    on_terminal: bool,
}

/// One step.
#[derive(Debug)]
pub(super) struct Bar {
    name: &'static str,
    bar: Option<ProgressBar>,
    total: u64,
}

impl Progress {
    /// Bars where standard error is a terminal.
    pub(super) fn new() -> Self {
        Self { on_terminal: std::io::stderr().is_terminal() }
    }

    /// Begins a step of `total` units.
    pub(super) fn step(self, name: &'static str, total: u64) -> Bar {
        let bar = self.on_terminal.then(|| {
            let style = ProgressStyle::with_template(
                "{msg:<16} {bar:40.cyan} {human_pos}/{human_len}  {rate}",
            )
            .map(|style| {
                style.with_key("rate", |state: &ProgressState, line: &mut dyn fmt::Write| {
                    // A line that cannot be drawn is drawn again.
                    let _ = line.write_str(&rate(state.per_sec()));
                })
            });
            let bar = ProgressBar::new(total).with_message(name);
            match style {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        if bar.is_none() {
            self.say(&format!("{name} …"));
        }
        Bar { name, bar, total }
    }

    /// Says a line.
    #[expect(clippy::unused_self, reason = "what is said goes where the bars go")]
    pub(super) fn say(self, line: &str) {
        use std::io::Write as _;
        // Where standard error is closed there is nobody to tell.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

impl Bar {
    /// So many more are done.
    pub(super) fn add(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(count);
        }
    }

    /// So many are done.
    pub(super) fn set(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(count.min(self.total));
        }
    }

    /// The step is over.
    pub(super) fn done(&self) {
        match &self.bar {
            Some(bar) => bar.finish(),
            None => tracing::debug!(step = self.name, "done"),
        }
    }
}

/// A rate for people: whole units a second.
fn rate(per_second: f64) -> String {
    format!("{:.0}/s", HumanFloatCount(per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_no_fractions() {
        assert_eq!(rate(118_250.355_8), "118,250/s");
        assert_eq!(rate(0.0), "0/s");
    }
}
