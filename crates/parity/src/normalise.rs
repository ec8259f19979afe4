//! What is a broker's own in an answer, replaced by what is the same for every broker.
//!
//! `tests/parity/normalise.rules` says what that is. Ids become numbers in the order in which a scenario sees them, so that
//! two answers with one id stay two answers with one id.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use tidelog_format::crc::crc32c;

use crate::value::Tree;

/// Texts and bytes beyond this are compared by their length and checksum.
const LONG_BYTES: usize = 300;

/// What is done to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Treatment {
    /// Ids become `<KIND 1>`, `<KIND 2>` …; null, nothing, zero and -1 stay.
    Id(String),
    /// A UUID at the end of a text, or in place of it, becomes a number.
    UuidTail,
    /// A text becomes `<text>`; null and empty stay.
    Text,
    /// An address of this machine, or a path, becomes `<place>`.
    Place,
    /// Anything becomes `<hidden>`.
    Hidden,
    /// A number from 0 on becomes `<number>`.
    Number,
    /// A time of the last or the next hour becomes `<now>`.
    Now,
    /// Elements are put in the order of a field (or of themselves).
    Sort(Option<String>),
    /// Elements stay only if a field does not name another scenario's things or an internal topic.
    Own(String),
    /// Elements are compared by a field, whatever their place.
    Keyed(String),
}

/// All rules, in the order of the file.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<(String, String, Treatment)>);

impl Rules {
    /// Reads `API path treatment [argument]` lines.
    ///
    /// # Errors
    /// A line that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rules = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let argument = words.get(3).map(|word| (*word).to_owned());
            let needed = || argument.clone().with_context(|| format!("`{line}` lacks its last word"));
            let [api, path, name, ..] = words.as_slice() else { bail!("`{line}` is no rule") };
            let treatment = match *name {
                "id" => Treatment::Id(needed()?),
                "uuid-tail" => Treatment::UuidTail,
                "text" => Treatment::Text,
                "place" => Treatment::Place,
                "hidden" => Treatment::Hidden,
                "number" => Treatment::Number,
                "now" => Treatment::Now,
                "sort" => Treatment::Sort(argument.clone()),
                "own" => Treatment::Own(needed()?),
                "keyed" => Treatment::Keyed(needed()?),
                other => bail!("no treatment is named {other}"),
            };
            rules.push(((*api).to_owned(), (*path).to_owned(), treatment));
        }
        Ok(Self(rules))
    }

    fn of<'a>(&'a self, api: &'a str, path: &'a str) -> impl Iterator<Item = &'a Treatment> {
        let is_it = move |(of_api, pattern, _): &&(String, String, Treatment)| {
            (of_api == "*" || of_api == api)
                && path
                    .strip_suffix(pattern.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        self.0.iter().filter(is_it).map(|(_, _, treatment)| treatment)
    }

    /// The field by which an array's elements are compared.
    #[must_use]
    pub fn key<'a>(&'a self, api: &'a str, path: &'a str) -> Option<&'a str> {
        self.of(api, path).find_map(|treatment| match treatment {
            Treatment::Keyed(field) => Some(field.as_str()),
            _ => None,
        })
    }
}

/// The names that one run of a scenario has seen.
#[derive(Debug, Clone, Default)]
pub struct Names {
    pub(crate) ids: BTreeMap<(String, Tree), usize>,
    /// Text of names of this run and what stands for it: the scenario's and its file's.
    pub tokens: Vec<(String, &'static str)>,
    /// The time when the run began, in milliseconds.
    pub now: i64,
}

impl Names {
    fn id(&mut self, kind: &str, value: &Tree) -> usize {
        let next = self.ids.keys().filter(|(other, _)| other == kind).count() + 1;
        *self.ids.entry((kind.to_owned(), value.clone())).or_insert(next)
    }

