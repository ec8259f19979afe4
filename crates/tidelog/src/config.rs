//! A node's configuration: one TOML file, overridden by `TIDELOG_…` environment variables, then by flags.
//!
//! **Owns** where each setting comes from and the check at the start, which names every wrong setting at once.
//!
//! **Does not own** what broker and topic settings mean: their table is `core::topic_config`, by Kafka's names.

mod address;
mod environment;
mod file;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use tidelog_core::topic_config::{BrokerSettings, broker_key, check_broker_value, has_effect};
use tidelog_object::{ChecksumMode, StoreUrl};
use tidelog_types::BrokerId;

pub use address::{Address, AddressError};
pub use file::{ListenerEntry, NodeFile};

/// The Kafka listener of a node without configuration.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:9092";
/// The admin HTTP listener of a node without configuration.
pub const ADMIN_LISTEN_DEFAULT: &str = "127.0.0.1:9644";
/// The data directory of a node without configuration.
pub const DATA_DIR_DEFAULT: &str = "./tidelog-data";
/// The folder of the data directory that is the bucket of a node without `--store`.
pub(crate) const EMBEDDED_BUCKET: &str = "bucket";
/// The name of the one listener that a flag makes.
const LISTENER_NAME_DEFAULT: &str = "PLAINTEXT";
/// The most listeners of a node: one for each network that reaches it.
const LISTENERS_MAX: usize = 16;

/// How log lines are written.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What flags and environment give; each overrides the file's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// `--advertise`.
    pub advertise: Option<String>,
    /// `--admin-listen`.
    pub admin_listen: Option<String>,
    /// `--store`.
    pub store: Option<String>,
    /// `--store-endpoint`.
    pub store_endpoint: Option<String>,
    /// `--store-checksum`.
    pub store_checksum: Option<String>,
    /// `--log-format`.
    pub log_format: Option<LogFormat>,
    /// `--node-id`.
    pub node_id: Option<i32>,
    /// `--rack`.
    pub rack: Option<String>,
    /// `--set key=value`: broker settings by Kafka's names.
    pub settings: BTreeMap<String, String>,
    /// What could not be read at all; told with everything else that is wrong.
    pub wrong: Vec<String>,
}

impl Overrides {
    /// Lays `stronger` over this.
    #[must_use]
    pub fn overridden_by(mut self, stronger: Self) -> Self {
        self.settings.extend(stronger.settings);
        self.wrong.extend(stronger.wrong);
        Self {
            data_dir: stronger.data_dir.or(self.data_dir),
            listen: stronger.listen.or(self.listen),
            advertise: stronger.advertise.or(self.advertise),
            admin_listen: stronger.admin_listen.or(self.admin_listen),
            store: stronger.store.or(self.store),
            store_endpoint: stronger.store_endpoint.or(self.store_endpoint),
            store_checksum: stronger.store_checksum.or(self.store_checksum),
            log_format: stronger.log_format.or(self.log_format),
            node_id: stronger.node_id.or(self.node_id),
            rack: stronger.rack.or(self.rack),
            settings: self.settings,
            wrong: self.wrong,
        }
    }
}

/// One Kafka listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub listen: Address,
    /// What its clients are told.
    pub advertise: Address,
}

/// A node's configuration, checked.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The node's number.
    pub node_id: BrokerId,
    /// Its rack.
    pub rack: Option<String>,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// Its Kafka listeners; at least one.
    pub listeners: Vec<Listener>,
    /// Its admin HTTP listener.
    pub admin_listen: Address,
    /// Its store; none is a folder in the data directory.
    pub store: Option<StoreUrl>,
    /// Where the store listens.
    pub store_endpoint: Option<String>,
    /// The checksum that goes with puts.
    pub store_checksum: Option<ChecksumMode>,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// Broker settings, by where they are set: the file, environment and flags are the static ones.
    pub settings: BrokerSettings,
    /// Keys of Kafka that were set and have no effect here.
    pub without_effect: Vec<String>,
}

/// Every wrong setting of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongSettings(pub Vec<String>);

impl fmt::Display for WrongSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.0.len() == 1 { "setting is" } else { "settings are" };
        write!(f, "{} {noun} wrong:", self.0.len())?;
        self.0.iter().try_for_each(|wrong| write!(f, "\n  {wrong}"))
    }
}

impl std::error::Error for WrongSettings {}

impl NodeConfig {
    /// Reads the file, if one is named, and lays environment and flags over it.
    ///
    /// # Errors
    /// Every wrong setting at once. Nothing was touched.
    pub fn load(
        file: Option<&std::path::Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: Overrides,
    ) -> Result<Self, WrongSettings> {
        let mut wrong = Vec::new();
        let file = file.map_or_else(NodeFile::default, |path| NodeFile::read(path, &mut wrong));
        Self::assemble(file, environment, flags, wrong)
    }

