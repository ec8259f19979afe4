//! Where two brokers differ, and which of that is known.
//!
//! `differences.md` has a table row for each known difference, under a text that says its reason. A row that meets no
//! difference is as wrong as a difference without a row.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context as _, Result, bail};
use tidelog_wire::{ApiKey, Versions};

use crate::{
    normalise::Rules,
    run::{Answer, Answers, Place},
    script::ALL_VERSIONS,
    value::Tree,
};

/// What stands for a value that one of them does not have.
const ABSENT: &str = "absent";
/// The most that a row says of a value; a `*` stands for the rest.
const SHOWN_LETTERS: usize = 60;

/// One value that differs, in some versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// File and scenario: `produce: a gap`.
    pub place: String,
    /// The step.
    pub step: usize,
    /// The API that answered.
    pub api: ApiKey,
    /// Where in the answer.
    pub field: String,
    /// Apache Kafka's value.
    pub kafka: String,
    /// Tidelog's.
    pub tidelog: String,
}

/// Differences with the versions that have them.
pub type Differences = BTreeMap<Difference, Vec<i16>>;

/// Compares all answers that both have; one that only Kafka has is a difference where `is_run` says that it was asked.
#[must_use]
pub fn compare(
    rules: &Rules,
    kafka: &Answers,
    tidelog: &Answers,
    is_run: impl Fn(&Place) -> bool,
) -> Differences {
    let mut differences = Differences::new();
    let mut add = |place: &Place, answer: &Answer, found: Vec<(String, String, String)>| {
        for (field, kafka, tidelog) in found {
            let scenario = if place.scenario.is_empty() { "setup" } else { &place.scenario };
            let difference = Difference {
                place: format!("{}: {scenario}", place.script),
                step: place.step,
                api: answer.api,
                field,
                kafka,
                tidelog,
            };
            differences.entry(difference).or_default().push(answer.version);
        }
    };
    for (place, theirs) in kafka {
        match tidelog.get(place) {
            Some(ours) => {
                let mut found = Vec::new();
                walk(rules, theirs.api.name(), ("", ""), Some(&theirs.value), Some(&ours.value), &mut found);
                add(place, theirs, found);
            }
            None if is_run(place) => {
                add(place, theirs, vec![(String::new(), theirs.value.to_string(), ABSENT.to_owned())]);
            }
            None => {}
        }
    }
    for (place, ours) in tidelog.iter().filter(|(place, _)| !kafka.contains_key(place)) {
        add(place, ours, vec![(String::new(), "not recorded".to_owned(), ours.value.to_string())]);
    }
    differences
}

/// `paths` are where it stands with and without indexes.
fn walk(
    rules: &Rules,
    api: &str,
    paths: (&str, &str),
    kafka: Option<&Tree>,
    tidelog: Option<&Tree>,
    found: &mut Vec<(String, String, String)>,
) {
    let (path, plain) = paths;
    match (kafka, tidelog) {
        (Some(Tree::Struct(theirs)), Some(Tree::Struct(ours))) => {
            let mut names: Vec<&String> = theirs.iter().map(|(name, _)| name).collect();
            names.extend(
                ours.iter().map(|(name, _)| name).filter(|name| theirs.iter().all(|(own, _)| own != *name)),
            );
            for name in names {
                let dot = if path.is_empty() { "" } else { "." };
                let inner = (format!("{path}{dot}{name}"), format!("{plain}{dot}{name}"));
                let value = |tree: Option<&Tree>| tree.and_then(|tree| tree.field(name)).cloned();
                let (theirs, ours) = (value(kafka), value(tidelog));
                walk(rules, api, (&inner.0, &inner.1), theirs.as_ref(), ours.as_ref(), found);
            }
        }
        (Some(Tree::Array(theirs)), Some(Tree::Array(ours))) => {
            let key = rules.key(api, plain);
            let of = |elements: &[Tree]| -> Vec<(String, Tree)> {
                let name = |(index, element): (usize, &Tree)| {
                    let named = key.and_then(|key| element.field(key)).map(|name| match name {
                        Tree::Text(name) => name.clone(),
                        other => other.to_string(),
                    });
                    (named.unwrap_or_else(|| index.to_string()), element.clone())
                };
                elements.iter().enumerate().map(name).collect()
            };
            let (theirs, ours) = (of(theirs), of(ours));
            let get = |all: &[(String, Tree)], name: &str| {
                all.iter().find(|(own, _)| own == name).map(|(_, element)| element.clone())
            };
            let only_ours = ours.iter().filter(|(name, _)| theirs.iter().all(|(own, _)| own != name));
            for (name, _) in theirs.iter().chain(only_ours) {
                let path = format!("{path}[{name}]");
                walk(
                    rules,
                    api,
                    (&path, plain),
                    get(&theirs, name).as_ref(),
                    get(&ours, name).as_ref(),
                    found,
                );
            }
        }
        (theirs, ours) if theirs == ours => {}
        (theirs, ours) => {
            let text = |value: Option<&Tree>| value.map_or_else(|| ABSENT.to_owned(), ToString::to_string);
            found.push((path.to_owned(), text(theirs), text(ours)));
        }
    }
}