    fn is_foreign(&self, name: &str) -> bool {
        let has_own = self.tokens.iter().any(|(token, _)| name.contains(token));
        !has_own && (has_token(name) || name.starts_with("__"))
    }
}

/// Whether a name is of a script, of this run or another one: `q`, four hexadecimal digits, `s` or `f`, a digit.
fn has_token(name: &str) -> bool {
    let is_token = |start: &[u8]| {
        let [b'q', digits @ .., b's' | b'f', last] = start else { return false };
        last.is_ascii_digit() && digits.iter().all(u8::is_ascii_hexdigit)
    };
    name.as_bytes().windows(7).any(is_token)
}

/// An answer without what is the broker's own.
pub fn normalise(rules: &Rules, names: &mut Names, api: &str, answer: &Tree) -> Tree {
    walk(rules, names, api, "", answer)
}

fn walk(rules: &Rules, names: &mut Names, api: &str, path: &str, value: &Tree) -> Tree {
    match value {
        Tree::Struct(fields) => Tree::Struct(
            fields
                .iter()
                .map(|(name, value)| {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    (name.clone(), walk(rules, names, api, &path, value))
                })
                .collect(),
        ),
        Tree::Array(elements) => {
            let elements = arranged(rules, names, api, path, elements);
            let mut walked: Vec<Tree> =
                elements.iter().map(|element| walk(rules, names, api, path, element)).collect();
            // By then all that is random is not.
            if rules.of(api, path).any(|treatment| *treatment == Treatment::Sort(None)) {
                walked.sort();
            }
            Tree::Array(walked)
        }
        leaf => {
            let treated =
                rules.of(api, path).fold(leaf.clone(), |value, treatment| treat(treatment, names, value));
            shorten(names, treated)
        }
    }
}

fn arranged(rules: &Rules, names: &Names, api: &str, path: &str, elements: &[Tree]) -> Vec<Tree> {
    let mut elements = elements.to_vec();
    for treatment in rules.of(api, path) {
        match treatment {
            Treatment::Own(field) => elements.retain(|element| match element.field(field) {
                Some(Tree::Text(name)) => !names.is_foreign(name),
                _ => true,
            }),
            Treatment::Sort(Some(field)) | Treatment::Keyed(field) => {
                elements.sort_by(|one, other| one.field(field).cmp(&other.field(field)));
            }
            _ => {}
        }
    }
    elements
}

fn treat(treatment: &Treatment, names: &mut Names, value: Tree) -> Tree {
    let is_nothing = match &value {
        Tree::Null => true,
        Tree::Int(value) => *value < 0,
        Tree::Text(text) => text.is_empty() || is_sign(text),
        Tree::Uuid(id) => *id == [0; 16],
        _ => false,
    };
    match treatment {
        Treatment::Hidden => Tree::text("<hidden>"),
        _ if is_nothing => value,
        Treatment::Id(kind) => Tree::Text(format!("<{kind} {}>", names.id(kind, &value))),
        Treatment::UuidTail => match &value {
            Tree::Text(text) => match uuid_tail(text) {
                Some((start, tail)) => {
                    Tree::Text(format!("{start}<uuid {}>", names.id("uuid", &Tree::text(tail))))
                }
                None => value,
            },
            _ => value,
        },
        Treatment::Text if matches!(value, Tree::Text(_)) => Tree::text("<text>"),
        Treatment::Place => match &value {
            Tree::Text(text) if text.starts_with('/') || text.contains("127.0.0.1:") => Tree::text("<place>"),
            _ => value,
        },
        Treatment::Number if matches!(value, Tree::Int(_)) => Tree::text("<number>"),
        Treatment::Now => match value {
            Tree::Int(time) if (time - names.now).abs() < 3_600_000 => Tree::text("<now>"),
            other => other,
        },
        _ => value,
    }
}

/// Whether a text is what stands for another one, as `<text>`; a paragraph of HTML is not.
fn is_sign(text: &str) -> bool {
    text.starts_with('<') && text.find('>').is_some_and(|end| end + 1 == text.len())
}

/// A text whose last 36 letters are a UUID, or that is one in the 22 letters of base64.
fn uuid_tail(text: &str) -> Option<(&str, &str)> {
    let is_base64 = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'_');
    if text.len() == 22 && text.bytes().all(is_base64) {
        return Some(("", text));
    }
    let (start, tail) = text.split_at_checked(text.len().checked_sub(36)?)?;
    let is_right = |(position, letter): (usize, char)| match position {
        8 | 13 | 18 | 23 => letter == '-',
        _ => letter.is_ascii_hexdigit(),
    };
    tail.char_indices().all(is_right).then_some((start, tail))
}

