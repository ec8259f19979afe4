//! The scripts: what `tests/parity/*.parity` says, as values.
//!
//! `tests/parity/README.md` tells how to read and write them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use tidelog_wire::{ApiKey, Versions};

use crate::lexer::{Word, words};

/// A value that is not worked out yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Null.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Int(i64),
    /// A text with variables in it.
    Text(String),
    /// A variable.
    Variable(String),
    /// Elements.
    Array(Vec<Self>),
    /// Fields: name, whether a version without it leaves it out, value.
    Struct(Vec<(String, bool, Self)>),
    /// A function of values.
    Call(String, Vec<Self>),
}

/// What is done to the bytes of a request before they are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Damage {
    /// Bytes that are left out at the end.
    pub cut: usize,
    /// Bytes that follow.
    pub extra: Option<Expression>,
}

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A message.
    Message(Expression, Damage),
    /// A header, and bytes in place of a message.
    Raw(Expression),
    /// A frame with these bytes alone: no header but what they are.
    Frame(Expression),
    /// Bytes on the connection, without a size before them.
    Stream(Expression),
}

/// How an answer is awaited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// It comes before the next step.
    Answer,
    /// None comes.
    None,
    /// A later `receive` takes it.
    Later,
    /// Asked again until the value at a path is this one.
    Until(String, Expression),
}

/// One request with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The API.
    pub api: ApiKey,
    /// The version; `None` is the scenario's.
    pub version: Option<i16>,
    /// What is sent.
    pub body: Body,
    /// How the answer comes.
    pub waiting: Waiting,
    /// Variables that the answer gives: name and path.
    pub captures: Vec<(String, String)>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// An exchange.
    Exchange(Exchange),
    /// Takes the answer to what was sent.
    Receive(Vec<(String, String)>),
    /// Creates a topic and waits until it serves: name, partitions, settings, variable of its id.
    Topic(String, i64, Vec<(String, String)>, Option<String>),
    /// Gives a variable its value; fields that it marks as optional are optional wherever it is used.
    Let(String, Expression),
    /// Waits for some milliseconds.
    Wait(u64),
    /// Closes the connection.
    Close,
}

/// One step of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The line that it begins in.
    pub line: usize,
    /// The connection.
    pub connection: String,
    /// The scenario's versions that have the step.
    pub versions: Versions,
    /// What it does.
    pub action: Action,
}

/// Steps with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The API whose every version it runs with, and of those which.
    pub subject: Option<(ApiKey, Versions)>,
    /// What it does.
    pub steps: Vec<Step>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The file's name without its ending.
    pub name: String,
    /// What is done before its scenarios; the variables stay.
    pub setup: Vec<Step>,
    /// Its scenarios.
    pub scenarios: Vec<Scenario>,
}

/// Every version.
pub const ALL_VERSIONS: Versions = Versions { min: 0, max: i16::MAX };

/// The API of a name.
#[must_use]
pub fn api_named(name: &str) -> Option<ApiKey> {
    ApiKey::ALL.iter().copied().find(|api| api.name() == name)
}

struct Words {
    words: Vec<Word>,
    position: usize,
}

impl Words {
    fn peek(&self) -> Option<&Word> {
        self.words.get(self.position)
    }

    fn next(&mut self) -> Result<Word> {
        let word = self.peek().cloned().context("the line ends too soon")?;
        self.position += 1;
        Ok(word)
    }

    fn is_done(&self) -> bool {
        self.position == self.words.len()
    }

