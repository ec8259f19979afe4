//! The words of a script.

use anyhow::{Result, bail};

/// One word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A name, a bare text such as `retention.ms=5`, or a variable's name after its `$`.
    Name(String),
    /// A whole number.
    Int(i64),
    /// A text between quotes; its variables are not filled in yet.
    Text(String),
    /// `$name`.
    Variable(String),
    /// One of `{ } [ ] ( ) : , = ? / -> +`.
    Mark(&'static str),
}

const MARKS: [&str; 13] = ["->", "{", "}", "[", "]", "(", ")", ":", ",", "=", "?", "/", "+"];

/// The words of a text without comments.
///
/// # Errors
/// A text that does not end, a number out of range, a letter that means nothing.
pub fn words(text: &str) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return Ok(words) };
        if first == '#' {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if first == '"' {
            let (text, after) = quoted(&rest[1..])?;
            words.push(Word::Text(text));
            rest = after;
        } else if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            words.push(Word::Mark(mark));
            rest = &rest[mark.len()..];
        } else if first == '$' {
            let name = name_of(&rest[1..]);
            words.push(Word::Variable(name.to_owned()));
            rest = &rest[1 + name.len()..];
        } else if first.is_ascii_digit() || first == '-' {
            let length = rest[1..].find(|l: char| !l.is_ascii_digit()).map_or(rest.len(), |end| end + 1);
            words.push(Word::Int(rest[..length].parse()?));
            rest = &rest[length..];
        } else if first.is_ascii_alphabetic() || first == '_' || first == '.' {
            let is_end = |l: char| !(l.is_ascii_alphanumeric() || l == '_' || l == '.' || l == '-');
            let name = &rest[..rest.find(is_end).unwrap_or(rest.len())];
            words.push(Word::Name(name.to_owned()));
            rest = &rest[name.len()..];
        } else {
            bail!("`{first}` means nothing here");
        }
    }
}

/// The longest start that is a variable's name.
pub(crate) fn name_of(text: &str) -> &str {
    let is_end = |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_');
    &text[..text.find(is_end).unwrap_or(text.len())]
}

fn quoted(text: &str) -> Result<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((position, letter)) = letters.next() {
        match letter {
            '"' => return Ok((value, &text[position + 1..])),
            '\\' => match letters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((at, 'u')) => {
                    let code =
                        text.get(at + 1..at + 5).and_then(|digits| u32::from_str_radix(digits, 16).ok());
                    let Some(letter) = code.and_then(char::from_u32) else {
                        bail!("a letter's code has four digits")
                    };
                    value.push(letter);
                    for _ in 0..4 {
                        letters.next();
                    }
                }
                Some((_, other)) => value.push(other),
                None => break,
            },
            letter => value.push(letter),
        }
    }
    bail!("a text does not end: \"{value}")
}
