//! `host:port`, as listeners and clients take it.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A text is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not host:port (an IPv6 address stands in brackets)")]
pub struct AddressError {
    /// What was given.
    pub text: String,
}

/// A host, by name or number, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// An address of its parts; an IPv6 host without brackets.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// The host, an IPv6 one without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it means "every address of this machine", and so names none.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refused = || AddressError { text: text.chars().take(256).collect() };
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(refused)?,
            None if host.contains(':') => return Err(refused()),
            None => host,
        };
        let host_is_good =
            !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c));
        if !host_is_good {
            return Err(refused());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| refused())? })
    }
}
