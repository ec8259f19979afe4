//! Headers, size prefixes and vectored frames.

use bytes::{Buf, Bytes};
use tidelog_wire::{
    ApiKey, DecodeError, EncodeError, ErrorCode, Message, Reader, Records, RequestHeader, ResponseHeader,
    Str, Uuid, Writer, encode_request_frame, encode_response_frame, frame_size, messages, messages::fetch,
    messages::produce,
};

use crate::allocation::allocated;

fn joined(slices: &[Bytes]) -> Bytes {
    Bytes::from(slices.concat())
}

#[test]
fn a_request_frame_is_read_as_it_was_written() {
    // Header version 1, then 2.
    for (version, header_bytes) in [(8, 15), (9, 16)] {
        let body = messages::MetadataRequest { topics: None, ..Default::default() };
        let mut frame = joined(&encode_request_frame(version, 77, Some("tests".into()), &body).unwrap());
        let prefix: [u8; 4] = frame.split_to(4)[..].try_into().unwrap();
        assert_eq!(frame_size(prefix, 1000), Ok(frame.len()));
        let mut reader = Reader::new(frame.clone());
        let header = RequestHeader::decode(&mut reader).unwrap();
        assert_eq!(
            header,
            RequestHeader {
                api: ApiKey::Metadata,
                version,
                correlation_id: 77,
                client_id: Some("tests".into())
            }
        );
        assert_eq!(frame.len() - reader.remaining(), header_bytes);
        assert_eq!(messages::MetadataRequest::decode(&mut reader, version), Ok(body));
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn a_request_header_is_read_for_versions_that_have_no_codec() {
    // ApiVersions 99, client id null, no tagged fields.
    let mut reader = Reader::new(Bytes::from_static(&[0, 18, 0, 99, 0, 0, 0, 5, 0xff, 0xff, 0]));
    let header = RequestHeader::decode(&mut reader).unwrap();
    assert_eq!(
        header,
        RequestHeader { api: ApiKey::ApiVersions, version: 99, correlation_id: 5, client_id: None }
    );
    assert_eq!(
        messages::ApiVersionsRequest::decode(&mut reader, 99),
        Err(DecodeError::UnsupportedVersion { api: ApiKey::ApiVersions, version: 99 })
    );
}

#[test]
fn an_unknown_api_key_is_an_error() {
    // "GET / HTTP": what a browser sends, after its first four bytes were taken for a size.
    let mut reader = Reader::new(Bytes::from_static(b"/ HTTP/1.1\r\n"));
    assert_eq!(RequestHeader::decode(&mut reader), Err(DecodeError::UnknownApiKey { key: 0x2f20 }));
}

#[test]
fn frame_sizes_are_bounded() {
    assert_eq!(frame_size([0, 0, 1, 0], 256), Ok(256));
    assert_eq!(frame_size([0, 0, 1, 1], 256), Err(DecodeError::FrameSize { size: 257, max: 256 }));
    assert_eq!(frame_size([0xff; 4], 256), Err(DecodeError::FrameSize { size: -1, max: 256 }));
    // "GET " and the start of a TLS hello.
    assert_eq!(
        frame_size(*b"GET ", 104_857_600),
        Err(DecodeError::FrameSize { size: 0x4745_5420, max: 104_857_600 })
    );
    assert_eq!(
        frame_size([22, 3, 1, 2], 104_857_600),
        Err(DecodeError::FrameSize { size: 0x1603_0102, max: 104_857_600 })
    );
}

#[test]
fn header_versions_follow_the_flexible_versions_except_in_answers_of_api_versions() {
    assert_eq!(ApiKey::Produce.request_header_version(8), 1);
    assert_eq!(ApiKey::Produce.request_header_version(9), 2);
    assert_eq!(ApiKey::Produce.response_header_version(8), 0);
    assert_eq!(ApiKey::Produce.response_header_version(9), 1);
    assert_eq!(ApiKey::ApiVersions.request_header_version(3), 2);
    assert_eq!(ApiKey::ApiVersions.response_header_version(3), 0);
    assert_eq!(ApiKey::SaslHandshake.request_header_version(1), 1);
}

#[test]
fn a_response_frame_is_read_as_it_was_written() {
    for version in [0, 3] {
        let body = messages::ApiVersionsResponse { error_code: 35, ..Default::default() };
        let mut frame = joined(&encode_response_frame(version, 9, &body).unwrap());
        assert_eq!(frame.get_i32(), i32::try_from(frame.len()).unwrap());
        let mut reader = Reader::new(frame);
        let header = ResponseHeader::decode(&mut reader, ApiKey::ApiVersions, version).unwrap();
        assert_eq!(header.correlation_id, 9);
        assert_eq!(messages::ApiVersionsResponse::decode(&mut reader, version), Ok(body));
        assert_eq!(reader.finish(), Ok(()));
    }
}

fn fetch_answer(partitions: Vec<Records>) -> messages::FetchResponse {
    let partitions = (0..)
        .zip(partitions)
        .map(|(partition_index, records)| fetch::PartitionData {
            partition_index,
            records: Some(records),
            ..Default::default()
        })
        .collect();
    messages::FetchResponse {
        responses: vec![fetch::FetchableTopicResponse {
            topic_id: Uuid([1; 16]),
            partitions,
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[test]
fn records_of_an_answer_are_shared_and_not_copied() {
    let (header, body) = (Bytes::from(vec![1; 61]), Bytes::from(vec![2; 100_000]));
    let records = Records::from_iter([header.clone(), body.clone(), header.clone(), body.slice(..50_000)]);
    let answer = fetch_answer(vec![records.clone(), Records::new(), records]);
    let (slices, bytes_allocated) = allocated(|| encode_response_frame(16, 1, &answer).unwrap());
    assert!(bytes_allocated < 4_096, "{bytes_allocated} bytes allocated for 300,000 sent");
    let shared: Vec<_> =
        slices.iter().filter(|slice| slice.len() >= 50_000).map(|slice| slice.as_ptr()).collect();
    assert_eq!(shared, [body.as_ptr(); 4]);
    // The patched headers stand in the buffer, so each body costs one slice and what is before it another.
    assert_eq!(slices.len(), 9);

    let frame = joined(&slices);
    assert_eq!(i32::from_be_bytes(frame[..4].try_into().unwrap()), i32::try_from(frame.len() - 4).unwrap());
    let mut reader = Reader::new(frame.slice(4..));
    ResponseHeader::decode(&mut reader, ApiKey::Fetch, 16).unwrap();
    assert_eq!(messages::FetchResponse::decode(&mut reader, 16), Ok(answer));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn records_of_a_request_are_a_slice_of_its_frame() {
    let batch = Bytes::from(vec![5; 65_536]);
    let request = produce::ProduceRequest {
        acks: -1,
        topic_data: vec![produce::TopicProduceData {
            name: "orders".into(),
            partition_data: vec![produce::PartitionProduceData { index: 0, records: Some(batch.into()) }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let bytes = request.to_bytes(9).unwrap();
    let (decoded, bytes_allocated) =
        allocated(|| produce::ProduceRequest::from_bytes(bytes.clone(), 9).unwrap());
    assert!(bytes_allocated < 512, "{bytes_allocated} bytes allocated");
    let records = decoded.topic_data[0].partition_data[0].records.as_ref().unwrap().to_bytes();
    assert!(bytes.as_ptr_range().contains(&records.as_ptr()));
    assert_eq!(decoded, request);
}

#[test]
fn a_field_that_the_version_lacks_is_left_out_only_if_it_may_be() {
    // `is_internal` and `rack` of early Metadata may be left out, a topic id in a request may not be lost.
    let answer = messages::MetadataResponse { cluster_id: Some("c".into()), ..Default::default() };
    assert_eq!(answer.to_bytes(0).unwrap(), Bytes::from_static(&[0; 8]));
    let request = messages::FetchRequest { session_epoch: 3, ..Default::default() };
    assert_eq!(
        messages::FetchRequest::from_bytes(request.to_bytes(4).unwrap(), 4).unwrap().session_epoch,
        -1
    );
    let request = messages::FetchRequest { replica_id: 3, ..Default::default() };
    assert_eq!(
        request.to_bytes(15),
        Err(EncodeError::FieldNotInVersion { field: "replica_id", version: 15 })
    );
    let request = messages::MetadataRequest { topics: None, ..Default::default() };
    assert_eq!(request.to_bytes(0), Err(EncodeError::UnexpectedNull { field: "topics", version: 0 }));
    assert_eq!(
        request.to_bytes(14),
        Err(EncodeError::UnsupportedVersion { api: ApiKey::Metadata, version: 14 })
    );
    let request = messages::FindCoordinatorRequest { key: "k".repeat(32_768).into(), ..Default::default() };
    assert_eq!(request.to_bytes(0), Err(EncodeError::TooLong { field: "key", length: 32_768 }));
}

#[test]
fn tagged_fields_are_written_once_set() {
    let endpoint = fetch::NodeEndpoint { node_id: 1, host: "h".into(), port: 9, rack: None };
    let answer = messages::FetchResponse { node_endpoints: vec![endpoint], ..Default::default() };
    let bytes = answer.to_bytes(16).unwrap();
    // throttle 4, error 2, session 4, topics 1; then one tag: 0, of 13 bytes.
    assert_eq!(&bytes[11..], [1, 0, 13, 2, 0, 0, 0, 1, 2, b'h', 0, 0, 0, 9, 0, 0]);
    assert_eq!(messages::FetchResponse::from_bytes(bytes, 16), Ok(answer.clone()));
    // As with Kafka, who sets it in an older version has made a mistake.
    assert_eq!(
        answer.to_bytes(15),
        Err(EncodeError::FieldNotInVersion { field: "node_endpoints", version: 15 })
    );
}

#[test]
fn a_writer_joins_what_was_shared() {
    let mut writer = Writer::new();
    assert!(writer.is_empty());
    let answer = fetch_answer(vec![Bytes::from(vec![3; 1_000]).into()]);
    answer.encode(13, &mut writer).unwrap();
    let length = writer.len();
    let bytes = writer.into_bytes();
    assert_eq!(bytes.len(), length);
    assert_eq!(messages::FetchResponse::from_bytes(bytes, 13), Ok(answer));
}

#[test]
fn error_codes_have_kafkas_numbers_and_names() {
    assert_eq!(ErrorCode::ALL.len(), 135);
    assert_eq!(ErrorCode::from_code(35), Some(ErrorCode::UnsupportedVersion));
    assert_eq!(ErrorCode::OffsetMovedToTieredStorage.code(), 109);
    assert_eq!(ErrorCode::OffsetMovedToTieredStorage.name(), "OFFSET_MOVED_TO_TIERED_STORAGE");
    assert_eq!(ErrorCode::UnknownServerError.code(), -1);
    assert_eq!(ErrorCode::from_code(9_999), None);
    assert!(ErrorCode::NotLeaderOrFollower.is_retriable());
    assert!(!ErrorCode::InvalidRecord.is_retriable());
    for error in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_code(error.code()), Some(*error));
    }
}

#[test]
fn text_is_shared_and_compares_as_text() {
    let text = Str::from("orders");
    assert_eq!(text, "orders");
    assert_eq!(text.as_str(), "orders");
    assert_eq!(format!("{text} {text:?} {text:>8}"), "orders \"orders\"   orders");
    assert!(text < *"p");
    assert_eq!(Str::from_utf8(Bytes::from_static(&[0xc3, 0x28])), Err(DecodeError::NotUtf8));
}

#[test]
fn what_says_what_is_wrong_is_cut_to_a_string_and_nothing_else_is() {
    let long = "ü".repeat(20_000);
    // After one byte a character ends with the longest string; without it half of one would be left.
    for (text, left) in [(format!("x{long}"), 32_767), (long.clone(), 32_766)] {
        let error_message = Some(text.as_str().into());
        let compact = messages::ConsumerGroupHeartbeatResponse { error_message, ..Default::default() };
        let mut writer = Writer::new();
        compact.encode(1, &mut writer).unwrap();
        let read = messages::ConsumerGroupHeartbeatResponse::from_bytes(writer.into_bytes(), 1).unwrap();
        assert_eq!(read.error_message.as_deref(), Some(&text[..left]));
        let error_message = Some(text.as_str().into());
        let plain = messages::FindCoordinatorResponse { error_message, ..Default::default() };
        let mut writer = Writer::new();
        plain.encode(2, &mut writer).unwrap();
        let read = messages::FindCoordinatorResponse::from_bytes(writer.into_bytes(), 2).unwrap();
        assert_eq!(read.error_message.as_deref(), Some(&text[..left]));
    }
    let other = messages::HeartbeatRequest { group_id: long.as_str().into(), ..Default::default() };
    let refused = other.encode(4, &mut Writer::new());
    assert_eq!(refused, Err(EncodeError::TooLong { field: "group_id", length: long.len() }));
}
