//! The TOML file.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::LogFormat;

/// The largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The file as it is written. Every field may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, with the line where that is known.
    pub fn read(path: &Path) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("config: {}: {error}", path.display());
        let length = fs::metadata(path).map_err(|error| wrong(&error))?.len();
        if length > FILE_BYTES_MAX {
            return Err(wrong(&format_args!("{length} bytes are too many for a configuration")));
        }
        let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
        toml::from_str(&text).map_err(|error| wrong(&error))
    }
}