/// Versions as people write them: `0-3, 5`.
#[must_use]
pub fn ranges(versions: &[i16]) -> String {
    let mut sorted = versions.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|one, other| one + 1 == *other).map(|run| match run {
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// A row of the table: patterns in which `*` stands for anything. The place is a scenario, or one of its steps: `fetch: a gap [3]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The line that it stands in.
    pub line: usize,
    place: String,
    api: String,
    versions: Versions,
    field: String,
    kafka: String,
    tidelog: String,
}

impl Row {
    fn meets(&self, difference: &Difference, version: i16) -> bool {
        (matches(&self.place, &difference.place) || matches(&self.place, &step_name(difference)))
            && matches(&self.api, difference.api.name())
            && self.versions.contains(version)
            && matches(&self.field, &difference.field)
            && matches(&self.kafka, &difference.kafka)
            && matches(&self.tidelog, &difference.tidelog)
    }

    /// Whether it speaks of this scenario.
    #[must_use]
    pub fn is_of(&self, place: &str) -> bool {
        matches(&self.place, place)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, place, api, field, kafka, tidelog, .. } = self;
        write!(f, "line {line}: {place} | {api} | {field} | {kafka} | {tidelog}")
    }
}

/// Scenario and step as a row names them.
fn step_name(difference: &Difference) -> String {
    format!("{} [{}]", difference.place, difference.step)
}

/// Whether a text is what a pattern says.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{0}");
    inner.split('|').map(|cell| cell.trim().trim_matches('`').replace('\u{0}', "|")).collect()
}

/// A cell for each name of its lists: `a[x, y]` is `a[x]` and `a[y]`.
fn each(cell: &str) -> Vec<String> {
    let list = cell.match_indices('[').find_map(|(start, _)| {
        let (list, after) = cell[start + 1..].split_once(']')?;
        list.contains(", ").then_some((&cell[..start], list, after))
    });
    let Some((before, list, after)) = list else { return vec![cell.to_owned()] };
    list.split(", ").flat_map(|name| each(&format!("{before}[{name}]{after}"))).collect()
}

/// The rows of `differences.md`: six cells between bars, below a heading row and its line. A line with a list in its first or
/// its fourth cell is a row for each name, and each must meet a difference. The reason is the text between the last heading
/// and the row.
///
/// # Errors
/// A row with other cells, or without a reason.
pub fn rows(text: &str) -> Result<Vec<Row>> {
    let (mut rows, mut has_reason) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if !line.starts_with('|') {
            has_reason = !line.starts_with('#') && (has_reason || !line.trim().is_empty());
            continue;
        }
        if !has_reason {
            bail!("differences.md, line {}: a row needs a reason between its heading and it", number + 1);
        }
        let cells = cells(line);
        if cells.first().is_some_and(|first| first == "scenario" || first.starts_with("--")) {
            continue;
        }
        let [place, api, versions, field, kafka, tidelog] = cells.as_slice() else {
            bail!("differences.md, line {}: six cells are needed", number + 1)
        };
        let versions = range(versions).with_context(|| format!("differences.md, line {}", number + 1))?;
        for place in each(place) {
            rows.extend(each(field).into_iter().map(|field| Row {
                line: number + 1,
                place: place.clone(),
                api: api.clone(),
                versions,
                field,
                kafka: kafka.clone(),
                tidelog: tidelog.clone(),
            }));
        }
    }
    Ok(rows)
}

fn range(text: &str) -> Result<Versions> {
    if text == "*" {
        return Ok(Versions { min: -1, max: ALL_VERSIONS.max });
    }
    if let Some(min) = text.strip_suffix('+') {
        return Ok(Versions { min: min.parse()?, max: i16::MAX });
    }
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    Ok(Versions { min: min.parse()?, max: max.parse()? })
}

/// The differences that no row meets, and the rows that meet none.
#[must_use]
pub fn unlisted<'a>(differences: &Differences, rows: &'a [Row]) -> (Differences, Vec<&'a Row>) {
    let mut used = vec![false; rows.len()];
    let mut unlisted = Differences::new();
    for (difference, versions) in differences {
        for version in versions {
            let mut is_listed = false;
            for (row, used) in rows.iter().zip(&mut used) {
                if row.meets(difference, *version) {
                    *used = true;
                    is_listed = true;
                }
            }
            if !is_listed {
                unlisted.entry(difference.clone()).or_default().push(*version);
            }
        }
    }
    let unused = rows.iter().zip(used).filter(|(_, used)| !used).map(|(row, _)| row).collect();
    (unlisted, unused)
}

