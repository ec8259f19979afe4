//! One connection to a broker: requests go out in order, answers come back in order.

use std::{collections::VecDeque, io, time::Duration};

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use tidelog_wire::{
    ApiKey, DecodeError, EncodeError, FRAME_PREFIX_BYTES, Message as _, Reader, Request, ResponseHeader, Str,
    encode_request_frame, frame_size,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// How the product's own client names itself.
const CLIENT_ID: &str = "tidelog";

/// The largest answer that is read: the largest fetch that this client asks for, and room for what is around it.
const RESPONSE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// How long a connection is tried, and an answer waited for beyond what the request itself allows.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a request got no answer.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The address does not answer.
    #[error("connect to {address}")]
    Connect {
        /// Which one.
        address: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The connection broke. The request may have taken effect.
    #[error("the connection to the broker broke")]
    Broken(#[from] io::Error),
    /// No answer within its time. The request may have taken effect.
    #[error("no answer from the broker within {} s", .0.as_secs())]
    Silent(Duration),
    /// The request has no form on the wire.
    #[error("encode a request")]
    Encode(#[from] EncodeError),
    /// The broker answered something else.
    #[error("decode the answer of {api:?}")]
    Decode {
        /// To which request.
        api: ApiKey,
        /// What is wrong.
        #[source]
        source: DecodeError,
    },
    /// What came is no frame.
    #[error("what answers does not speak the Kafka protocol: is it a node's Kafka listener?")]
    NotKafka(#[source] DecodeError),
    /// The answer belongs to another request.
    #[error("the answer carries correlation id {found}, {expected} was awaited")]
    Correlation {
        /// The oldest request without an answer.
        expected: i32,
        /// What came.
        found: i32,
    },
}

/// A request that was sent and is not yet answered.
#[derive(Debug, Clone, Copy)]
struct Pending {
    api: ApiKey,
    version: i16,
    correlation_id: i32,
}

/// A connection to one broker. Not cancel safe: after a dropped call it must not be used again.
#[derive(Debug)]
pub struct Connection {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    next_correlation_id: i32,
    pending: VecDeque<Pending>,
}

impl Connection {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// [`ConnectionError::Connect`]; nothing was sent.
    pub async fn open(address: &str) -> Result<Self, ConnectionError> {
        let refused = |source| ConnectionError::Connect { address: address.to_owned(), source };
        let stream = match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(connected) => connected.map_err(refused)?,
            Err(_) => return Err(refused(io::ErrorKind::TimedOut.into())),
        };
        stream.set_nodelay(true).map_err(refused)?;
        let (reader, writer) = stream.into_split();
        Ok(Self { reader, writer, next_correlation_id: 0, pending: VecDeque::new() })
    }

    /// Requests that were sent and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Sends a request whose answer is taken later, in order, by [`Connection::receive`].
    ///
    /// # Errors
    /// The request may have taken effect where the connection broke.
    pub async fn send<R: Request>(&mut self, version: i16, request: &R) -> Result<(), ConnectionError> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1);
        let slices =
            encode_request_frame(version, correlation_id, Some(Str::from_static(CLIENT_ID)), request)?;
        for slice in slices {
            self.writer.write_all(&slice).await?;
        }
        self.pending.push_back(Pending { api: R::API, version, correlation_id });
        Ok(())
    }

    /// Takes the answer to the oldest request, which must be an `R`.
    ///
    /// # Errors
    /// As [`Connection::call`].
    ///
    /// # Panics
    /// Where no request of this kind is the oldest one: a mistake of the caller.
    pub async fn receive<R: Request>(&mut self, wait: Duration) -> Result<R::Response, ConnectionError> {
        let pending = self.pending.pop_front().expect("an answer is awaited only after a request");
        assert_eq!(pending.api, R::API, "answers come in the order of the requests");
        let wait = wait + PATIENCE;
        let body = match tokio::time::timeout(wait, self.read_frame()).await {
            Ok(frame) => frame?,
            Err(_) => return Err(ConnectionError::Silent(wait)),
        };
        let wrong = |source| ConnectionError::Decode { api: pending.api, source };
        let mut reader = Reader::new(body);
        let header = ResponseHeader::decode(&mut reader, pending.api, pending.version).map_err(wrong)?;
        if header.correlation_id != pending.correlation_id {
            return Err(ConnectionError::Correlation {
                expected: pending.correlation_id,
                found: header.correlation_id,
            });
        }
        R::Response::decode(&mut reader, pending.version).map_err(wrong)
    }

    /// Sends a request and takes its answer, `wait` being the time that the request itself asks the broker to take at
    /// most.
    ///
    /// # Errors
    /// Where the broker is away or answers nonsense. The request may have taken effect.
    pub async fn call<R: Request>(
        &mut self,
        version: i16,
        request: &R,
        wait: Duration,
    ) -> Result<R::Response, ConnectionError> {
        self.send(version, request).await?;
        self.receive::<R>(wait).await
    }

    async fn read_frame(&mut self) -> Result<Bytes, ConnectionError> {
        let mut prefix = [0; FRAME_PREFIX_BYTES];
        self.reader.read_exact(&mut prefix).await?;
        let size = frame_size(prefix, RESPONSE_BYTES_MAX).map_err(ConnectionError::NotKafka)?;
        let mut frame = BytesMut::with_capacity(size);
        let mut limited = (&mut self.reader).take(u64::try_from(size).unwrap_or(u64::MAX));
        while limited.read_buf(&mut frame).await? > 0 {}
        if frame.len() < size {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(frame.freeze())
    }
}
