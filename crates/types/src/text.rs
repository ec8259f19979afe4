//! Texts that others chose, where they are told again.

use crate::limits;

/// A name as an answer may repeat it: a name that is longer than any is cut.
#[must_use]
pub fn shown(name: &str) -> &str {
    let end = name.char_indices().map(|(at, _)| at).nth(limits::TOPIC_NAME_BYTES_MAX);
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_longer_than_any_is_cut_between_two_characters() {
        assert_eq!(shown(""), "");
        assert_eq!(shown(&"a".repeat(249)), "a".repeat(249));
        assert_eq!(shown(&"ü".repeat(20_000)), "ü".repeat(249));
    }
}