    /// As [`NodeConfig::load`], from the file's text.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn from_text(
        text: &str,
        environment: impl Iterator<Item = (String, String)>,
        flags: Overrides,
    ) -> Result<Self, WrongSettings> {
        let mut wrong = Vec::new();
        let file = NodeFile::from_text(Path::new("tidelog.toml"), text, &mut wrong);
        Self::assemble(file, environment, flags, wrong)
    }

    fn assemble(
        file: NodeFile,
        environment: impl Iterator<Item = (String, String)>,
        flags: Overrides,
        mut wrong: Vec<String>,
    ) -> Result<Self, WrongSettings> {
        let mut overrides = environment::overrides(environment).overridden_by(flags);
        wrong.append(&mut overrides.wrong);
        let config = Self::resolve(file, overrides, &mut wrong);
        match config {
            Some(config) if wrong.is_empty() => Ok(config),
            _ => Err(WrongSettings(wrong)),
        }
    }

    /// Puts the parts together and says what is wrong with each.
    fn resolve(file: NodeFile, overrides: Overrides, wrong: &mut Vec<String>) -> Option<Self> {
        let node_id = overrides.node_id.or(file.node_id).unwrap_or(1);
        if node_id < 0 {
            wrong.push(format!("node_id: {node_id} is negative"));
        }
        let listeners = listeners(&file, &overrides, wrong);
        let admin =
            overrides.admin_listen.or(file.admin_listen).unwrap_or_else(|| ADMIN_LISTEN_DEFAULT.to_owned());
        let admin_listen = parse(&admin, "admin_listen", wrong);
        let store = overrides.store.or(file.store).and_then(|url| parse::<StoreUrl>(&url, "store", wrong));
        let store_endpoint = overrides.store_endpoint.or(file.store_endpoint);
        if let Some(endpoint) = store_endpoint.as_deref()
            && let Err(error) = check_endpoint(endpoint)
        {
            wrong.push(format!("store_endpoint: {error}"));
        }
        let checksum = overrides.store_checksum.or(file.store_checksum);
        let store_checksum = checksum.and_then(|mode| parse::<ChecksumMode>(&mode, "store_checksum", wrong));
        let mut settings: BTreeMap<String, String> =
            file.settings.into_iter().map(|(key, value)| (key, value.into_text())).collect();
        settings.extend(overrides.settings);
        for (key, value) in &settings {
            if NAMED_ELSEWHERE.iter().any(|(broker_key, _)| broker_key == key) {
                let field = NAMED_ELSEWHERE
                    .iter()
                    .find(|(broker_key, _)| broker_key == key)
                    .map_or("", |(_, field)| field);
                wrong.push(format!("{key}: set `{field}` of the file instead"));
            } else if let Err(error) = check_broker_value(key, value, false) {
                wrong.push(format!("{key}: {error}"));
            } else if key == "tier.cache.bytes"
                && let Ok(bytes) = value.trim().parse()
                && let Err(error) = crate::node::check_cache_bytes(bytes)
            {
                wrong.push(format!("{key}: {error}"));
            }
        }
        let without_effect: Vec<String> =
            settings.keys().filter(|key| broker_key(key).is_some() && !has_effect(key)).cloned().collect();
        // What is told of these is their default, and of a secret nothing.
        settings.retain(|key, _| broker_key(key).is_none() || has_effect(key));
        let broker_settings = BrokerSettings { static_values: settings, ..BrokerSettings::default() };
        wrong.extend(broker_settings.disorder().iter().map(ToString::to_string));
        let mut settings = broker_settings.static_values;
        let data_dir = overrides.data_dir.or(file.data_dir).unwrap_or_else(|| DATA_DIR_DEFAULT.into());
        if data_dir.as_os_str().is_empty() {
            wrong.push("data_dir: it is empty: name a folder".to_owned());
        }
        if let Some(folder) = store.as_ref().and_then(StoreUrl::folder)
            && let Err(error) = check_folders(&data_dir, folder)
        {
            wrong.push(format!("store: {error}"));
        }
        let rack = overrides.rack.or(file.rack);
        describe_itself(&mut settings, node_id, &data_dir, rack.as_deref(), &listeners);
        Some(Self {
            node_id: BrokerId(node_id),
            rack,
            data_dir,
            listeners,
            admin_listen: admin_listen?,
            store,
            store_endpoint,
            store_checksum,
            log_format: overrides.log_format.or(file.log_format).unwrap_or_default(),
            settings: BrokerSettings { static_values: settings, ..BrokerSettings::default() },
            without_effect,
        })
    }
}

/// Checks where an S3-compatible store is said to listen.
pub(crate) fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let host = rest.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let is_good = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '@');
    is_good.then_some(()).ok_or_else(|| {
        let shown: String = endpoint.chars().take(256).collect();
        format!("`{shown}` is no address of a store: write http://host:port or https://host")
    })
}

