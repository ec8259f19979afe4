//! The `tidelog` program.

use std::process::ExitCode;

use clap::Parser as _;
use mimalloc::MiMalloc;

// Frames of megabytes come and go on every connection; glibc's allocator keeps their pages scattered and resident.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Huge pages would round the allocator's sparse pages up to 2 MiB each: an idle node would be half as large again.
    // Where the kernel has none there is nothing to turn off.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    tidelog::cli::run(tidelog::cli::CommandLine::parse())
}
