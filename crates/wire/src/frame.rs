//! Headers, and frames with their size prefix.

use bytes::Bytes;

use crate::{
    ApiKey, Context, DecodeError, EncodeError, Nullable, Reader, Request, Response, Str, Value, Writer,
};

/// Bytes of the size prefix before every frame.
pub const FRAME_PREFIX_BYTES: usize = 4;

const HEADER: Context =
    Context { version: 0, flexible: false, nullable: true, tagged: false, field: "client_id" };

/// Checks the size prefix of a frame: how many bytes follow it.
///
/// # Errors
/// [`DecodeError::FrameSize`] if it is negative or above `max`; nothing can be read from the connection after that.
pub fn frame_size(prefix: [u8; FRAME_PREFIX_BYTES], max: usize) -> Result<usize, DecodeError> {
    let size = i32::from_be_bytes(prefix);
    match usize::try_from(size) {
        Ok(bytes) if bytes <= max => Ok(bytes),
        _ => Err(DecodeError::FrameSize { size, max }),
    }
}

/// The start of a request frame, in header version 1 or 2 as API and version want it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// The API that is asked.
    pub api: ApiKey,
    /// The version of the request, and of the response to it.
    pub version: i16,
    /// What the response carries, so that the client knows it again.
    pub correlation_id: i32,
    /// The client's name for itself.
    pub client_id: Option<Str>,
}

impl RequestHeader {
    /// Reads the header of a request. The version may be one that has no codec: the broker answers that, since for
    /// ApiVersions an answer must come.
    ///
    /// # Errors
    /// [`DecodeError::UnknownApiKey`], or what is wrong with the bytes.
    pub fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let key = i16::from_be_bytes(reader.array()?);
        let version = i16::from_be_bytes(reader.array()?);
        let correlation_id = i32::from_be_bytes(reader.array()?);
        let api = ApiKey::from_key(key).ok_or(DecodeError::UnknownApiKey { key })?;
        // Not compact in any version: a broker must be able to read it whatever the version.
        let client_id = Str::read_nullable(reader, HEADER)?;
        if api.request_header_version(version) >= 2 {
            reader.tagged_fields(|_, _| Ok(false))?;
        }
        Ok(Self { api, version, correlation_id, client_id })
    }

    /// Writes the header.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] for a client id beyond 32,767 bytes.
    pub fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.put(&self.api.key().to_be_bytes());
        writer.put(&self.version.to_be_bytes());
        writer.put(&self.correlation_id.to_be_bytes());
        Str::write_nullable(self.client_id.as_ref(), writer, HEADER)?;
        if self.api.request_header_version(self.version) >= 2 {
            writer.uvarint(0);
        }
        Ok(())
    }
}

/// The start of a response frame, in header version 0 or 1 as API and version want it (always 0 for ApiVersions).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The request's.
    pub correlation_id: i32,
}

impl ResponseHeader {
    /// Reads the header of a response to a request of `api` and `version`.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(reader: &mut Reader, api: ApiKey, version: i16) -> Result<Self, DecodeError> {
        let correlation_id = i32::read(reader, HEADER)?;
        if api.response_header_version(version) >= 1 {
            reader.tagged_fields(|_, _| Ok(false))?;
        }
        Ok(Self { correlation_id })
    }

    /// Writes the header.
    pub fn encode(self, writer: &mut Writer, api: ApiKey, version: i16) {
        writer.put(&self.correlation_id.to_be_bytes());
        if api.response_header_version(version) >= 1 {
            writer.uvarint(0);
        }
    }
}

/// A whole request frame with its size prefix, as slices for one vectored write.
///
/// # Errors
/// As [`crate::Message::encode`], and [`EncodeError::FrameTooLong`].
pub fn encode_request_frame<R: Request>(
    version: i16,
    correlation_id: i32,
    client_id: Option<Str>,
    body: &R,
) -> Result<Vec<Bytes>, EncodeError> {
    let header = RequestHeader { api: R::API, version, correlation_id, client_id };
    encode_frame(|writer| {
        header.encode(writer)?;
        body.encode(version, writer)
    })
}

/// A whole response frame with its size prefix, as slices for one vectored write: records are shared, not copied.
///
/// # Errors
/// As [`crate::Message::encode`], and [`EncodeError::FrameTooLong`].
pub fn encode_response_frame<R: Response>(
    version: i16,
    correlation_id: i32,
    body: &R,
) -> Result<Vec<Bytes>, EncodeError> {
    encode_frame(|writer| {
        ResponseHeader { correlation_id }.encode(writer, R::API, version);
        body.encode(version, writer)
    })
}

/// A frame of what `content` writes, with its size prefix.
///
/// # Errors
/// What `content` answers, and [`EncodeError::FrameTooLong`].
pub fn encode_frame(
    content: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
) -> Result<Vec<Bytes>, EncodeError> {
    let mut writer = Writer::new();
    writer.put(&[0; FRAME_PREFIX_BYTES]);
    content(&mut writer)?;
    writer.set_frame_size()?;
    Ok(writer.into_slices())
}
