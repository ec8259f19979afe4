//! `tests/cases.toml`: every known case of what went wrong for such systems, with the tests that hold it or the later
//! work that owns it. A named test must exist.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::process;

/// One case: tests that hold it, or who will.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What it is about, in a few words.
    title: String,
    /// `path/of/file.rs::test_name`, from the repository's root.
    #[serde(default)]
    tests: Vec<String>,
    /// The part of the product that will hold it, or the rest of it, and does not exist yet.
    later: Option<String>,
}

pub(super) fn check() -> Result<()> {
    let path = process::repository().join("tests/cases.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let cases: BTreeMap<String, Case> = toml::from_str(&text).context("read tests/cases.toml")?;
    let findings = findings(&cases, |file| fs::read_to_string(process::repository().join(file)).ok());
    let count = |holds: fn(&Case) -> bool| cases.values().filter(|case| holds(case)).count();
    println!(
        "cases: {} known, {} held by tests, {} of them in part, {} owned by later work",
        cases.len(),
        count(|case| !case.tests.is_empty()),
        count(|case| !case.tests.is_empty() && case.later.is_some()),
        count(|case| case.tests.is_empty())
    );
    if findings.is_empty() { Ok(()) } else { bail!("tests/cases.toml:\n  {}", findings.join("\n  ")) }
}

fn findings(cases: &BTreeMap<String, Case>, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (id, case) in cases {
        if case.title.is_empty() {
            findings.push(format!("{id} has no title"));
        }
        if case.tests.is_empty() && case.later.is_none() {
            findings.push(format!("{id} has neither tests nor an owner"));
        }
        for test in &case.tests {
            let Some((file, name)) = test.split_once("::") else {
                findings.push(format!("{id}: `{test}` is not file::test"));
                continue;
            };
            let exists = read(file).is_some_and(|text| {
                text.contains(&format!("fn {name}(")) || text.contains(&format!("def {name}("))
            });
            if !exists {
                findings.push(format!("{id}: there is no test `{test}`"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_without_a_test_or_an_owner_and_a_test_that_is_gone_are_found() {
        let text = r#"
            [B01]
            title = "held"
            tests = ["a.rs::it_holds"]
            [B02]
            title = "lost"
            [B03]
            title = "renamed"
            tests = ["a.rs::it_hold"]
            [B04]
            title = "later"
            later = "cluster"
        "#;
        let cases: BTreeMap<String, Case> = toml::from_str(text).unwrap();
        let read = |file: &str| (file == "a.rs").then(|| "#[test]\nfn it_holds() {}".to_owned());
        assert_eq!(
            findings(&cases, read),
            ["B02 has neither tests nor an owner", "B03: there is no test `a.rs::it_hold`"]
        );
    }
}
