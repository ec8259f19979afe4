//! The list of a suite's tests: a line for each, with its name and what is known of it.

use std::{collections::BTreeMap, collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail};

/// What the list says of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It passes, and must go on doing so.
    Pass,
    /// It asks no broker.
    Local,
    /// It does not pass, for this reason.
    Fail(String),
    /// It needs this, which comes later.
    Needs(String),
    /// It skips itself here, for this reason.
    Skip(String),
}

impl Verdict {
    fn parse(text: &str) -> Result<Self> {
        let reason = |text: &str| {
            let text = text.trim();
            if text.is_empty() { bail!("a reason is missing") } else { Ok(text.to_owned()) }
        };
        match text.split_once(':') {
            None if text == "pass" => Ok(Self::Pass),
            None if text == "local" => Ok(Self::Local),
            Some(("fail", why)) => Ok(Self::Fail(reason(why)?)),
            Some(("needs", what)) => Ok(Self::Needs(reason(what)?)),
            Some(("skip", why)) => Ok(Self::Skip(reason(why)?)),
            _ => bail!("`{text}` is neither pass, local, fail: why, needs: what nor skip: why"),
        }
    }
}

/// The list of a suite's tests.
#[derive(Debug, Default)]
pub(super) struct List {
    tests: BTreeMap<String, Verdict>,
}

