//! After the build, `cargo run --release` compiles no crate of a registry again.

use anyhow::{Result, bail};
use serde::Deserialize;

use crate::process;

/// The part of cargo's messages that tells what was compiled.
#[derive(Deserialize)]
struct Artifact {
    reason: String,
    package_id: String,
    fresh: bool,
}

/// Runs the README's command as a newcomer would, and looks at what cargo compiled for it.
pub(super) fn check() -> Result<()> {
    let mut run = process::cargo();
    run.args(["run", "--release", "--quiet", "--message-format", "json", "--", "--version"]);
    let again = compiled_again(&process::output(&mut run)?);
    if !again.is_empty() {
        bail!("after the build, `cargo run --release` compiled again:\n  {}", again.join("\n  "));
    }
    println!("`cargo run --release` compiles no registry crate again");
    Ok(())
}

/// The packages of registries that cargo did not find built. Lines that are no messages are the program's own.
fn compiled_again(messages: &str) -> Vec<String> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.reason == "compiler-artifact" && !artifact.fresh)
        .map(|artifact| artifact.package_id)
        .filter(|package| package.starts_with("registry+"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_crate_that_was_compiled_is_found_and_our_own_are_not() {
        let line = |package: &str, fresh: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{package}","target":{{}},"fresh":{fresh}}}"#
            )
        };
        let messages = [
            line("registry+https://example.org/index#bytes@1.0.0", true),
            line("registry+https://example.org/index#tokio@1.0.0", false),
            line("path+file:///src#tidelog@0.1.0", false),
            "tidelog 0.1.0".to_owned(),
        ];
        assert_eq!(compiled_again(&messages.join("\n")), ["registry+https://example.org/index#tokio@1.0.0"]);
    }
}
