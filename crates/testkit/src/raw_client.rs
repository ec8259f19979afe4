//! A client that says exactly what a test wants on the wire, whole or broken.
//!
//! **Owns** one socket and the numbers of its requests. It knows nothing of retries, sessions or metadata: those are what is
//! tested. Failures panic, with what was expected.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tidelog_format::{
    batch::{BatchBuilder, BatchLimits, DecodedBatch, NewRecord, RawBatch, split_batches},
    codec::Codec,
};
use tidelog_types::{Offset, ProducerEpoch, ProducerId, Timestamp};
use tidelog_wire::{
    ApiKey, Message, Reader, Records, Request, ResponseHeader, Str, encode_request_frame,
    messages::{
        CreateTopicsRequest, FetchRequest, FetchResponse, ListOffsetsRequest, MetadataRequest,
        MetadataResponse, ProduceRequest, ProduceResponse,
        create_topics::{CreatableTopic, CreatableTopicConfig},
        fetch::{FetchPartition, FetchTopic, PartitionData},
        list_offsets::{ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopic},
        metadata::MetadataRequestTopic,
        produce::{PartitionProduceData, PartitionProduceResponse, TopicProduceData},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// How long any answer may take: far above every wait that a test asks for.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// One connection.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
    correlation_id: i32,
    client_id: Str,
}

impl RawClient {
    /// Connects.
    ///
    /// # Panics
    /// Nobody listens.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the broker listens");
        stream.set_nodelay(true).expect("a socket option");
        Self { stream, correlation_id: 0, client_id: Str::from_static("raw") }
    }

    /// The same connection, with another client id.
    #[must_use]
    pub fn named(self, client_id: &str) -> Self {
        Self { client_id: Str::from(client_id), ..self }
    }

    /// Sends a request and does not wait for its answer. Answers the correlation id.
    ///
    /// # Panics
    /// The request has no encoding in this version, or the connection is gone.
    pub async fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.correlation_id += 1;
        let client_id = Some(self.client_id.clone());
        let slices = encode_request_frame(version, self.correlation_id, client_id, request).expect("encodes");
        let frame: BytesMut = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.send_bytes(&frame).await;
        self.correlation_id
    }

    /// Sends bytes as they are.
    ///
    /// # Panics
    /// The connection is gone.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the connection takes bytes");
    }

    /// Sends a frame with this body, whatever it is.
    ///
    /// # Panics
    /// The connection is gone.
    pub async fn send_frame(&mut self, body: &[u8]) {
        let size = i32::try_from(body.len()).expect("a small frame");
        let mut frame = size.to_be_bytes().to_vec();
        frame.extend_from_slice(body);
        self.send_bytes(&frame).await;
    }

    /// Receives a frame, without its size prefix.
    ///
    /// # Panics
    /// None comes in time, or the connection is closed.
    pub async fn receive_frame(&mut self) -> Bytes {
        let receiving = async {
            let size = self.stream.read_i32().await.expect("a frame");
            let mut frame = vec![0; usize::try_from(size).expect("a size")];
            self.stream.read_exact(&mut frame).await.expect("the whole frame");
            Bytes::from(frame)
        };
        tokio::time::timeout(ANSWER_WAIT_MAX, receiving).await.expect("an answer in time")
    }

    /// Receives the answer to the request with this correlation id, which must be the next one.
    ///
    /// # Panics
    /// Another answer comes, or one that does not decode.
    pub async fn receive<R: Request>(&mut self, version: i16, correlation_id: i32) -> R::Response {
        let mut reader = Reader::new(self.receive_frame().await);
        let header = ResponseHeader::decode(&mut reader, R::API, version).expect("a response header");
        assert_eq!(header.correlation_id, correlation_id, "answers come in the order of the requests");
        let response = R::Response::decode(&mut reader, version).expect("a response");
        reader.finish().expect("nothing behind it");
        response
    }

    /// Sends a request and receives its answer.
    ///
    /// # Panics
    /// As [`Self::send`] and [`Self::receive`].
    pub async fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let id = self.send(version, request).await;
        self.receive::<R>(version, id).await
    }

    /// Waits until the broker closes the connection; what it sends before that is answered.
    ///
    /// # Panics
    /// It does not close in time.
    pub async fn closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let reading = async {
            // A reset is as closed as an end.
            let _ = self.stream.read_to_end(&mut rest).await;
        };
        tokio::time::timeout(ANSWER_WAIT_MAX, reading).await.expect("the broker closes the connection");
        rest
    }

    /// Ends the sending half: the broker sees the end of the requests.
    ///
    /// # Panics
    /// The connection is gone.
    pub async fn finish_sending(&mut self) {
        self.stream.shutdown().await.expect("the connection is there");
    }

    /// The next answer's time, and the answer.
    ///
    /// # Panics
    /// As [`Self::call`].
    #[allow(clippy::disallowed_methods, reason = "tests against a real socket measure real time")]
    pub async fn timed_call<R: Request>(&mut self, version: i16, request: &R) -> (Duration, R::Response) {
        let before = Instant::now();
        let response = self.call(version, request).await;
        (before.elapsed(), response)
    }

    /// Creates a topic with these settings.
    ///
    /// # Panics
    /// It is not created.
    pub async fn create_topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        let topic = CreatableTopic {
            name: Str::from(name),
            num_partitions: partitions,
            replication_factor: 1,
            configs: configs
                .iter()
                .map(|(name, value)| CreatableTopicConfig {
                    name: Str::from(*name),
                    value: Some(Str::from(*value)),
                })
                .collect(),
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: false };
        let response = self.call(7, &request).await;
        assert_eq!(response.topics[0].error_code, 0, "{name}: {:?}", response.topics[0].error_message);
    }

    /// The metadata of one topic, or of all. Creates nothing.
    ///
    /// # Panics
    /// As [`Self::call`].
    pub async fn metadata(&mut self, topic: Option<&str>) -> MetadataResponse {
        let named =
            |name| MetadataRequestTopic { name: Some(Str::from(name)), ..MetadataRequestTopic::default() };
        let request = MetadataRequest {
            topics: topic.map(|name| vec![named(name)]),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        self.call(12, &request).await
    }

    /// Produces a batch to one partition with acks=all.
    ///
    /// # Panics
    /// As [`Self::call`].
    pub async fn produce(&mut self, topic: &str, partition: i32, records: Bytes) -> PartitionProduceResponse {
        let response = self.call(9, &produce_request(topic, partition, -1, records)).await;
        partition_of(response)
    }

    /// Fetches one partition without a session, and does not wait.
    ///
    /// # Panics
    /// As [`Self::call`].
    pub async fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> PartitionData {
        let request = fetch_request(&[(topic, partition, offset)]);
        partition_data(self.call(12, &request).await)
    }

    /// One partition of ListOffsets.
    ///
    /// # Panics
    /// As [`Self::call`].
    pub async fn list_offset(
        &mut self,
        version: i16,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        let partition =
            ListOffsetsPartition { partition_index: partition, current_leader_epoch: -1, timestamp };
        let topic = ListOffsetsTopic { name: Str::from(topic), partitions: vec![partition] };
        let request =
            ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
        let mut response = self.call(version, &request).await;
        response.topics.remove(0).partitions.remove(0)
    }
}

