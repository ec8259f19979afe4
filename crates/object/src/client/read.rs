//! Reading: what is missing is asked for until all of it is here.
//!
//! **Owns** the exactness of a body over its tries. **Does not own** the public reads, nor one request's limits.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectMeta, ObjectStore};
use tidelog_runtime::{Buffers, DirectIo};
use tokio::runtime::Handle;

use super::{ETag, Inner};
use crate::{
    BodyPlan, Corruption, GetError, OutageCause,
    http::Exchange,
    metrics::RequestKind,
    transfer::{Ended, Tries, TryError, classify},
};

/// Pieces of a file that are read before the first of them is used: a change of threads costs as much as a small read.
const PIECES_AT_ONCE: usize = 4;

/// What a read asks for.
pub(super) struct Wanted {
    pub(super) range: Option<Range<u64>>,
    pub(super) bytes_max: u64,
}

/// Takes a body as it comes, so that what is complete of it is used before the rest is here.
pub trait BodySink: Send {
    /// Takes the next bytes.
    fn take(&mut self, bytes: Bytes);

    /// Takes back all but the first `bytes`: they are asked for again.
    fn cut(&mut self, bytes: u64);

    /// How `range` of the object is best cut, and where its pieces go; none: it is taken as it comes.
    fn plan(&self, range: &Range<u64>) -> Option<BodyPlan> {
        let _ = range;
        None
    }
}

/// Keeps the chunks as they come.
impl BodySink for Vec<Bytes> {
    fn take(&mut self, bytes: Bytes) {
        self.push(bytes);
    }

    fn cut(&mut self, bytes: u64) {
        let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.retain_mut(|chunk| {
            chunk.truncate(left);
            left -= chunk.len();
            !chunk.is_empty()
        });
    }
}

/// What a read has so far.
pub(super) struct Body<'a> {
    sink: &'a mut dyn BodySink,
    received: u64,
    object_bytes: Option<u64>,
    etag: Option<ETag>,
}

impl<'a> Body<'a> {
    /// Nothing yet of an object of which this much is known.
    pub(super) fn new(sink: &'a mut dyn BodySink, object_bytes: Option<u64>, etag: Option<ETag>) -> Self {
        Self { sink, received: 0, object_bytes, etag }
    }

    /// The range to ask for next; none for a whole object of which nothing is known yet.
    fn missing(&self, wanted: &Wanted) -> Option<Range<u64>> {
        match (&wanted.range, self.object_bytes) {
            (Some(range), _) => Some(range.start.saturating_add(self.received)..range.end),
            (None, Some(object_bytes)) if self.received > 0 => Some(self.received..object_bytes),
            (None, _) => None,
        }
    }

    /// Whether all that is asked for came.
    fn is_whole(&self, wanted: &Wanted) -> bool {
        let bytes = match &wanted.range {
            Some(range) => Some(range.end.saturating_sub(range.start)),
            None => self.object_bytes,
        };
        self.etag.is_some() && self.received > 0 && bytes == Some(self.received)
    }

    /// Takes back what a try added.
    fn cut(&mut self, to_received: u64) {
        self.sink.cut(to_received);
        self.received = to_received;
    }
}

impl Inner {
    /// Reads what is wanted and not in `body` yet, try after try; answers the object's ETag.
    pub(super) async fn fetch(
        &self,
        key: &str,
        wanted: &Wanted,
        mut body: Body<'_>,
    ) -> Result<ETag, GetError> {
        self.fetch_all(key, wanted, &mut body).await?;
        body.etag
            .ok_or_else(|| GetError::Retriable(super::one_try(key, "an answer without an ETag".to_owned())))
    }

    async fn fetch_all(&self, key: &str, wanted: &Wanted, body: &mut Body<'_>) -> Result<(), GetError> {
        let mut tries = self.tries(key, wanted.bytes_max);
        loop {
            let received = body.received;
            let exchange = Exchange::new();
            let left = wanted.bytes_max.saturating_sub(received);
            let work = self.read_once(key, wanted, body, &exchange);
            let first = tries.is_first().then_some(self.options.first_byte_timeout);
            let result = self.attempt_within(first, RequestKind::Get, 0, left, &exchange, work).await;
            self.metrics.received(body.received - received);
            let error = match result {
                Ok(()) => return Ok(()),
                // It broke off behind its last byte.
                Err(TryError::ShortBody(_) | TryError::Failed { .. }) if body.is_whole(wanted) => {
                    return Ok(());
                }
                Err(error) => error,
            };
            if matches!(error, TryError::WrongAnswer(_)) || body.etag.is_none() {
                body.cut(received);
            } else if body.received > received {
                self.metrics.resumed.inc();
                tries.progressed();
            }
            self.after_get(&mut tries, key, error).await?;
        }
    }

