//! What every message has: its API, its versions, and the way from and to bytes.

use std::fmt::Debug;

use bytes::Bytes;

use crate::{ApiKey, Context, DecodeError, EncodeError, Reader, StructSpec, Value, Versions, Writer};

/// A request or a response.
pub trait Message: Value + Default + Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The API that it belongs to.
    const API: ApiKey;
    /// The versions that are encoded and decoded here.
    const VERSIONS: Versions;
    /// The versions with compact lengths and tagged fields.
    const FLEXIBLE: Versions;
    /// What the table says of it.
    const SPEC: &'static StructSpec;

    /// Reads the message, and not what may follow it.
    ///
    /// # Errors
    /// What is wrong with the bytes, or that there is no such version.
    fn decode(reader: &mut Reader, version: i16) -> Result<Self, DecodeError> {
        if !Self::VERSIONS.contains(version) {
            return Err(DecodeError::UnsupportedVersion { api: Self::API, version });
        }
        Self::read(reader, context::<Self>(version))
    }

    /// Reads a body that is the message and nothing else.
    ///
    /// # Errors
    /// As [`Self::decode`], and if bytes follow.
    fn from_bytes(body: Bytes, version: i16) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let message = Self::decode(&mut reader, version)?;
        reader.finish()?;
        Ok(message)
    }

    /// Writes the message.
    ///
    /// # Errors
    /// Why it has no encoding in `version`: no such version, null where null is not allowed, a field set that the
    /// version lacks and that may not be left out, a length beyond Kafka's.
    fn encode(&self, version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
        if !Self::VERSIONS.contains(version) {
            return Err(EncodeError::UnsupportedVersion { api: Self::API, version });
        }
        self.write(writer, context::<Self>(version))
    }

    /// The message as one piece of bytes.
    ///
    /// # Errors
    /// As [`Self::encode`].
    fn to_bytes(&self, version: i16) -> Result<Bytes, EncodeError> {
        let mut writer = Writer::new();
        self.encode(version, &mut writer)?;
        Ok(writer.into_bytes())
    }
}

/// A message that a client sends.
pub trait Request: Message {
    /// What answers it.
    type Response: Response;
}

/// A message that answers a request.
pub trait Response: Message {}

fn context<M: Message>(version: i16) -> Context {
    Context {
        version,
        flexible: M::FLEXIBLE.contains(version),
        nullable: false,
        tagged: false,
        field: M::SPEC.name,
    }
}