/// A request to produce one batch.
#[must_use]
pub fn produce_request(topic: &str, partition: i32, acks: i16, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: partition, records: Some(Records::from(records)) };
    ProduceRequest {
        acks,
        timeout_ms: 10_000,
        topic_data: vec![TopicProduceData {
            name: Str::from(topic),
            partition_data: vec![data],
            ..TopicProduceData::default()
        }],
        ..ProduceRequest::default()
    }
}

/// The only partition of an answer.
///
/// # Panics
/// There are more, or none.
#[must_use]
pub fn partition_of(mut response: ProduceResponse) -> PartitionProduceResponse {
    assert_eq!(response.responses.len(), 1);
    let mut topic = response.responses.remove(0);
    assert_eq!(topic.partition_responses.len(), 1);
    topic.partition_responses.remove(0)
}

/// A fetch without a session, of (topic, partition, offset), that is answered at once: 1 MiB each, 50 MiB in all.
#[must_use]
pub fn fetch_request(partitions: &[(&str, i32, i64)]) -> FetchRequest {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for (topic, partition, fetch_offset) in partitions {
        let partition = FetchPartition {
            partition: *partition,
            fetch_offset: *fetch_offset,
            partition_max_bytes: 1024 * 1024,
            ..FetchPartition::default()
        };
        match topics.last_mut() {
            Some(last) if last.topic == *topic => last.partitions.push(partition),
            _ => topics.push(FetchTopic {
                topic: Str::from(*topic),
                partitions: vec![partition],
                ..FetchTopic::default()
            }),
        }
    }
    FetchRequest {
        max_wait_ms: 0,
        min_bytes: 0,
        max_bytes: 50 * 1024 * 1024,
        topics,
        ..FetchRequest::default()
    }
}

