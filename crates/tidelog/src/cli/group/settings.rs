//! `tidelog group config` and `tidelog group alter`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;

use crate::{
    cli::{Bootstrap, Changes, Table, print_json},
    client::{Admin, Configured},
};

#[derive(Debug, Args)]
pub(crate) struct Alter {
    /// The group's name; there need not be such a group yet.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    group: String,
    #[command(flatten)]
    pub(super) changes: Changes,
    #[command(flatten)]
    pub(super) bootstrap: Bootstrap,
}

pub(super) async fn alter(options: Alter) -> Result<ExitCode> {
    let Alter { group, changes, bootstrap } = options;
    let mut admin = Admin::connect(&bootstrap.bootstrap).await?;
    admin.alter(Configured::Group(&group), &changes.into_pairs()).await?;
    if bootstrap.json {
        print_json(&json!({ "group": group, "result": "altered" }))?;
    } else {
        let mut table = Table::new(&["GROUP", "RESULT"]);
        table.row([group, "altered".to_owned()]);
        table.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn show(group: &str, bootstrap: &Bootstrap) -> Result<ExitCode> {
    let mut admin = Admin::connect(&bootstrap.bootstrap).await?;
    let configs =
        admin.describe_configs(Configured::Group(group)).await.context("read the group's settings")?;
    if bootstrap.json {
        print_json(&json!({ "group": group, "configs": configs }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["SETTING", "VALUE", "SET BY"]);
    for config in configs {
        let by = if config.overridden { "group" } else { "broker or default" };
        table.row([config.name, config.value.unwrap_or_default(), by.to_owned()]);
    }
    table.print()?;
    Ok(ExitCode::SUCCESS)
}