    /// Asks once for what is missing and adds what comes.
    async fn read_once(
        &self,
        key: &str,
        wanted: &Wanted,
        body: &mut Body<'_>,
        exchange: &Exchange,
    ) -> Result<(), TryError> {
        let path = self.path(key)?;
        let missing = body.missing(wanted);
        let mut options = GetOptions {
            range: missing.clone().map(GetRange::Bounded),
            if_match: body.etag.as_ref().map(|etag| etag.as_str().to_owned()),
            ..GetOptions::default()
        };
        options.extensions.insert(exchange.clone());
        if let Some(plan) = missing.as_ref().and_then(|missing| body.sink.plan(missing)) {
            options.extensions.insert(plan);
        }
        let found = self.backing.store.get_opts(&path, options).await;
        let found = found.map_err(|error| self.understood(&error, body, exchange))?;
        self.check_object(&found.meta, wanted, body)?;
        let asked = missing.unwrap_or(0..found.meta.size);
        if found.range != asked {
            return Err(TryError::WrongAnswer(format!("{:?} instead of {asked:?}", found.range)));
        }
        if asked.is_empty() {
            return Ok(());
        }
        if let GetResultPayload::File(file, _) = found.payload {
            return self.read_file(file, &asked, body, exchange).await;
        }
        let chunks =
            found.into_stream().map(|chunk| chunk.map_err(|error| TryError::ShortBody(error.to_string())));
        add_chunks(chunks, &asked, body).await
    }

    /// Reads a file by few positioned reads, instead of a stream of small ones.
    async fn read_file(
        &self,
        file: File,
        asked: &Range<u64>,
        body: &mut Body<'_>,
        exchange: &Exchange,
    ) -> Result<(), TryError> {
        let plan = body.sink.plan(asked);
        let pieces = cut(asked, plan.as_ref().map_or(&[], |plan| &plan.pieces));
        let file = Arc::new(file);
        let runtime = self.options.runtime.clone().unwrap_or_else(Handle::current);
        for few in pieces.chunks(PIECES_AT_ONCE) {
            let (Some(first), Some(last)) = (few.first(), few.last()) else { break };
            let (file, few) = (Arc::clone(&file), few.to_vec());
            let range = first.start..last.end;
            let buffers = plan.as_ref().map(|plan| Arc::clone(&plan.buffers));
            let permit = self.backing.room.read(exchange).await;
            let work = move || {
                let read = read_pieces(&file, few, buffers.as_ref());
                drop(permit);
                read
            };
            let read = runtime.spawn_blocking(work).await;
            let read = read.map_err(io::Error::other).and_then(|read| read);
            let chunks = read.map_err(unread)?;
            self.backing.room.note_moved(exchange, chunks.iter().map(Bytes::len).sum());
            add_chunks(futures::stream::iter(chunks.into_iter().map(Ok)), &range, body).await?;
        }
        Ok(())
    }

    fn understood(&self, error: &object_store::Error, body: &Body<'_>, exchange: &Exchange) -> TryError {
        match (classify(error, exchange.status()), &body.etag) {
            (TryError::Precondition, Some(etag)) => TryError::Corrupt(Corruption::ETag {
                expected: etag.to_string(),
                actual: "changed".to_owned(),
            }),
            (error, _) => error,
        }
    }

