//! The TOML file.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::LogFormat;

/// The largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The file as it is written. Every field may be left out.
#[derive(Debug, Clone, Default)]
pub struct NodeFile {
    /// The node's number; 1 where it is left out.
    pub node_id: Option<i32>,
    /// Its rack.
    pub rack: Option<String>,
    /// Its data directory.
    pub data_dir: Option<PathBuf>,
    /// Its admin HTTP listener, `host:port`.
    pub admin_listen: Option<String>,
    /// Its store.
    pub store: Option<String>,
    /// Where the store listens.
    pub store_endpoint: Option<String>,
    /// `crc64nvme`, `sha256` or `none`.
    pub store_checksum: Option<String>,
    /// `text` or `json`.
    pub log_format: Option<LogFormat>,
    /// Its Kafka listeners.
    pub listeners: Vec<ListenerEntry>,
    /// Broker settings by Kafka's names.
    pub settings: BTreeMap<String, Setting>,
}

/// One listener of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerEntry {
    /// Its name.
    pub name: String,
    /// Where it listens, `host:port`.
    pub listen: String,
    /// What its clients are told, `host:port`; where it listens, if left out.
    pub advertise: Option<String>,
}

/// A setting's value: numbers and booleans need no quotes.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// A whole number.
    Integer(i64),
    /// Yes or no.
    Boolean(bool),
    /// A number with a fraction.
    Float(f64),
    /// Anything else.
    Text(String),
}

impl Setting {
    /// The value as Kafka's tools would write it.
    #[must_use]
    pub fn into_text(self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Boolean(flag) => flag.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

impl NodeFile {
    /// Reads a file; adds all that is wrong with it to `wrong`, each field by its name.
    pub fn read(path: &Path, wrong: &mut Vec<String>) -> Self {
        let text = read_text(path).unwrap_or_else(|error| {
            wrong.push(format!("config: {}: {error}", path.display()));
            String::new()
        });
        Self::from_text(path, &text, wrong)
    }

    /// Reads a file's text; `path` is for what is told.
    pub(super) fn from_text(path: &Path, text: &str, wrong: &mut Vec<String>) -> Self {
        let table = toml::from_str(text).unwrap_or_else(|error| {
            wrong.push(format!("config: {}: {error}", path.display()));
            Table::new()
        });
        let mut file = Self::default();
        for (field, value) in table {
            let read = match field.as_str() {
                "node_id" => take(value, &mut file.node_id),
                "rack" => take(value, &mut file.rack),
                "data_dir" => take(value, &mut file.data_dir),
                "admin_listen" => take(value, &mut file.admin_listen),
                "store" => take(value, &mut file.store),
                "store_endpoint" => take(value, &mut file.store_endpoint),
                "store_checksum" => take(value, &mut file.store_checksum),
                "log_format" => take(value, &mut file.log_format),
                "listeners" => take(value, &mut file.listeners),
                "settings" => take(value, &mut file.settings),
                _ => Err("there is no such field".to_owned()),
            };
            if let Err(error) = read {
                wrong.push(format!("{field}: {error}"));
            }
        }
        // As in the environment, an empty endpoint is none.
        file.store_endpoint = file.store_endpoint.filter(|endpoint| !endpoint.is_empty());
        file
    }
}

/// Reads a field's value into its place.
fn take<T: DeserializeOwned>(value: Value, place: &mut T) -> Result<(), String> {
    *place = value.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
    Ok(())
}

fn read_text(path: &Path) -> Result<String, String> {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("{length} bytes are too many for a configuration"));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}
