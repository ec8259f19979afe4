//! Apache Kafka's answers in files, so that the set runs where no Kafka is.
//!
//! One file for each script. Under a scenario and the number of a step there is a line for each answer, with the versions of
//! the scenario that gave it:
//!
//! ```text
//! scenario "an unknown topic"
//!   1 Metadata
//!     0-3 {…}
//!     4-13 {…}
//! ```

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use tidelog_wire::{ApiKey, Versions};

use crate::{
    run::{Announced, Answer, Answers, Place},
    script::{Expression, api_named, expression},
    value::{Tree, from_hex},
};

const ANNOUNCED: &str = "announced.txt";

/// Writes all answers into a folder, and nothing else stays there.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, announced: &Announced, answers: &Answers) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder)?;
    let lines: String =
        announced.iter().map(|(api, range)| format!("{api} {} {}\n", range.min, range.max)).collect();
    fs::write(folder.join(ANNOUNCED), lines)?;
    let mut scripts: BTreeMap<&str, Vec<(&Place, &Answer)>> = BTreeMap::new();
    for (place, answer) in answers {
        scripts.entry(&place.script).or_default().push((place, answer));
    }
    for (script, answers) in scripts {
        fs::write(folder.join(format!("{script}.answers")), text(&answers)?)?;
    }
    Ok(())
}

fn text(answers: &[(&Place, &Answer)]) -> Result<String> {
    let mut text =
        "# Answers of Apache Kafka, written by `cargo xtask e2e parity --record` and not by hand.\n"
            .to_owned();
    let mut scenario = None;
    for step in
        answers.chunk_by(|(one, _), (other, _)| (&one.scenario, one.step) == (&other.scenario, other.step))
    {
        let Some((place, answer)) = step.first() else { continue };
        if scenario != Some(&place.scenario) {
            scenario = Some(&place.scenario);
            writeln!(text, "scenario {}", Tree::text(&place.scenario))?;
        }
        let is_scenarios = step.iter().all(|(place, answer)| place.version == answer.version);
        let version = if is_scenarios { String::new() } else { format!("/{}", answer.version) };
        writeln!(text, "  {} {}{version}", place.step, answer.api)?;
        for same in step.chunk_by(|(_, one), (_, other)| one.value == other.value) {
            let (Some((first, answer)), Some((last, _))) = (same.first(), same.last()) else { continue };
            let range = match (first.version, last.version) {
                (-1, _) => "-".to_owned(),
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}-{last}"),
            };
            writeln!(text, "    {range} {}", answer.value)?;
        }
    }
    Ok(text)
}

/// Reads what [`write`] wrote.
///
/// # Errors
/// There is nothing, or something else.
pub fn read(folder: &Path) -> Result<(Announced, Answers)> {
    let (mut announced, mut answers) = (Announced::new(), Answers::new());
    let file = folder.join(ANNOUNCED);
    let lines = fs::read_to_string(&file)
        .with_context(|| format!("read {}: record Apache Kafka's answers first", file.display()))?;
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [api, min, max] = words.as_slice() else { bail!("{}: `{line}`", file.display()) };
        let api = api_named(api).with_context(|| format!("no API is named {api}"))?;
        announced.insert(api, Versions { min: min.parse()?, max: max.parse()? });
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "answers") {
            let name = path.file_stem().and_then(|name| name.to_str()).context("a file has a name")?;
            parse(name, &fs::read_to_string(&path)?, &mut answers)
                .with_context(|| format!("read {}", path.display()))?;
        }
    }
    Ok((announced, answers))
}

fn parse(script: &str, text: &str, answers: &mut Answers) -> Result<()> {
    let (mut scenario, mut step) = (String::new(), None::<(usize, ApiKey, Option<i16>)>);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("scenario ") {
            let Tree::Text(name) = literal(&expression(name)?)? else { bail!("`{line}`") };
            scenario = name;
        } else if let Some(rest) = line.strip_prefix("    ") {
            let (range, value) = rest.split_once(' ').context("a version and an answer")?;
            let (number, api, fixed) = step.context("an answer before any step")?;
            let value = literal(&expression(value)?)?;
            let (first, last) = match range.split_once('-') {
                Some(("", _)) => (-1, -1),
                Some((first, last)) => (first.parse()?, last.parse()?),
                None => (range.parse()?, range.parse()?),
            };
            for version in first..=last {
                let place =
                    Place { script: script.to_owned(), scenario: scenario.clone(), step: number, version };
                let answer = Answer { api, version: fixed.unwrap_or(version), value: value.clone() };
                answers.insert(place, answer);
            }
        } else if let Some((number, api)) = line.trim_start().split_once(' ') {
            let (api, version) =
                api.split_once('/').map_or((api, None), |(api, version)| (api, Some(version)));
            let found = api_named(api).with_context(|| format!("no API is named {api}"))?;
            step = Some((number.parse()?, found, version.map(str::parse).transpose()?));
        } else {
            ensure!(line.is_empty(), "`{line}`");
        }
    }
    Ok(())
}

/// A value as it is written, with nothing filled in.
fn literal(expression: &Expression) -> Result<Tree> {
    Ok(match expression {
        Expression::Null => Tree::Null,
        Expression::Bool(value) => Tree::Bool(*value),
        Expression::Int(value) => Tree::Int(*value),
        Expression::Text(text) => Tree::Text(text.clone()),
        Expression::Array(elements) => Tree::Array(elements.iter().map(literal).collect::<Result<_>>()?),
        Expression::Struct(fields) => Tree::Struct(
            fields
                .iter()
                .map(|(name, _, value)| Ok((name.clone(), literal(value)?)))
                .collect::<Result<_>>()?,
        ),
        Expression::Call(name, arguments) => match (name.as_str(), arguments.as_slice()) {
            ("hex", [Expression::Text(digits)]) => Tree::Bytes(from_hex(digits).context("digits")?),
            ("uuid", [Expression::Text(digits)]) => {
                Tree::Uuid(from_hex(digits).and_then(|id| id.try_into().ok()).context("an id")?)
            }
            _ => bail!("`{name}` in an answer"),
        },
        Expression::Variable(name) => bail!("${name} in an answer"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_equal_answers_share_a_line() {
        let mut answers = Answers::new();
        for version in 0..=5 {
            let place = Place { script: "a".to_owned(), scenario: "s \"1\"".to_owned(), step: 2, version };
            let value = Tree::Struct(vec![
                ("name".to_owned(), Tree::text("t-$n\u{1}\n\u{ff}")),
                ("is_old".to_owned(), Tree::Bool(version < 3)),
                ("id".to_owned(), Tree::Uuid([7; 16])),
                ("none".to_owned(), Tree::Null),
                ("some".to_owned(), Tree::Array(vec![Tree::Bytes(vec![1, 255]), Tree::Int(-5)])),
            ]);
            answers.insert(place, Answer { api: ApiKey::Metadata, version, value });
        }
        let all: Vec<(&Place, &Answer)> = answers.iter().collect();
        let text = text(&all).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
        let mut read = Answers::new();
        parse("a", &text, &mut read).unwrap();
        assert_eq!(read, answers);
    }
}
