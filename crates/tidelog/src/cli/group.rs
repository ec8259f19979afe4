//! `tidelog group`.

mod describe;
mod reset;
mod settings;
mod time;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use tidelog_core::topic_config::group_key;

use super::{Bootstrap, Table, output::error_fields, print_json};
use crate::{client::GroupAdmin, printable::named, telemetry};

/// Kafka's words for where a group stands, of both protocols.
const STATES: [&str; 7] =
    ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling"];

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Lists groups.
    List {
        /// Only groups in this state (Empty, PreparingRebalance, CompletingRebalance, Stable, …); may be repeated.
        #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = state)]
        states: Vec<&'static str>,
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
    /// Shows a group's members, and how far it is in each partition.
    Describe {
        /// Its name; empty ("") is a name, too.
        group: String,
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
    /// Shows a group's settings, and which of them it sets itself.
    Config {
        /// Its name; there need not be such a group yet.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        group: String,
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
    /// Changes a group's settings.
    Alter(settings::Alter),
    /// Moves the committed offsets of a group that nobody is in: shows what would be, and does it with --execute.
    ResetOffsets(reset::Options),
    /// Deletes groups that nobody is in, with their offsets.
    Delete {
        /// Their names.
        #[arg(required = true, value_name = "GROUP")]
        groups: Vec<String>,
        #[command(flatten)]
        bootstrap: Bootstrap,
    },
}

impl Verb {
    pub(super) fn wrong(&self) -> Option<String> {
        match self {
            Self::Alter(options) => options.changes.wrong(group_key),
            _ => None,
        }
    }

    pub(super) fn wants_json(&self) -> bool {
        match self {
            Self::List { bootstrap, .. }
            | Self::Describe { bootstrap, .. }
            | Self::Config { bootstrap, .. }
            | Self::Delete { bootstrap, .. } => bootstrap.json,
            Self::Alter(options) => options.bootstrap.json,
            Self::ResetOffsets(options) => options.bootstrap.json,
        }
    }
}

fn state(text: &str) -> Result<&'static str, String> {
    let found = STATES.iter().find(|state| state.eq_ignore_ascii_case(text));
    found.copied().ok_or_else(|| format!("a group's state is one of {}", STATES.join(", ")))
}

pub(crate) async fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::List { states, bootstrap } => list(&states, &bootstrap).await,
        Verb::Describe { group, bootstrap } => describe::run(&group, &bootstrap).await,
        Verb::Config { group, bootstrap } => settings::show(&group, &bootstrap).await,
        Verb::Alter(options) => settings::alter(options).await,
        Verb::ResetOffsets(options) => reset::run(options).await,
        Verb::Delete { groups, bootstrap } => delete(&groups, &bootstrap).await,
    }
}

async fn list(states: &[&str], bootstrap: &Bootstrap) -> Result<ExitCode> {
    let groups = GroupAdmin::connect(&bootstrap.bootstrap).await?.list(states).await?;
    if bootstrap.json {
        print_json(&json!({ "groups": groups }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["GROUP", "STATE", "TYPE", "PROTOCOL TYPE"]);
    for group in groups {
        table.row([named(&group.group).to_owned(), group.state, group.kind, told(&group.protocol_type)]);
    }
    table.print()?;
    Ok(ExitCode::SUCCESS)
}

/// Deletes each group whatever becomes of the others, and fails where one was not deleted.
async fn delete(groups: &[String], bootstrap: &Bootstrap) -> Result<ExitCode> {
    let mut admin = GroupAdmin::connect(&bootstrap.bootstrap).await?;
    let mut table = Table::new(&["GROUP", "RESULT"]);
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for group in groups {
        match admin.delete(group).await {
            Ok(()) => {
                table.row([named(group).to_owned(), "deleted".to_owned()]);
                rows.push(json!({ "group": group, "result": "deleted" }));
            }
            Err(error) => {
                let code = error.code().map(|code| code.to_string());
                table
                    .row([named(group).to_owned(), code.clone().unwrap_or_else(|| "not deleted".to_owned())]);
                rows.push(json!({ "group": group, "result": "not deleted", "code": code }));
                failures.push(anyhow::Error::from(error));
            }
        }
    }
    failures.iter().for_each(telemetry::complain);
    if bootstrap.json {
        let mut document = json!({ "groups": rows });
        if let Some(first) = failures.first()
            && let Ok(Value::Object(why)) = serde_json::from_str(&error_fields(first))
            && let Some(fields) = document.as_object_mut()
        {
            fields.extend(why);
        }
        print_json(&document)?;
    } else {
        table.print()?;
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A cell for a text that may be empty.
fn told(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// A cell for a number that may not be known.
fn number(value: Option<i64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(subcommand)]
        verb: Verb,
    }

    fn parse(words: &[&str]) -> Result<Verb, String> {
        Line::try_parse_from([&["x"], words].concat())
            .map(|line| line.verb)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_state_is_one_of_kafkas_words_in_capitals_or_not() {
        let Verb::List { states, .. } =
            parse(&["list", "--state", "stable,EMPTY", "--state", "Dead"]).unwrap()
        else {
            panic!("another verb")
        };
        assert_eq!(states, ["Stable", "Empty", "Dead"]);
        let told = parse(&["list", "--state", "Asleep"]).unwrap_err();
        assert!(told.contains("a group's state is one of Empty, PreparingRebalance,"), "{told}");
    }

    #[test]
    fn a_reset_has_one_scope_and_one_target() {
        let reset = ["reset-offsets", "g"];
        let wrong = |more: &[&str], part: &str| {
            let told = parse(&[&reset[..], more].concat()).unwrap_err();
            assert!(told.contains(part), "{more:?}: {told}");
        };
        wrong(&["--to-earliest"], "--topic");
        wrong(&["--all-topics"], "--to-earliest");
        wrong(&["--all-topics", "--topic", "t", "--to-latest"], "cannot be used with");
        wrong(&["--all-topics", "--to-latest", "--to-earliest"], "cannot be used with");
        wrong(&["--all-topics", "--to-latest", "--dry-run", "--execute"], "cannot be used with");
        wrong(&["--all-topics", "--to-offset", "-1"], "--to-offset");
        wrong(&["--topic", "t:x", "--to-latest"], "is not TOPIC or TOPIC:PARTITION,…");
        wrong(&["--topic", "", "--to-latest"], "--topic");
        wrong(&["--all-topics", "--to-datetime", "yesterday"], "RFC 3339");
        wrong(&["--all-topics", "--by-duration", "soon"], "ISO 8601");
        for more in [
            &["--topic", "a", "--topic", "b:0,2", "--to-latest", "--dry-run"][..],
            &["--all-topics", "--shift-by", "-10", "--execute"],
            &["--all-topics", "--to-datetime", "2026-11-30T10:00:00+01:00"],
            &["--all-topics", "--by-duration", "PT1H"],
            &["--all-topics", "--to-offset", "0"],
        ] {
            parse(&[&reset[..], more].concat()).unwrap();
        }
    }
}
