//! What a broker is started with, checked once.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use thiserror::Error;
use tidelog_core::topic_config::BrokerSettings;
use tidelog_types::{BrokerId, ByteSize, limits};

/// One named listener of the Kafka protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its name, as `listeners` names it.
    pub name: String,
    /// The host that is bound: an address, or a name that resolves to one.
    pub host: String,
    /// The port that is bound; 0 takes a free one.
    pub port: u16,
    /// What clients are told; the bound host and port where unset.
    pub advertised: Option<Advertised>,
}

/// An address that clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// A host that clients can resolve.
    pub host: String,
    /// The port; 0 is the bound one.
    pub port: u16,
}

/// Why a listener's settings are refused at start.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ListenerError {
    /// Clients would be told an address that no client can connect to.
    #[error(
        "listener {name} would advertise {host}, which no client can connect to: set advertised.listeners (or \
         --advertise) to a host name or address of this machine"
    )]
    AdvertisesWildcard {
        /// The listener.
        name: String,
        /// The wildcard address.
        host: String,
    },
    /// Two listeners have one name.
    #[error("two listeners are named {name}")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// No listener at all.
    #[error("listeners is empty: a broker needs at least one")]
    None,
}

impl ListenerConfig {
    /// The host that clients are told.
    ///
    /// # Errors
    /// [`ListenerError::AdvertisesWildcard`] where that is `0.0.0.0`, `::` or nothing.
    pub fn advertised_host(&self) -> Result<&str, ListenerError> {
        let host = self.advertised.as_ref().map_or(self.host.as_str(), |advertised| advertised.host.as_str());
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if host.is_empty() || address.is_ok_and(|address| address.is_unspecified()) {
            return Err(ListenerError::AdvertisesWildcard { name: self.name.clone(), host: host.to_owned() });
        }
        Ok(host)
    }
}

/// Checks all listeners: every wrong one is named.
///
/// # Errors
/// One error for each.
pub fn check_listeners(listeners: &[ListenerConfig]) -> Result<(), Vec<ListenerError>> {
    let mut errors = Vec::new();
    if listeners.is_empty() {
        errors.push(ListenerError::None);
    }
    for (position, listener) in listeners.iter().enumerate() {
        if listeners[..position].iter().any(|other| other.name == listener.name) {
            errors.push(ListenerError::DuplicateName { name: listener.name.clone() });
        }
        errors.extend(listener.advertised_host().err());
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// What a broker is started with.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// The node's number.
    pub node_id: BrokerId,
    /// The node's rack.
    pub rack: Option<String>,
    /// Broker keys from the file, the environment and flags, checked with [`BrokerSettings::check_static`].
    pub settings: BTreeMap<String, String>,
    /// Where the data lives, as DescribeLogDirs shows it.
    pub data_directory: String,
    /// Connections that the process has file descriptors for: a bound beside `max.connections`.
    pub connections_max: usize,
}

/// The limits of connections and requests, from the settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub request_bytes_max: usize,
    pub idle: Duration,
    pub connections_max: usize,
    /// Produce requests that are read and not yet appended.
    pub produce_bytes: ByteSize,
    pub fetch_bytes_max: usize,
    pub fetch_sessions_max: usize,
    pub describe_partitions_max: usize,
    pub list_offsets_timeout: Duration,
}

impl ConnectionLimits {
    pub(crate) fn new(settings: &BrokerSettings) -> Self {
        let amount = |key: &str, otherwise: u64| settings.amount(key).unwrap_or(otherwise);
        let count = |key: &str, otherwise: u64| usize::try_from(amount(key, otherwise)).unwrap_or(usize::MAX);
        Self {
            request_bytes_max: settings
                .amount("socket.request.max.bytes")
                .and_then(|bytes| usize::try_from(bytes).ok())
                .unwrap_or(limits::REQUEST_BYTES_MAX_DEFAULT),
            idle: Duration::from_millis(amount("connections.max.idle.ms", 600_000)),
            connections_max: count("max.connections", 2_147_483_647),
            produce_bytes: ByteSize::bytes(amount("queued.max.request.bytes", 128 * 1024 * 1024)),
            fetch_bytes_max: count("fetch.max.bytes", 57_671_680),
            fetch_sessions_max: count("max.incremental.fetch.session.cache.slots", 1_000),
            describe_partitions_max: count("max.request.partition.size.limit", 2_000),
            list_offsets_timeout: Duration::from_millis(amount(
                "remote.list.offsets.request.timeout.ms",
                30_000,
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(host: &str, advertised: Option<&str>) -> ListenerConfig {
        let advertised = advertised.map(|host| Advertised { host: host.to_owned(), port: 0 });
        ListenerConfig { name: "PLAINTEXT".to_owned(), host: host.to_owned(), port: 9092, advertised }
    }

    // B14
    #[test]
    fn a_wildcard_is_never_advertised() {
        for host in ["0.0.0.0", "::", "[::]", ""] {
            assert!(listener(host, None).advertised_host().is_err(), "{host}");
            assert!(listener("127.0.0.1", Some(host)).advertised_host().is_err(), "{host}");
            assert_eq!(listener(host, Some("broker.example")).advertised_host(), Ok("broker.example"));
        }
        assert_eq!(listener("127.0.0.1", None).advertised_host(), Ok("127.0.0.1"));
    }

    #[test]
    fn every_wrong_listener_is_named() {
        let listeners = [listener("0.0.0.0", None), listener("localhost", None)];
        let texts: Vec<_> =
            check_listeners(&listeners).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2);
        assert!(texts[0].starts_with("listener PLAINTEXT would advertise 0.0.0.0"), "{texts:?}");
        assert_eq!(texts[1], "two listeners are named PLAINTEXT");
        assert_eq!(check_listeners(&[]), Err(vec![ListenerError::None]));
    }
}
