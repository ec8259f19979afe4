//! One connection: its requests, one after another.

use std::{
    io::{self, Write as _},
    net::TcpStream,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    Counts, Get, Knobs, State,
    faults::{self, Fate},
    http::{Answer, Connection, Head},
    list, lock,
    objects::{Bucket, Refusal},
    sleep_until, time_of,
};

/// A paced body is sent in pieces of this size: 0.7 ms at 90 MB/s.
const PIECE_BYTES: usize = 64 * 1024;

/// An answer up to this size goes out in one write with its head.
const SMALL_BYTES: usize = 32 * 1024;

/// Ranged reads that are remembered: 2 GiB in pieces of 64 KiB twice over.
const GETS_MAX: usize = 65_536;

/// A request that hangs is given up after this, so that no thread stays for ever.
const HANG_MAX: Duration = Duration::from_secs(600);

/// Counts a GET as running, and its time, as long as it lives.
struct Running<'a> {
    counts: &'a Counts,
    begun: Instant,
}

impl<'a> Running<'a> {
    fn start(state: &'a State) -> Self {
        let now = state.counts.gets_now.fetch_add(1, Ordering::Relaxed) + 1;
        state.counts.gets_at_once_max.fetch_max(now, Ordering::Relaxed);
        Self { counts: &state.counts, begun: Instant::now() }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.counts.gets_now.fetch_sub(1, Ordering::Relaxed);
        let took = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counts.gets_busy_us.fetch_add(took, Ordering::Relaxed);
    }
}

pub(super) fn serve(state: &State, socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut connection = Connection::new(socket);
    while let Some(head) = connection.head()? {
        if head.path.starts_with("/_bench/") {
            let body = read_body(state, &mut connection, &head, None)?;
            let answer = control(state, &head, &body);
            send(state, &mut connection, &answer, &Knobs::default(), Fate::Served)?;
            continue;
        }
        let knobs = lock(&state.knobs).clone();
        state.counts.requests.fetch_add(1, Ordering::Relaxed);
        let is_get = head.method == "GET" && head.query.is_empty();
        let _running = is_get.then(|| Running::start(state));
        let body = read_body(state, &mut connection, &head, knobs.connection_rate)?;
        let fate = faults::next(state, &knobs, is_get);
        if fate == Fate::Hang {
            thread::sleep(HANG_MAX);
            return Ok(());
        }
        if !knobs.first_byte.is_zero() {
            thread::sleep(knobs.first_byte);
        }
        let mut answer =
            if fate == Fate::Busy { Answer::error(503, "SlowDown") } else { respond(state, &head, body) };
        if head.method == "HEAD" {
            answer.length = Some(answer.length.unwrap_or(answer.body.len() as u64));
            answer.body = Bytes::new();
        }
        send(state, &mut connection, &answer, &knobs, fate)?;
        if fate == Fate::Cut || head.closes() {
            return Ok(());
        }
    }
    Ok(())
}

fn read_body(
    state: &State,
    connection: &mut Connection,
    head: &Head,
    rate: Option<u64>,
) -> io::Result<Bytes> {
    let length = usize::try_from(head.body_bytes()?).map_err(|_| io::ErrorKind::InvalidData)?;
    if length == 0 {
        return Ok(Bytes::new());
    }
    if head.header("expect").is_some() {
        connection.expect_continue()?;
    }
    let begun = Instant::now();
    let mut body = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let end = if rate.is_some() { length.min(filled + PIECE_BYTES) } else { length };
        filled += connection.read_body(&mut body[filled..end])?;
        if let Some(rate) = rate {
            sleep_until(begun + time_of(filled as u64, rate));
        }
    }
    state.counts.bytes_in.fetch_add(length as u64, Ordering::Relaxed);
    Ok(Bytes::from(body))
}

fn send(
    state: &State,
    connection: &mut Connection,
    answer: &Answer,
    knobs: &Knobs,
    fate: Fate,
) -> io::Result<()> {
    let mut head = answer.head(&list::http_time(state.wall_seconds()));
    let socket = &mut connection.socket;
    let body =
        if fate == Fate::Cut { answer.body.slice(..answer.body.len() / 2) } else { answer.body.clone() };
    state.counts.bytes_out.fetch_add(body.len() as u64, Ordering::Relaxed);
    if body.len() <= SMALL_BYTES {
        head.extend_from_slice(&body);
        return socket.write_all(&head);
    }
    socket.write_all(&head)?;
    if knobs.connection_rate.is_none() && knobs.total_rate.is_none() {
        return socket.write_all(&body);
    }
    let begun = Instant::now();
    let mut sent = 0;
    for piece in body.chunks(PIECE_BYTES) {
        sent += piece.len() as u64;
        let own = knobs.connection_rate.map(|rate| begun + time_of(sent, rate));
        let line = knobs.total_rate.map(|rate| state.take_line(time_of(piece.len() as u64, rate)));
        if let Some(turn) = own.max(line) {
            sleep_until(turn);
        }
        socket.write_all(piece)?;
    }
    Ok(())
}

