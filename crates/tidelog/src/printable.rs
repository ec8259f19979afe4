//! Texts that others chose, as a terminal may have them: names of groups and clients are any text, and a control character in one
//! would move the cursor, or feign a line.

use std::borrow::Cow;

/// Whether a character acts on what stands around it: a control character, a line's or a paragraph's end, a change of direction.
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A text without what acts: such a character is written as Rust writes it.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if acts(character) {
            escaped.extend(character.escape_debug());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// A text of several lines, likewise.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// A name that may be empty, which is told by two quotes.
pub(crate) const fn named(name: &str) -> &str {
    if name.is_empty() { "\"\"" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped_and_all_else_stays() {
        assert_eq!(printable("größe 群組 😀 \\n"), "größe 群組 😀 \\n");
        assert_eq!(printable("a\nb\r\t\0"), "a\\nb\\r\\t\\0");
        assert_eq!(printable("\u{1b}[2J\u{9b}1m\u{7f}"), "\\u{1b}[2J\\u{9b}1m\\u{7f}");
        assert_eq!(printable("a\u{202e}b\u{2028}"), "a\\u{202e}b\\u{2028}");
        assert_eq!(printable_lines("a\u{7}\n  b"), "a\\u{7}\n  b");
        assert_eq!((named(""), named("g")), ("\"\"", "g"));
    }
}
