//! `TIDELOG_…` environment variables: a field of the file, or a broker setting whose dots became underscores.

use clap::ValueEnum as _;
use tidelog_core::topic_config::broker_keys;

use super::Overrides;

const PREFIX: &str = "TIDELOG_";

/// Variables of ours that configure something else than a node.
const NOT_SETTINGS: [&str; 4] = ["CONFIG", "LOG", "SEEDS", "BIN"];

/// Reads what is set, and says what cannot be read.
pub(super) fn overrides(environment: impl Iterator<Item = (String, String)>) -> Overrides {
    let mut overrides = Overrides::default();
    let mut wrong = Vec::new();
    for (variable, value) in environment {
        let Some(name) = variable.strip_prefix(PREFIX) else { continue };
        if NOT_SETTINGS.contains(&name) || name.starts_with("TEST_") {
            continue;
        }
        match name {
            "DATA_DIR" => overrides.data_dir = Some(value.into()),
            "LISTEN" => overrides.listen = Some(value),
            "ADVERTISE" => overrides.advertise = Some(value),
            "ADMIN_LISTEN" => overrides.admin_listen = Some(value),
            "RACK" => overrides.rack = Some(value),
            "STORE" => overrides.store = Some(value),
            "STORE_ENDPOINT" => overrides.store_endpoint = Some(value).filter(|value| !value.is_empty()),
            "STORE_CHECKSUM" => overrides.store_checksum = Some(value),
            "LOG_FORMAT" => match super::LogFormat::from_str(&value, true) {
                Ok(format) => overrides.log_format = Some(format),
                Err(_) => wrong.push(format!("{variable}: `{value}` is no log format: use text or json")),
            },
            "NODE_ID" => match value.parse() {
                Ok(node_id) => overrides.node_id = Some(node_id),
                Err(_) => wrong.push(format!("{variable}: `{value}` is not a number")),
            },
            _ => match broker_keys().find(|key| variable_of(key.name) == name) {
                Some(key) => {
                    overrides.settings.insert(key.name.to_owned(), value);
                }
                None if is_of_a_service(name, &value) => {}
                None => wrong.push(format!("{variable}: there is no such setting")),
            },
        }
    }
    overrides.wrong = wrong;
    overrides
}

/// Whether it is one of the variables that Kubernetes puts into every container for a service whose name begins with `tidelog`.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let is_address = || ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let of_port = |rest: &str| {
        let mut parts = rest.split('_');
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        parts.next().is_some_and(is_number)
            && parts.next().is_some_and(|part| matches!(part, "TCP" | "UDP" | "SCTP"))
            && parts.next().is_none_or(|part| matches!(part, "ADDR" | "PORT" | "PROTO"))
            && parts.next().is_none()
    };
    let name = format!("_{name}");
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && is_address())
        || name.split_once("_PORT_").is_some_and(|(_, rest)| of_port(rest))
}

/// `log.retention.ms` is set by `TIDELOG_LOG_RETENTION_MS`.
fn variable_of(key: &str) -> String {
    key.chars().map(|c| if c == '.' { '_' } else { c.to_ascii_uppercase() }).collect()
}
