//! A broker that answers every fetch with batches it made once: the consuming driver's ceiling.
//!
//! **Owns** one topic, `canned`, whose partitions hold the same batches again and again under ascending offsets. It knows
//! ApiVersions, Metadata and Fetch up to the version before topic ids; a fetch costs it a few lines of arithmetic and one vectored
//! write. **Does not** know sessions, waits or appends.

use std::{
    io::{self, IoSlice, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use tidelog_format::batch::{BatchBuilder, NewRecord};
use tidelog_types::{Offset, Timestamp};
use tidelog_wire::{
    ApiKey, Message as _, Reader, Records, RequestHeader, Str, encode_response_frame, frame_size,
    messages::{
        ApiVersionsResponse, FetchRequest, FetchResponse, MetadataResponse,
        api_versions::ApiVersion,
        fetch::{FetchPartition, FetchableTopicResponse, PartitionData},
        metadata::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic},
    },
};

/// The topic that it has.
pub const TOPIC: &str = "canned";

/// What it announces: Produce only because librdkafka looks there for the format of batches.
const ANNOUNCED: [(ApiKey, i16, i16); 4] =
    [(ApiKey::Produce, 3, 9), (ApiKey::Fetch, 4, 12), (ApiKey::Metadata, 0, 9), (ApiKey::ApiVersions, 0, 3)];

/// A request is at most this large.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// Different batches: together larger than the processor's caches, as a log's are.
const BATCHES_BYTES: usize = 64 * 1024 * 1024;

/// Slices of one write, as Linux allows.
const SLICES_MAX: usize = 1024;

/// What the topic holds.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Partitions.
    pub partitions: i32,
    /// Records of each partition.
    pub records: u64,
    /// Bytes of a record's value.
    pub record_bytes: usize,
    /// Bytes of a batch, about.
    pub batch_bytes: usize,
}

struct Canned {
    shape: Shape,
    address: SocketAddr,
    /// Header and body of each batch.
    batches: Vec<([u8; 61], Bytes)>,
    records_per_batch: u64,
}

/// Starts it on a free port of the loopback address; it ends with the process.
///
/// # Errors
/// Where the port, a thread or a batch cannot be had.
pub fn start(shape: Shape) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let records_per_batch = (shape.batch_bytes / (shape.record_bytes + 12)).max(1);
    let count = (BATCHES_BYTES / shape.batch_bytes.max(1)).max(1);
    let batches = (0..count)
        .map(|number| batch(number, records_per_batch, shape.record_bytes))
        .collect::<Result<Vec<_>>>()?;
    let canned = Arc::new(Canned { shape, address, batches, records_per_batch: records_per_batch as u64 });
    thread::Builder::new().name("accept".to_owned()).spawn(move || {
        for socket in listener.incoming().flatten() {
            let canned = Arc::clone(&canned);
            // A client that goes away, or asks for what is not here, loses its connection.
            let serve = move || drop(canned.serve(socket));
            if thread::Builder::new().name("connection".to_owned()).spawn(serve).is_err() {
                return;
            }
        }
    })?;
    Ok(address)
}

fn batch(number: usize, records: usize, record_bytes: usize) -> Result<([u8; 61], Bytes)> {
    let mut value = vec![0_u8; record_bytes];
    let mut state = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut builder = BatchBuilder::new(Offset::ZERO);
    for _ in 0..records {
        for byte in &mut value {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = state.to_be_bytes()[0];
        }
        builder = builder.record(&NewRecord {
            timestamp: Some(Timestamp::from_millis(1_700_000_000_000)),
            key: None,
            value: Some(&value),
            headers: &[],
        });
    }
    let raw = builder.build().context("build a batch")?;
    Ok((*raw.header.as_bytes(), Bytes::copy_from_slice(&raw.body)))
}