fn control(state: &State, head: &Head, body: &Bytes) -> Answer {
    match (head.method.as_str(), head.path.as_str()) {
        ("GET", "/_bench/stats") => Answer::document(200, state.stats()),
        ("GET", "/_bench/gets") => {
            let lines = lock(&state.gets)
                .iter()
                .map(|get| format!("{} {} {}\n", get.path, get.start, get.length))
                .collect();
            Answer::document(200, lines)
        }
        ("POST", "/_bench/reset") => {
            state.reset();
            Answer::empty(200)
        }
        ("POST", "/_bench/config") => {
            let mut knobs = lock(&state.knobs).clone();
            let text = String::from_utf8_lossy(body);
            for line in text.lines().filter(|line| !line.trim().is_empty()) {
                let (name, value) = line.split_once('=').unwrap_or((line, ""));
                if let Err(wrong) = knobs.set(name, value) {
                    return Answer::document(400, wrong);
                }
            }
            *lock(&state.knobs) = knobs;
            Answer::empty(200)
        }
        _ => Answer::error(404, "NoSuchKey"),
    }
}

fn respond(state: &State, head: &Head, body: Bytes) -> Answer {
    if head.header("x-amz-content-sha256").is_some_and(|content| content.starts_with("STREAMING-")) {
        return Answer::error(501, "NotImplemented");
    }
    let path = head.path.trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    if key.is_empty() {
        return respond_bucket(state, head, bucket, &body);
    }
    if let Some(answer) = respond_upload(state, head, bucket, key, &body) {
        return answer;
    }
    match head.method.as_str() {
        "GET" | "HEAD" => get(state, head, bucket, key),
        "PUT" => put(state, head, bucket, key, body),
        "DELETE" => {
            state.counts.deletes.fetch_add(1, Ordering::Relaxed);
            lock(&state.objects).remove(bucket, key);
            Answer::empty(204)
        }
        _ => Answer::error(501, "NotImplemented"),
    }
}

fn respond_bucket(state: &State, head: &Head, name: &str, body: &Bytes) -> Answer {
    let mut objects = lock(&state.objects);
    let method = head.method.as_str();
    if method == "PUT" && head.query.is_empty() {
        return match objects.buckets.insert(name.to_owned(), Bucket::default()) {
            None => Answer::empty(200),
            Some(existing) => {
                objects.buckets.insert(name.to_owned(), existing);
                Answer::error(409, "BucketAlreadyOwnedByYou")
            }
        };
    }
    let Some(bucket) = objects.buckets.get_mut(name) else {
        return Answer::error(404, "NoSuchBucket");
    };
    if head.query_value("lifecycle").is_some() {
        return match (method, &bucket.lifecycle) {
            ("PUT", _) => {
                bucket.lifecycle = Some(body.clone());
                Answer::empty(200)
            }
            (_, Some(rules)) => Answer::document(200, String::from_utf8_lossy(rules).into_owned()),
            (_, None) => Answer::error(404, "NoSuchLifecycleConfiguration"),
        };
    }
    if method == "POST" && head.query_value("delete").is_some() {
        let keys = list::elements(&String::from_utf8_lossy(body), "Key");
        state.counts.deletes.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let mut deleted = String::new();
        for key in keys {
            bucket.objects.remove(&key);
            deleted.push_str(&format!("<Deleted><Key>{}</Key></Deleted>", list::escape(&key)));
        }
        return Answer::document(
            200,
            format!("<?xml version=\"1.0\"?><DeleteResult>{deleted}</DeleteResult>"),
        );
    }
    match method {
        "HEAD" => Answer::empty(200),
        "GET" if head.query_value("location").is_some() => {
            Answer::document(200, "<?xml version=\"1.0\"?><LocationConstraint/>".to_owned())
        }
        "GET" if head.query_value("versioning").is_some() => {
            Answer::document(200, "<?xml version=\"1.0\"?><VersioningConfiguration/>".to_owned())
        }
        "GET" => {
            state.counts.lists.fetch_add(1, Ordering::Relaxed);
            Answer::document(200, list::page(head, name, bucket))
        }
        _ => Answer::error(501, "NotImplemented"),
    }
}