/// The only partition of a fetch's answer.
///
/// # Panics
/// There are more, or none.
#[must_use]
pub fn partition_data(mut response: FetchResponse) -> PartitionData {
    assert_eq!((response.error_code, response.responses.len()), (0, 1));
    let mut topic = response.responses.remove(0);
    assert_eq!(topic.partitions.len(), 1);
    topic.partitions.remove(0)
}

/// A batch of records with these values, no keys, and timestamps from `timestamp` on, one millisecond apart.
///
/// # Panics
/// It cannot be built.
#[must_use]
pub fn batch(codec: Codec, timestamp: u64, values: &[&[u8]]) -> RawBatch {
    let mut builder = BatchBuilder::new(Offset::ZERO).codec(codec);
    for (millis, value) in (timestamp..).zip(values) {
        builder = builder.record(&record(millis, None, Some(value)));
    }
    builder.build().expect("a batch")
}

/// A batch of an idempotent producer.
///
/// # Panics
/// It cannot be built.
#[must_use]
pub fn idempotent_batch(
    producer: i64,
    epoch: i16,
    sequence: i32,
    timestamp: u64,
    values: &[&[u8]],
) -> RawBatch {
    let mut builder =
        BatchBuilder::new(Offset::ZERO).producer(ProducerId(producer), ProducerEpoch(epoch), sequence);
    for (millis, value) in (timestamp..).zip(values) {
        builder = builder.record(&record(millis, None, Some(value)));
    }
    builder.build().expect("a batch")
}

/// A record without headers.
#[must_use]
pub fn record<'a>(timestamp: u64, key: Option<&'a [u8]>, value: Option<&'a [u8]>) -> NewRecord<'a> {
    NewRecord { timestamp: Some(Timestamp::from_millis(timestamp)), key, value, headers: &[] }
}

/// The batches of a fetched records field.
///
/// # Panics
/// One is damaged, or cut.
#[must_use]
pub fn batches(data: &PartitionData) -> Vec<RawBatch> {
    let bytes = data.records.as_ref().map(Records::to_bytes).unwrap_or_default();
    split_batches(bytes, &BatchLimits::log()).map(|batch| batch.expect("a whole batch")).collect()
}

/// Offset and value of every fetched record.
///
/// # Panics
/// One cannot be read.
#[must_use]
pub fn values(data: &PartitionData) -> Vec<(i64, Vec<u8>)> {
    let mut values = Vec::new();
    for batch in batches(data) {
        let decoded = DecodedBatch::new(&batch, 64 * 1024 * 1024).expect("a batch that decodes");
        for record in decoded.iter() {
            let record = record.expect("a record");
            values.push((record.offset.to_wire(), record.value.unwrap_or_default().to_vec()));
        }
    }
    values
}

/// The start of a request frame, for frames that no encoder makes.
#[must_use]
pub fn request_header(api: ApiKey, version: i16, correlation_id: i32) -> Vec<u8> {
    let mut header = api.key().to_be_bytes().to_vec();
    header.extend_from_slice(&version.to_be_bytes());
    header.extend_from_slice(&correlation_id.to_be_bytes());
    header.extend_from_slice(&(-1_i16).to_be_bytes());
    if api.request_header_version(version) >= 2 {
        header.push(0);
    }
    header
}
