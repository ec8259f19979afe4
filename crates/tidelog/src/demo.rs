//! The demo.
mod flights;
mod load;
mod picture;
mod progress;
mod replay;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

pub(crate) fn run(_options: &Options) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("the demo")
}