    fn take(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), Some(Word::Mark(found)) if *found == mark);
        self.position += usize::from(found);
        found
    }

    fn take_name(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Some(Word::Name(found)) if found == name);
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, mark: &str) -> Result<()> {
        ensure!(self.take(mark), "`{mark}` is missing before {:?}", self.peek());
        Ok(())
    }

    fn name(&mut self) -> Result<String> {
        match self.next()? {
            Word::Name(name) => Ok(name),
            other => bail!("a name is missing before {other:?}"),
        }
    }

    fn int(&mut self) -> Result<i64> {
        match self.next()? {
            Word::Int(value) => Ok(value),
            other => bail!("a number is missing before {other:?}"),
        }
    }

    /// `3`, `3-7` (which the lexer reads as `3` and `-7`), `3+`.
    fn range(&mut self) -> Result<Versions> {
        let min = i16::try_from(self.int()?)?;
        if self.take("+") {
            return Ok(Versions { min, max: i16::MAX });
        }
        let max = match self.peek() {
            Some(Word::Int(max)) if *max < 0 => -*max,
            _ => return Ok(Versions { min, max: min }),
        };
        self.position += 1;
        Ok(Versions { min, max: i16::try_from(max)? })
    }

    fn value(&mut self) -> Result<Expression> {
        match self.next()? {
            Word::Int(value) => Ok(Expression::Int(value)),
            Word::Text(text) => Ok(Expression::Text(text)),
            Word::Variable(name) => Ok(Expression::Variable(name)),
            Word::Mark("[") => Ok(Expression::Array(self.elements("]")?)),
            Word::Mark("{") => {
                let mut fields = Vec::new();
                while !self.take("}") {
                    let name = self.name()?;
                    let optional = self.take("?");
                    self.expect(":")?;
                    fields.push((name, optional, self.value()?));
                    if !self.take(",") {
                        self.expect("}")?;
                        break;
                    }
                }
                Ok(Expression::Struct(fields))
            }
            Word::Name(name) if self.take("(") => Ok(Expression::Call(name, self.elements(")")?)),
            Word::Name(name) => match name.as_str() {
                "null" => Ok(Expression::Null),
                "true" => Ok(Expression::Bool(true)),
                "false" => Ok(Expression::Bool(false)),
                other => bail!("`{other}` is no value"),
            },
            Word::Mark(mark) => bail!("a value is missing before `{mark}`"),
        }
    }

    fn elements(&mut self, end: &str) -> Result<Vec<Expression>> {
        let mut elements = Vec::new();
        while !self.take(end) {
            elements.push(self.value()?);
            if !self.take(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(elements)
    }

    /// `topics[0].error_code`.
    fn path(&mut self) -> Result<String> {
        let mut path = self.name()?;
        while self.take("[") {
            path = format!("{path}[{}]", self.int()?);
            self.expect("]")?;
            if let Some(Word::Name(name)) = self.peek()
                && name.starts_with('.')
            {
                path.push_str(&self.name()?);
            }
        }
        Ok(path)
    }

    fn captures(&mut self) -> Result<Vec<(String, String)>> {
        let mut captures = Vec::new();
        while self.take("->") {
            let Word::Variable(name) = self.next()? else { bail!("a capture begins with its variable") };
            self.expect("=")?;
            captures.push((name, self.path()?));
        }
        Ok(captures)
    }
}

/// Reads one value, as [`crate::value::Tree`] prints it.
///
/// # Errors
/// What is wrong with it.
pub fn expression(text: &str) -> Result<Expression> {
    let mut words = Words { words: words(text)?, position: 0 };
    let value = words.value()?;
    ensure!(words.is_done(), "something follows the value");
    Ok(value)
}

/// Reads a file.
///
/// # Errors
/// The line that is wrong, and what is wrong in it.
pub fn parse(name: &str, text: &str) -> Result<Script> {
    let mut script = Script { name: name.to_owned(), setup: Vec::new(), scenarios: Vec::new() };
    let mut defaults = BTreeMap::new();
    let mut in_setup = false;
    for (line, text) in logical_lines(text) {
        let place = || format!("{name}.parity, line {line}");
        let mut found = Words { words: words(&text).with_context(place)?, position: 0 };
        if found.is_done() {
            continue;
        }
        if text.starts_with(' ') {
            let subject = script.scenarios.last().filter(|_| !in_setup).and_then(|scenario| scenario.subject);
            let subject = subject.map(|(api, _)| api);
            let step = step(&mut found, line, subject, &defaults).with_context(place)?;
            ensure!(found.is_done(), "{}: {:?} is too much", place(), found.peek());
            match script.scenarios.last_mut() {
                _ if in_setup => script.setup.push(step),
                Some(scenario) => scenario.steps.push(step),
                None => bail!("{}: a step before any scenario", place()),
            }
            continue;
        }
        in_setup = false;
        match found.name().with_context(place)?.as_str() {
            "setup" => in_setup = true,
            "defaults" => {
                while !found.is_done() {
                    let api = api(&mut found).with_context(place)?;
                    found.expect("/").with_context(place)?;
                    defaults.insert(api, i16::try_from(found.int().with_context(place)?)?);
                }
            }
            "scenario" => {
                let scenario = scenario(&mut found).with_context(place)?;
                let is_new = script.scenarios.iter().all(|other| other.name != scenario.name);
                ensure!(is_new, "{}: a second scenario of this name", place());
                script.scenarios.push(scenario);
            }
            other => bail!("{}: `{other}` begins nothing", place()),
        }
    }
    Ok(script)
}

/// Lines with those that their brackets draw in, and the number of the first.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut depth = 0_i32;
    for (number, line) in text.lines().enumerate() {
        let (mut in_text, mut escaped, mut code) = (false, false, String::new());
        let before = depth;
        for letter in line.chars() {
            match letter {
                _ if escaped => escaped = false,
                '\\' if in_text => escaped = true,
                '"' => in_text = !in_text,
                '#' if !in_text => break,
                '{' | '[' | '(' if !in_text => depth += 1,
                '}' | ']' | ')' if !in_text => depth -= 1,
                _ => {}
            }
            code.push(letter);
        }
        match lines.last_mut() {
            Some((_, last)) if before > 0 => {
                last.push('\n');
                last.push_str(&code);
            }
            _ => lines.push((number + 1, code)),
        }
    }
    lines
}

