//! Every metric of the product against the list in `docs/OPERATIONS.md`.
//!
//! A metric's name is a literal that begins with its crate's name, or with a word of its own, and stands in that crate's
//! sources, tests aside. What the page names in the same form must be one of them.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Crates that register metrics, each with what their names begin with.
const CRATES: [(&str, &str); 8] = [
    ("broker", "broker"),
    // What operators know groups by, whichever crate coordinates them.
    ("broker", "group"),
    ("controller", "controller"),
    ("log", "log"),
    ("object", "object"),
    ("replica", "replica"),
    ("runtime", "runtime"),
    ("tier", "tier"),
];

const PAGE: &str = "docs/OPERATIONS.md";

pub(super) fn check() -> Result<()> {
    let mut registered = BTreeSet::new();
    for (name, prefix) in CRATES {
        let sources = process::repository().join("crates").join(name).join("src");
        read_sources(&sources, &mut |text| registered.extend(registered_in(prefix, text)))?;
    }
    let page = process::repository().join(PAGE);
    let page = fs::read_to_string(&page).with_context(|| format!("read {}", page.display()))?;
    let findings = findings(&registered, &named_in(&page));
    println!("metrics: {} registered", registered.len());
    if findings.is_empty() { Ok(()) } else { bail!("{PAGE}:\n  {}", findings.join("\n  ")) }
}

/// Gives every source file of a folder, but for tests.
fn read_sources(folder: &Path, take: &mut impl FnMut(&str)) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests") {
                read_sources(&path, take)?;
            }
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && path.file_name().is_some_and(|name| name != "tests.rs")
        {
            take(&fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(())
}

/// Names in a source file: whole literals.
fn registered_in(prefix: &str, source: &str) -> BTreeSet<String> {
    let product = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    names(product, '"').filter(|name| is_of(name, prefix)).map(str::to_owned).collect()
}

/// Names in the page: whole pieces of code.
fn named_in(page: &str) -> BTreeSet<String> {
    names(page, '`')
        .filter(|name| CRATES.iter().any(|(_, prefix)| is_of(name, prefix)))
        .map(str::to_owned)
        .collect()
}

/// What stands between two quotes and reads like a name, wherever the quotes pair.
fn names(text: &str, quote: char) -> impl Iterator<Item = &str> {
    text.split(quote).filter(|piece| {
        piece.contains('_')
            && piece.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    })
}

fn is_of(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('_'))
}

fn findings(registered: &BTreeSet<String>, named: &BTreeSet<String>) -> Vec<String> {
    let missing = registered.difference(named).map(|name| format!("`{name}` is a metric and not named"));
    let unknown = named.difference(registered).map(|name| format!("`{name}` is named and no metric"));
    missing.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_named_in_the_page_and_nothing_else_is() {
        check().unwrap();
    }

    #[test]
    fn a_metric_that_is_not_named_and_a_name_that_is_no_metric_are_found() {
        let source = "let a = counter(\n    \"log_rounds_total\",\n    \"Rounds.\",\n);\nlet b = \"tier_x\";\n\
                      #[cfg(test)]\nmod tests { const C: &str = \"log_test_total\"; }\n";
        let registered = registered_in("log", source);
        assert_eq!(registered, BTreeSet::from(["log_rounds_total".to_owned()]));
        let named = named_in("`log_round_total`, `log_*` and `node_id`");
        assert_eq!(
            findings(&registered, &named),
            ["`log_rounds_total` is a metric and not named", "`log_round_total` is named and no metric"]
        );
        assert_eq!(findings(&registered, &registered), Vec::<String>::new());
    }
}
