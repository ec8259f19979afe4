//! librdkafka, pinned, and the driver on it: fetched and compiled once, outside of the workspace's build.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// The crate whose package carries librdkafka's source: 2.12.1.
const SOURCE_CRATE: &str = "=4.10.0";

/// What the driver needs no library for: TLS, SASL, HTTP, compression.
const CONFIGURE: [&str; 9] = [
    "--disable-ssl",
    "--disable-gssapi",
    "--disable-curl",
    "--disable-zstd",
    "--disable-zlib",
    "--disable-lz4-ext",
    "--disable-regex-ext",
    "--disable-c11threads",
    "--enable-static",
];

/// The compiled driver; installs what is missing.
pub(super) fn driver() -> Result<PathBuf> {
    let folder = process::cache()?.join("librdkafka");
    let build = folder.join("build");
    let library = build.join("src/librdkafka.a");
    let marker = folder.join("installed");
    let wanted = format!("rdkafka-sys {SOURCE_CRATE} {}", CONFIGURE.join(" "));
    let is_new =
        !library.is_file() || fs::read_to_string(&marker).map_or(true, |installed| installed != wanted);
    if is_new {
        println!("building librdkafka in {} (a minute, once)", folder.display());
        install(&folder, &build)?;
        fs::write(&marker, wanted).context("remember what is installed")?;
    }
    let source = process::repository().join("benches/driver/driver.c");
    let (program, copy) = (folder.join("driver"), folder.join("driver.c"));
    let text = fs::read(&source).with_context(|| format!("read {}", source.display()))?;
    if is_new || !program.is_file() || fs::read(&copy).map_or(true, |built| built != text) {
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-Wall", "-isystem"]).arg(build.join("src")).arg(&source).arg(&library);
        process::run(compile.arg("-o").arg(&program).args(["-lpthread", "-lm", "-ldl", "-lrt"]))?;
        fs::write(&copy, text).context("remember what is compiled")?;
    }
    Ok(program)
}

fn install(folder: &Path, build: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    // Cargo is the client of the registry: a package that depends on the crate, and its sources in a folder.
    let manifest = format!(
        "[package]\nname = \"fetch-librdkafka\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [dependencies]\nrdkafka-sys = {{ version = \"{SOURCE_CRATE}\", default-features = false }}\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("lib.rs"), "")?;
    inside(folder, process::cargo().args(["vendor", "--quiet", "vendor"]))?;
    if build.exists() {
        fs::remove_dir_all(build)?;
    }
    inside(folder, Command::new("cp").args(["-r", "vendor/rdkafka-sys/librdkafka", "build"]))?;
    inside(build, Command::new("chmod").args(["-R", "u+rwX", "."]))?;
    inside(build, Command::new("chmod").args(["u+x", "configure"]))?;
    inside(build, Command::new("./configure").args(CONFIGURE))?;
    inside(build, Command::new("make").args(["-j2", "-C", "src", "librdkafka.a"]))
}

/// Runs a command in a folder, its output in a log there.
fn inside(folder: &Path, command: &mut Command) -> Result<()> {
    let log = folder.join("bench-build.log");
    let output = fs::File::create(&log)?;
    command.current_dir(folder).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    if !status.success() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let end: Vec<&str> = text.lines().rev().take(20).collect();
        bail!("{command:?} ended with {status}:\n{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    Ok(())
}