/// Checks that a bucket in a folder and the node's own files keep out of each other's way.
fn check_folders(data_dir: &Path, store: &Path) -> Result<(), String> {
    // The path as it is written: of a folder that is yet to be made no more is known.
    let Ok(data_dir) = std::path::absolute(data_dir) else { return Ok(()) };
    let is_apart = match store.strip_prefix(&data_dir) {
        Ok(below) => below.starts_with(EMBEDDED_BUCKET),
        Err(_) => !data_dir.starts_with(store),
    };
    is_apart.then_some(()).ok_or_else(|| {
        format!(
            "the folder {} and the data directory {} lie in each other: keep them apart, or leave the store out for a bucket in \
             the data directory",
            store.display(),
            data_dir.display()
        )
    })
}

/// Broker keys that clients may read and that this program's own fields set.
const NAMED_ELSEWHERE: [(&str, &str); 7] = [
    ("node.id", "node_id"),
    ("broker.id", "node_id"),
    ("broker.rack", "rack"),
    ("log.dirs", "data_dir"),
    ("log.dir", "data_dir"),
    ("listeners", "[[listeners]]"),
    ("advertised.listeners", "[[listeners]]"),
];

/// Adds the settings that the node's own fields decide, as DescribeConfigs shows them.
fn describe_itself(
    settings: &mut BTreeMap<String, String>,
    node_id: i32,
    data_dir: &Path,
    rack: Option<&str>,
    listeners: &[Listener],
) {
    let join = |address: fn(&Listener) -> &Address| {
        listeners.iter().map(|one| format!("{}://{}", one.name, address(one))).collect::<Vec<_>>().join(",")
    };
    settings.insert("node.id".to_owned(), node_id.to_string());
    settings.insert("broker.id".to_owned(), node_id.to_string());
    settings.insert("log.dirs".to_owned(), data_dir.display().to_string());
    settings.insert("listeners".to_owned(), join(|listener| &listener.listen));
    settings.insert("advertised.listeners".to_owned(), join(|listener| &listener.advertise));
    if let Some(rack) = rack {
        settings.insert("broker.rack".to_owned(), rack.to_owned());
    }
}

fn parse<T: std::str::FromStr<Err: fmt::Display>>(
    text: &str,
    name: &str,
    wrong: &mut Vec<String>,
) -> Option<T> {
    text.parse().map_err(|error| wrong.push(format!("{name}: {error}"))).ok()
}

fn listeners(file: &NodeFile, overrides: &Overrides, wrong: &mut Vec<String>) -> Vec<Listener> {
    let from_flags = overrides.listen.is_some() || overrides.advertise.is_some();
    let entries = if from_flags && file.listeners.len() < 2 {
        let one = file.listeners.first();
        let listen = overrides.listen.clone().or_else(|| one.map(|entry| entry.listen.clone()));
        vec![ListenerEntry {
            name: one.map_or_else(|| LISTENER_NAME_DEFAULT.to_owned(), |entry| entry.name.clone()),
            listen: listen.unwrap_or_else(|| LISTEN_DEFAULT.to_owned()),
            advertise: overrides.advertise.clone().or_else(|| one.and_then(|entry| entry.advertise.clone())),
        }]
    } else if from_flags {
        wrong.push(
            "listen: the file names several listeners, and a flag cannot say which one it means".to_owned(),
        );
        Vec::new()
    } else if file.listeners.is_empty() {
        let listen = LISTEN_DEFAULT.to_owned();
        vec![ListenerEntry { name: LISTENER_NAME_DEFAULT.to_owned(), listen, advertise: None }]
    } else {
        file.listeners.clone()
    };
    if entries.len() > LISTENERS_MAX {
        wrong.push(format!("listeners: {} are named, at most {LISTENERS_MAX} are allowed", entries.len()));
    }
    let mut found: Vec<Listener> = Vec::new();
    for entry in entries {
        let name_is_good = !entry.name.is_empty()
            && entry.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if !name_is_good {
            wrong.push(format!(
                "listeners: `{}` is not a name: letters, digits, '_', '-' and '.' are allowed",
                entry.name
            ));
        }
        if found.iter().any(|other| other.name == entry.name) {
            wrong.push(format!("listeners: the name {} stands twice", entry.name));
        }
        found.extend(listener(&entry, wrong));
    }
    found
}

/// Checks one listener. A wildcard address is where to listen, never what to tell a client: it would connect to itself.
fn listener(entry: &ListenerEntry, wrong: &mut Vec<String>) -> Option<Listener> {
    let listen: Option<Address> = parse(&entry.listen, &format!("listen of {}", entry.name), wrong);
    let advertise: Option<Address> = match &entry.advertise {
        Some(text) => parse(text, &format!("advertise of {}", entry.name), wrong),
        None => listen.clone(),
    };
    let (listen, advertise) = (listen?, advertise?);
    if advertise.is_wildcard() {
        wrong.push(format!(
            "advertise of {}: clients would be told {advertise}, which reaches nobody from another machine: set an address by \
             which they reach this node",
            entry.name
        ));
        return None;
    }
    if advertise.port() == 0 && entry.advertise.is_some() {
        wrong.push(format!("advertise of {}: port 0 reaches nobody", entry.name));
        return None;
    }
    Some(Listener { name: entry.name.clone(), listen, advertise })
}