fn shorten(names: &Names, value: Tree) -> Tree {
    match value {
        Tree::Text(text) => {
            let own = names.tokens.iter().fold(text, |text, (token, sign)| text.replace(token, sign));
            if own.len() > LONG_BYTES {
                return Tree::Text(format!(
                    "<{} bytes of text, crc {:08x}>",
                    own.len(),
                    crc32c(own.as_bytes())
                ));
            }
            Tree::Text(own)
        }
        Tree::Bytes(bytes) if bytes.len() > LONG_BYTES => {
            Tree::Text(format!("<{} bytes, crc {:08x}>", bytes.len(), crc32c(&bytes)))
        }
        Tree::Bytes(bytes) => {
            // Names of this run in subscriptions and the like.
            match str::from_utf8(&bytes) {
                Ok(text) if names.tokens.iter().any(|(token, _)| text.contains(token)) => {
                    shorten(names, Tree::Text(format!("<bytes> {text}")))
                }
                _ => lossy_names(names, bytes),
            }
        }
        other => other,
    }
}

/// Bytes that hold this run's names among others: a name and its sign have different lengths, so they are shown as text.
fn lossy_names(names: &Names, bytes: Vec<u8>) -> Tree {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    if names.tokens.iter().any(|(token, _)| text.contains(token)) {
        return shorten(names, Tree::Text(format!("<bytes> {text}")));
    }
    Tree::Bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names { tokens: vec![("q00ffs01q".to_owned(), "$n")], ..Names::default() }
    }

    #[test]
    fn ids_are_numbered_as_they_come_and_zero_stays() {
        let rules = Rules::parse("* topic_id id topic\n# a comment\nMetadata topics own name\n").unwrap();
        let mut names = names();
        let topic = |name: &str, id: u8| {
            Tree::Struct(vec![
                ("name".to_owned(), Tree::text(name)),
                ("topic_id".to_owned(), Tree::Uuid([id; 16])),
            ])
        };
        let topics = vec![
            topic("t-q00ffs01q", 9),
            topic("t-q00fes02q", 8),
            topic("u-q00ffs01q", 0),
            topic("v-q00ffs01q", 9),
        ];
        let answer = Tree::Struct(vec![("topics".to_owned(), Tree::Array(topics))]);
        let seen = normalise(&rules, &mut names, "Metadata", &answer).to_string();
        assert_eq!(
            seen,
            "{topics: [{name: \"t-$n\", topic_id: \"<topic 1>\"}, {name: \"u-$n\", topic_id: \
             uuid(\"00000000000000000000000000000000\")}, {name: \"v-$n\", topic_id: \"<topic 1>\"}]}"
        );
    }

    #[test]
    fn a_member_id_keeps_what_stands_before_its_uuid() {
        let rules = Rules::parse("* member_id uuid-tail").unwrap();
        let id = |text: &str| Tree::Struct(vec![("member_id".to_owned(), Tree::text(text))]);
        let mut names = names();
        let mut seen = |text: &str| normalise(&rules, &mut names, "JoinGroup", &id(text)).to_string();
        let uuid = "123e4567-e89b-12d3-a456-426614174000";
        assert_eq!(seen(&format!("parity-{uuid}")), "{member_id: \"parity-<uuid 1>\"}");
        assert_eq!(seen("nobody"), "{member_id: \"nobody\"}");
        assert_eq!(seen("d3SakKxhSX2haQvxb5uU5w"), "{member_id: \"<uuid 2>\"}");
    }
}
