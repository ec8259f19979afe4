//! Every `select!` of the product and of what tests it is `biased`: else tokio draws the order of its branches from chance of
//! its own, which no seed decides, and no simulation is the same twice.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Where sources are.
const FOLDERS: [&str; 2] = ["crates", "tests"];

pub(super) fn check() -> Result<()> {
    let mut findings = Vec::new();
    for folder in FOLDERS {
        read_sources(&process::repository().join(folder), &mut |path, text| {
            findings.extend(drawn(text).map(|line| format!("{}:{line}", path.display())));
        })?;
    }
    if findings.is_empty() {
        return Ok(());
    }
    bail!("`select!` without `biased;`, and a comment on its order:\n  {}", findings.join("\n  "))
}

/// Gives every source file of a folder.
fn read_sources(folder: &Path, take: &mut impl FnMut(&Path, &str)) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            read_sources(&path, take)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            take(&path, &fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(())
}

/// The lines, from 1, of those that do not begin with `biased;`, comments aside.
fn drawn(source: &str) -> impl Iterator<Item = usize> {
    source.lines().enumerate().filter_map(move |(number, line)| {
        let opens = line.trim_end().ends_with(concat!("select", "! {"));
        let first = source.lines().skip(number + 1).map(str::trim).find(|line| !line.starts_with("//"));
        (opens && first != Some("biased;")).then_some(number + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_select_is_biased() {
        check().unwrap();
    }

    #[test]
    fn one_that_is_not_is_found() {
        let open = concat!("    let one = tokio::select", "! {\n");
        let biased =
            format!("{open}        // The end first.\n        biased;\n        () = a => {{}}\n    }};\n");
        let drawing = format!("{open}        () = a => {{}}\n    }};\n");
        assert_eq!(drawn(&format!("{biased}{drawing}")).collect::<Vec<_>>(), [6]);
    }
}
