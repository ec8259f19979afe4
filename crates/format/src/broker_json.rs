//! `brokers/<id>.json` of the bucket: the newest start of a broker; and `bucket.claims` of its data directory, by which a start
//! knows that it goes on from there.
//!
//! **Owns** the texts. **Does not own** the conditional put, or what a start makes of them.
//!
//! Each start of a broker that has the bucket writes an id of its own there. The id before it and its own one are in the data
//! directory before that: whoever has a directory that knows neither has a copy that is older, or another one.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidelog_types::{BrokerId, BrokerIncarnation, ClaimId};

use crate::{crc::crc32c, error::DecodeError};

const BROKER: &str = "a broker's claim";
const KNOWN: &str = "bucket.claims";

/// The newest form of both files.
const FORMAT_VERSION: u16 = 1;

/// The largest file that is read.
pub const BROKER_JSON_BYTES_MAX: usize = 4096;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BrokerText {
    broker_id: BrokerId,
    incarnation: BrokerIncarnation,
    claim_id: ClaimId,
    format_version: u16,
    crc32c: String,
}

/// What the bucket says of a broker's newest start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokerJson {
    /// The broker.
    pub broker: BrokerId,
    /// The incarnation that the start registered.
    pub incarnation: BrokerIncarnation,
    /// The id of its claim.
    pub claim: ClaimId,
}

impl BrokerJson {
    fn checksum(&self, version: u16) -> u32 {
        crc32c(format!("{} {} {} {version}", self.broker, self.incarnation, self.claim).as_bytes())
    }

    /// The file. Equal values have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        written(&BrokerText {
            broker_id: self.broker,
            incarnation: self.incarnation,
            claim_id: self.claim,
            format_version: FORMAT_VERSION,
            crc32c: format!("{:08x}", self.checksum(FORMAT_VERSION)),
        })
    }

    /// Reads [`BrokerJson::encode`]'s file.
    ///
    /// # Errors
    /// For damage, another file, or a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let text: BrokerText = read(bytes, BROKER)?;
        let found = Self { broker: text.broker_id, incarnation: text.incarnation, claim: text.claim_id };
        checked(BROKER, &text.crc32c, found.checksum(text.format_version), text.format_version)?;
        Ok(found)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownText {
    former: Option<ClaimId>,
    newest: ClaimId,
    format_version: u16,
    crc32c: String,
}

/// What a data directory knows of the claims of its broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownClaims {
    /// What the bucket had before the newest one.
    pub former: Option<ClaimId>,
    /// What was written, or was about to be.
    pub newest: ClaimId,
}

impl KnownClaims {
    /// Whether a start with this directory goes on from a claim.
    #[must_use]
    pub fn knows(&self, claim: ClaimId) -> bool {
        self.newest == claim || self.former == Some(claim)
    }

    fn checksum(&self, version: u16) -> u32 {
        let former = self.former.map_or_else(|| "-".to_owned(), |former| former.to_string());
        crc32c(format!("{former} {} {version}", self.newest).as_bytes())
    }

    /// The file. Equal values have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        written(&KnownText {
            former: self.former,
            newest: self.newest,
            format_version: FORMAT_VERSION,
            crc32c: format!("{:08x}", self.checksum(FORMAT_VERSION)),
        })
    }

    /// Reads [`KnownClaims::encode`]'s file.
    ///
    /// # Errors
    /// For damage, another file, or a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let text: KnownText = read(bytes, KNOWN)?;
        let found = Self { former: text.former, newest: text.newest };
        checked(KNOWN, &text.crc32c, found.checksum(text.format_version), text.format_version)?;
        Ok(found)
    }
}

fn written(text: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(text).expect("plain fields always serialise");
    bytes.push(b'\n');
    bytes
}

fn read<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T, DecodeError> {
    if bytes.len() > BROKER_JSON_BYTES_MAX {
        return Err(DecodeError::Magic { what });
    }
    serde_json::from_slice(bytes).map_err(|_| DecodeError::Magic { what })
}

fn checked(what: &'static str, stated: &str, computed: u32, version: u16) -> Result<(), DecodeError> {
    // Text against text: another spelling of the number is damage, too.
    if stated != format!("{computed:08x}") {
        let stated = u32::from_str_radix(stated, 16).unwrap_or(0);
        return Err(DecodeError::Checksum { what, stated, computed });
    }
    if version == 0 || version > FORMAT_VERSION {
        return Err(DecodeError::Version { what, version, version_max: FORMAT_VERSION });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(byte: u8) -> ClaimId {
        ClaimId::from_bytes([byte; 16])
    }

    #[test]
    fn the_files_read_well_and_back() {
        let file = BrokerJson { broker: BrokerId(1), incarnation: BrokerIncarnation(5), claim: claim(1) };
        let text = String::from_utf8(file.encode()).unwrap();
        assert!(text.starts_with(
            "{\n  \"broker_id\": 1,\n  \"incarnation\": 5,\n  \"claim_id\": \"AQEBAQEBAQEBAQEBAQEBAQ\",\n"
        ));
        assert_eq!(BrokerJson::decode(text.as_bytes()), Ok(file));
        let first = KnownClaims { former: None, newest: claim(1) };
        let next = KnownClaims { former: Some(claim(1)), newest: claim(2) };
        for known in [first, next] {
            assert_eq!(KnownClaims::decode(&known.encode()), Ok(known));
        }
        assert!(next.knows(claim(1)) && next.knows(claim(2)) && !first.knows(claim(2)));
    }

    #[test]
    fn damage_never_gives_another_claim() {
        let file = BrokerJson { broker: BrokerId(1), incarnation: BrokerIncarnation(5), claim: claim(0x5a) };
        let known = KnownClaims { former: Some(claim(3)), newest: claim(0x5a) };
        let (file_bytes, known_bytes) = (file.encode(), known.encode());
        for (bytes, is_broker) in [(&file_bytes, true), (&known_bytes, false)] {
            // Only white space may differ.
            let harmless = |bytes: &[u8]| match is_broker {
                true => BrokerJson::decode(bytes).is_ok_and(|found| found == file),
                false => KnownClaims::decode(bytes).is_ok_and(|found| found == known),
            };
            let refused = |bytes: &[u8]| match is_broker {
                true => BrokerJson::decode(bytes).is_err(),
                false => KnownClaims::decode(bytes).is_err(),
            };
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(harmless(&flipped) || refused(&flipped), "bit {bit}");
            }
            assert!((0..bytes.len() - 1).all(|cut| refused(&bytes[..cut])));
        }
        let newer = BrokerText {
            broker_id: file.broker,
            incarnation: file.incarnation,
            claim_id: file.claim,
            format_version: 2,
            crc32c: format!("{:08x}", file.checksum(2)),
        };
        assert!(matches!(BrokerJson::decode(&written(&newer)), Err(DecodeError::Version { version: 2, .. })));
    }
}
