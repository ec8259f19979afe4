//! Log lines on standard error, and how a verb says why it failed.

use std::io::{IsTerminal as _, Write as _};

use tracing_subscriber::{
    Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    config::LogFormat,
    printable::{printable, printable_lines},
};

/// What is logged where `TIDELOG_LOG` says nothing: our own events, and of the libraries what needs a person.
const FILTER_DEFAULT: &str = "warn,tidelog=info,tidelog_broker=info,tidelog_controller=info,tidelog_log=info,\
                              tidelog_object=info,tidelog_replica=info,tidelog_runtime=info,tidelog_tier=info,openraft=error,aws_config=error,\
                              aws_runtime=error";

/// What is logged of a command that speaks to a person. The SDK warns of each place where no keys are; what that means is told
/// by our own words.
const FILTER_QUIET: &str = "warn,openraft=error,aws_config=error,aws_runtime=error";

/// Starts logging. A second call changes nothing.
pub fn start(format: LogFormat) {
    let filter = filter(std::env::var("TIDELOG_LOG").ok().as_deref(), FILTER_DEFAULT);
    let lines = tracing_subscriber::fmt::layer()
        // A closed standard error is no reason to panic over a log line.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // An error means that a test or an embedding program logs already.
    let _ = match format {
        LogFormat::Text => tracing_subscriber::registry().with(lines.with_filter(filter)).try_init(),
        LogFormat::Json => tracing_subscriber::registry()
            .with(lines.json().flatten_event(true).with_filter(filter))
            .try_init(),
    };
}

/// Starts logging for a command that speaks to a person: only what needs one.
pub fn start_quiet() {
    let filter = filter(std::env::var("TIDELOG_LOG").ok().as_deref(), FILTER_QUIET);
    let lines = tracing_subscriber::fmt::layer()
        // A closed standard error is no reason to panic over a log line.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // An error means that a test or an embedding program logs already.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
}

/// What is logged: what was asked for, where that is a filter.
///
/// openraft warns of each answer that comes after the vote it belongs to, which every first start has. What matters of it our
/// controller says; whoever wants its own words names it.
fn filter(asked: Option<&str>, otherwise: &str) -> Targets {
    let asked = asked.and_then(|text| {
        let quiet = if text.contains("openraft") { "" } else { ",openraft=error" };
        format!("{text}{quiet}").parse().ok()
    });
    asked
        .or_else(|| otherwise.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(tracing::Level::INFO))
}

/// Says on standard error why a verb failed, cause by cause.
pub fn complain(error: &anyhow::Error) {
    // Where standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "error: {}", printable_lines(&format!("{error:#}")));
}

/// Says on standard error what a verb's output does not: what it left undone, what a cell without a value is for.
pub fn remark(words: &str) {
    // Where standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "note: {}", printable(words));
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn openraft_is_heard_where_it_is_named() {
        let hears =
            |asked, level| filter(asked, FILTER_DEFAULT).would_enable("openraft::core::raft_core", &level);
        for asked in [None, Some("info"), Some("warn,tidelog=debug"), Some("not==a filter")] {
            assert!(!hears(asked, Level::WARN), "{asked:?}");
            assert!(hears(asked, Level::ERROR), "{asked:?}");
        }
        assert!(hears(Some("info,openraft=debug"), Level::DEBUG));
        assert!(filter(Some("debug"), FILTER_QUIET).would_enable("tidelog_tier", &Level::DEBUG));
        assert!(!filter(None, FILTER_QUIET).would_enable("tidelog_tier", &Level::INFO));
    }
}
