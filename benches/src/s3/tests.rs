//! The stand-in through a socket.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::*;

fn server() -> Server {
    Server::start(0, Knobs::default(), &["b".to_owned()]).unwrap()
}

/// Sends one request on a connection of its own; answers status, head and body.
fn ask(server: &Server, request: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let head = format!("{request}\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body).unwrap();
    let mut answer = Vec::new();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    socket.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer[end + 4..].to_vec())
}

#[test]
fn puts_ranges_and_conditions_are_as_s3s() {
    let server = server();
    assert_eq!(ask(&server, "PUT /b/k HTTP/1.1\r\nIf-None-Match: *", b"0123456789").0, 200);
    assert_eq!(ask(&server, "PUT /b/k HTTP/1.1\r\nIf-None-Match: *", b"x").0, 412);
    assert_eq!(ask(&server, "PUT /b/k HTTP/1.1\r\nIf-Match: \"other\"", b"x").0, 412);
    assert_eq!(ask(&server, "PUT /b/none HTTP/1.1\r\nIf-Match: \"other\"", b"x").0, 404);
    let (status, head, body) = ask(&server, "GET /b/k HTTP/1.1\r\nRange: bytes=2-4", b"");
    assert_eq!((status, body.as_slice()), (206, b"234".as_slice()));
    assert!(head.contains("Content-Range: bytes 2-4/10"), "{head}");
    assert_eq!(ask(&server, "GET /b/k HTTP/1.1\r\nRange: bytes=-3", b"").2, b"789");
    assert_eq!(ask(&server, "GET /b/k HTTP/1.1\r\nRange: bytes=10-", b"").0, 416);
    let (status, head, body) = ask(&server, "HEAD /b/k HTTP/1.1", b"");
    assert_eq!((status, body.len()), (200, 0));
    assert!(head.contains("Content-Length: 10"), "{head}");
    assert_eq!(ask(&server, "GET /b/none HTTP/1.1", b"").0, 404);
    assert_eq!(
        server.gets(),
        [
            Get { path: "b/k".to_owned(), start: 2, length: 3 },
            Get { path: "b/k".to_owned(), start: 7, length: 3 }
        ]
    );
}

#[test]
fn parts_are_joined_in_the_order_named() {
    let server = server();
    let (_, _, body) = ask(&server, "POST /b/big?uploads HTTP/1.1", b"");
    let id = list::elements(&String::from_utf8(body).unwrap(), "UploadId").remove(0);
    assert_eq!(ask(&server, &format!("PUT /b/big?partNumber=2&uploadId={id} HTTP/1.1"), b"world").0, 200);
    assert_eq!(ask(&server, &format!("PUT /b/big?partNumber=1&uploadId={id} HTTP/1.1"), b"hello ").0, 200);
    let parts = b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part><Part><PartNumber>2</PartNumber></Part>\
                  </CompleteMultipartUpload>";
    assert_eq!(ask(&server, &format!("POST /b/big?uploadId={id} HTTP/1.1"), parts).0, 200);
    assert_eq!(ask(&server, "GET /b/big HTTP/1.1", b"").2, b"hello world");
    assert_eq!(ask(&server, &format!("POST /b/big?uploadId={id} HTTP/1.1"), parts).0, 404);
    assert_eq!(ask(&server, &format!("DELETE /b/big?uploadId={id} HTTP/1.1"), b"").0, 404);
}

#[test]
fn listings_have_prefixes_pages_and_folders() {
    let server = server();
    for key in ["a/1", "a/2", "a/x/3", "b"] {
        server.put("b", key, bytes::Bytes::from_static(b"v"));
    }
    let list = |query: &str| {
        let (_, _, body) = ask(&server, &format!("GET /b?list-type=2{query} HTTP/1.1"), b"");
        String::from_utf8(body).unwrap()
    };
    assert_eq!(list::elements(&list("&prefix=a%2F"), "Key"), ["a/1", "a/2", "a/x/3"]);
    let folders = list("&prefix=a/&delimiter=/");
    assert_eq!(list::elements(&folders, "Key"), ["a/1", "a/2"]);
    assert!(folders.contains("<CommonPrefixes><Prefix>a/x/</Prefix></CommonPrefixes>"), "{folders}");
    let first = list("&max-keys=3");
    let token = list::elements(&first, "NextContinuationToken").remove(0);
    assert_eq!(list::elements(&list(&format!("&continuation-token={token}")), "Key"), ["b"]);
    assert_eq!(
        ask(&server, "POST /b?delete HTTP/1.1", b"<Delete><Object><Key>a/1</Key></Object></Delete>").0,
        200
    );
    assert_eq!(list::elements(&list("&prefix=a/"), "Key"), ["a/2", "a/x/3"]);
}

#[test]
fn faults_come_as_often_as_they_were_ordered() {
    let server = server();
    server.put("b", "k", bytes::Bytes::from(vec![7; 100_000]));
    assert_eq!(
        ask(&server, "POST /_bench/config HTTP/1.1", b"busy_per_mille=300\ncut_per_mille=200\n").0,
        200
    );
    let (mut busy, mut cut) = (0, 0);
    for _ in 0..1000 {
        let (status, _, body) = ask(&server, "GET /b/k HTTP/1.1", b"");
        busy += usize::from(status == 503);
        cut += usize::from(status == 200 && body.len() == 50_000);
    }
    assert_eq!((busy, cut), (300, 200));
    assert_eq!(ask(&server, "POST /_bench/config HTTP/1.1", b"speed=1").0, 400);
}

#[test]
fn rates_are_times_of_bytes() {
    assert_eq!(time_of(90_000_000, 90_000_000), Duration::from_secs(1));
    assert_eq!(time_of(64 * 1024, 65_536_000), Duration::from_millis(1));
    assert_eq!(list::http_time(1_796_061_600), "Mon, 30 Nov 2026 18:00:00 GMT");
    assert_eq!(list::iso_time(951_782_400), "2000-02-29T00:00:00.000Z");
}
