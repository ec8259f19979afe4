//! Log lines on standard error, and how a verb says why it failed.

use std::io::Write as _;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// What is logged where `TIDELOG_LOG` says nothing: our own events, and of the libraries what needs a person.
const FILTER_DEFAULT: &str = "warn,tidelog=info,tidelog_broker=info,tidelog_controller=info,tidelog_log=info,\
                              tidelog_object=info,tidelog_replica=info,tidelog_runtime=info,tidelog_tier=info,openraft=error";

/// Starts logging. A second call changes nothing.
pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("TIDELOG_LOG").unwrap_or_else(|_| EnvFilter::new(FILTER_DEFAULT));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that a test or an embedding program logs already.
    let _ = match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// Says on standard error why a verb failed, cause by cause.
pub fn complain(error: &anyhow::Error) {
    // Where standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
}