impl Canned {
    fn serve(&self, mut socket: TcpStream) -> Result<()> {
        socket.set_nodelay(true)?;
        loop {
            let mut prefix = [0; 4];
            match socket.read_exact(&mut prefix) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            }
            let mut frame = vec![0; frame_size(prefix, REQUEST_BYTES_MAX)?];
            socket.read_exact(&mut frame)?;
            let mut reader = Reader::new(Bytes::from(frame));
            let header = RequestHeader::decode(&mut reader)?;
            let slices = self.answer(&header, &mut reader)?;
            send(&mut socket, &slices)?;
        }
    }

    fn answer(&self, header: &RequestHeader, reader: &mut Reader) -> Result<Vec<Bytes>> {
        let (version, id) = (header.version, header.correlation_id);
        Ok(match header.api {
            ApiKey::ApiVersions => encode_response_frame(version.min(3), id, &versions())?,
            ApiKey::Metadata => encode_response_frame(version, id, &self.metadata())?,
            ApiKey::Fetch => {
                let request = FetchRequest::decode(reader, version).context("a fetch")?;
                encode_response_frame(version, id, &self.fetch(&request))?
            }
            other => bail!("{other:?} is not served"),
        })
    }

    fn metadata(&self) -> MetadataResponse {
        let partition = |partition_index| MetadataResponsePartition {
            partition_index,
            leader_id: 1,
            replica_nodes: vec![1],
            isr_nodes: vec![1],
            ..MetadataResponsePartition::default()
        };
        MetadataResponse {
            brokers: vec![MetadataResponseBroker {
                node_id: 1,
                host: Str::from(self.address.ip().to_string().as_str()),
                port: i32::from(self.address.port()),
                ..MetadataResponseBroker::default()
            }],
            controller_id: 1,
            topics: vec![MetadataResponseTopic {
                name: Some(Str::from_static(TOPIC)),
                partitions: (0..self.shape.partitions).map(partition).collect(),
                ..MetadataResponseTopic::default()
            }],
            ..MetadataResponse::default()
        }
    }

    fn fetch(&self, request: &FetchRequest) -> FetchResponse {
        let mut left = usize::try_from(request.max_bytes).unwrap_or(0);
        let mut responses = Vec::with_capacity(request.topics.len());
        for topic in &request.topics {
            let partitions = topic.partitions.iter().map(|asked| self.partition(asked, &mut left)).collect();
            responses.push(FetchableTopicResponse {
                topic: topic.topic.clone(),
                partitions,
                ..FetchableTopicResponse::default()
            });
        }
        FetchResponse { responses, ..FetchResponse::default() }
    }

    fn partition(&self, asked: &FetchPartition, left: &mut usize) -> PartitionData {
        let batches = self.shape.records.div_ceil(self.records_per_batch);
        let end = batches * self.records_per_batch;
        let end_offset = i64::try_from(end).unwrap_or(i64::MAX);
        let mut records = Records::new();
        let mut room = usize::try_from(asked.partition_max_bytes).unwrap_or(0).min(*left);
        let first = u64::try_from(asked.fetch_offset).unwrap_or(0) / self.records_per_batch;
        for number in first..batches {
            let index = usize::try_from(number).unwrap_or(0) % self.batches.len();
            let (header, body) = &self.batches[index];
            let bytes = header.len() + body.len();
            if bytes > room {
                break;
            }
            room -= bytes;
            *left -= bytes;
            // The base offset is outside of the checksum.
            let mut header = *header;
            header[..8].copy_from_slice(&(number * self.records_per_batch).to_be_bytes());
            records.push(Bytes::copy_from_slice(&header));
            records.push(body.clone());
        }
        PartitionData {
            partition_index: asked.partition,
            high_watermark: end_offset,
            last_stable_offset: end_offset,
            log_start_offset: 0,
            records: Some(records),
            ..PartitionData::default()
        }
    }
}

fn versions() -> ApiVersionsResponse {
    let announced = ANNOUNCED.iter().map(|(api, min_version, max_version)| ApiVersion {
        api_key: api.key(),
        min_version: *min_version,
        max_version: *max_version,
    });
    ApiVersionsResponse { api_keys: announced.collect(), ..ApiVersionsResponse::default() }
}

fn send(socket: &mut TcpStream, slices: &[Bytes]) -> io::Result<()> {
    for some in slices.chunks(SLICES_MAX) {
        let mut writes: Vec<IoSlice<'_>> = some.iter().map(|slice| IoSlice::new(slice)).collect();
        let mut left = writes.as_mut_slice();
        while !left.is_empty() {
            let count = socket.write_vectored(left)?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut left, count);
        }
    }
    Ok(())
}