impl List {
    /// Reads a list.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("read {}", file.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let (mut tests, mut stated) = (BTreeMap::new(), None);
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(passes) = line.strip_prefix("passes:") {
                stated =
                    Some(passes.trim().parse::<usize>().with_context(|| format!("line {}", number + 1))?);
                continue;
            }
            let parsed = || {
                let (name, rest) = line.split_once(char::is_whitespace).context("a verdict is missing")?;
                Ok::<_, anyhow::Error>((name.to_owned(), Verdict::parse(rest.trim())?))
            };
            let (name, verdict) = parsed().with_context(|| format!("line {}", number + 1))?;
            if tests.insert(name, verdict).is_some() {
                bail!("line {}: the test is named twice", number + 1);
            }
        }
        let passes = tests.values().filter(|verdict| **verdict == Verdict::Pass).count();
        if stated != Some(passes) {
            let stated = stated.map_or_else(|| "nothing".to_owned(), |stated| stated.to_string());
            bail!("{passes} tests are listed as passing, and `passes:` says {stated}: it only grows");
        }
        Ok(Self { tests })
    }

    /// Fails where the list does not name exactly these.
    pub(super) fn check_names<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<()> {
        let names: BTreeSet<&str> = names.collect();
        let unlisted: Vec<_> = names.iter().copied().filter(|name| !self.tests.contains_key(*name)).collect();
        let unknown: Vec<_> =
            self.tests.keys().map(String::as_str).filter(|name| !names.contains(name)).collect();
        if !unlisted.is_empty() || !unknown.is_empty() {
            bail!("the list lacks [{}] and names [{}] of no test", unlisted.join(", "), unknown.join(", "));
        }
        Ok(())
    }

    /// Fails where the list says of one of these, which ask a broker, that it asks none.
    pub(super) fn check_local<'a>(&self, asking: impl Iterator<Item = &'a str>) -> Result<()> {
        let believed: Vec<_> = asking.filter(|name| self.verdict(name) == Some(&Verdict::Local)).collect();
        if !believed.is_empty() {
            bail!("listed as local, and by their sources they ask a broker: {}", believed.join(", "));
        }
        Ok(())
    }

    /// Fails where a test that some version of this list had as passing has another verdict now. `history` is `git log -p` of
    /// the list. A test that its suite no longer has is in no list.
    pub(super) fn check_grows(&self, history: &str) -> Result<()> {
        let passed = history.lines().filter_map(|line| {
            let (name, verdict) = line.strip_prefix('+')?.split_once(char::is_whitespace)?;
            (verdict.trim() == "pass").then_some(name)
        });
        let taken_back: BTreeSet<&str> = passed
            .filter(|name| self.verdict(name).is_some_and(|verdict| *verdict != Verdict::Pass))
            .collect();
        if !taken_back.is_empty() {
            let names = taken_back.into_iter().collect::<Vec<_>>().join(", ");
            bail!("once listed as passing, and no longer: {names}");
        }
        Ok(())
    }

    pub(super) fn verdict(&self, name: &str) -> Option<&Verdict> {
        self.tests.get(name)
    }

    pub(super) fn is_pass(&self, name: &str) -> bool {
        self.verdict(name) == Some(&Verdict::Pass)
    }

    /// How many there are of each verdict.
    pub(super) fn counts(&self) -> String {
        let count = |is: fn(&Verdict) -> bool| self.tests.values().filter(|verdict| is(verdict)).count();
        format!(
            "{} pass, {} fail, {} need what comes later, {} skip themselves, {} ask no broker",
            count(|verdict| matches!(verdict, Verdict::Pass)),
            count(|verdict| matches!(verdict, Verdict::Fail(_))),
            count(|verdict| matches!(verdict, Verdict::Needs(_))),
            count(|verdict| matches!(verdict, Verdict::Skip(_))),
            count(|verdict| matches!(verdict, Verdict::Local))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_counts_what_it_says() {
        let text = "# of them\npasses: 1\n\nb  pass\na  fail: Kafka fails too: a reason\nc  local\nd  needs: transactions\ne skip: asks another\n";
        let list = List::parse(text).unwrap();
        assert!(list.is_pass("b") && !list.is_pass("a") && !list.is_pass("f"));
        assert_eq!(list.verdict("a"), Some(&Verdict::Fail("Kafka fails too: a reason".to_owned())));
        assert_eq!(
            list.counts(),
            "1 pass, 1 fail, 1 need what comes later, 1 skip themselves, 1 ask no broker"
        );
    }

    #[test]
    fn a_line_without_its_reason_or_a_name_twice_is_refused() {
        for text in ["a\n", "a fail:\n", "a needs: \n", "a maybe\n", "a local\na local\n"] {
            assert!(List::parse(&format!("passes: 0\n{text}")).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_list_has_as_many_passes_as_it_states() {
        let told = |text: &str| List::parse(text).unwrap_err().to_string();
        List::parse("passes: 1\na pass\nb local\n").unwrap();
        assert_eq!(
            told("passes: 2\na pass\nb local\n"),
            "1 tests are listed as passing, and `passes:` says 2: it only grows"
        );
        assert_eq!(
            told("a pass\n"),
            "1 tests are listed as passing, and `passes:` says nothing: it only grows"
        );
    }

    #[test]
    fn a_pass_is_never_taken_back() {
        let list = List::parse("passes: 1\na pass\nb fail: why\n").unwrap();
        list.check_grows("+passes: 1\n+a   pass\n-b  pass\n+b  local\n+gone pass\n").unwrap();
        let told = list.check_grows("+a pass\n+b  pass\n").unwrap_err().to_string();
        assert_eq!(told, "once listed as passing, and no longer: b");
    }

    #[test]
    fn a_test_that_asks_a_broker_is_not_local() {
        let list = List::parse("passes: 1\na pass\nb local\n").unwrap();
        list.check_local(["a"].into_iter()).unwrap();
        let told = list.check_local(["a", "b"].into_iter()).unwrap_err().to_string();
        assert_eq!(told, "listed as local, and by their sources they ask a broker: b");
    }

    #[test]
    fn a_list_names_each_test_of_its_suite_and_no_other() {
        let list = List::parse("passes: 1\na pass\nb local\n").unwrap();
        list.check_names(["a", "b"].into_iter()).unwrap();
        let told = |names: &[&str]| list.check_names(names.iter().copied()).unwrap_err().to_string();
        assert_eq!(told(&["a", "b", "c"]), "the list lacks [c] and names [] of no test");
        assert_eq!(told(&["a"]), "the list lacks [] and names [b] of no test");
    }
}