/// The requests of multipart uploads; `None` where it is another request.
fn respond_upload(state: &State, head: &Head, bucket: &str, key: &str, body: &Bytes) -> Option<Answer> {
    let mut objects = lock(&state.objects);
    let method = head.method.as_str();
    if method == "POST" && head.query_value("uploads").is_some() {
        if !objects.buckets.contains_key(bucket) {
            return Some(Answer::error(404, "NoSuchBucket"));
        }
        let id = objects.begin_upload(bucket, key);
        return Some(Answer::document(
            200,
            format!(
                "<?xml version=\"1.0\"?><InitiateMultipartUploadResult><Bucket>{}</Bucket><Key>{}</Key><UploadId>{id}</UploadId>\
                 </InitiateMultipartUploadResult>",
                list::escape(bucket),
                list::escape(key)
            ),
        ));
    }
    let id = head.query_value("uploadId")?;
    let none = || Answer::error(404, "NoSuchUpload");
    Some(match method {
        "PUT" => {
            state.counts.puts.fetch_add(1, Ordering::Relaxed);
            let number = head.query_value("partNumber").and_then(|number| number.parse().ok())?;
            objects
                .put_part(&id, number, body.clone())
                .map_or_else(none, |etag| Answer::empty(200).with("ETag", etag))
        }
        "POST" => {
            if let Err(refusal) = conditions(&objects, head, bucket, key) {
                return Some(refusal);
            }
            let text = String::from_utf8_lossy(body);
            let numbers: Vec<u32> =
                list::elements(&text, "PartNumber").iter().filter_map(|number| number.parse().ok()).collect();
            match objects.complete_upload(&id, &numbers, state.wall_seconds()) {
                None => none(),
                Some(etag) => Answer::document(
                    200,
                    format!(
                        "<?xml version=\"1.0\"?><CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>",
                        list::escape(&etag)
                    ),
                ),
            }
        }
        "DELETE" => {
            if objects.abort_upload(&id) {
                Answer::empty(204)
            } else {
                none()
            }
        }
        _ => Answer::error(501, "NotImplemented"),
    })
}

fn conditions(objects: &super::Objects, head: &Head, bucket: &str, key: &str) -> Result<(), Answer> {
    let create = head.header("if-none-match").is_some();
    objects.check(bucket, key, create, head.header("if-match")).map_err(|refusal| match refusal {
        Refusal::NoBucket => Answer::error(404, "NoSuchBucket"),
        Refusal::NoKey => Answer::error(404, "NoSuchKey"),
        Refusal::Precondition => Answer::error(412, "PreconditionFailed"),
    })
}

fn put(state: &State, head: &Head, bucket: &str, key: &str, body: Bytes) -> Answer {
    state.counts.puts.fetch_add(1, Ordering::Relaxed);
    let mut objects = lock(&state.objects);
    if let Err(refusal) = conditions(&objects, head, bucket, key) {
        return refusal;
    }
    let etag = objects.put(bucket, key, body, state.wall_seconds());
    Answer::empty(200).with("ETag", etag)
}

fn get(state: &State, head: &Head, bucket: &str, key: &str) -> Answer {
    let found = {
        let objects = lock(&state.objects);
        if !objects.buckets.contains_key(bucket) {
            return Answer::error(404, "NoSuchBucket");
        }
        objects.find(bucket, key)
    };
    let Some(object) = found else { return Answer::error(404, "NoSuchKey") };
    if head.header("if-match").is_some_and(|etag| etag != object.etag) {
        return Answer::error(412, "PreconditionFailed");
    }
    let length = object.bytes.len();
    let range = match head.header("range") {
        None => 0..length,
        Some(text) => match parse_range(text, length) {
            Some(range) => range,
            None => {
                return Answer::error(416, "InvalidRange").with("Content-Range", format!("bytes */{length}"));
            }
        },
    };
    if head.method == "GET" {
        state.counts.get_requests.fetch_add(1, Ordering::Relaxed);
        let mut gets = lock(&state.gets);
        if gets.len() < GETS_MAX {
            let path = format!("{bucket}/{key}");
            gets.push(Get { path, start: range.start as u64, length: range.len() as u64 });
        }
    }
    let is_part = head.header("range").is_some();
    let mut answer = Answer::empty(if is_part { 206 } else { 200 })
        .with("ETag", object.etag)
        .with("Last-Modified", list::http_time(object.modified_seconds))
        .with("Accept-Ranges", "bytes");
    if is_part {
        let last = range.end.saturating_sub(1);
        answer = answer.with("Content-Range", format!("bytes {}-{last}/{length}", range.start));
    }
    answer.body = object.bytes.slice(range);
    answer
}

/// `bytes=from-to` of an object; `None` where it is not satisfiable.
fn parse_range(text: &str, length: usize) -> Option<std::ops::Range<usize>> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    if from.is_empty() {
        let last: usize = to.parse().ok()?;
        return (last > 0 && length > 0).then(|| length.saturating_sub(last)..length);
    }
    let from: usize = from.parse().ok()?;
    let end = if to.is_empty() { length } else { to.parse::<usize>().ok()?.saturating_add(1).min(length) };
    (from < end).then_some(from..end)
}
