//! Frames: every API and version, requests as a broker reads them and responses as our own client does; and the records of
//! `__consumer_offsets`, which are made of the same table.

use bytes::Bytes;
use tidelog_wire::{
    ALLOCATED_PER_BYTE_MAX, ApiKey, DecodeError, Reader, Records, RequestBody, RequestHeader, ResponseBody,
    ResponseHeader, Writer,
    coordinator::{Key, Value},
};

use super::{allocation::measured, seeds};

/// What sharing a frame costs once: the counter behind `Bytes`.
const SHARING_BYTES: usize = 64;

/// A frame's body behind its header: which one, and the records in it.
enum Body {
    Request(RequestBody),
    Response(ResponseBody),
}

impl Body {
    fn records(&self) -> Vec<&Records> {
        match self {
            Self::Request(RequestBody::Produce(produce)) => {
                let partitions = produce.topic_data.iter().flat_map(|topic| &topic.partition_data);
                partitions.filter_map(|partition| partition.records.as_ref()).collect()
            }
            Self::Response(ResponseBody::Fetch(fetch)) => {
                let partitions = fetch.responses.iter().flat_map(|topic| &topic.partitions);
                partitions.filter_map(|partition| partition.records.as_ref()).collect()
            }
            _ => Vec::new(),
        }
    }

    fn encode(&self, version: i16) -> Bytes {
        let mut writer = Writer::new();
        let encoded = match self {
            Self::Request(body) => body.encode(version, &mut writer),
            Self::Response(body) => body.encode(version, &mut writer),
        };
        encoded.expect("what was decoded in a version has an encoding in it");
        writer.into_bytes()
    }
}

/// Reads a body that nobody vouches for, and holds it to the bound: what is not records takes at most
/// [`ALLOCATED_PER_BYTE_MAX`] bytes for each of its bytes, and records are slices of the frame.
fn body(bytes: &Bytes, version: i16, decode: impl Fn(Bytes) -> Result<Body, DecodeError>) {
    let (decoded, spent) = measured(|| decode(bytes.clone()));
    let Ok(body) = decoded else {
        let allowed = bytes.len() * ALLOCATED_PER_BYTE_MAX + SHARING_BYTES;
        assert!(spent.total <= allowed, "{spent:?} for {} bytes that are refused", bytes.len());
        return;
    };
    let records = body.records();
    let record_bytes: usize = records.iter().map(|records| records.len()).sum();
    let allowed = (bytes.len() - record_bytes) * ALLOCATED_PER_BYTE_MAX + SHARING_BYTES;
    assert!(spent.total <= allowed, "{spent:?} for {} bytes, {record_bytes} of them records", bytes.len());
    let frame = bytes.as_ptr_range();
    for chunk in records.iter().flat_map(|records| records.chunks()).filter(|chunk| !chunk.is_empty()) {
        let range = chunk.as_ptr_range();
        assert!(frame.start <= range.start && range.end <= frame.end, "records were copied");
    }
    // Unknown tags and long forms of a number are not written again: the second form is the canonical one.
    let written = body.encode(version);
    let again = decode(written.clone()).expect("what was written is read").encode(version);
    assert!(written == again, "{written:02x?} is written again as {again:02x?}");
}

/// A request's frame, without its size.
pub(super) fn request(input: &[u8]) {
    let frame = Bytes::copy_from_slice(input);
    let mut reader = Reader::new(frame.clone());
    let (header, spent) = measured(|| RequestHeader::decode(&mut reader));
    assert!(spent.total <= SHARING_BYTES, "{spent:?} for a header");
    let Ok(header) = header else { return };
    let rest = frame.slice(frame.len() - reader.remaining()..);
    body(&rest, header.version, |rest| {
        RequestBody::from_bytes(header.api, rest, header.version).map(Body::Request)
    });
    let mut writer = Writer::new();
    header.encode(&mut writer).expect("what was decoded has an encoding");
    assert_eq!(RequestHeader::decode(&mut Reader::new(writer.into_bytes())), Ok(header));
}

/// The API's key and the version of the request, then the frame that answers it.
pub(super) fn response(input: &[u8]) {
    let Some(([k0, k1, v0, v1], frame)) = input.split_first_chunk() else { return };
    let version = i16::from_be_bytes([*v0, *v1]);
    let Some(api) = ApiKey::from_key(i16::from_be_bytes([*k0, *k1])) else { return };
    let frame = Bytes::copy_from_slice(frame);
    let mut reader = Reader::new(frame.clone());
    let (header, spent) = measured(|| ResponseHeader::decode(&mut reader, api, version));
    assert!(spent.total <= SHARING_BYTES, "{spent:?} for a header");
    if header.is_err() {
        return;
    }
    let rest = frame.slice(frame.len() - reader.remaining()..);
    body(&rest, version, |rest| ResponseBody::from_bytes(api, rest, version).map(Body::Response));
}

