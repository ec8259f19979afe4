//! One connection to a broker.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use tidelog_wire::{Message as _, Reader, Request, ResponseHeader, Str, encode_request_frame};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::PATIENCE;

/// An answer is at most this large.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Where requests go.
pub(super) struct Sending {
    half: OwnedWriteHalf,
    correlation_id: i32,
}

/// Where answers come from, in the order of the requests.
pub(super) struct Receiving {
    half: BufReader<OwnedReadHalf>,
}

/// Both.
pub(super) struct Connection {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
}

impl Connection {
    pub(super) async fn open(broker: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(broker).await.with_context(|| format!("connect to {broker}"))?;
        socket.set_nodelay(true)?;
        let (receiving, sending) = socket.into_split();
        Ok(Self {
            sending: Sending { half: sending, correlation_id: 0 },
            // Answers are small, and there may be ten thousand connections.
            receiving: Receiving { half: BufReader::with_capacity(512, receiving) },
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn call<R: Request>(&mut self, version: i16, request: &R) -> Result<R::Response> {
        self.sending.send(version, request).await?;
        self.receiving.receive::<R>(version).await
    }
}

impl Sending {
    pub(super) async fn send<R: Request>(&mut self, version: i16, request: &R) -> Result<()> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let client = Some(Str::from_static("tidelog-bench"));
        let slices = encode_request_frame(version, self.correlation_id, client, request)
            .context("encode a request")?;
        let frame: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.half.write_all(&frame).await.context("send a request")
    }
}

impl Receiving {
    pub(super) async fn receive<R: Request>(&mut self, version: i16) -> Result<R::Response> {
        let frame =
            tokio::time::timeout(PATIENCE, self.frame()).await.context("no answer came in time")??;
        let mut reader = Reader::new(frame);
        ResponseHeader::decode(&mut reader, R::API, version).context("the answer's header")?;
        R::Response::decode(&mut reader, version).context("the answer")
    }

    async fn frame(&mut self) -> Result<Bytes> {
        let size = usize::try_from(self.half.read_i32().await.context("the connection ended")?)?;
        if size > ANSWER_BYTES_MAX {
            bail!("an answer of {size} bytes");
        }
        let mut frame = vec![0; size];
        self.half.read_exact(&mut frame).await.context("the connection ended")?;
        Ok(Bytes::from(frame))
    }
}
