//! The `tidelog` program.

use std::process::ExitCode;

use clap::Parser as _;
use mimalloc::MiMalloc;

// Frames of megabytes come and go on every connection; glibc's allocator keeps their pages scattered and resident.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    tidelog::cli::run(tidelog::cli::CommandLine::parse())
}