    /// Compares what the answer says of the object with what is known, and learns what is not.
    fn check_object(&self, meta: &ObjectMeta, wanted: &Wanted, body: &mut Body<'_>) -> Result<(), TryError> {
        match body.object_bytes {
            Some(expected) if expected != meta.size => {
                return Err(TryError::Corrupt(Corruption::Length { expected, actual: meta.size }));
            }
            None if meta.size > wanted.bytes_max => {
                let what = Corruption::TooLong { limit: wanted.bytes_max, actual: meta.size };
                return Err(TryError::Corrupt(what));
            }
            _ => {}
        }
        let Some(actual) = meta.e_tag.as_deref() else {
            return Err(TryError::WrongAnswer("an answer without an ETag".to_owned()));
        };
        match &body.etag {
            Some(expected) if expected.as_str() != actual => Err(TryError::Corrupt(Corruption::ETag {
                expected: expected.to_string(),
                actual: actual.to_owned(),
            })),
            Some(_) => Ok(()),
            None => {
                body.object_bytes = Some(meta.size);
                body.etag = Some(ETag::new(actual));
                Ok(())
            }
        }
    }

    /// Whether a read goes on after a failed try.
    pub(super) async fn after_get(
        &self,
        tries: &mut Tries<'_>,
        key: &str,
        error: TryError,
    ) -> Result<(), GetError> {
        let key = || key.to_owned();
        match error {
            TryError::NotFound => return Err(GetError::NotFound { key: key() }),
            TryError::Corrupt(what) => return Err(GetError::Corrupt { key: key(), what }),
            TryError::OutOfRange => {
                return Err(GetError::Corrupt { key: key(), what: Corruption::Shorter });
            }
            _ => {}
        }
        tries.after(error).await.map_err(|ended| match ended {
            // Whatever answers so, a proxy or the store, it says nothing of the object, and passes with its cause.
            Ended::Gave(failure) | Ended::WrongAnswer(failure) => GetError::Retriable(failure),
            Ended::Refused(refusal) => GetError::Refused(refusal),
        })
    }
}

/// Cuts a range at the planned lengths; what is behind them is one more piece.
fn cut(range: &Range<u64>, lengths: &[u64]) -> Vec<Range<u64>> {
    let mut pieces = Vec::new();
    let mut from = range.start;
    for length in lengths {
        let to = from.saturating_add(*length).min(range.end);
        if to > from {
            pieces.push(from..to);
        }
        from = to;
    }
    if from < range.end {
        pieces.push(from..range.end);
    }
    pieces
}

fn read_pieces(
    file: &File,
    pieces: Vec<Range<u64>>,
    buffers: Option<&Arc<Buffers>>,
) -> io::Result<Vec<Bytes>> {
    pieces
        .into_iter()
        .map(|piece| {
            let length = usize::try_from(piece.end - piece.start).map_err(io::Error::other)?;
            let Some(buffers) = buffers else {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, piece.start)?;
                return Ok(Bytes::from(bytes));
            };
            let bytes = DirectIo::read_into(buffers, file, piece.start, length)?;
            if bytes.len() < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
        })
        .collect()
}

fn unread(error: io::Error) -> TryError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => TryError::Corrupt(Corruption::Shorter),
        _ => TryError::failed(OutageCause::Folder, &error.to_string()),
    }
}

/// Adds the chunks of `asked` to the body.
async fn add_chunks(
    chunks: impl futures::Stream<Item = Result<Bytes, TryError>>,
    asked: &Range<u64>,
    body: &mut Body<'_>,
) -> Result<(), TryError> {
    let mut chunks = std::pin::pin!(chunks);
    let mut left = asked.end - asked.start;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        if length > left {
            return Err(TryError::WrongAnswer(format!("{} bytes more than asked for", length - left)));
        }
        left -= length;
        body.received = body.received.saturating_add(length);
        if !chunk.is_empty() {
            body.sink.take(chunk);
        }
    }
    match left {
        0 => Ok(()),
        _ => Err(TryError::ShortBody(format!("the body ended {left} bytes early"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_try_brought_in_vain_is_cut_off() {
        let mut chunks: Vec<Bytes> = Vec::new();
        chunks.take(Bytes::from_static(b"abc"));
        chunks.take(Bytes::from_static(b"defg"));
        chunks.take(Bytes::from_static(b"h"));
        chunks.cut(5);
        assert_eq!(chunks, [&b"abc"[..], b"de"]);
        chunks.cut(3);
        assert_eq!(chunks, [&b"abc"[..]]);
        chunks.cut(0);
        assert!(chunks.is_empty());
    }
}
