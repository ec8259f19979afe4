//! Bodies that are read piece by piece into buffers of the reader's: the pieces are those of the plan, whatever the network and
//! the store do to them, and connections are used again where that is safe.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidelog_object::{BodyPlan, BodySink, Corruption, Expected, GetError, ObjectClient};
use tidelog_runtime::{Buffers, Supervisor};
use tidelog_testkit::{Fault, Rule, S3Config, S3Proxy, S3Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{folder, memory, options, pattern, s3};

const PIECE_BYTES: u64 = 100_000;

/// Wants pieces of 100,000 bytes, counted from the object's beginning.
struct Planned {
    chunks: Vec<Bytes>,
    buffers: Arc<Buffers>,
}

impl Planned {
    fn new() -> Self {
        Self { chunks: Vec::new(), buffers: Arc::new(Buffers::new(4)) }
    }

    fn lengths(&self) -> Vec<usize> {
        self.chunks.iter().map(Bytes::len).collect()
    }
}

impl BodySink for Planned {
    fn take(&mut self, bytes: Bytes) {
        self.chunks.push(bytes);
    }

    fn cut(&mut self, bytes: u64) {
        self.chunks.cut(bytes);
    }

    fn plan(&self, range: &Range<u64>) -> Option<BodyPlan> {
        let mut pieces = Vec::new();
        let mut from = range.start;
        while from < range.end {
            let to = range.end.min((from / PIECE_BYTES + 1) * PIECE_BYTES);
            pieces.push(to - from);
            from = to;
        }
        Some(BodyPlan { pieces: pieces.into(), buffers: Arc::clone(&self.buffers) })
    }
}

async fn read(client: &ObjectClient, range: Range<u64>, object_bytes: u64) -> Result<Planned, GetError> {
    let mut sink = Planned::new();
    let expect = Expected { object_bytes, etag: None };
    client.get_range_into("a", range, expect, &mut sink).await?;
    Ok(sink)
}

#[tokio::test]
async fn pieces_come_as_planned_from_folders_and_over_http() {
    let bytes = pattern(1_000_000);
    let supervisor = Supervisor::for_test();
    let server = S3Server::start(&supervisor, S3Config::default(), &["bucket"]).await.unwrap();
    let place = tempfile::tempdir().unwrap();
    for client in [folder(place.path()).await, s3(&server.endpoint(), "bucket/p", options()).await] {
        client.put_new("a", vec![Bytes::from(bytes.clone())]).await.unwrap();
        for (range, lengths) in [
            (0..1_000_000_u64, vec![100_000; 10]),
            (250_000..460_001, vec![50_000, 100_000, 60_001]),
            (999_999..1_000_000, vec![1]),
        ] {
            let got = read(&client, range.clone(), 1_000_000).await.unwrap();
            assert_eq!(got.lengths(), lengths);
            let (from, to) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
            assert!(got.chunks.concat() == bytes[from..to]);
        }
    }
    // A store of another kind gives what it has.
    let client = memory().await;
    client.put_new("a", vec![Bytes::from(bytes.clone())]).await.unwrap();
    assert!(read(&client, 5..400_000, 1_000_000).await.unwrap().chunks.concat() == bytes[5..400_000]);
}

#[tokio::test]
async fn whatever_happens_to_a_body_its_bytes_come_whole_or_not_at_all() {
    let supervisor = Supervisor::for_test();
    let server = S3Server::start(&supervisor, S3Config::default(), &["bucket"]).await.unwrap();
    let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
    let client = s3(&proxy.endpoint(), "bucket/p", options()).await;
    let bytes = pattern(1_000_000);
    client.put_new("a", vec![Bytes::from(bytes.clone())]).await.unwrap();
    for fault in [
        Fault::Status(503, "SlowDown"),
        Fault::Delay(Duration::from_millis(20)),
        Fault::Reset,
        Fault::CutBody(0),
        Fault::CutBody(1),
        Fault::CutBody(150_000),
        Fault::CutBody(599_999),
        Fault::FreezeBody(150_000),
        Fault::ForwardThenDrop,
        Fault::IgnoreRange,
        Fault::MovedAnswer(10),
        Fault::WholeAnswer,
        Fault::Rate(1_000_000),
    ] {
        proxy.add(Rule::next("GET", 1, fault.clone()));
        let got = read(&client, 50_000..650_000, 1_000_000).await.unwrap();
        assert!(got.chunks.concat() == bytes[50_000..650_000], "{fault:?}");
        assert_eq!(client.free_requests(), 64);
    }
    let expect = Expected { object_bytes: 1, etag: None };
    let missing = client.get_range_into("b", 0..1, expect, &mut Planned::new()).await;
    assert!(matches!(missing, Err(GetError::NotFound { .. })));
    let error = read(&client, 0..1, 999).await.err().unwrap();
    let length = Corruption::Length { expected: 999, actual: 1_000_000 };
    assert!(matches!(&error, GetError::Corrupt { what, .. } if *what == length), "{error:?}");
}

/// What a scripted server does behind an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Waits,
    Closes,
    SaysThatItCloses,
    SendsMore,
}