fn api(words: &mut Words) -> Result<ApiKey> {
    let name = words.name()?;
    api_named(&name).with_context(|| format!("no API is named {name}"))
}

fn scenario(words: &mut Words) -> Result<Scenario> {
    let Word::Text(name) = words.next()? else { bail!("a scenario's name is a text") };
    let mut subject = None;
    if words.take_name("for") {
        let api = api(words)?;
        let versions = if words.is_done() { ALL_VERSIONS } else { words.range()? };
        subject = Some((api, versions));
    }
    ensure!(words.is_done(), "{:?} is too much", words.peek());
    Ok(Scenario { name, subject, steps: Vec::new() })
}

fn step(
    words: &mut Words,
    line: usize,
    subject: Option<ApiKey>,
    defaults: &BTreeMap<ApiKey, i16>,
) -> Result<Step> {
    let mut versions = ALL_VERSIONS;
    if words.take("[") {
        versions = words.range()?;
        words.expect("]")?;
    }
    let mut connection = "main".to_owned();
    if let (Some(Word::Name(name)), Some(Word::Mark(":"))) =
        (words.peek(), words.words.get(words.position + 1))
    {
        connection.clone_from(name);
        words.position += 2;
    }
    let action = action(words, subject, defaults)?;
    Ok(Step { line, connection, versions, action })
}

fn action(words: &mut Words, subject: Option<ApiKey>, defaults: &BTreeMap<ApiKey, i16>) -> Result<Action> {
    if words.take_name("wait") {
        return Ok(Action::Wait(u64::try_from(words.int()?)?));
    }
    if words.take_name("let") {
        let Word::Variable(name) = words.next()? else { bail!("let begins with its variable") };
        words.expect("=")?;
        return Ok(Action::Let(name, words.value()?));
    }
    if words.take_name("close") {
        return Ok(Action::Close);
    }
    if words.take_name("receive") {
        return Ok(Action::Receive(words.captures()?));
    }
    if words.take_name("topic") {
        return topic(words);
    }
    let is_later = words.take_name("send");
    let form = ["raw", "frame", "stream"].into_iter().find(|form| words.take_name(form));
    let api = api(words)?;
    let mut version = defaults.get(&api).copied().filter(|_| subject != Some(api));
    if words.take("/") {
        version = if matches!(words.peek(), Some(Word::Variable(name)) if name == "v") {
            words.position += 1;
            None
        } else {
            Some(i16::try_from(words.int()?)?)
        };
    } else {
        ensure!(version.is_some() || subject == Some(api), "{api} needs a version");
    }
    let value = words.value()?;
    let body = match form {
        Some("raw") => Body::Raw(value),
        Some("frame") => Body::Frame(value),
        Some(_) => Body::Stream(value),
        None => {
            let mut damage = Damage::default();
            if words.take_name("cut") {
                damage.cut = usize::try_from(words.int()?)?;
            }
            if words.take_name("extra") {
                damage.extra = Some(words.value()?);
            }
            Body::Message(value, damage)
        }
    };
    let waiting = if is_later {
        Waiting::Later
    } else if words.take_name("unanswered") {
        Waiting::None
    } else if words.take_name("until") {
        let path = words.path()?;
        words.expect("=")?;
        Waiting::Until(path, words.value()?)
    } else {
        Waiting::Answer
    };
    let captures = words.captures()?;
    Ok(Action::Exchange(Exchange { api, version, body, waiting, captures }))
}

fn topic(words: &mut Words) -> Result<Action> {
    let Word::Text(name) = words.next()? else { bail!("a topic's name is a text") };
    let partitions = if matches!(words.peek(), Some(Word::Int(_))) { words.int()? } else { 1 };
    let mut settings = Vec::new();
    while let Some(Word::Name(key)) = words.peek() {
        let key = key.clone();
        words.position += 1;
        words.expect("=")?;
        let value = match words.next()? {
            Word::Text(text) | Word::Name(text) => text,
            Word::Int(value) => value.to_string(),
            other => bail!("a setting has no value before {other:?}"),
        };
        settings.push((key, value));
    }
    let mut id = None;
    if words.take("->") {
        let Word::Variable(name) = words.next()? else { bail!("a topic's id goes into a variable") };
        id = Some(name);
    }
    Ok(Action::Topic(name, partitions, settings, id))
}
