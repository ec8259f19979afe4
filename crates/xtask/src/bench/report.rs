//! The page of a bench, and the file with every figure.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::conditions;

/// A table of texts.
#[derive(Debug, Default)]
pub(super) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// As Markdown, so that it can be put into a document as it is.
    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain(self.columns.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let padded = widths.iter().enumerate().map(|(column, width)| {
                let cell = cells.get(column).map_or("", String::as_str);
                format!("{cell}{}", " ".repeat(width - cell.chars().count().min(*width)))
            });
            format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
        };
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat((*width).max(3))).collect();
        let mut text = format!("\n{}\n\n{}{}", self.title, line(&self.columns), line(&rule));
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }
}

/// What a bench found.
pub(super) struct Report {
    name: &'static str,
    conditions: Map<String, Value>,
    tables: Vec<Table>,
    figures: Map<String, Value>,
    notes: Vec<String>,
}

impl Report {
    /// The conditions are those of the beginning.
    pub(super) fn begin(name: &'static str, scratch: &Path) -> Self {
        Self {
            name,
            conditions: conditions::conditions(scratch),
            tables: Vec::new(),
            figures: Map::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn condition(&mut self, name: &str, value: impl Into<Value>) {
        self.conditions.insert(name.to_owned(), value.into());
    }

    pub(super) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(super) fn figures(&mut self, name: &str, figures: Value) {
        self.figures.insert(name.to_owned(), figures);
    }

    /// A sentence below the tables.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Prints the page and writes the file.
    pub(super) fn finish(&self, folder: &Path) -> Result<()> {
        println!("\n# bench {}\n", self.name);
        for (name, value) in &self.conditions {
            println!("{name}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
        for table in &self.tables {
            print!("{}", table.text());
        }
        for note in &self.notes {
            println!("\n{note}");
        }
        let date = self.conditions.get("date").and_then(Value::as_str).unwrap_or("undated").replace(':', "");
        let document = json!({
            "bench": self.name,
            "conditions": self.conditions,
            "figures": self.figures,
            "notes": self.notes,
        });
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let path = folder.join(format!("{}-{date}.json", self.name));
        fs::write(&path, serde_json::to_string_pretty(&document)?)
            .with_context(|| format!("write {}", path.display()))?;
        println!("\nevery figure: {}", path.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_markdown_with_aligned_columns() {
        let mut table = Table::new("speed", &["row", "MB/s"]);
        table.row(["produce".to_owned(), "7".to_owned()]);
        assert_eq!(table.text(), "\nspeed\n\n| row     | MB/s |\n| ------- | ---- |\n| produce | 7    |\n");
    }
}
