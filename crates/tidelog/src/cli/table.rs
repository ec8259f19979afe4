//! What verbs print: a table, or one JSON document.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::output;
use crate::printable::printable;

/// Rows under a header, printed with columns as wide as their widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a cell for each column; what would act on a terminal is escaped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell).into_owned()).collect());
    }

    /// The table as text; a number stands to the right.
    pub(crate) fn render(&self) -> String {
        let header: Vec<String> = self.header.iter().map(|name| (*name).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.header.len()).map(|column| width(column).unwrap_or(0)).collect();
        let numeric: Vec<bool> = (0..self.header.len())
            .map(|column| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .all(|cell| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-'))
            })
            .collect();
        let mut text = String::new();
        for line in lines {
            let cells: Vec<String> = line
                .iter()
                .zip(widths.iter().zip(&numeric))
                .map(
                    |(cell, (width, numeric))| {
                        if *numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                    },
                )
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// Prints the table on standard output.
    pub(crate) fn print(&self) -> Result<()> {
        output::print(&self.render())
    }
}

/// The elements of a list in a node's document; none where there is no list.
pub(crate) fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A cell for a value of a node's document.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// A JSON document and a line's end. JSON leaves some control characters as they are; none stands outside of a text.
fn json_text(document: &impl Serialize) -> Result<String> {
    let mut text = String::new();
    for character in serde_json::to_string_pretty(document)?.chars() {
        if character.is_control() && character != '\n' {
            write!(text, "\\u{:04x}", u32::from(character))?;
        } else {
            text.push(character);
        }
    }
    text.push('\n');
    Ok(text)
}

/// Prints one JSON document and a line's end on standard output.
pub(crate) fn print_json(document: &impl Serialize) -> Result<()> {
    output::print(&json_text(document)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_numbers_stand_to_the_right() {
        let mut table = Table::new(&["TOPIC", "PARTITIONS"]);
        table.row(["flights".to_owned(), "6".to_owned()]);
        table.row(["a".to_owned(), "12".to_owned()]);
        assert_eq!(table.render(), "TOPIC    PARTITIONS\nflights           6\na                12\n");
    }

    #[test]
    fn a_cell_feigns_no_line_and_no_column() {
        let mut table = Table::new(&["GROUP", "STATE"]);
        table.row(["a\nb\u{1b}[2J".to_owned(), "Empty".to_owned()]);
        table.row(["grün".to_owned(), "Stable".to_owned()]);
        let lines = "GROUP          STATE\na\\nb\\u{1b}[2J  Empty\ngrün           Stable\n";
        assert_eq!(table.render(), lines);
    }

    #[test]
    fn a_document_has_no_control_characters_and_is_read_as_what_was_written() {
        let document = serde_json::json!({ "group": "a\n\u{1b}\u{9b}\u{7f}ü" });
        let text = json_text(&document).unwrap();
        assert_eq!(text, "{\n  \"group\": \"a\\n\\u001b\\u009b\\u007fü\"\n}\n");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    }
}
