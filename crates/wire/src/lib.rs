//! Kafka's wire protocol: frames, headers, the table of messages, error codes.
//!
//! **Owns** the bytes between a client and a broker: every request and response of the APIs in [`ApiKey`], in every
//! version of [`ApiKey::codec_versions`], decoded and encoded. Record batches stay opaque slices of the frame
//! ([`Records`]): they are neither looked into nor copied, on the way in or out.
//!
//! **Never** does IO, keeps state, or decides what is served: which versions are announced follows from the broker's
//! handlers, and which error becomes which [`ErrorCode`] is said there too.
//!
//! **Bad input** is an error, never a panic: an array is allocated only after its count is checked against what is left
//! of the frame, and all arrays of a frame together take at most [`ALLOCATED_PER_BYTE_MAX`] bytes for each byte of it
//! and at most [`DECODED_BYTES_MAX`]. Nothing recurses except through the table, which is four deep.
//!
//! Start reading at a table, say `messages/fetch.rs`: a line of it is a line of Kafka's definition. Then `table.rs`,
//! which makes structures of it, and `codec.rs`, which says how each type is written. A broker calls [`frame_size`],
//! [`RequestHeader::decode`], [`Message::decode`] and [`encode_response_frame`].

#[macro_use]
mod table;
mod api_key;
mod codec;
pub mod coordinator;
mod error_code;
mod frame;
mod message;
pub mod messages;
mod reader;
mod records;
mod text;
mod uuid;
mod versions;
mod writer;

pub use api_key::{ApiKey, PRODUCE_ANNOUNCED_VERSION_MIN, RequestBody, ResponseBody};
pub use codec::{Context, Kind, Nullable, Value};
pub use error_code::ErrorCode;
pub use frame::{
    FRAME_PREFIX_BYTES, RequestHeader, ResponseHeader, encode_frame, encode_request_frame,
    encode_response_frame, frame_size,
};
pub use message::{Message, Request, Response};
pub use reader::{ALLOCATED_PER_BYTE_MAX, DECODED_BYTES_MAX, DecodeError, Reader};
pub use records::Records;
pub use table::{FieldSpec, StructSpec};
pub use text::Str;
pub use uuid::Uuid;
pub use versions::Versions;
pub use writer::{COPIED_BYTES_MAX, EncodeError, Writer};