fn cell(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_LETTERS).collect();
    if shown.len() < text.len() {
        shown.push('*');
    }
    format!("`{}`", shown.replace('|', "\\|"))
}

/// A difference as a row of the table.
#[must_use]
pub fn row_text(difference: &Difference) -> String {
    let Difference { api, field, kafka, tidelog, .. } = difference;
    let place = step_name(difference);
    format!("| {place} | {api} | * | {} | {} | {} |", cell(field), cell(kafka), cell(tidelog))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(field: &str, tidelog: &str) -> Difference {
        Difference {
            place: "fetch: an old epoch".to_owned(),
            step: 1,
            api: ApiKey::Fetch,
            field: field.to_owned(),
            kafka: "74".to_owned(),
            tidelog: tidelog.to_owned(),
        }
    }

    #[test]
    fn a_row_meets_what_its_patterns_say_and_no_more() {
        let text = "# Of Tidelog\n\nThus.\n\n| scenario | API | versions | field | Apache Kafka | Tidelog |\n| --- | --- | --- | --- | --- | --- |\n\
                    | fetch: * | Fetch | 4-12 | `a[*].error_code` | 74 | * |\n| x: y | Fetch | * | z | 1 | 2 |\n";
        let rows = rows(text).unwrap();
        let mut differences = Differences::new();
        differences.insert(difference("a[0].error_code", "0"), vec![12, 13]);
        differences.insert(difference("a[0].error_codes", "0"), vec![12]);
        let (unlisted, unused) = unlisted(&differences, &rows);
        assert_eq!(unlisted.values().cloned().collect::<Vec<_>>(), [vec![13], vec![12]]);
        assert_eq!(unused.iter().map(|row| row.line).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn a_list_is_a_row_for_each_name_and_a_step_one_of_the_scenarios() {
        let text = "Thus.\n| fetch: an old epoch [1, 2] | Fetch | * | `a[b, c].d[0]` | 74 | 0 |\n| fetch: an old epoch | Fetch | * | e | 74 | 0 |\n";
        let rows = rows(text).unwrap();
        let mut differences = Differences::new();
        for field in ["a[b].d[0]", "a[d].d[0]", "e"] {
            differences.insert(difference(field, "0"), vec![12]);
        }
        let (unlisted, unused) = unlisted(&differences, &rows);
        assert_eq!(unlisted.keys().map(|other| other.field.as_str()).collect::<Vec<_>>(), ["a[d].d[0]"]);
        let unused: Vec<_> = unused.iter().map(|row| (row.place.as_str(), row.field.as_str())).collect();
        assert_eq!(
            unused,
            [
                ("fetch: an old epoch [1]", "a[c].d[0]"),
                ("fetch: an old epoch [2]", "a[b].d[0]"),
                ("fetch: an old epoch [2]", "a[c].d[0]"),
            ]
        );
    }

    #[test]
    fn elements_are_compared_by_their_key_whatever_their_place() {
        let rules = Rules::parse("* configs keyed name").unwrap();
        let config = |name: &str, value: i64| {
            Tree::Struct(vec![("name".to_owned(), Tree::text(name)), ("value".to_owned(), Tree::Int(value))])
        };
        let answer = |configs: Vec<Tree>| Tree::Struct(vec![("configs".to_owned(), Tree::Array(configs))]);
        let theirs = answer(vec![config("a", 1), config("b", 2), config("c", 3)]);
        let ours = answer(vec![config("c", 4), config("a", 1)]);
        let mut found = Vec::new();
        walk(&rules, "DescribeConfigs", ("", ""), Some(&theirs), Some(&ours), &mut found);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(field, _, ours)| (field.as_str(), ours.as_str())).collect();
        assert_eq!(found, [("configs[b]", "absent"), ("configs[c].value", "4")]);
    }

    #[test]
    fn a_row_has_its_reason_between_its_heading_and_it() {
        let row = "| fetch: a | Fetch | * | e | 74 | 0 |\n";
        let rows = |text: &str| rows(text).map(|rows| rows.len()).map_err(|error| error.to_string());
        assert_eq!(rows(&format!("## A\nThus.\n\n{row}{row}")), Ok(2));
        let told = Err("differences.md, line 4: a row needs a reason between its heading and it".to_owned());
        assert_eq!(rows(&format!("## A\nThus.\n## B\n{row}")), told);
    }

    #[test]
    fn versions_are_told_as_ranges() {
        assert_eq!(ranges(&[3, 1, 2, 7, 9, 8, 3]), "1-3, 7-9");
    }
}