/// Serves ranges of one object to whoever asks, and counts connections.
async fn scripted(supervisor: &Supervisor, object: Vec<u8>, behind: Behind) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, object) = (Arc::new(AtomicUsize::new(0)), Arc::new(object));
    let count = Arc::clone(&connections);
    supervisor
        .spawn("scripted server", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                while answer(&mut stream, &object, behind).await && behind != Behind::Closes {}
            }
        })
        .detach();
    (format!("http://{address}"), connections)
}

/// Answers one request; whether another one may follow.
async fn answer(stream: &mut TcpStream, object: &[u8], behind: Behind) -> bool {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => request.push(byte[0]),
            _ => return false,
        }
    }
    let request = String::from_utf8(request).unwrap().to_ascii_lowercase();
    let range = request.split_once("range: bytes=").unwrap().1.split_once("\r\n").unwrap().0;
    let (from, last) = range.split_once('-').unwrap();
    let (from, last): (usize, usize) = (from.parse().unwrap(), last.parse().unwrap());
    let connection = if behind == Behind::SaysThatItCloses { "Connection: close\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n{connection}\
         Content-Range: bytes {from}-{last}/{}\r\nContent-Length: {}\r\n\r\n",
        object.len(),
        last - from + 1,
    );
    // The head and the beginning of the body in one packet.
    let mut all = [head.as_bytes(), &object[from..=last]].concat();
    if behind == Behind::SendsMore {
        all.extend_from_slice(b"HTTP/1.1 206 Partial Content\r\n");
    }
    stream.write_all(&all).await.is_ok() && behind != Behind::SaysThatItCloses
}

#[tokio::test]
async fn a_connection_is_used_again_where_nothing_speaks_against_it() {
    let bytes = pattern(1_000_000);
    for (behind, expected) in
        [(Behind::Waits, 1), (Behind::Closes, 4), (Behind::SaysThatItCloses, 4), (Behind::SendsMore, 4)]
    {
        let supervisor = Supervisor::for_test();
        let (endpoint, connections) = scripted(&supervisor, bytes.clone(), behind).await;
        let client = s3(&endpoint, "bucket/p", options()).await;
        for range in [0..300_000, 5..6, 0..1_000_000, 123_456..999_999] {
            let got = read(&client, range.start..range.end, 1_000_000).await.unwrap();
            let (from, to) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
            assert!(got.chunks.concat() == bytes[from..to], "{behind:?} {range:?}");
        }
        assert_eq!(connections.load(Ordering::Relaxed), expected, "{behind:?}");
        assert_eq!(client.usage().failure_count, 0, "{behind:?}");
    }
}
