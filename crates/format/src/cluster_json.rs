//! `cluster.json`: whose prefix of the bucket it is.
//!
//! **Owns** the file's text. **Does not own** the conditional put by which a cluster takes a prefix.
//!
//! It is read by people, so it is JSON; a checksum over the fields' text is one of them, since a flipped bit of an id can
//! be another id.

use serde::{Deserialize, Serialize};
use tidelog_types::ClusterId;

use crate::{crc::crc32c, error::DecodeError};

const WHAT: &str = "cluster.json";

/// The format of everything below the prefix, as this program writes it and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

/// The largest file that is read.
pub const CLUSTER_JSON_BYTES_MAX: usize = 4096;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    cluster_id: ClusterId,
    format_version: u16,
    crc32c: String,
}

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterJson {
    /// The cluster that the prefix belongs to.
    pub cluster_id: ClusterId,
    /// The format of what lies below the prefix.
    pub format_version: u16,
}

impl ClusterJson {
    /// The file of a new prefix.
    #[must_use]
    pub const fn new(cluster_id: ClusterId) -> Self {
        Self { cluster_id, format_version: FORMAT_VERSION }
    }

    fn checksum(&self) -> u32 {
        crc32c(format!("{} {}", self.cluster_id, self.format_version).as_bytes())
    }

    /// The file. Equal values have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let text = Text {
            cluster_id: self.cluster_id,
            format_version: self.format_version,
            crc32c: format!("{:08x}", self.checksum()),
        };
        let mut bytes = serde_json::to_vec_pretty(&text).expect("plain fields always serialise");
        bytes.push(b'\n');
        bytes
    }

    /// Reads [`ClusterJson::encode`]'s file.
    ///
    /// # Errors
    /// For damage, another file, or a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > CLUSTER_JSON_BYTES_MAX {
            return Err(DecodeError::Magic { what: WHAT });
        }
        let text: Text = serde_json::from_slice(bytes).map_err(|_| DecodeError::Magic { what: WHAT })?;
        let found = Self { cluster_id: text.cluster_id, format_version: text.format_version };
        let computed = found.checksum();
        // Text against text: another spelling of the number is damage, too.
        if text.crc32c != format!("{computed:08x}") {
            let stated = u32::from_str_radix(&text.crc32c, 16).unwrap_or(0);
            return Err(DecodeError::Checksum { what: WHAT, stated, computed });
        }
        if found.format_version == 0 || found.format_version > FORMAT_VERSION {
            return Err(DecodeError::Version {
                what: WHAT,
                version: found.format_version,
                version_max: FORMAT_VERSION,
            });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_well_and_back() {
        let file = ClusterJson::new(ClusterId::from_bytes([1; 16]));
        let text = String::from_utf8(file.encode()).unwrap();
        assert_eq!(
            text,
            "{\n  \"cluster_id\": \"AQEBAQEBAQEBAQEBAQEBAQ\",\n  \"format_version\": 1,\n  \"crc32c\": \"c45d0925\"\n}\n"
        );
        assert_eq!(ClusterJson::decode(text.as_bytes()), Ok(file));
    }

    #[test]
    fn damage_never_gives_another_cluster() {
        let file = ClusterJson::new(ClusterId::from_bytes([0x5a; 16]));
        let bytes = file.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Only white space may differ.
            assert!(
                ClusterJson::decode(&flipped).is_ok_and(|found| found == file)
                    || ClusterJson::decode(&flipped).is_err()
            );
        }
        for cut in 0..bytes.len() - 1 {
            assert!(ClusterJson::decode(&bytes[..cut]).is_err());
        }
        let newer = ClusterJson { format_version: 2, ..file };
        assert!(matches!(ClusterJson::decode(&newer.encode()), Err(DecodeError::Version { version: 2, .. })));
    }
}