/// A record's key; the same bytes as the type of a record and its value.
pub(super) fn coordinator(input: &[u8]) {
    let shared = Bytes::copy_from_slice(input);
    let allowed = input.len() * ALLOCATED_PER_BYTE_MAX + SHARING_BYTES;
    let (decoded, spent) = measured(|| Key::decode(shared.clone()));
    assert!(spent.total <= allowed, "{spent:?} for a key of {} bytes", input.len());
    let record_type = match decoded {
        Ok(Key::Unknown(record_type)) => record_type,
        Ok(key) => {
            assert_eq!(key.encode().expect("what was decoded has an encoding"), shared);
            key.record_type()
        }
        Err(_) => match input.first_chunk() {
            Some(bytes) => i16::from_be_bytes(*bytes),
            None => return,
        },
    };
    let value = shared.slice(2..);
    let (decoded, spent) = measured(|| Value::decode(record_type, value.clone()));
    assert!(spent.total <= allowed, "{spent:?} for a value of {} bytes", value.len());
    let Ok(decoded) = decoded else { return };
    let version = i16::from_be_bytes([value[0], value[1]]);
    // Unknown tags and long forms of a number are not written again: the second form is the canonical one.
    let written = decoded.encode(version).expect("what was decoded in a version has an encoding in it");
    let again = Value::decode(record_type, written.clone()).expect("what was written is read");
    assert!(again.encode(version) == Ok(written), "{again:02x?} is written otherwise than it was read");
}

pub(super) fn coordinator_seeds() -> Vec<Vec<u8>> {
    let text = seeds::read("crates/wire/tests/golden/coordinator-4.3.1.txt");
    let text = String::from_utf8(text).expect("the golden records are text");
    let mut record_type = Vec::new();
    text.lines()
        .map(|line| {
            let mut words = line.split(' ').skip(2);
            let (part, hex) = (words.next().expect("key or value"), words.next().expect("its bytes"));
            let bytes = seeds::bytes_of(hex);
            // The keys of a record stand before its values.
            if part == "key" {
                record_type = bytes[..2].to_vec();
                return bytes;
            }
            [&record_type[..], &bytes].concat()
        })
        .collect()
}

/// The golden messages of one role as frames with a header.
fn golden(role: &str, frame: impl Fn(ApiKey, i16, Vec<u8>) -> Vec<u8>) -> Vec<Vec<u8>> {
    let text = seeds::read("crates/wire/tests/golden/messages-4.3.1.txt");
    let text = String::from_utf8(text).expect("the golden messages are text");
    seeds::messages(&text, role).map(|(api, version, bytes)| frame(api, version, bytes)).collect()
}

fn recorded(role: &str) -> Vec<(ApiKey, i16, Vec<u8>)> {
    let text = seeds::read("crates/wire/tests/golden/recorded-4.3.1.txt");
    let text = String::from_utf8(text).expect("the recorded frames are text");
    seeds::messages(&text, role).collect()
}

pub(super) fn request_seeds() -> Vec<Vec<u8>> {
    let mut frames = golden("request", |api, version, body| {
        let mut writer = Writer::new();
        let header = RequestHeader { api, version, correlation_id: 7, client_id: Some("c".into()) };
        header.encode(&mut writer).expect("a header has an encoding");
        [writer.into_bytes().to_vec(), body].concat()
    });
    frames.extend(recorded("request").into_iter().map(|(_, _, frame)| frame));
    frames
}

fn prefixed(api: ApiKey, version: i16, frame: &[u8]) -> Vec<u8> {
    [&api.key().to_be_bytes(), &version.to_be_bytes(), frame].concat()
}

pub(super) fn response_seeds() -> Vec<Vec<u8>> {
    let mut frames = golden("response", |api, version, body| {
        let mut writer = Writer::new();
        ResponseHeader { correlation_id: 7 }.encode(&mut writer, api, version);
        prefixed(api, version, &[writer.into_bytes().to_vec(), body].concat())
    });
    frames.extend(recorded("response").iter().map(|(api, version, frame)| prefixed(*api, *version, frame)));
    frames
}
