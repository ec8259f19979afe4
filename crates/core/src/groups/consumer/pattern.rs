//! Subscription by regular expression (KIP-848's `SubscribedTopicRegex`, in the syntax of RE2).
//!
//! An expression comes from a client: it is bounded in what its program may take, and it is matched in linear time.

use std::{collections::BTreeSet, sync::Arc};

use regex::{Regex, RegexBuilder};

use super::{HeartbeatRefused, TopicsImage};
use crate::groups::GroupError;

/// The most bytes that the compiled program of one expression may take.
const PROGRAM_BYTES_MAX: usize = 1 << 20;

/// How deep groups of an expression may nest.
const NESTING_MAX: u32 = 100;

/// An expression that matches whole topic names.
#[derive(Debug, Clone)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// `InvalidRegularExpression` when it is not one, or when its program would be too large.
    pub(super) fn compile(pattern: &str) -> Result<Self, HeartbeatRefused> {
        let refuse = |error: &regex::Error| {
            let reason = format!("the regular expression {pattern} is not valid: {error}");
            HeartbeatRefused::new(GroupError::InvalidRegularExpression, reason)
        };
        let expression = without_quotations(pattern);
        // Alone first: what is only an expression between the brackets put around it below is none.
        build(&expression).map_err(|error| refuse(&error))?;
        // A comment at the end (with the flag x) swallows the closing bracket, unless it is on a line of its own.
        build(&format!(r"\A(?:{expression})\z"))
            .or_else(|_| build(&format!("\\A(?:{expression}\n)\\z")))
            .map(Self)
            .map_err(|error| refuse(&error))
    }

    /// The names that match.
    pub(super) fn resolve(&self, topics: &dyn TopicsImage) -> BTreeSet<Arc<str>> {
        let mut found = BTreeSet::new();
        topics.for_each_name(&mut |name| {
            if self.0.is_match(name) {
                found.insert(Arc::clone(name));
            }
        });
        found
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
    use crate::groups::consumer::tests::Topics;

    fn matches(pattern: &str, names: &[&str]) -> Vec<String> {
        let topics = Topics::new(names.iter().map(|name| (*name, 1)));
        Pattern::compile(pattern).unwrap().resolve(&topics).iter().map(ToString::to_string).collect()
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
    fn a_program_that_would_be_huge_is_refused() {
        assert!(Pattern::compile("((a{1,100}){1,100}){1,100}").is_err());
        assert!(Pattern::compile(&"(".repeat(200)).is_err());
        assert!(Pattern::compile(&format!("{}a{}", "(".repeat(200), ")".repeat(200))).is_err());
    }
}
