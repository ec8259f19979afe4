//! Subscription by regular expression (KIP-848's `SubscribedTopicRegex`, in the syntax of RE2).
//!
//! An expression comes from a client: its length and what its program may take are bounded, and it is matched in linear time.
//! Even so it may take some milliseconds, and as long again for every few names: whoever holds a lock compiles and matches
//! none. The caller does both before and hands the machine what came of it ([`Resolutions`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use regex::{Regex, RegexBuilder};
use tidelog_types::{limits::GROUP_PATTERN_BYTES_MAX, shown};

use super::HeartbeatRefused;
use crate::groups::GroupError;

/// The most bytes that the compiled program of one expression may take.
const PROGRAM_BYTES_MAX: usize = 256 * 1024;

/// How deep groups of an expression may nest.
const NESTING_MAX: u32 = 100;

/// What regular expressions were found to match, before the call that needs to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolutions {
    /// The version of the topics that were looked at.
    pub version: i64,
    /// The names that match, by expression, or why it is none.
    pub patterns: BTreeMap<Arc<str>, Result<BTreeSet<Arc<str>>, HeartbeatRefused>>,
}

/// What a heartbeat asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PatternsWanted {
    /// Its own expression, which no member has yet: it cannot be handled without.
    pub new: Option<Arc<str>>,
    /// All of the group's, which are looked at now and then when topics have changed: they may wait for a later one.
    pub due: BTreeSet<Arc<str>>,
}

/// An expression that matches whole topic names.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// `InvalidRegularExpression` when it is not one, or when it or its program would be too large.
    pub fn compile(pattern: &str) -> Result<Self, HeartbeatRefused> {
        let refuse = |error: &regex::Error| {
            let error = error.to_string();
            let reason = format!("the regular expression {} is not valid: {}", shown(pattern), shown(&error));
            HeartbeatRefused::new(GroupError::InvalidRegularExpression, reason)
        };
        if pattern.len() > GROUP_PATTERN_BYTES_MAX {
            let reason = format!("a regular expression has at most {GROUP_PATTERN_BYTES_MAX} bytes here");
            return Err(HeartbeatRefused::new(GroupError::InvalidRegularExpression, reason));
        }
        let expression = without_quotations(pattern);
        // Alone first: what is only an expression between the brackets put around it below is none.
        build(&expression).map_err(|error| refuse(&error))?;
        // A comment at the end (with the flag x) swallows the closing bracket, unless it is on a line of its own.
        build(&format!(r"\A(?:{expression})\z"))
            .or_else(|_| build(&format!("\\A(?:{expression}\n)\\z")))
            .map(Self)
            .map_err(|error| refuse(&error))
    }

    /// Whether a topic's name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

fn build(expression: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(expression).size_limit(PROGRAM_BYTES_MAX).nest_limit(NESTING_MAX).build()
}

/// Writes out RE2's quotations (`\Q...\E`), which the regex crate does not know.
fn without_quotations(pattern: &str) -> String {
    let mut plain = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        if let Some(quoted) = from.strip_prefix(r"\Q") {
            let (literal, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            plain.push_str(&regex::escape(literal));
            rest = after;
        } else {
            // The backslash and what it escapes, so that an escaped backslash before a Q is none of a quotation.
            let end = from.char_indices().nth(2).map_or(from.len(), |(index, _)| index);
            let (escape, after) = from.split_at(end);
            plain.push_str(escape);
            rest = after;
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, names: &[&'static str]) -> Vec<&'static str> {
        let pattern = Pattern::compile(pattern).unwrap();
        names.iter().copied().filter(|name| pattern.matches(name)).collect()
    }

    #[test]
    fn an_expression_matches_whole_names_only() {
        assert_eq!(matches("a|ab", &["a", "ab", "abc", "xab"]), ["a", "ab"]);
        assert_eq!(matches("foo.*", &["foo", "foobar", "xfoo"]), ["foo", "foobar"]);
    }

    #[test]
    fn brackets_that_close_what_is_not_open_make_no_expression() {
        let refused = Pattern::compile("a)(b").unwrap_err();
        assert_eq!(refused.error, GroupError::InvalidRegularExpression);
        assert!(refused.reason.contains("a)(b"), "{}", refused.reason);
        assert!(Pattern::compile("[").is_err());
        assert!(Pattern::compile("(?=a)").is_err(), "RE2 has no look-ahead");
    }

    #[test]
    fn a_comment_at_the_end_does_not_swallow_the_end_of_the_name() {
        assert_eq!(matches("(?x) a b  # the rest", &["ab", "abc"]), ["ab"]);
    }

    #[test]
    fn quotations_are_literal() {
        assert_eq!(matches(r"\Qa.b\E.*", &["a.b", "a.bc", "axb"]), ["a.b", "a.bc"]);
        assert_eq!(matches(r"\Qa.b", &["a.b", "axb"]), ["a.b"]);
        assert_eq!(without_quotations(r"\\Qa"), r"\\Qa");
    }

    #[test]
    fn an_expression_of_any_length_is_refused_and_an_error_repeats_little_of_it() {
        assert!(Pattern::compile(&"a".repeat(GROUP_PATTERN_BYTES_MAX)).is_ok());
        assert!(Pattern::compile(&"a".repeat(GROUP_PATTERN_BYTES_MAX + 1)).is_err());
        let refused = Pattern::compile(&format!("({}", "ü".repeat(2_000))).unwrap_err();
        assert!(refused.reason.chars().count() < 700, "{}", refused.reason);
    }

    #[test]
    fn a_program_that_would_be_huge_is_refused() {
        assert!(Pattern::compile("((a{1,100}){1,100}){1,100}").is_err());
        assert!(Pattern::compile(&"(".repeat(200)).is_err());
        assert!(Pattern::compile(&format!("{}a{}", "(".repeat(200), ")".repeat(200))).is_err());
    }
}
