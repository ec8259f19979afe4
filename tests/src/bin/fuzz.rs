//! libFuzzer over one target. `cargo xtask fuzz` builds and runs it; by hand it is told by its environment what to do:
//! `TIDELOG_FUZZ_TARGET` names the target, `TIDELOG_FUZZ_SEEDS` a folder for the target's seeds, and `TIDELOG_FUZZ_LIST`
//! prints all targets and ends. Everything else is libFuzzer's own arguments.
#![no_main]
#![allow(clippy::print_stdout, reason = "a tool for people speaks on standard output")]
#![allow(clippy::exit, reason = "libFuzzer's main asks for nothing before it begins")]
#![allow(unsafe_code, reason = "libFuzzer calls functions of C's conventions, which its macro writes")]

use std::{env, fs, path::Path, sync::OnceLock};

use tidelog_tests::fuzz::{
    TARGETS, Target,
    allocation::{Counting, assert_counting},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn begin() {
    if env::var_os("TIDELOG_FUZZ_LIST").is_some() {
        TARGETS.iter().for_each(|target| println!("{} {}", target.name, target.bytes_max));
        std::process::exit(0);
    }
    assert_counting();
    let name = env::var("TIDELOG_FUZZ_TARGET").expect("TIDELOG_FUZZ_TARGET names a target");
    let target = Target::find(&name).unwrap_or_else(|| panic!("there is no target `{name}`"));
    if let Some(folder) = env::var_os("TIDELOG_FUZZ_SEEDS") {
        for (index, seed) in target.seeds().iter().enumerate() {
            let path = Path::new(&folder).join(format!("seed-{index:05}"));
            fs::write(&path, seed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
    TARGET.get_or_init(|| target);
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| {
    (TARGET.get().expect("it was named at the beginning").run)(bytes);
});
